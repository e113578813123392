"""The systems that run a program on one process with parameters stored in slices.

* `graphdist`: the program as it is, on a strategy with `shard_parameters=True`;
* `fsdp`: by hand in `jax.shard_map`: parameters and slots are sliced along their first dimension,
  gathered where they are used, and gathered again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any  # Any: pytrees, JAX's jitted functions

import jax
from jax.sharding import PartitionSpec

import graphdist as gd
from graphdist.runtime.emit import REPLICA
from graphdist.tools.bench.models import Tree
from graphdist.tools.bench.programs import BenchProgram
from graphdist.tools.bench.systems import SYSTEMS, Graphdist, Running, ShardMap

Start = Callable[[BenchProgram, gd.Strategy], Running]


class Fsdp(ShardMap):
    """One replica's program under `jax.shard_map`, with parameters and slots in slices."""

    def spec(self, leaf: Any) -> PartitionSpec:
        """Return how an array of the state is stored: matrices that divide in slices."""
        is_sliced = leaf.ndim > 1 and leaf.shape[0] % len(self.devices) == 0
        return PartitionSpec(REPLICA) if is_sliced else PartitionSpec()

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
        """Return the loss as a function of slices, which gathers again in the backward pass."""
        specs = [self.spec(leaf) for leaf in jax.tree.leaves(self.changed["params"])]

        def loss_of_slices(params: Tree, batch: Tree) -> Any:
            leaves, structure = jax.tree.flatten(params)
            full = [
                _gathered(leaf) if spec else _in_full(leaf)
                for leaf, spec in zip(leaves, specs, strict=True)
            ]
            return loss_fn(jax.tree.unflatten(structure, full), batch)

        return jax.checkpoint(loss_of_slices, policy=_is_no_gather)

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
    # A call with a derivative of its own is asked for as one operation: here, only gathers have it.
    return primitive.name not in ("all_gather", "custom_vjp_call")


@jax.custom_vjp
def _gathered(piece: Any) -> Any:
    """Return a matrix of its slices; the gradient is each replica's slice of the mean."""
    return jax.lax.all_gather(piece, REPLICA, tiled=True)


def _scattered(_: None, gradient: Any) -> Any:
    total = jax.lax.psum_scatter(gradient, REPLICA, tiled=True)
    return (total / jax.lax.axis_size(REPLICA),)


_gathered.defvjp(lambda piece: (_gathered(piece), None), _scattered)


@jax.custom_vjp
def _in_full(value: Any) -> Any:
    """Return a value that every replica has; the gradient is the mean."""
    return value


_in_full.defvjp(
    lambda value: (value, None), lambda _, gradient: (jax.lax.pmean(gradient, REPLICA),)
)


def systems_of(program: BenchProgram) -> Mapping[str, Start]:
    """Return the systems of this process that a program runs on, by name."""
    return SHARDED_SYSTEMS if program.shards_parameters else SYSTEMS


SHARDED_SYSTEMS: dict[str, Start] = {
    "graphdist": Graphdist,
    "fsdp": Fsdp,
}
"""Systems with parameters in slices by name, ours first."""
