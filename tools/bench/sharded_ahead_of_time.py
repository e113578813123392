"""Training in slices compiled ahead of time: ours beside the forms by hand, in one table.

    python -m graphdist.tools.bench.sharded_ahead_of_time v5e:16x16 --size llama2-7b
    python -m graphdist.tools.bench.sharded_ahead_of_time v5e:4x4 --forms "ours, in full"

The step is from examples/aot_transformer.py. A line has the peak of a chip and the ratio of ours
to it, what a chip sends in a step if collectives go around a ring, the collectives that run in a
step, and for each loop how many collectives of its body nothing overlaps. Sizes of several billion
parameters take minutes and gigabytes each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: the example's module and settings

import jax

from graphdist.errors import ArgumentError, DeviceMemoryError
from graphdist.report.amounts import size_text, table
from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.schedule import exposed_by_loop
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.tools.bench.measurement import Module, module_of
from graphdist.tools.bench.sharded_by_hand import FORMS
from graphdist.tools.compilation import StepOptions, chosen_for, lower_target, strategy_for
from graphdist.tools.console import console_tool
from graphdist.tools.steps import parse_settings
from graphdist.tools.targets import load_factory, prepare_command
from graphdist.tracing.user_lines import here

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "aot_transformer.py"

OURS = {"ours, in slices": True, "ours, in full": None}
"""Our forms, and whether parameters are sharded."""


@dataclass(frozen=True)
class CompiledForm:
    """What the compiler made of a form; `module` is None if it refused the program."""

    name: str
    module: Module | None
    exposed: tuple[int, ...]
    seconds: float
    refusal: str = ""


def compiled_form(name: str, topology: Topology, settings: dict[str, Any]) -> CompiledForm:
    """Compile a form of the step."""
    start = time.perf_counter()
    compile = _ours if name in OURS else _by_hand
    try:
        compiled = compile(name, topology, settings)
    except (DeviceMemoryError, jax.errors.JaxRuntimeError) as error:
        refusal = str(error).splitlines()[0]
        return CompiledForm(name, None, (), time.perf_counter() - start, refusal)
    module = module_of(compiled, topology.num_devices, topology.chip.platform)
    exposed = tuple(exposed_by_loop(CompiledModule(str(compiled.as_text()))).values())
    return CompiledForm(name, module, exposed, time.perf_counter() - start)


def _ours(name: str, topology: Topology, settings: dict[str, Any]) -> jax.stages.Compiled:
    chosen = chosen_for(topology, OURS[name])
    lowered = lower_target(f"{EXAMPLE}:make_step", chosen, StepOptions(settings))
    return lowered.compile().executable.compiled


def _by_hand(name: str, topology: Topology, settings: dict[str, Any]) -> jax.stages.Compiled:
    example = sys.modules[load_factory(f"{EXAMPLE}:make_step").__module__]
    devices = tuple(strategy_for(topology).devices.devices)
    return FORMS[name](example, settings, devices).compile()


def table_of(forms: Sequence[CompiledForm]) -> str:
    """Return the forms as a table; ratios are of our first form to each."""
    ours = next((form for form in forms if form.name in OURS), None)
    header = ("", "peak a chip", "ours is", "sent", "ours is", "collectives", "exposed in loops")
    rows = [header, *(_row(form, ours) for form in forms)]
    refused = [f"{form.name}: {form.refusal}" for form in forms if form.refusal]
    return "\n".join([*table(rows), *refused])


def _row(form: CompiledForm, ours: CompiledForm | None) -> tuple[str, ...]:
    module = form.module
    if module is None:
        return (form.name, "refused", "", "", "", "", "")
    return (
        form.name,
        size_text(module.peak_bytes),
        _ratio(form, ours, lambda module: module.peak_bytes),
        size_text(module.moved_bytes),
        _ratio(form, ours, lambda module: module.moved_bytes),
        ", ".join(f"{count} {kind}" for kind, count in module.collectives.items()),
        ", ".join(map(str, form.exposed)),
    )


def _ratio(form: CompiledForm, ours: CompiledForm | None, of: Callable[[Module], int]) -> str:
    if ours is None or form is ours or ours.module is None or form.module is None:
        return ""
    return f"{of(ours.module) / of(form.module):.2f}x" if of(form.module) else ""


@console_tool("sharded_ahead_of_time")
def main(arguments: Sequence[str] | None = None) -> int:
    """Compile the forms one after the other and print the table; returns 2 for invalid input."""
    names = [*OURS, *FORMS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("topology", help="such as v5e:16x16")
    parser.add_argument("--size", default="10m", help="of examples/aot_transformer.py")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--forms", action="append", help=f"of {'; '.join(names)}; all if none")
    options = parser.parse_args(arguments)
    prepare_command()
    topology = find_topology(options.topology)
    chosen = options.forms or names
    for name in chosen:
        if name not in names:
            raise ArgumentError(
                f"there is no form {name!r}",
                source=here(),
                hint=f"choose from {'; '.join(names)}",
            )
    settings = parse_settings(options.set)
    if "size" in settings:
        raise ArgumentError("--set size and --size both give the size: leave --set size out")
    settings["size"] = options.size
    forms = [compiled_form(name, topology, settings) for name in chosen]
    print(f"{options.size} on {topology}\n{table_of(forms)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
