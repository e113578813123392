"""The effect of each pass: a program that shows it, compiled with the pass and without it.

Without it means the same pipeline minus that pass. Collectives and bytes are counted in the module
that XLA compiled, so that optimizations of XLA's own do not count as effects. The count of CPU
devices can be set once per process, so each count has a process of its own:
`python -m graphdist.tools.bench.passes_saved 4` prints its effects as JSON; a topology may replace
the count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any  # Any: pytrees of arrays, JSON

import jax
import jax.numpy as jnp

import graphdist as gd
from graphdist.errors import ArgumentError
from graphdist.passes import pipeline
from graphdist.report.explanation import graph_measure
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.bench.measurement import Module, module_of
from graphdist.tools.bench.models import Mlp, ReplicaOperations, Tree
from graphdist.tools.bench.programs import PROGRAMS, RATE, BenchProgram
from graphdist.tools.bench.systems import Graphdist
from graphdist.tools.compilation import strategy_for
from graphdist.tools.targets import prepare_command


@dataclass(frozen=True)
class CompiledSide:
    """The figures of a compiled module, and the bytes of variables on a device between steps."""

    module: Module
    held_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the side as JSON has it."""
        count = self.module.num_collectives
        return {**asdict(self.module), "num_collectives": count, "held_bytes": self.held_bytes}


@dataclass(frozen=True)
class PassSaving:
    """A program compiled with a pass and without it."""

    pass_name: str
    program: str
    target: str
    replicas: int
    with_it: CompiledSide
    without: CompiledSide

    def to_json(self) -> dict[str, Any]:
        """Return the effect as JSON has it."""
        return {
            "pass": self.pass_name,
            "program": self.program,
            "target": self.target,
            "replicas": self.replicas,
            "with": self.with_it.to_json(),
            "without": self.without.to_json(),
        }


class ReducedTwice(BenchProgram):
    """Reduces gradients, and again after clipping, when they are equal on all replicas."""

    def step(self, replicas: ReplicaOperations, state: Tree, batch: Tree) -> tuple[Tree, Any]:
        """Return the changed part of the state, and the loss of a replica."""
        context = gd.get_replica_context()
        loss, gradients = self.differentiated(replicas, state["params"], batch)
        gradients = context.all_reduce("MEAN", gradients)
        squares = [jnp.sum(g**2) for g in jax.tree.leaves(gradients)]
        norm = jnp.sqrt(context.all_reduce("MEAN", jnp.stack(squares)).sum())
        clipped = jax.tree.map(lambda g: g / jnp.maximum(norm, 1), gradients)
        return self.moved(state, context.all_reduce("MEAN", clipped)), loss

    def differentiated(self, replicas: ReplicaOperations, params: Tree, batch: Tree) -> Any:
        """Return loss and gradients of a replica."""
        (loss, _), gradients = jax.value_and_grad(partial(self.model.loss, replicas), has_aux=True)(
            params, batch
        )
        return loss, gradients

    def moved(self, state: Tree, gradients: Tree) -> Tree:
        """Return the parameters after a step of gradient descent."""
        return {"params": jax.tree.map(lambda w, g: w - RATE * g, state["params"], gradients)}


class OwnSlices(ReducedTwice):
    """Shards the update by hand: every replica uses its rows of the reduced gradient."""

    def step(self, replicas: ReplicaOperations, state: Tree, batch: Tree) -> tuple[Tree, Any]:
        """Return the changed part of the state, and the loss of a replica."""
        context = gd.get_replica_context()
        loss, gradients = self.differentiated(replicas, state["params"], batch)
        replica, count = context.replica_id_in_sync_group, context.num_replicas_in_sync

        def updated(w: jax.Array, g: jax.Array) -> jax.Array:
            rows = w.shape[0] // count
            own = partial(jax.lax.dynamic_slice_in_dim, start_index=replica * rows, slice_size=rows)
            reduced = context.all_reduce("MEAN", g)
            return context.all_gather(own(w) - RATE * own(reduced), axis=0)

        return {"params": jax.tree.map(updated, state["params"], gradients)}, loss


class TwoLosses(ReducedTwice):
    """Reduces the gradients of two losses, and adds them up with weights."""

    def step(self, replicas: ReplicaOperations, state: Tree, batch: Tree) -> tuple[Tree, Any]:
        """Return the changed part of the state, and the loss of a replica."""
        context = gd.get_replica_context()
        shifted = {"x": 1 - batch["x"]}
        loss, first = self.differentiated(replicas, state["params"], batch)
        _, second = self.differentiated(replicas, state["params"], shifted)
        first, second = context.all_reduce("MEAN", first), context.all_reduce("MEAN", second)
        return self.moved(state, jax.tree.map(lambda a, b: a + 0.5 * b, first, second)), loss


