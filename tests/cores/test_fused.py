"""Fused weights: what one product gives is taken apart, and each block is sharded for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: pytrees

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from tests.cores.training import strategy_on

ROWS, LENGTH, WIDTH, HEADS = 4, 16, 32, 4
Apart = Callable[[jax.Array], tuple[jax.Array, ...]]


def _heads(x: jax.Array) -> jax.Array:
    return x.reshape(ROWS, LENGTH, HEADS, -1)


def _at_indices(y: jax.Array) -> tuple[jax.Array, ...]:
    joined = y.reshape(ROWS, LENGTH, 3, HEADS, -1)
    return joined[:, :, 0], joined[:, :, 1], joined[:, :, 2]


def _moved(y: jax.Array) -> tuple[jax.Array, ...]:
    q, k, v = jnp.moveaxis(y.reshape(ROWS, LENGTH, 3, HEADS, -1), 2, 0)
    return q, k, v


def _of_flat_rows(y: jax.Array) -> tuple[jax.Array, ...]:
    flat = y.reshape(ROWS * LENGTH, 3, HEADS, -1).swapaxes(0, 1)
    return tuple(_heads(flat[index]) for index in range(3))


def _grouped(y: jax.Array) -> tuple[jax.Array, ...]:
    """Two thirds of the columns are queries, of 4 heads; keys and values have 2."""
    q, k, v = jnp.split(y, [2 * WIDTH, 5 * WIDTH // 2], axis=-1)
    k, v = (each.reshape(ROWS, LENGTH, HEADS // 2, -1) for each in (k, v))
    return q.reshape(ROWS, LENGTH, HEADS, -1), *(jnp.concatenate([x, x], -1) for x in (k, v))


APART: dict[str, Apart] = {
    "split": lambda y: tuple(map(_heads, jnp.split(y, 3, axis=-1))),
    "slices": lambda y: tuple(_heads(y[..., i * WIDTH :][..., :WIDTH]) for i in range(3)),
    "at indices": _at_indices,
    "moved": _moved,
    "unstacked": lambda y: tuple(map(_heads, jnp.unstack(y.reshape(ROWS, LENGTH, 3, -1), axis=2))),
    "of flat rows": _of_flat_rows,
    "grouped": _grouped,
    "converted": lambda y: APART["split"](y.astype(jnp.bfloat16).astype(jnp.float32)),
}


def loss_of(apart: Apart, p: Any, x: jax.Array) -> jax.Array:
    q, k, v = apart((x @ p["joined"]) * p["scale"])
    attended = jax.nn.dot_product_attention(q, k, v).reshape(ROWS, LENGTH, -1)
    return jnp.mean((attended @ p["out"]) ** 2)


def trained_once(strategy: gd.Strategy, apart: Apart) -> tuple[Any, dict[str, Any], list[Any]]:
    """Return the loss, the parameters after a step, and the collectives of the step."""
    numbers = np.random.default_rng(0)
    of_queries = 2 * WIDTH if apart is _grouped else WIDTH
    shapes = {"joined": (WIDTH, 3 * WIDTH), "scale": (3 * WIDTH,), "out": (of_queries, WIDTH)}
    with strategy.scope():
        params = gd.variables(
            {name: numbers.normal(size=shape).astype("f") / 6 for name, shape in shapes.items()},
            cores={"joined": (None, "sharded"), "out": ("sharded", None)},
        )

    @gd.function
    def step(x: jax.Array) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            old = gd.read(params)
            loss, grads = jax.value_and_grad(lambda p: loss_of(apart, p, x))(old)
            gd.assign(params, jax.tree.map(lambda value, change: value - change, old, grads))
            return loss

        return strategy.run(replica_fn, args=(x,))

    x = jnp.asarray(numbers.normal(size=(ROWS, LENGTH, WIDTH)), jnp.float32)
    sent = list(step.trace(x).lower().collectives)
    loss = np.asarray(step(x))
    return loss, {name: np.asarray(value) for name, value in params.items()}, sent


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("name", APART)
def test_each_block_is_sharded(name: str, cores: int) -> None:
    loss, params, sent = trained_once(strategy_on(1, cores), APART[name])
    expected, expected_params, _ = trained_once(strategy_on(1, 1), APART[name])
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    for variable, value in expected_params.items():
        np.testing.assert_allclose(params[variable], value, rtol=1e-4, atol=1e-5)
    if name != "grouped" or cores == 2:  # 4 cores do not divide 2 heads
        gathered = {each.bytes for each in sent if each.kind.startswith("all_gather")}
        of_weights = 4 * 3 * WIDTH * WIDTH // cores
        assert gathered <= {of_weights, of_weights // WIDTH}
        assert [each.kind for each in sent].count("all_reduce_over_cores") == 1


def test_weights_are_gathered_only_if_they_are_smaller_than_the_product() -> None:
    """Of one row the product is far smaller than the weights."""
    strategy = strategy_on(1, 2)
    with strategy.scope():
        weights = gd.Variable(np.ones((WIDTH, 2 * WIDTH), "f"), cores=(None, "sharded"))

    def replica_fn(x: jax.Array) -> jax.Array:
        gate, up = jnp.split(x @ weights.read_value(), 2, axis=-1)
        return jnp.sum(jax.nn.silu(gate) * up)

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    sent = step.trace(jnp.ones((1, WIDTH))).lower().collectives
    assert {each.bytes for each in sent} <= {4, 4 * WIDTH}
