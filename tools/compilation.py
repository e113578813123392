"""How the tools compile the step of a target: their options, its strategy, and its passes.

`--passes infer_layouts,place_variables,..` names passes of the step's pipeline for its
devices, with the options that they have there.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self  # Any: users' settings, options of strategies

from graphdist.errors import ArgumentError, PlanError
from graphdist.passes.plans import NO_PLAN, Plan
from graphdist.program.stages import Lowered, Traced
from graphdist.quoted import did_you_mean
from graphdist.runtime.files.artifact import LIMITS
from graphdist.runtime.targets.topologies import Topology
from graphdist.strategies.base import Strategy
from graphdist.strategies.mirrored import MirroredStrategy
from graphdist.strategies.tpu import TPUStrategy
from graphdist.tools.chosen_strategy import ChosenStrategy
from graphdist.tools.given_files import read_given
from graphdist.tools.steps import parse_settings, trace_target

COMPILATION = ("num_slices", "shard_parameters", "cores", "passes", "set", "args", "option", "plan")
"""The names of the options that `add_compilation_options` adds."""


def add_compilation_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for making a step and compiling it for a topology."""
    add = parser.add_argument
    add("--num-slices", type=int, default=1, help="slices of that topology (default: 1)")
    add_sharding(parser)
    add("--passes", help="the passes to run in place of the default ones: names with commas")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the step")
    types = "what a function takes: 'f32[256,784] i32[256]'"
    add("--args", default="", metavar="TYPES", help=types)
    add("--plan", metavar="FILE", help="the plan of the step: what --find-plan has written")
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of XLA")


def add_sharding(parser: argparse.ArgumentParser) -> None:
    """Add the options `--shard-parameters` and `--cores`, which a strategy takes."""
    over = "shard parameters over all devices, or over groups of this size"
    kind: dict[str, Any] = {"nargs": "?", "const": True, "default": False, "type": int}
    parser.add_argument("--shard-parameters", metavar="GROUP", help=over, **kind)
    cores = "devices of each replica (default: 1)"
    parser.add_argument("--cores", type=int, default=1, metavar="N", help=cores)


@dataclass(frozen=True)
class StepOptions:
    """The options of a step in a command line, except its target and its strategy."""

    settings: dict[str, Any] = field(default_factory=dict)
    types: str = ""
    passes: str | None = None
    compiler: dict[str, Any] | None = None
    plan: Plan = NO_PLAN

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """Return the options that `add_compilation_options` has added."""
        compiler = parse_settings(options.option) or None
        plan = NO_PLAN if options.plan is None else read_plan(options.plan)
        return cls(parse_settings(options.set), options.args, options.passes, compiler, plan)


def read_plan(path: str) -> Plan:
    """Return the plan in a file that `--find-plan` has written, or in the file of a step.

    Raises `ArgumentError` for a file that cannot be read, and `PlanError` for one without a plan.
    """
    content = read_given(Path(path), "plan.json", LIMITS["plan.json"])
    try:
        return Plan.from_json(content.decode(errors="replace"))
    except PlanError as error:
        error.where = f"in {path}"
        raise


def lower_target(target: str, chosen: ChosenStrategy, options: StepOptions) -> Lowered:
    """Return the step of a target after its passes, or after the passes that are named."""
    return traced_target(target, chosen, options).lower()


def traced_target(target: str, chosen: ChosenStrategy, options: StepOptions) -> Traced:
    """Return the step of a target with the passes, or the plan, that the options choose."""
    traced = trace_target(target, chosen, options.settings, options.types)
    if options.plan == NO_PLAN:
        return with_passes(traced, options.passes)
    if options.passes is not None:
        raise ArgumentError("--plan and --passes both choose what passes do: leave one out")
    return traced.planned(options.plan)


def strategy_for(topology: Topology, **options: Any) -> Strategy:
    """Return a strategy for a topology's devices, with these options of its class."""
    name, slices = topology.name, topology.num_slices
    if topology.chip.platform == "tpu":
        return TPUStrategy(topology=name, num_slices=slices, **options)
    return MirroredStrategy(topology=name, **options)


def chosen_for(topology: Topology, shard_parameters: int | bool, cores: int = 1) -> ChosenStrategy:
    """Return the strategy that `--topology`, `--shard-parameters` and `--cores` choose."""
    sharding = {"shard_parameters": shard_parameters, "cores_per_replica": cores}
    make = partial(strategy_for, topology, **sharding)
    return ChosenStrategy(f"--topology {topology}", make)


def with_passes(traced: Traced, names: str | None) -> Traced:
    """Return a traced step with the named passes, separated by commas; None keeps its own.

    Raises `ArgumentError` for a name that no pass of the step has.
    """
    if names is None:
        return traced
    by_name = {entry.name: entry for entry in traced.pipeline}
    chosen = [name for name in names.split(",") if name]
    for name in chosen:
        if name not in by_name:
            raise ArgumentError(
                f"there is no pass {name!r} for {traced.devices}",
                hint=did_you_mean(name, by_name, f"there are {', '.join(by_name)}"),
            )
    return replace(traced, pipeline=[by_name[name] for name in chosen])
