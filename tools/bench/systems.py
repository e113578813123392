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

By hand, accumulated gradients are reduced after the loop and metrics are summed over the replicas
in each step, as users of JAX write it. If the devices are only a topology, all arrays are shapes,
and nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol  # Any: pytrees of arrays, JAX's jitted functions

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import graphdist as gd
from graphdist.ir.mesh import CORE, REPLICA
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


def shapes_of(tree: Tree) -> Tree:
    """Return shapes and dtypes in place of arrays."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def _distributed(program: BenchProgram, strategy: gd.Strategy) -> Any:
    batch = program.batch(strategy.num_replicas_in_sync)
    return next(iter(strategy.experimental_distribute_dataset([batch])))


def _specs(program: BenchProgram, strategy: gd.Strategy) -> Any:
    def spec(x: Any) -> gd.PerReplicaSpec:
        return gd.PerReplicaSpec(x.shape, x.dtype, strategy=strategy)

    return jax.tree.map(spec, program.batch(1))


class ByHand:
    """The base of programs as users of JAX write them.

    State has two parts: one that a step only reads, and one that it changes, which is donated.
    """

    def __init__(self, program: BenchProgram, strategy: gd.Strategy) -> None:
        """Place state and batch on the devices, or describe them."""
        self.program, self.devices = program, strategy.devices
        state = program.state()
        if program.kind == "evaluate":
            state["totals"] = dict.fromkeys(("loss", "correct", "count"), np.zeros((), "f"))
        kept = {name: state.pop(name) for name in program.kept}
        replicas = strategy.num_replicas_in_sync
        self.kept, self.changed = self.placed(kept), self.placed(state)
        self.batch = self.split(program.batch(replicas))
        self.jitted = self.jit()

    def one_step(self, kept: Tree, changed: Tree, batch: Tree) -> tuple[Tree, Any]:
        """Return the new state and the mean loss."""
        new, loss = self.program.step(self, {**kept, **changed}, batch)
        return {**changed, **new}, self.mean(loss)

    def jit(self) -> Any:
        """Return the jitted step."""
        raise NotImplementedError

    def on_devices(self, tree: Tree, spec: PartitionSpec) -> Tree:
        """Return arrays with this sharding, or their shapes if the devices are absent."""
        sharding = NamedSharding(self.devices.mesh, spec)
        if not self.devices.is_absent:
            return jax.device_put(tree, sharding)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
        )

    def placed(self, tree: Tree) -> Tree:
        """Return state on the devices, replicated on each."""
        return self.on_devices(tree, PartitionSpec())

    def split(self, tree: Tree) -> Tree:
        """Return a batch on the devices, sharded by rows."""
        return self.on_devices(tree, PartitionSpec(REPLICA))

    def lower(self) -> jax.stages.Lowered:
        """Trace it again and lower it."""
        lowered: jax.stages.Lowered = self.jit().lower(self.kept, self.changed, self.batch)
        return lowered

    def compile(self) -> jax.stages.Compiled:
        """Compile it again, starting from the Python function."""
        return self.lower().compile()

    def step(self) -> float:
        """Run a step to its end and return the loss."""
        self.changed, loss = self.jitted(self.kept, self.changed, self.batch)
        return self.as_float(loss)

    def as_float(self, scalar: Any) -> float:
        """Return the value of a mirrored scalar."""
        return float(scalar)

    def results(self) -> dict[str, float]:
        """Return the metrics of all steps so far."""
        if self.program.kind != "evaluate":
            return {}
        totals = {name: self.as_float(value) for name, value in self.changed["totals"].items()}
        count = totals["count"]
        return {"loss": totals["loss"] / count, "accuracy": totals["correct"] / count}

    # The operations that a program takes from its system.

    def mean(self, tree: Tree) -> Tree:
        """Return the mean over the replicas, leaf by leaf."""
        return jax.tree.map(lambda x: jax.lax.pmean(x, REPLICA), tree)

    def sum(self, tree: Tree) -> Tree:
        """Return the sum over the replicas, leaf by leaf."""
        return jax.tree.map(lambda x: jax.lax.psum(x, REPLICA), tree)

    def of_stored(self, loss_fn: Any) -> Any:
        """Return the loss unchanged: parameters are mirrored."""
        return loss_fn

    def for_shards(self, x: Any) -> Any:
        """Return the value unchanged: a replica has one core."""
        return x

    def of_terms(self, x: Any) -> Any:
        """Return the value unchanged: a replica has one core."""
        return x

    def in_microbatches(self, batch: Tree, microbatches: int) -> Tree:
        """Return a batch with a dimension of microbatches in front."""
        return jax.tree.map(lambda x: x.reshape(microbatches, -1, *x.shape[1:]), batch)

    def accumulated(self, loss_fn: Any, params: Tree, batch: Tree, microbatches: int) -> Any:
        """Return loss and gradients; the gradients are reduced after the loop."""

        def add(total: Tree, part: Tree) -> tuple[Tree, None]:
            (loss, _), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params, part)
            return jax.tree.map(jnp.add, total, (loss, gradients)), None

        zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        total, _ = jax.lax.scan(add, zeros, self.in_microbatches(batch, microbatches))
        loss, gradients = jax.tree.map(lambda x: x / microbatches, total)
        return loss, self.mean(gradients)

    def observe(self, state: Tree, losses: Any, labels: Any, scores: Any) -> Tree:
        """Add the sums over all replicas to the totals."""
        correct = jnp.argmax(scores, axis=-1) == labels
        count = jnp.float32(labels.shape[0])
        seen = {"loss": jnp.sum(losses), "correct": jnp.sum(correct), "count": count}
        return {"totals": jax.tree.map(jnp.add, state["totals"], self.sum(seen))}


class ShardMap(ByHand):
    """One replica's program under `jax.shard_map`."""

    def jit(self) -> Any:
        """Return the jitted step."""
        replicated, split = PartitionSpec(), PartitionSpec(REPLICA)
        mapped = jax.shard_map(
            self.one_step,
            mesh=self.devices.mesh,
            in_specs=(replicated, replicated, split),
            out_specs=(replicated, replicated),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=1)


