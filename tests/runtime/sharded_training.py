"""A model and an optimizer whose updates are shared out, or not: what tests of both train."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import graphdist as gd

ROWS = 16


def loss_fn(params: Any, x: Any) -> Any:
    """Return the loss of two layers, with a bias no dimension of which divides."""
    hidden = jnp.tanh(x @ params["first"] + params["bias"])
    return jnp.mean((hidden @ params["second"] + params["odd"]) ** 2)


class Training:
    """A model, the state of an optimizer, and a step, on so many replicas."""

    def __init__(self, optimizer: Any, replicas: int, shard_update: bool | str) -> None:
        devices = [f"cpu:{i}" for i in range(replicas)]
        self.strategy = gd.MirroredStrategy(devices, shard_update=shard_update)
        numbers = np.random.default_rng(0)
        initial = {
            "first": numbers.standard_normal((8, 16)).astype("f"),
            "bias": np.zeros(16, "f"),
            "second": numbers.standard_normal((16, 3)).astype("f"),
            "odd": np.ones(3, "f"),
        }
        with self.strategy.scope():
            self.params = gd.variables(initial)
            self.state = gd.variables(optimizer.init(initial))

        @gd.function
        def step(x: Any) -> Any:
            def replica_fn(x: Any) -> Any:
                loss, grads = jax.value_and_grad(loss_fn)(gd.read(self.params), x)
                grads = gd.get_replica_context().all_reduce("MEAN", grads)
                params = gd.read(self.params)
                updates, state = optimizer.update(grads, gd.read(self.state), params)
                gd.assign(self.params, optax.apply_updates(params, updates))
                gd.assign(self.state, state)
                return loss

            return self.strategy.reduce("MEAN", self.strategy.run(replica_fn, args=(x,)), axis=None)

        self.step = step

    def batches(self, count: int, rows: int = ROWS) -> list[Any]:
        """Return distributed batches."""
        numbers = np.random.default_rng(1)
        rows_of = [numbers.standard_normal((rows, 8)).astype("f") for _ in range(count)]
        return list(self.strategy.experimental_distribute_dataset(rows_of))

    def values(self) -> list[Any]:
        """Return what all variables hold."""
        return [np.asarray(one.read_value()) for one in self.variables]

    @property
    def variables(self) -> list[gd.Variable]:
        """Return parameters and state."""
        return jax.tree.leaves((self.params, self.state))

    @property
    def sharded(self) -> dict[str, int]:
        """Return the variables that are stored in slices, with the dimension."""
        along = {one.name: one.storage.sharded_along for one in self.variables}
        return {name: one for name, one in along.items() if one is not None}

    @property
    def held(self) -> float:
        """Return the part of the bytes of the optimizer's state that a replica holds."""
        buffers = [one.storage.buffer for one in jax.tree.leaves(self.state)]
        mine = sum(buffer.addressable_shards[0].data.nbytes for buffer in buffers)
        return float(mine / sum(buffer.nbytes for buffer in buffers))
