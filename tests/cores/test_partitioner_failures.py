"""Programs for which other partitioners gave wrong values, each as on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from tests.cores.training import strategy_on

Split = Callable[[Any, int], Any]


def _update(split: Split, x: Any) -> Any:
    u = jnp.ones((2, 1)) * 7.0
    return jax.lax.dynamic_update_slice(split(x[:2, :4], 1), u, (0, jnp.int32(2)))


def _slice(split: Split, x: Any) -> Any:
    return jax.lax.dynamic_slice(split(x[:2], 1), (0, jnp.int32(7)), (2, 6))


def _negative_pads(split: Split, x: Any) -> Any:
    a = split(x[0, :4], 0)
    cut = [jax.lax.pad(a, 0.0, [(-i, i - 3, 0)]) for i in range(4)]
    return jnp.concatenate(cut[::-1]), jnp.concatenate([*cut[1:], cut[0]])


def _joined(split: Split, x: Any) -> Any:
    a = split(x[:4], 0)
    return jnp.concatenate([a] * 8, axis=0).reshape(8, 4, 8)


def _argmax(split: Split, x: Any) -> Any:
    return jnp.argmax(split(x, 1), axis=1), jnp.argmin(split(x, 0), axis=0)


def _best(split: Split, x: Any) -> Any:
    rows = jnp.tile(x, (1, 8)).at[0, 9].set(jnp.nan).at[1].set(2.0)  # equal ones, and no number
    found = [jax.lax.top_k(split(rows, 1), k) for k in (1, 3, 5)]
    found.append(jax.lax.top_k(split(jnp.int8(rows * 9), 1), 2))
    whole = (jnp.argmax(split(rows, 1), axis=1), jnp.argmin(split(rows.T, 0), axis=0))
    return found, whole, jnp.argmax(split(rows[:, :32] > 1, 1), axis=1, keepdims=True)


def _scatter(split: Split, x: Any) -> Any:
    rows = jnp.arange(8)
    return split(x, 0).at[rows, rows % 3].set(5.0), split(x, 0).at[rows].add(x[::-1])


def _embedding(split: Split, x: Any) -> Any:
    tokens = jnp.array([[1, 7, 1], [0, 3, 9]])
    return jax.grad(lambda table: jnp.take(split(table, 0), tokens, axis=0, fill_value=0.0).sum())(
        x
    )


def _accumulated(split: Split, x: Any) -> Any:
    def turn(total: Any, tokens: Any) -> Any:
        grad = jax.grad(lambda table: jnp.sin(split(table, 0)[tokens]).sum())(x)
        return total + grad, None

    return jax.lax.scan(turn, jnp.zeros_like(x), jnp.array([[1, 7], [0, 1]]))[0]


def _moved(split: Split, x: Any) -> Any:
    y = split(x.reshape(4, 4, 4), 1) + 1.0
    return split(y, 2) * split(y, 0)


def _reshaped(split: Split, x: Any) -> Any:
    return split(x, 0).reshape(2, 4, 8), split(x, 1).reshape(4, 16), split(x, 1).reshape(64)


def _cumulated(split: Split, x: Any) -> Any:
    return jnp.cumsum(split(x, 0), axis=0), jnp.cumprod(split(x, 1), axis=1)


def _padded_convolution(split: Split, x: Any) -> Any:
    weights = jnp.arange(1.0, 4.0)[None, None, :]

    def convolved(a: Any) -> Any:
        a = jax.lax.conv_general_dilated(split(a[:, None, :], 2), weights, (1,), [(1, 1)])
        return jnp.sin(a).sum()

    return jax.grad(convolved)(x)


PROGRAMS: dict[str, Callable[[Split, Any], Any]] = {
    "dynamic_update_slice of columns, xla#49118": _update,
    "dynamic_slice of columns, xla#49122": _slice,
    "concatenates of negative pads, jax#39301": _negative_pads,
    "equal operands joined along the cut, shardy#945": _joined,
    "argmax over the cut, tt-mlir#8623": _argmax,
    "largest elements of a long dimension": _best,
    "scatter of counted rows, tt-xla#5469": _scatter,
    "gradient of take, xla#42481": _embedding,
    "gradients of an embedding in a scan, xla#49143": _accumulated,
    "from one cut to another, xla#15207": _moved,
    "reshapes that split and merge, xla#13306": _reshaped,
    "cumsum along the cut, jax#21403": _cumulated,
    "derivative of a padded convolution, jax#31798": _padded_convolution,
}


def results(program: Callable[[Split, Any], Any], cores: int) -> list[np.ndarray[Any, Any]]:
    strategy = strategy_on(1, cores)

    def split(x: Any, axis: int) -> Any:
        parts = [1] * x.ndim
        parts[axis] = cores
        return strategy.experimental_split_to_logical_devices(x, parts)

    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)), jnp.float32)
    function = gd.function(lambda x: strategy.run(lambda x: program(split, x), args=(x,)))
    return list(map(np.asarray, jax.tree.leaves(function(x))))


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, cores: int) -> None:
    expected = results(PROGRAMS[name], 1)
    for found, wanted in zip(results(PROGRAMS[name], cores), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
