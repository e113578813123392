"""The systems of the benchmark on JAX: graphdist, and JAX by hand in five ways.

* `graphdist`: variables of a strategy, `all_reduce` in replica context, `gd.accumulate`,
  `gd.metrics`;
* `shard_map`: one replica's program, a `pmean` for each gradient, state donated;
* `jit`: the program of the global batch, with sharding annotations; XLA finds the collectives;
* `pmap`: as `shard_map`, with state stacked by replica;
* `floor`: as `shard_map`, without communication, to show how much there is to gain;
* `fsdp`: as `shard_map`, with parameters and slots sharded along their first dimension, gathered
  where they are used, and re-gathered in the backward pass. It runs the programs with sharded
  parameters, beside `graphdist` with `shard_parameters=True`.

Where a replica has several cores, `shard_map` is the split of Megatron-LM by hand: parameters in
shards over the cores, a `psum` behind the second product of each pair, and one in the backward pass
in front of the first.

Programs by hand are in `by_hand.py`, but for those with sharded parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol  # Any: pytrees of arrays, JAX's jitted functions

import jax
from jax.sharding import PartitionSpec

import graphdist as gd
from graphdist.ir.mesh import CORE, REPLICA
from graphdist.tools.bench.by_hand import Floor, Jit, Pmap, ShardMap, shapes_of
from graphdist.tools.bench.models import Tree
from graphdist.tools.bench.programs import BenchProgram


class Running(Protocol):
    """A program on a system, ready to be compiled and, if the devices are here, to run."""

    def compile(self) -> jax.stages.Compiled:
        """Compile it again, starting from the Python function."""

    def step(self) -> float:
        """Run a step to its end and return the loss."""

    def results(self) -> dict[str, float]:
        """Return the metrics of all steps so far."""


class GraphdistReplicas:
    """The replica operations of a program, on graphdist."""

    def __init__(self, program: BenchProgram) -> None:
        """Make the metrics of a program that evaluates; called in a strategy's scope."""
        if program.kind == "evaluate":
            self.loss = gd.metrics.Mean()
            self.accuracy = gd.metrics.SparseCategoricalAccuracy()

    def mean(self, tree: Tree) -> Tree:
        """Return the mean over the replicas."""
        return gd.get_replica_context().all_reduce("MEAN", tree)

    def of_stored(self, loss_fn: Any) -> Any:
        """Return the loss unchanged: a variable is read as its full value, however it is stored."""
        return loss_fn

    def accumulated(self, loss_fn: Any, params: Tree, batch: Tree, microbatches: int) -> Any:
        """Return loss and gradients, reduced in the loop: the compiler hoists the reduction."""

        def reduced(part: Tree) -> Any:
            (loss, _), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params, part)
            return loss, self.mean(gradients)

        return gd.accumulate(reduced, microbatches)(batch)

    def for_shards(self, x: Any) -> Any:
        """Return the value unchanged: the program is that of a replica."""
        return x

    of_terms = for_shards

    def observe(self, state: Tree, losses: Any, labels: Any, scores: Any) -> Tree:
        """Update the metrics."""
        self.loss.update_state(losses)
        self.accuracy.update_state(labels, scores)
        return {}


class Graphdist:
    """A program as a user of graphdist writes it."""

    def __init__(
        self,
        program: BenchProgram,
        strategy: gd.Strategy,
        function: Callable[..., Any] = gd.function,
    ) -> None:
        """Make variables and function; `function` decorates it."""
        is_here = not strategy.devices.is_absent
        with strategy.scope():
            initial = program.state() if is_here else shapes_of(program.state())
            cores = {f"*{name}": held for name, held in program.sharded_over_cores.items()}
            variables = {  # slots follow the parameters
                name: gd.variables(part, cores=cores if name == "params" else None)
                for name, part in initial.items()
            }
            replicas = GraphdistReplicas(program)

        def replica_fn(batch: Tree) -> Any:
            changed, loss = program.step(replicas, gd.read(variables), batch)
            for name, value in changed.items():
                gd.assign(variables[name], value)
            return loss

        def step(batch: Any) -> Any:
            return strategy.reduce("MEAN", strategy.run(replica_fn, args=(batch,)), axis=None)

        self.function = function(step)
        self.variables, self.replicas = variables, replicas
        self.batch = _distributed(program, strategy) if is_here else _specs(program, strategy)

    def lower(self) -> Any:
        """Trace it again and run the passes."""
        return self.function.trace(self.batch).lower()

    def compile(self) -> jax.stages.Compiled:
        """Compile it again, starting from the Python function."""
        return self.lower().compile().executable.compiled

    def step(self) -> float:
        """Run a step to its end and return the loss."""
        return float(self.function(self.batch))

    def results(self) -> dict[str, float]:
        """Return the metrics of all steps so far."""
        if not hasattr(self.replicas, "loss"):
            return {}
        return {
            "loss": float(self.replicas.loss.result()),
            "accuracy": float(self.replicas.accuracy.result()),
        }


def _distributed(program: BenchProgram, strategy: gd.Strategy) -> Any:
    batch = program.batch(strategy.num_replicas_in_sync)
    return next(iter(strategy.experimental_distribute_dataset([batch])))


def _specs(program: BenchProgram, strategy: gd.Strategy) -> Any:
    def spec(x: Any) -> gd.PerReplicaSpec:
        return gd.PerReplicaSpec(x.shape, x.dtype, strategy=strategy)

    return jax.tree.map(spec, program.batch(1))


FLOOR = "floor"