@dataclass(frozen=True)
class Showcase:
    """The program that shows a pass; `shard_update` is the strategy's."""

    pass_name: str
    program: BenchProgram
    shard_update: bool | str = False


_SIZE = 512
_LAYERS = Mlp(4, _SIZE)

SHOWCASES = (
    Showcase(
        "remove_redundant_collectives",
        ReducedTwice("", "gradients reduced, clipped by their norm, reduced again", _LAYERS, 16),
    ),
    Showcase("own_slices", OwnSlices("", "each replica updates its own rows", _LAYERS, 16)),
    Showcase("delay_reductions", TwoLosses("", "gradients of two losses, added up", _LAYERS, 16)),
    Showcase("delay_reductions", PROGRAMS["accumulation"]),
    Showcase(
        "place_conversions", BenchProgram("", "4 layers of 512, Adam", _LAYERS, 16, "adam"), True
    ),
    # XLA combines small all_reduces by itself on every target, these collectives on GPU alone.
    Showcase(
        "bucket_collectives",
        BenchProgram("", "50 layers of 16, sharded updates", Mlp(50, 16), 16),
        True,
    ),
    Showcase(
        "stage_collectives", BenchProgram("", "4 layers of 512, sharded updates", _LAYERS, 16), True
    ),
)
"""A program for each pass that saves collectives, bytes or memory."""


def check_devices(counts: Sequence[int]) -> None:
    """Raise `ArgumentError` for counts of devices that do not divide the layers."""
    for count in counts:
        if _SIZE % count:
            raise ArgumentError(
                f"the passes are shown on layers of {_SIZE}, which {count} devices do not divide",
                hint="give powers of two, such as 2,4,8",
            )


def effect(showcase: Showcase, strategy: gd.Strategy) -> PassSaving:
    """Return the effect of a pass on a strategy, whose `shard_update` is the showcase's."""
    devices = strategy.devices
    passes = [each for each in pipeline(strategy.target) if each.name != showcase.pass_name]
    sides = [
        _side(Graphdist(showcase.program, strategy, function), strategy)
        for function in (gd.function, gd.function(passes=passes))
    ]
    name, title = showcase.pass_name, showcase.program.title
    target = str(devices) if devices.is_absent else f"{len(devices)} CPU devices"
    return PassSaving(name, title, target, len(devices), *sides)


def _side(running: Graphdist, strategy: gd.Strategy) -> CompiledSide:
    lowered = running.lower()
    compiled = lowered.compile().executable.compiled
    devices = strategy.devices
    module = module_of(compiled, len(devices), devices.platform)
    return CompiledSide(module, graph_measure(lowered.graph).held)


def effects(where: str, names: Sequence[str] = ()) -> list[PassSaving]:
    """Return the effect of each pass on a count of CPU devices, or on a topology."""
    strategy_of: Callable[..., gd.Strategy]
    if where.isdigit():
        gd.config.set_logical_cpu_devices(int(where))
        strategy_of = gd.MirroredStrategy
    else:
        strategy_of = partial(strategy_for, find_topology(where))
    savings = []
    for showcase in SHOWCASES:
        strategy = strategy_of(shard_update=showcase.shard_update)
        passes = {each.name for each in pipeline(strategy.target)}
        if showcase.pass_name in passes.intersection(names or passes):
            savings.append(effect(showcase, strategy))
    return savings


def effects_elsewhere(where: str) -> list[PassSaving]:
    """Return the effect of each pass, measured in a process of its own."""
    command = [sys.executable, "-m", "graphdist.tools.bench.passes_saved", where]
    # In a new session the process gets no Ctrl-C: only the benchmark prints a message, and `run`
    # kills the process.
    output = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, start_new_session=True
    ).stdout
    return [effect_from_json(effect) for effect in json.loads(output.splitlines()[-1])]


def effect_from_json(entry: dict[str, Any]) -> PassSaving:
    """Return the effect of a pass from the JSON that `main` prints."""
    sides = [
        CompiledSide(
            Module(side["collectives"], side["moved_bytes"], side["peak_bytes"]), side["held_bytes"]
        )
        for side in (entry["with"], entry["without"])
    ]
    return PassSaving(entry["pass"], entry["program"], entry["target"], entry["replicas"], *sides)


def main() -> None:
    """Print the effects for what the command line names, as JSON."""
    prepare_command()
    where, *names = sys.argv[1:]
    print(json.dumps([effect.to_json() for effect in effects(where, names)]))


if __name__ == "__main__":
    main()
