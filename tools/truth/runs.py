"""Published training runs, and their steps compiled for chips that are not here.

The table is `tests/truth/published.json` of a checkout. A run is compiled ahead of time as a step
of `examples/aot_transformer.py`. That takes minutes to hours, so compiled modules are kept in
`tests/truth/modules`, each with the settings that it was compiled for.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any  # Any: JSON

from graphdist.errors import ArgumentError
from graphdist.program.stages import Lowered
from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.predicted_seconds import KernelFlops, kernels_of
from graphdist.runtime.module.timeline import predicted_turn
from graphdist.runtime.targets.chip_timing import ChipTiming
from graphdist.runtime.targets.chips import Chip
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.runtime.timing.graph_timeline import turn_of_graph
from graphdist.tools.compilation import StepOptions, chosen_for, lower_target

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path("tests/truth/published.json")
MODULES = Path("tests/truth/modules")
EXAMPLE = Path("examples/aot_transformer.py")


@dataclass(frozen=True)
class PublishedRun:
    """A row of the table: a step of `rows` of `length` tokens per chip took `seconds`.

    It ran on `slices` of the topology. Parameters are sharded over groups of `group` devices: if
    that is 0 over the devices of a slice, if it is 1 not at all. A replica has `cores` devices, and
    the rows of all of them.
    """

    row: int
    family: str
    model: str
    topology: str
    rows: int
    length: int
    seconds: float
    source: str
    recompute: str
    microbatches: int = 1
    slices: int = 1
    group: int = 0
    cores: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    not_expressed: str = ""
    note: str = ""

    @property
    def hardware(self) -> Topology:
        """Return the slices on which it ran."""
        return find_topology(self.topology, self.slices)

    @property
    def chip(self) -> Chip:
        """Return the kind of chip on which it ran."""
        return self.hardware.chip

    @property
    def program(self) -> dict[str, Any]:
        """Return the settings that determine the compiled module, as JSON."""
        # Only where a run has them, so that modules stay that were kept before there were any.
        slices = {"slices": self.slices} if self.slices > 1 else {}
        group = {"group": self.group} if self.group else {}
        cores = {"cores": self.cores} if self.cores > 1 else {}
        return {
            "model": self.model,
            "topology": self.topology,
            **slices,
            **group,
            **cores,
            "rows": self.rows,
            "length": self.length,
            "settings": dict(self.settings),
            "options": dict(self.options),
        }

    @property
    def title(self) -> str:
        """Return model, hardware and batch in words."""
        return f"{self.model}, {self.hardware}, {self.rows} x {self.length}"


@dataclass(frozen=True)
class CompiledRun:
    """A run's compiled module, the operations of its kernels, and the compiler's peak in bytes.

    The peak is 0 for modules that were kept without it.
    """

    run: PublishedRun
    module: CompiledModule
    kernels: KernelFlops
    peak_bytes: int

    def seconds(self, timing: ChipTiming) -> float:
        """Return the predicted seconds with these constants and the chip's clock."""
        rates = ChipRates(self.run.hardware, timing)
        return predicted_turn(self.module, rates, self.kernels).seconds


def read_table(path: Path) -> tuple[PublishedRun, ...]:
    """Return the rows of a table; raises `ArgumentError` if there is none."""
    hint = "run the command in a checkout, or name a table with --table"
    if not path.is_file():
        raise ArgumentError(f"there is no table of published runs {path}", hint=hint)
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (ValueError, KeyError) as error:
        raise ArgumentError(f"{path} is no table of published runs: {error}", hint=hint) from error
    return tuple(PublishedRun(**row) for row in rows)


def compiled_run(run: PublishedRun, folder: Path | None, *, again: bool = False) -> CompiledRun:
    """Return a run compiled ahead of time, from the folder if that has the module of this program.

    A newly compiled module is written to the folder. `again` compiles in any case.
    """
    kept = None if folder is None or again else kept_run(run, folder)
    if kept is not None:
        return kept
    text, kernels, peak = _compile(run)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        listed = [[[list(array) for array in key], list(cost)] for key, cost in kernels.items()]
        content = {"program": run.program, "module": text, "kernels": listed, "peak": peak}
        _file(run, folder).write_bytes(lzma.compress(json.dumps(content).encode()))
    return CompiledRun(run, CompiledModule(text), kernels, peak)


def kept_run(run: PublishedRun, folder: Path) -> CompiledRun | None:
    """Return a run whose module the folder keeps; None if it has none of this program."""
    file = _file(run, folder)
    read = json.loads(lzma.decompress(file.read_bytes())) if file.exists() else {}
    if read.get("program") != run.program:
        return None
    module, kernels = CompiledModule(read["module"]), _kernels(read["kernels"])
    return CompiledRun(run, module, kernels, read.get("peak", 0))


def _file(run: PublishedRun, folder: Path) -> Path:
    return folder / f"row{run.row}.json.xz"


def _kernels(listed: Any) -> KernelFlops:
    return {
        tuple((dtype, tuple(sizes)) for dtype, sizes in key): (str(cost[0]), int(cost[1]))
        for key, cost in listed
    }


def graph_seconds(run: PublishedRun) -> float:
    """Return the seconds of a run's step, predicted from its graph: nothing is compiled."""
    return turn_of_graph(lowered_run(run).graph, ChipRates.of(run.hardware)).seconds


def lowered_run(run: PublishedRun) -> Lowered:
    """Return the step of a run, which is not compiled."""
    rows = run.rows * run.cores // run.chip.devices
    settings = {"size": run.model, "batch": rows, "length": run.length}
    chosen = chosen_for(run.hardware, run.group or True, run.cores)
    return lower_target(
        f"{ROOT / EXAMPLE}:make_step", chosen, StepOptions({**settings, **run.settings})
    )


def _compile(run: PublishedRun) -> tuple[str, KernelFlops, int]:
    lowered = lowered_run(run)
    compiled = lowered.compile(run.options or None)
    peak = compiled.memory.peak_bytes
    return compiled.as_text("hlo"), kernels_of(lowered.graph), peak
