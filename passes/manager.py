"""Passes: what they are, and the one loop that runs them.

The contract of a pass:

1. it is a pure function from graph to graph, and looks at nothing else. Only `cut_updates` returns
   several graphs, those of a step with parameter servers; passes after it run on the worker's
   graphs;
2. the graph it is given keeps the verifier's invariants, and so must the graph it returns;
3. it returns the same object if it changes nothing, and it changes nothing in a graph that it has
   returned. So a pass that is in a pipeline twice is not run again if no other pass has changed the
   graph in between;
4. it states the stages that it takes, and the stage of its result if that stage is another one.

The loop checks the stages, times each pass, verifies what changed, and keeps every graph. When a
pass fails unexpectedly, the graph it was given is written to a file, so that the failure can be
replayed, and a note on the exception has the file's path. For an error about the user's program no
file is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from graphdist.ir.errors import DistributionError, ParseError, PlanError, TypeRuleError, VerifyError
from graphdist.ir.graph import Graph, Op, Stage
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques, print_graph
from graphdist.ir.verifier import verify
from graphdist.passes.servers.cut_step import CutStep, graphs_of

ANY_STAGE = (Stage.LOGICAL, Stage.PLACED, Stage.SPMD)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass with its name, the stages that it takes and the stage that it gives.

    If `gives` is None, the stage stays the same.
    """

    name: str
    run: Callable[[Graph], Graph | CutStep]
    takes: tuple[Stage, ...] = ANY_STAGE
    gives: Stage | None = None

    def __call__(self, graph: Graph) -> Graph | CutStep:
        """Return the graph after the pass; raises `VerifyError` for a stage it does not take."""
        if graph.stage not in self.takes:
            wanted = " or ".join(stage.value for stage in self.takes)
            raise VerifyError(
                f"pass {self.name!r} takes a {wanted} graph, this one is {graph.stage.value}",
                hint="a pass that changes the stage is missing from the pipeline, or in it twice",
            )
        result = self.run(graph)
        if not isinstance(result, Graph | CutStep):
            raise VerifyError(f"pass {self.name!r} returned {result!r}, not a graph")
        return result


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The run of one pass: its name, its seconds, and the step that it returned."""

    pass_name: str
    seconds: float
    step: Graph | CutStep

    @property
    def graph(self) -> Graph:
        """Return the graph of the step. If the step is cut, return the worker's graph."""
        return self.step.worker if isinstance(self.step, CutStep) else self.step

    @property
    def cut(self) -> CutStep | None:
        """Return the step if it is cut, else None."""
        return self.step if isinstance(self.step, CutStep) else None

    def __str__(self) -> str:
        header = f"# after {self.pass_name}, {self.seconds * 1000:.1f} ms"
        return f"{header}\n{self.step}"


def run_passes(
    graph: Graph,
    pipeline: Sequence[Pass],
    *,
    verifies: bool = True,
    reproducer_folder: Path | None = None,
) -> tuple[PassRecord, ...]:
    """Run the passes in order and return a record of each.

    With `verifies`, the graph after a pass is verified if the pass changed it. An error in a pass
    keeps its type, and names the pass and the graph: a `DistributionError`, `PlanError` or
    `TypeRuleError` in `where`, any other error in a note. For any other error the graph before the
    pass is also written to `reproducer_folder`, if one is given.
    """
    step: Graph | CutStep = graph
    history = []
    returned: dict[int, Graph | CutStep] = {}
    for entry in pipeline:
        # A pass that is in the pipeline twice has nothing to do on the step that it returned.
        start = time.perf_counter()
        if returned.get(id(entry.run)) is not step:
            step = run_on(partial(_checked, entry, verifies, reproducer_folder), step)
        returned[id(entry.run)] = step
        history.append(PassRecord(entry.name, time.perf_counter() - start, step))
    return tuple(history)


def run_on(run: Callable[[Graph], Graph | CutStep], step: Graph | CutStep) -> Graph | CutStep:
    """Return `step` after the pass `run`. In a cut step, the pass runs on the worker's graphs."""
    if isinstance(step, Graph):
        return run(step)

    def on_graph(graph: Graph) -> Graph:
        result = run(graph)
        assert isinstance(result, Graph), "a step is cut once"
        return result

    return step.on_worker(on_graph)


def _checked(
    entry: Pass, verifies: bool, reproducer_folder: Path | None, graph: Graph
) -> Graph | CutStep:
    """Return the verified graph after a pass; errors name the pass."""
    try:
        result = entry(graph)
        if verifies and result is not graph:
            for changed in graphs_of(result):
                verify(changed)
    except (DistributionError, PlanError, TypeRuleError) as error:
        error.where = error.where or f"in graph {graph.name!r}, pass {entry.name!r}"
        raise
    except Exception as error:
        error.add_note(f"in pass {entry.name!r} on graph {graph.name!r}")
        if reproducer_folder is not None:
            path = write_reproducer(graph, entry.name, reproducer_folder)
            error.add_note(f"the graph before the pass: {path} (graphdist.passes.manager.replay)")
        raise
    return result


def write_reproducer(graph: Graph, pass_name: str, folder: Path) -> Path:
    """Write the graph and the name of the pass that failed on it; return the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{graph.name}.{pass_name}.gd"
    missing = "".join(
        f"# parameter {i}: {' '.join(repr(value).split())}\n"
        for i, value in enumerate(opaques(graph))
    )
    path.write_text(f"# pass: {pass_name}\n{missing}{print_graph(graph)}\n")
    return path


def replay(
    path: Path, passes: Sequence[Pass], ops: Callable[[str], Op] | None = None
) -> Graph | CutStep:
    """Run the failing pass of a reproducer, which is one of `passes`, again on its graph.

    Placeholders replace parameters without a text form, which are lost in the file. Raises the
    errors of the pass, and `ParseError` for a file that names no pass.
    """
    text = path.read_text()
    header, _, _ = text.partition("\n")
    name = header.removeprefix("# pass: ")
    by_name = {entry.name: entry for entry in passes}
    if name not in by_name:
        raise ParseError(f"{path} does not begin with '# pass: NAME' of one of the passes")
    return by_name[name](parse(text, opaques=PLACEHOLDERS, ops=ops))
