"""A model stored in slices or in full, and steps that train and evaluate it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import graphdist as gd

WIDTH, ROWS = 256, 16
SHAPE = (256, 128)
FULL = 4 * 256 * 128


def strategy_of(replicas: int, **options: Any) -> gd.MirroredStrategy:
    """Return a strategy of CPU devices."""
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(replicas)], **options)


def cut_variable(value: Any, replicas: int = 4, **options: Any) -> gd.Variable:
    """Return a variable of a strategy that stores it in slices if its shape allows it."""
    with strategy_of(replicas, shard_parameters=True).scope():
        return gd.Variable(value, name="w", **options)


def numbers(seed: int = 0) -> np.ndarray[Any, Any]:
    """Return random numbers of that shape."""
    return np.random.default_rng(seed).standard_normal(SHAPE).astype("f")


def initial_values() -> dict[str, Any]:
    """Return parameters: two that are cut, one that is used frozen, and a small one."""
    numbers = np.random.default_rng(0)
    shapes = {"first": (128, WIDTH), "second": (WIDTH, 128), "frozen": (128, WIDTH), "bias": (128,)}
    return {
        name: 0.1 * numbers.standard_normal(shape).astype("f") for name, shape in shapes.items()
    }


def loss_fn(params: dict[str, Any], x: Any) -> Any:
    """Return the loss of an autoencoder that uses one parameter twice."""
    hidden = jnp.tanh(x @ params["first"]) + x @ params["frozen"]
    return jnp.mean((hidden @ params["second"] + hidden @ params["first"].T + params["bias"]) ** 2)


class Model:
    """Parameters, the state of an optimizer and an average of the parameters."""

    def __init__(
        self, optimizer: Any, replicas: int, microbatches: int = 1, **options: Any
    ) -> None:
        self.strategy = strategy_of(replicas, **options)
        self.optimizer, self.microbatches = optimizer, microbatches
        values = initial_values()
        trained = {name: value for name, value in values.items() if name != "frozen"}
        with self.strategy.scope():
            self.params = gd.variables(values)
            self.state = gd.variables(optimizer.init(trained))
            self.average = gd.variables({f"{name}_average": trained[name] for name in trained})
        self.step, self.evaluate = gd.function(self._step), gd.function(self._evaluate)

    def _gradients(self, x: Any) -> Any:
        def loss_of(trained: Any) -> Any:
            return loss_fn({**trained, "frozen": self.params["frozen"][...]}, x)

        loss, gradients = jax.value_and_grad(loss_of)(gd.read(self._trained))
        return loss, gd.get_replica_context().all_reduce("MEAN", gradients)

    @property
    def _trained(self) -> dict[str, Any]:
        return {name: self.params[name] for name in self.params if name != "frozen"}

    def _step(self, x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            fn = self._gradients
            fn = gd.accumulate(fn, self.microbatches) if self.microbatches > 1 else fn
            loss, gradients = fn(x)
            old = gd.read(self._trained)
            updates, state = self.optimizer.update(gradients, gd.read(self.state), old)
            new = optax.apply_updates(old, updates)
            gd.assign(self._trained, new)
            gd.assign(self.state, state)
            for key, value in new.items():
                average = self.average[f"{key}_average"]
                average.assign(0.5 * average + 0.5 * value)
            return loss

        return self._mean_over_replicas(replica_fn, x)

    def _evaluate(self, x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            averages = {name: self.average[f"{name}_average"][...] for name in self._trained}
            return loss_fn({**averages, "frozen": self.params["frozen"][...]}, x)

        return self._mean_over_replicas(replica_fn, x)

    def _mean_over_replicas(self, replica_fn: Any, x: Any) -> Any:
        return self.strategy.reduce("MEAN", self.strategy.run(replica_fn, args=(x,)), axis=None)

    def batches(self, *rows: int) -> list[Any]:
        """Return batches of so many rows."""
        numbers = np.random.default_rng(1)
        arrays = [numbers.standard_normal((count, 128)).astype("f") for count in rows]
        return list(self.strategy.experimental_distribute_dataset(arrays))

    def train(self, *rows: int) -> list[float]:
        """Train and evaluate in turns, and return the losses."""
        found = []
        for batch in self.batches(*rows):
            found += [float(self.step(batch)), float(self.evaluate(batch))]
        return found

    @property
    def variables(self) -> list[gd.Variable]:
        """Return all variables."""
        return jax.tree.leaves((self.params, self.state, self.average))

    def values(self) -> list[Any]:
        """Return the values of all variables."""
        return [np.asarray(variable) for variable in self.variables]


def bytes_on_one_device(variable: gd.Variable) -> int:
    """Return the bytes of a variable on its first device."""
    return int(variable.storage.held.addressable_shards[0].data.nbytes)