class Jit(ByHand):
    """The program of the global batch under `jax.jit`, with sharding annotations."""

    def jit(self) -> Any:
        """Return the jitted step."""
        replicated, split = self._sharding(PartitionSpec()), self._sharding(PartitionSpec(REPLICA))

        # A new function each time, so that JAX traces it again.
        def step(kept: Tree, changed: Tree, batch: Tree) -> tuple[Tree, Any]:
            return self.one_step(kept, changed, batch)

        return jax.jit(
            step,
            donate_argnums=1,
            in_shardings=(replicated, replicated, split),
            out_shardings=(replicated, replicated),
        )

    def _sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.devices.mesh, spec)

    def mean(self, tree: Tree) -> Tree:
        """Return the tree unchanged: the program sees the global batch."""
        return tree

    def sum(self, tree: Tree) -> Tree:
        """Return the tree unchanged: the program sees the global batch."""
        return tree

    def in_microbatches(self, batch: Tree, microbatches: int) -> Tree:
        """Return a batch with a dimension of microbatches in front; no row leaves its device."""
        replicas = len(self.devices)

        def split(x: Any) -> Any:
            parts = x.reshape(replicas, microbatches, -1, *x.shape[1:])
            joined = jnp.swapaxes(parts, 0, 1).reshape(microbatches, -1, *x.shape[1:])
            sharding = self._sharding(PartitionSpec(None, REPLICA))
            return jax.lax.with_sharding_constraint(joined, sharding)

        return jax.tree.map(split, batch)


class Pmap(ByHand):
    """One replica's program under `jax.pmap`: all arrays are stacked by replica."""

    def jit(self) -> Any:
        """Return the mapped step."""
        devices = self.devices.devices
        return jax.pmap(self.one_step, axis_name=REPLICA, donate_argnums=1, devices=devices)

    def _stacked(self, tree: Tree) -> Tree:
        if self.devices.is_absent:
            return shapes_of(tree)
        if not jax.tree.leaves(tree):
            return tree
        return jax.pmap(lambda x: x, devices=self.devices.devices)(tree)

    def placed(self, tree: Tree) -> Tree:
        """Return state on the devices, replicated on each."""
        replicas = len(self.devices)
        return self._stacked(jax.tree.map(lambda x: np.stack([x] * replicas), tree))

    def split(self, tree: Tree) -> Tree:
        """Return a batch on the devices, sharded by rows."""
        replicas = len(self.devices)
        return self._stacked(jax.tree.map(lambda x: x.reshape(replicas, -1, *x.shape[1:]), tree))

    def as_float(self, scalar: Any) -> float:
        """Return the value of a mirrored scalar."""
        return float(scalar.addressable_shards[0].data.reshape(()))


class Floor(ShardMap):
    """One replica's program without communication: the time of a step if that were free.

    Each replica trains by itself, so the losses differ from the other systems'.
    """

    def mean(self, tree: Tree) -> Tree:
        """Return this replica's values."""
        return tree

    def sum(self, tree: Tree) -> Tree:
        """Return this replica's values."""
        return tree


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

    def jit(self) -> Any:
        """Return the jitted step."""
        kept, changed = (jax.tree.map(self.spec, tree) for tree in (self.kept, self.changed))
        mapped = jax.shard_map(
            self.one_step,
            mesh=self.devices.mesh,
            in_specs=(kept, changed, PartitionSpec(REPLICA)),
            out_specs=(changed, PartitionSpec()),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=1)


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

    def jit(self) -> Any:
        """Return the jitted step."""
        kept, changed = (
            jax.tree_util.tree_map_with_path(self.spec, tree) for tree in (self.kept, self.changed)
        )
        mapped = jax.shard_map(
            self.one_step,
            mesh=self.devices.mesh,
            in_specs=(kept, changed, PartitionSpec(REPLICA)),
            out_specs=(changed, PartitionSpec()),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=1)

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
