"""A small model with its training step, and the same local steps by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import graphdist as gd

NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)


def strategy_of(replicas: int = 2, **options: Any) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{index}" for index in range(replicas)], **options)


def initial() -> dict[str, jax.Array]:
    numbers = np.random.default_rng(0)
    return {"a": jnp.asarray(numbers.normal(size=(3, 2)), jnp.float32), "b": jnp.zeros(2)}


def batches(count: int, rows: int = 8) -> list[np.ndarray[Any, Any]]:
    numbers = np.random.default_rng(1)
    return [numbers.normal(size=(rows, 3)).astype(np.float32) for _ in range(count)]


def loss_of(params: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ params["a"]) + params["b"] - x[:, :2]) ** 2)


class Training:
    """A model with its step, in the way a user writes it."""

    def __init__(self, strategy: gd.Strategy, inner: Any, reduce_op: str = "MEAN") -> None:
        self.strategy = strategy
        with strategy.scope():
            self.params = gd.variables(initial())
            self.state = gd.variables(inner.init(initial()))

        def replica_fn(x: Any) -> Any:
            loss, grads = jax.value_and_grad(loss_of)(gd.read(self.params), x)
            if reduce_op == "SUM":
                grads = jax.tree.map(lambda g: g / strategy.num_replicas_in_sync, grads)
            grads = gd.get_replica_context().all_reduce(reduce_op, grads)
            updates, state = inner.update(grads, gd.read(self.state), gd.read(self.params))
            gd.assign(self.params, optax.apply_updates(gd.read(self.params), updates))
            gd.assign(self.state, state)
            return loss

        @gd.function
        def step(x: Any) -> Any:
            return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

        self.step = step

    def run(self, data: Any) -> Any:
        """Return the losses, and the parameters as they are read afterwards."""
        losses = [
            float(self.step(x)) for x in self.strategy.experimental_distribute_dataset(list(data))
        ]
        return losses, jax.tree.map(np.asarray, gd.read(self.params))


def by_hand(
    data: Any, replicas: int, every: int, inner: Any, outer: Any = None
) -> tuple[Any, list[Any]]:
    """Return the anchors and the replicas' copies after local steps, in plain JAX."""
    anchors = initial()
    copies = [anchors] * replicas
    states = [inner.init(anchors)] * replicas
    outer_state = None if outer is None else outer.init(anchors)
    for number, x in enumerate(data, start=1):
        for replica, rows in enumerate(np.split(x, replicas)):
            grads = jax.grad(loss_of)(copies[replica], rows)
            updates, states[replica] = inner.update(grads, states[replica], copies[replica])
            copies[replica] = optax.apply_updates(copies[replica], updates)
        if number % every:
            continue
        mean = jax.tree.map(lambda *leaves: sum(leaves) / replicas, *copies)
        if outer is None:
            anchors = mean
        else:
            difference = jax.tree.map(lambda a, m: a - m, anchors, mean)
            updates, outer_state = outer.update(difference, outer_state, anchors)
            anchors = optax.apply_updates(anchors, updates)
        copies = [anchors] * replicas
    return anchors, copies


def are_equal(variable: Any) -> bool:
    """Whether the two copies of a variable are equal."""
    first, second = map(np.asarray, variable.values)
    return np.array_equal(first, second)


def assert_close(given: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), given, expected
    )
