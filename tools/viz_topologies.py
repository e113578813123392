"""The steps of `graphdist-viz --topology`: compiled for chips that are not here, with a report.

A step is lowered and compiled as `graphdist-compile` does it. A step that the compiler refuses as
too large has a report without a timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphdist.runtime.targets.topologies import Topology
from graphdist.tools.compile import sharding, strategy_for
from graphdist.tools.interrupts import ending_at_interrupts
from graphdist.tools.named_passes import with_passes
from graphdist.tools.targets import parse_settings
from graphdist.tools.viz_targets import VizTarget, trace_target
from graphdist.viz.program import program_of

__all__ = ["TopologyOptions", "load_for_topology"]


@dataclass(frozen=True)
class TopologyOptions:
    """The options of a compilation, as the command line has them."""

    shard_parameters: int | bool | None = None
    passes: str | None = None
    compiler: Sequence[str] = ()


def load_for_topology(
    name: str,
    topology: Topology,
    settings: Sequence[str],
    types: str,
    options: TopologyOptions,
    *,
    reports: bool,
) -> VizTarget:
    """Return a step lowered for a topology; with `reports` compiled, with the report on it."""
    with ending_at_interrupts("graphdist-viz"):
        strategy = strategy_for(topology, **sharding(options.shard_parameters))
        traced = trace_target(name, strategy, settings, types)
        lowered = with_passes(traced, options.passes).lower()
        report = None
        if reports:
            report = lowered.report(parse_settings(options.compiler) or None)
    program = replace(program_of(lowered), topology=topology, report=report)
    return VizTarget(program, lowered)
