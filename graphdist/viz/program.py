"""The program that the formats show: its graph after each pass. One pass can be chosen by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any  # Any: JSON

from graphdist.errors import ArgumentError
from graphdist.ir.graph import Graph
from graphdist.passes.compared_plans import ComparedPlans
from graphdist.passes.servers.cut_step import graphs_of
from graphdist.program.stages import Compiled, FunctionStage, Lowered, Traced
from graphdist.quoted import did_you_mean
from graphdist.report.server_requests import ServerRequest
from graphdist.report.step_report import Report
from graphdist.runtime.targets.topologies import Topology

TRACE = "trace"
"""The name of the step whose graph is the traced graph, before all passes."""


@dataclass(frozen=True)
class ShownStep:
    """A graph, and the name of the pass that returned the graph: `name:2` for its second run."""

    name: str
    graph: Graph


@dataclass(frozen=True)
class ShownProgram:
    """The graphs of a compilation, in order; at least one.

    For parameter servers, `others` has the graphs that run beside the graph of the last step: the
    worker's reads of rows, and each update of the servers once. With `topology` the estimated times
    of nodes on its chips are shown, with `report` the memory and time that the program needs.
    `servers` is what a worker requests of parameter servers, `plans` what the step's plan was
    compared with.

    If `compares`, the steps are two programs, an earlier and a later one, and `earlier_report` is
    the report on the earlier program as JSON.
    """

    steps: tuple[ShownStep, ...]
    others: tuple[ShownStep, ...] = ()
    topology: Topology | None = None
    report: Report | None = None
    servers: tuple[ServerRequest, ...] = ()
    plans: ComparedPlans | None = None
    compares: bool = False
    earlier_report: Mapping[str, Any] | None = None

    @property
    def graph(self) -> Graph:
        """Return the graph of the last step."""
        return self.steps[-1].graph

    @property
    def all_steps(self) -> tuple[ShownStep, ...]:
        """Return the steps, and after them `others`."""
        return (*self.steps, *self.others)

    def step(self, name: str, *, first: bool = False) -> ShownStep:
        """Return the step with a name. "last" means the last of `steps`.

        If a pass runs several times, "simplify:2" means its second run, and "simplify" its last
        run, or its first run if `first`. Raises `ArgumentError` for a name that no step has.
        """
        if name == "last":
            return self.steps[-1]
        for step in self.all_steps if first else reversed(self.all_steps):
            if name in (step.name, step.name.partition(":")[0]):
                return step
        known = [step.name for step in self.all_steps]
        runs = f"{name.partition(':')[0]}:"
        near = [each for each in known if name and (name in each or each.startswith(runs))]
        hint = f"did you mean {' or '.join(near[:3])}?" if near else ""
        raise ArgumentError(
            f"there is no pass {name!r} in the {len(known)} steps of {self.graph.name!r}",
            hint=hint or did_you_mean(name, known, f"known: {', '.join(known)}"),
        )

    def only(self, name: str) -> ShownProgram:
        """Return a program of the step with a name alone. The last step keeps `others`."""
        step = self.step(name)
        return replace(self, steps=(step,), others=self.others if step is self.steps[-1] else ())


def program_of(shown: Graph | FunctionStage | ShownProgram) -> ShownProgram:
    """Return the program of a graph, or of a stage with all its passes."""
    if isinstance(shown, ShownProgram):
        return shown
    if isinstance(shown, Graph):
        return ShownProgram((ShownStep("graph", shown),))
    if not isinstance(shown, FunctionStage):
        raise ArgumentError(
            f"a {type(shown).__name__} is neither a graph nor a stage of a function",
            hint="call function.trace(...) or function.trace(...).lower() first",
        )
    logical = shown.graph if isinstance(shown, Traced) else shown.logical
    first = (ShownStep(TRACE, logical),) if logical is not None else ()
    passes = tuple(ShownStep(record.pass_name, record.graph) for record in shown.history)
    others = () if shown.cut is None else graphs_of(shown.cut)
    return ShownProgram(
        with_run_numbers(first + passes) or (ShownStep("graph", shown.graph),),
        tuple(ShownStep(graph.name, graph) for graph in others if graph is not shown.graph),
        servers=shown.server_requests,
        plans=_traced(shown).plan.compared,
    )


def _traced(stage: FunctionStage) -> Traced:
    stage = stage.lowered if isinstance(stage, Compiled) else stage
    stage = stage.traced if isinstance(stage, Lowered) else stage
    assert isinstance(stage, Traced), f"{stage} is no stage of a function"
    return stage


def with_run_numbers(steps: tuple[ShownStep, ...]) -> tuple[ShownStep, ...]:
    """Return the steps, with ":1", ":2", ... appended to the name of a pass with several runs."""
    runs = Counter(step.name for step in steps)
    numbers = {name: count(1) for name in runs}
    return tuple(
        replace(step, name=f"{step.name}:{next(numbers[step.name])}")
        if runs[step.name] > 1
        else step
        for step in steps
    )
