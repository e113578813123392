"""How the tools compile the step of a target: the options for it, and its way to the last pass."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any, Self  # Any: users' settings, options of strategies

from graphdist.program.stages import Lowered
from graphdist.runtime.targets.topologies import Topology
from graphdist.strategies.base import Strategy
from graphdist.strategies.mirrored import MirroredStrategy
from graphdist.strategies.tpu import TPUStrategy
from graphdist.tools.chosen_strategy import ChosenStrategy
from graphdist.tools.named_passes import with_passes
from graphdist.tools.steps import parse_settings, trace_target

COMPILATION = ("num_slices", "shard_parameters", "passes", "set", "args", "option")
"""The names of the options that `add_compilation_options` adds."""


def add_compilation_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a step is made, and compiled for a topology."""
    add = parser.add_argument
    add("--num-slices", type=int, default=1, help="slices of that topology (default: 1)")
    add(
        "--shard-parameters",
        nargs="?",
        const=True,
        type=int,
        metavar="GROUP",
        help="store parameters in slices, over all devices or over groups of this size",
    )
    add("--passes", help="the passes to run in place of the default ones: names with commas")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the step")
    add(
        "--args", default="", metavar="TYPES", help="what a function takes: 'f32[256,784] i32[256]'"
    )
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of XLA")


@dataclass(frozen=True)
class StepOptions:
    """What a command line says of a step beside its target and its strategy."""

    settings: dict[str, Any] = field(default_factory=dict)
    types: str = ""
    passes: str | None = None
    compiler: dict[str, Any] | None = None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """Return what the options of `add_compilation_options` say."""
        compiler = parse_settings(options.option) or None
        return cls(parse_settings(options.set), options.args, options.passes, compiler)


def lower_target(target: str, chosen: ChosenStrategy, options: StepOptions) -> Lowered:
    """Return the step of a target after its passes, or after the passes that are named."""
    traced = trace_target(target, chosen, options.settings, options.types)
    return with_passes(traced, options.passes).lower()


def sharding(asked: int | bool | None) -> dict[str, Any]:
    """Return the options of a strategy for `--shard-parameters`."""
    return {} if asked is None else {"shard_parameters": asked}


def strategy_for(topology: Topology, **options: Any) -> Strategy:
    """Return a strategy of a topology's devices, with these options of its class."""
    name, slices = topology.name, topology.num_slices
    if topology.chip.platform == "tpu":
        return TPUStrategy(topology=name, num_slices=slices, **options)
    return MirroredStrategy(topology=name, **options)


def chosen_for(topology: Topology, shard_parameters: int | bool | None) -> ChosenStrategy:
    """Return the strategy of a topology's devices as a command line chooses it."""
    slices = sharding(shard_parameters)
    return ChosenStrategy(f"--topology {topology}", lambda: strategy_for(topology, **slices))