SYSTEMS: dict[str, Callable[[BenchProgram, gd.Strategy], Running]] = {
    "graphdist": Graphdist,
    "shard_map": ShardMap,
    "jit": Jit,
}
"""Systems by name, ours first."""

if hasattr(jax, "pmap"):  # JAX will remove it
    SYSTEMS["pmap"] = Pmap
SYSTEMS[FLOOR] = Floor


Start = Callable[[BenchProgram, gd.Strategy], Running]


class Fsdp(ShardMap):
    """One replica's program under `jax.shard_map`, with sharded parameters and slots."""

    def spec(self, leaf: Any) -> PartitionSpec:
        """Return how an array of the state is stored: matrices that divide are sharded."""
        is_sharded = leaf.ndim > 1 and leaf.shape[0] % len(self.devices) == 0
        return PartitionSpec(REPLICA) if is_sharded else PartitionSpec()

    def placed(self, tree: Tree) -> Tree:
        """Return state on the devices."""
        return jax.tree.map(lambda leaf: self.on_devices(leaf, self.spec(leaf)), tree)

    def one_step(self, kept: Tree, changed: Tree, batch: Tree) -> tuple[Tree, Any]:
        """Return the new state and the mean loss."""
        new, loss = self.program.step(self, {**kept, **changed}, batch)
        return {**changed, **new}, jax.lax.pmean(loss, REPLICA)

    def mean(self, tree: Tree) -> Tree:
        """Return the tree unchanged: the gradient of a gather is a mean already."""
        return tree

    def of_stored(self, loss_fn: Any) -> Any:
        """Return the loss as a function of shards, which re-gathers in the backward pass."""
        specs = [self.spec(leaf) for leaf in jax.tree.leaves(self.changed["params"])]

        def loss_of_shards(params: Tree, batch: Tree) -> Any:
            leaves, structure = jax.tree.flatten(params)
            full = [
                _gathered(leaf) if spec else _mirrored(leaf)
                for leaf, spec in zip(leaves, specs, strict=True)
            ]
            return loss_fn(jax.tree.unflatten(structure, full), batch)

        return jax.checkpoint(loss_of_shards, policy=_is_no_gather)

    def specs(self, tree: Tree) -> Any:
        """Return how devices hold a part of the state."""
        return jax.tree.map(self.spec, tree)


def _is_no_gather(primitive: Any, *_: Any, **__: Any) -> bool:
    # A function with its own derivative is one operation to the policy: here only gathers have one.
    return primitive.name not in ("all_gather", "custom_vjp_call")


@jax.custom_vjp
def _gathered(piece: Any) -> Any:
    """Return a matrix gathered from its shards; the gradient is a shard of the mean."""
    return jax.lax.all_gather(piece, REPLICA, tiled=True)


def _scattered(_: None, gradient: Any) -> Any:
    total = jax.lax.psum_scatter(gradient, REPLICA, tiled=True)
    return (total / jax.lax.axis_size(REPLICA),)


_gathered.defvjp(lambda piece: (_gathered(piece), None), _scattered)


@jax.custom_vjp
def _mirrored(value: Any) -> Any:
    """Return a mirrored value; the gradient is the mean."""
    return value


_mirrored.defvjp(
    lambda value: (value, None), lambda _, gradient: (jax.lax.pmean(gradient, REPLICA),)
)


class ShardMapOverCores(ShardMap):
    """One core's program under `jax.shard_map`."""

    def spec(self, path: Any, leaf: Any) -> PartitionSpec:
        """Return how the cores hold an array of the state."""
        held = self.program.sharded_over_cores.get(getattr(path[-1], "key", ""), ())
        return PartitionSpec(*(None if entry is None else CORE for entry in held))

    def placed(self, tree: Tree) -> Tree:
        """Return state on the devices."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: self.on_devices(leaf, self.spec(path, leaf)), tree
        )

    def specs(self, tree: Tree) -> Any:
        """Return how cores hold a part of the state."""
        return jax.tree_util.tree_map_with_path(self.spec, tree)

    def mean(self, tree: Tree) -> Tree:
        """Return the mean over the replicas; that of one replica is its own."""
        return tree if len(self.devices) == 1 else super().mean(tree)

    def for_shards(self, x: Any) -> Any:
        """Return the value, whose gradient is the sum of the cores' terms."""
        return _summed_backward(x)

    def of_terms(self, x: Any) -> Any:
        """Return the sum of the cores' terms, whose gradient each core has in full."""
        return _summed_forward(x)


@jax.custom_vjp
def _summed_backward(x: Any) -> Any:
    return x


_summed_backward.defvjp(lambda x: (x, None), lambda _, gradient: (jax.lax.psum(gradient, CORE),))


@jax.custom_vjp
def _summed_forward(x: Any) -> Any:
    return jax.lax.psum(x, CORE)


_summed_forward.defvjp(lambda x: (jax.lax.psum(x, CORE), None), lambda _, gradient: (gradient,))


def systems_of(program: BenchProgram) -> Mapping[str, Start]:
    """Return the systems of this process that a program runs on, by name."""
    if program.cores > 1:
        return SYSTEMS_WITH_CORES
    return SHARDED_SYSTEMS if program.shards_parameters else SYSTEMS


SHARDED_SYSTEMS: dict[str, Start] = {
    "graphdist": Graphdist,
    "fsdp": Fsdp,
}
"""Systems with sharded parameters by name, ours first."""

SYSTEMS_WITH_CORES: dict[str, Start] = {
    "graphdist": Graphdist,
    "shard_map": ShardMapOverCores,
}
"""Systems with replicas of several cores by name, ours first."""
