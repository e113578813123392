"""`python -m graphdist.tools.measure`: time a step on the devices here, beside its prediction.

    python -m graphdist.tools.measure train.py:make_step --topology h200:1x1 --set batch=8
    python -m graphdist.tools.measure profile --report step.gdx

The first command runs the step on all devices of this machine. The target is a factory of a step,
as for `graphdist-compile`. Arguments and variables of which the factory gives only the shape have
random values. With `--topology`, the name of this machine's topology, the step is also compiled
ahead of time, as by `graphdist-compile`, and the predicted seconds and bytes are printed beside the
measured ones. The second command reads a profile that `jax.profiler` wrote (`profiles.py`), and
prints the exposed communication of the profile beside the exposed communication of a report.

Random floats are uniform from 0 to 0.02, because square roots of such floats are defined, and GPUs
need the usual time for such floats, but less for zeros. Random integers are below
`--integers-below`; give the number of words or classes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any  # Any: users' arguments and settings

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.config import at_least_cpu_devices
from graphdist.errors import ArgumentError
from graphdist.program.function import Function
from graphdist.report.amounts import fitted_lines, plural, size_text, time_text
from graphdist.report.json_records import json_of
from graphdist.report.step_report import Report
from graphdist.report.step_timeline import CollectiveTime, StepTimeline
from graphdist.runtime.targets.topologies import find_topology
from graphdist.state.variable import Variable
from graphdist.strategies.mirrored import MirroredStrategy
from graphdist.tools.chosen_strategy import ChosenStrategy
from graphdist.tools.compilation import (
    StepOptions,
    add_sharding,
    chosen_for,
    lower_target,
)
from graphdist.tools.console import CommandParser, console_tool, print_report
from graphdist.tools.given_options import given_options, refuse_unused
from graphdist.tools.profiles import MeasuredCollective, ProfiledStep, is_profile, profiled_step
from graphdist.tools.regression import read_report
from graphdist.tools.steps import StepCall, make_step, parse_settings
from graphdist.tools.targets import load_factory
from graphdist.values.specs import ArraySpec, PerReplicaSpec

HIGHEST = 0.02
_WARM_UP = 3


@dataclass(frozen=True)
class MeasuredStep:
    """The median seconds of a step, and the most bytes that a device held.

    `peak_bytes` is None where XLA does not count bytes, as on CPUs. The predicted seconds and bytes
    are None without a topology.
    """

    device: str
    devices: int
    steps: int
    seconds: float
    peak_bytes: int | None
    predicted_seconds: float | None = None
    predicted_bytes: int | None = None

    def __str__(self) -> str:
        lines = [
            f"{self.devices} x {self.device}, the median of {self.steps} steps",
            f"  step    {_beside(self.seconds, self.predicted_seconds, time_text)}",
        ]
        if self.peak_bytes is not None:
            lines.append(f"  memory  {_beside(self.peak_bytes, self.predicted_bytes, size_text)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return json_of(self)


def _beside(measured: float, predicted: float | None, written: Callable[[float], str]) -> str:
    if predicted is None:
        return f"{written(measured):>12}"
    error = f"{predicted / measured - 1:+.1%}" if measured else ""
    return f"{written(measured):>12} measured{written(predicted):>12} predicted  {error}"


def measure(strategy: MirroredStrategy, step: StepCall, steps: int, below: int) -> MeasuredStep:
    """Run a step on the devices of a strategy, and return its median time and its peak memory.

    Random integers are below `below`.
    """
    function, arguments = step
    with strategy.scope():
        fill_declared(function.trace(*arguments).variables, below)
        arrays = jax.tree.map(
            lambda leaf: _argument(leaf, strategy, below), arguments, is_leaf=_is_spec
        )
        seconds = []
        for _ in range(_WARM_UP + steps):
            start = time.perf_counter()
            jax.block_until_ready(function(*arrays))
            seconds.append(time.perf_counter() - start)
    devices = strategy.devices.devices
    counted = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in devices]
    peak = max(counted) if all(counted) else None
    return MeasuredStep(
        devices[0].device_kind, len(devices), steps, median(seconds[_WARM_UP:]), peak
    )


def fill_declared(variables: Sequence[Variable], below: int) -> None:
    """Give random values to the variables that were declared by their shapes."""

    def initialize(key: jax.Array) -> None:
        for index, variable in enumerate(variables):
            if isinstance(variable.storage.held, jax.ShapeDtypeStruct):
                own = jax.random.fold_in(key, index)
                variable.assign(_random(own, variable.shape, variable.dtype, below))

    Function(initialize)(jax.random.key(0))


def _random(key: jax.Array, shape: tuple[int, ...], dtype: Any, below: int) -> jax.Array:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.split(key, shape)
    if jnp.issubdtype(dtype, jnp.floating):
        return jax.random.uniform(key, shape, dtype, 0, HIGHEST)
    return jax.random.randint(key, shape, 0, below).astype(dtype)


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, PerReplicaSpec | ArraySpec | jax.ShapeDtypeStruct)


def _argument(leaf: Any, strategy: MirroredStrategy, below: int) -> Any:
    """Return a random value for a spec; return a leaf that is no spec unchanged."""
    if not _is_spec(leaf):
        return leaf

    def array(shape: tuple[int, ...]) -> Any:
        """Return a NumPy array, or an array of JAX if the elements are random keys."""
        made = _random(jax.random.key(len(shape)), shape, leaf.dtype, below)
        return made if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(made)

    if not isinstance(leaf, PerReplicaSpec):
        return array(tuple(leaf.shape))
    shapes = leaf.traced_shapes or ()
    return strategy.experimental_distribute_values_from_function(
        lambda context: array(shapes[min(context.replica_id_in_sync_group, len(shapes) - 1)])
    )


@dataclass(frozen=True)
class ComparedProfile:
    """A step in a profile, and the report of the step; None without a report."""

    step: ProfiledStep
    report: Report | None = None

    @property
    def timeline(self) -> StepTimeline | None:
        """Return the prediction; None without a report, or if the report has no prediction."""
        return self.report.timeline if self.report else None

    def to_json(self) -> dict[str, Any]:
        """Return the measured step as JSON, and the predicted timeline of the step."""
        return {**json_of(self.step), "predicted": self.timeline and json_of(self.timeline)}

    def __str__(self) -> str:
        step = self.step
        devices = plural(step.devices, "device")
        header = f"{step.module} on {devices}, the median of {step.runs} steps"
        lines = [self._line("step", "seconds")]
        lines += [self._line(name, name) for name in ("compute", "communication", "exposed")]
        return "\n".join([header, *lines, *self._collectives()])

    def _line(self, name: str, field: str) -> str:
        """Return the line of a figure. A timeline has no field for all communication."""
        predicted = getattr(self.timeline, field, None)
        return f"  {name:<13} {_beside(getattr(self.step, field), predicted, time_text)}"

    def _collectives(self) -> Iterator[str]:
        times = {each.name: each for each in (self.timeline.collectives if self.timeline else ())}
        in_graph = self.report.collectives if self.report else ()
        uses = {each.became.partition(",")[0]: each for each in in_graph}
        for each in self.step.collectives:
            text = f"{_exposed(each)} exposed"
            if each.name in times:
                text += f", {_exposed(times[each.name])} predicted"
            text += f"  {each.name}" + (f" x {each.runs}" if each.runs > 1 else "")
            use = uses.get(each.name)
            yield f"    {text}" + (f"  {use.title}, {use.place}" if use else "")


def _exposed(times: MeasuredCollective | CollectiveTime) -> str:
    return f"{time_text(times.exposed)} of {time_text(times.seconds)}"


def compared_profile(path: Path, report: str | None) -> ComparedProfile:
    """Return the step in a profile, beside the report in a file of a step or in JSON."""
    if report is None:
        return ComparedProfile(profiled_step(path))
    found = read_report(report)
    known = [each.name for each in found.module_collectives]
    return ComparedProfile(profiled_step(path, found.name, known), found)


def predicted(target: str, settings: dict[str, Any], chosen: ChosenStrategy) -> dict[str, Any]:
    """Return the predicted seconds and bytes of a step, by the names of fields of `MeasuredStep`.

    Raises `ArgumentError` for a module that has no timeline.
    """
    compiled = lower_target(target, chosen, StepOptions(settings)).compile()
    needed = compiled.report().needed_bytes
    return {"predicted_seconds": compiled.timeline.seconds, "predicted_bytes": needed}


@console_tool("measure")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = command_line()
    options = parser.parse_args(arguments)
    given, path = given_options(parser, options), Path(options.target)
    found: MeasuredStep | ComparedProfile
    if is_profile(path):
        read = "a profile" if options.report is None else "a profile with --report"
        refuse_unused(given, read, ["target", "report", "json"])
        found = compared_profile(path, options.report)
    else:
        refuse_unused(given, "a step", given - {"report"})
        with at_least_cpu_devices(1):
            found = _measured(options)
    if options.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        print_report(*fitted_lines(str(found).split("\n")))
    return 0


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add("target", help="file.py:make_step, module:make_step, or the folder of a profile")
    add("--report", metavar="FILE", help="of the step in a profile: step.gdx, or JSON")
    add("--topology", help="what this machine is, such as h200:1x1 or v5e:2x4")
    add("--steps", type=int, default=10, help="steps that are timed (default: 10)")
    add("--integers-below", type=int, default=10, metavar="N")
    add_sharding(parser)
    add("--set", action="append", default=[], metavar="NAME=VALUE")
    add("--json", action="store_true", help="print JSON")
    return parser


def _measured(options: argparse.Namespace) -> MeasuredStep:
    for name in ("steps", "integers_below"):
        if getattr(options, name) < 1:
            raise ArgumentError(f"--{name.replace('_', '-')} is below 1")
    settings = parse_settings(options.set)
    load_factory(options.target)  # first, since its program may set the number of devices
    strategy = MirroredStrategy(
        shard_parameters=options.shard_parameters, cores_per_replica=options.cores
    )
    expected: dict[str, Any] = {}
    if options.topology is not None:
        topology = find_topology(options.topology)
        here = len(strategy.devices.devices)
        if topology.num_devices != here:
            raise ArgumentError(
                f"{topology} has {topology.num_devices} devices, this machine has {here}",
                hint="name the topology of the accelerators that are here",
            )
        chosen = chosen_for(topology, options.shard_parameters, options.cores)
        expected = predicted(options.target, settings, chosen)
    step = make_step(options.target, strategy, settings)
    return replace(measure(strategy, step, options.steps, options.integers_below), **expected)


if __name__ == "__main__":
    sys.exit(main())
