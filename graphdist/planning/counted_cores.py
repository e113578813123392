"""Which dimensions of the variables the cores of a replica should hold shards of.

The choices are that of the program itself, and sets of axes (`variable_axes.py`). Each is lowered,
and its seconds and its peak are counted on the graph that one core runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphdist.passes.cores.variable_axes import VariableAxis, axis_sets, variable_axes
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.plans import identity_of
from graphdist.program.stages import Traced
from graphdist.report.step_report import Report


@dataclass(frozen=True, eq=False)
class CountedCores:
    """A choice of what cores shard, and what was counted for it.

    `axes` are those that are sharded; None follows the program.
    """

    traced: Traced
    axes: Sequence[VariableAxis] | None
    report: Report

    @property
    def seconds(self) -> float:
        """Return the predicted seconds of a step, by the graph."""
        timeline = self.report.timeline
        return float("inf") if timeline is None else timeline.seconds


def count_cores(traced: Traced, progress: Callable[[str], None]) -> list[CountedCores]:
    """Return the choices for a step, that of the program first."""
    found = [CountedCores(traced, None, traced.lower().estimate())]
    axes = variable_axes(infer_layouts(traced.graph), traced.graph.num_cores)
    for chosen in axis_sets(axes):
        plan = replace(
            traced.plan, cores=_dimensions(traced, chosen), graph=identity_of(traced.graph)
        )
        planned = traced.planned(plan)
        found.append(CountedCores(planned, chosen, planned.lower().estimate()))
        progress(f"{len(found)} choices of what cores shard counted")
    return found


def best_cores(choices: Sequence[CountedCores], memory_bytes: int) -> CountedCores:
    """Return the fastest choice that fits by its graph, else that with the smallest peak."""
    fitting = [each for each in choices if each.report.needed_bytes <= memory_bytes]
    if fitting:
        return min(fitting, key=lambda each: each.seconds)
    return min(choices, key=lambda each: each.report.needed_bytes)


def _dimensions(traced: Traced, axes: Sequence[VariableAxis]) -> Mapping[str, int | None]:
    own = {
        each.name: None
        for each in traced.graph.variables
        if each.core is not None or each.chooses_core
    }
    chosen = {name: along for axis in axes for name, along in axis.dimensions.items()}
    return {**own, **chosen}
