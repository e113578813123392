"""Programs as users of JAX write them by hand: the base of the systems, and four of them.

By hand, accumulated gradients are reduced after the loop and metrics are summed over the replicas
in each step. If the devices are only a topology, all arrays are shapes, and nothing runs.
"""

from __future__ import annotations

from typing import Any  # Any: pytrees of arrays, JAX's jitted functions

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import graphdist as gd
from graphdist.ir.mesh import REPLICA
from graphdist.tools.bench.models import Tree
from graphdist.tools.bench.programs import BenchProgram


def shapes_of(tree: Tree) -> Tree:
    """Return shapes and dtypes in place of arrays."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


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
        kept, changed = self.specs(self.kept), self.specs(self.changed)
        mapped = jax.shard_map(
            self.one_step,
            mesh=self.devices.mesh,
            in_specs=(kept, changed, PartitionSpec(REPLICA)),
            out_specs=(changed, PartitionSpec()),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=1)

    def specs(self, tree: Tree) -> Any:
        """Return how devices hold a part of the state: each has all of it."""
        return PartitionSpec()


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
