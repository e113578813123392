"""Gradients through `merge_call` on replica variants, against plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

UNEQUAL = [[0.1, 1.0], [0.2, -1.0], [2.0], []]
EQUAL = [[0.1, 1.0], [0.2, -1.0], [2.0, 0.5], [0.3, 0.7]]
WEIGHTS = [0.5, -0.3, 1.5, 2.0]

Rows = list[list[float]]
Part = Any
MergeFn = Callable[..., Any]


@pytest.fixture(scope="module")
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(4)])


def distributed(strategy: gd.Strategy, values: Any) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.array(values[context.replica_id_in_sync_group], np.float32)
    )


def context() -> gd.ReplicaContext:
    return gd.get_replica_context()


# What is merged, and the same on the list of all replicas' parts.


def total(strategy: gd.Strategy, x: Any) -> Any:
    return jnp.sin(strategy.reduce("SUM", x, axis=0))


def total_of_all(parts: list[Part]) -> list[Part]:
    return [jnp.sin(sum(jnp.sum(part) for part in parts))] * len(parts)


def mean(strategy: gd.Strategy, x: Any) -> Any:
    return strategy.reduce("MEAN", x, axis=0)


def mean_of_all(parts: list[Part]) -> list[Part]:
    return [jnp.mean(jnp.concatenate(parts))] * len(parts)


def own(strategy: gd.Strategy, x: Any) -> Any:
    """Return each replica's, to which what all have is added."""
    return strategy.run(lambda x: jnp.exp(x) * context().all_reduce("SUM", jnp.sum(x)), args=(x,))


def named(strategy: gd.Strategy, x: Any) -> Any:
    axis = strategy.axis_name
    return strategy.run(lambda x: jnp.exp(x) * jax.lax.psum(jnp.sum(x), axis), args=(x,))


def own_of_all(parts: list[Part]) -> list[Part]:
    summed = sum(jnp.sum(part) for part in parts)
    return [jnp.exp(part) * summed for part in parts]


def gathered(strategy: gd.Strategy, x: Any) -> Any:
    return jnp.cumsum(strategy.gather(x, axis=0) ** 2)


def gathered_of_all(parts: list[Part]) -> list[Part]:
    return [jnp.cumsum(jnp.concatenate(parts) ** 2)] * len(parts)


def both(strategy: gd.Strategy, x: Any) -> Any:
    return total(strategy, x) * strategy.reduce("SUM", own(strategy, x), axis=0)


def both_of_all(parts: list[Part]) -> list[Part]:
    summed = sum(jnp.sum(part) for part in own_of_all(parts))
    return [one * summed for one in total_of_all(parts)]


MERGED: dict[str, tuple[MergeFn, Callable[[list[Part]], list[Part]]]] = {
    "total": (total, total_of_all),
    "mean": (mean, mean_of_all),
    "own": (own, own_of_all),
    "own, by JAX's collective": (named, own_of_all),
    "gathered": (gathered, gathered_of_all),
    "both": (both, both_of_all),
}


def loss_of(merge_fn: MergeFn, w: Any, x: Any) -> Any:
    y = context().merge_call(merge_fn, args=(jnp.tanh(w * x),))
    return jnp.sum(jnp.cos(y) * w) + jnp.sum(x) * w


def losses(of_all: Callable[[list[Part]], list[Part]], ws: Any, rows: Rows) -> Any:
    xs = [jnp.array(row, jnp.float32) for row in rows]
    merged = of_all([jnp.tanh(w * x) for w, x in zip(ws, xs, strict=True)])
    return sum(
        jnp.sum(jnp.cos(y) * w) + jnp.sum(x) * w for w, x, y in zip(ws, xs, merged, strict=True)
    )


def run(strategy: gd.Strategy, fn: Callable[..., Any], rows: Rows, *, by_number: bool) -> Any:
    """Run on all replicas inside a function; with their number each is a variant."""

    def replica_fn(w: Any, x: Any) -> Any:
        assert not by_number or int(context().replica_id_in_sync_group) >= 0
        return fn(w, x)

    step = gd.function(lambda w, x: strategy.run(replica_fn, args=(w, x)))
    return step(distributed(strategy, WEIGHTS), distributed(strategy, rows))


def numbers(value: Any) -> list[float]:
    return [float(part) for part in value.values]


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "by_number"), [(UNEQUAL, False), (EQUAL, True), (UNEQUAL, True), (EQUAL, False)]
)
@pytest.mark.parametrize("name", MERGED)
def test_gradients(strategy: gd.Strategy, name: str, rows: Rows, by_number: bool) -> None:
    merge_fn, of_all = MERGED[name]
    gradient = jax.grad(lambda w, x: loss_of(merge_fn, w, x))
    found = run(strategy, gradient, rows, by_number=by_number)
    expected = jax.grad(lambda ws: losses(of_all, ws, rows))(jnp.array(WEIGHTS))
    np.testing.assert_allclose(numbers(found), expected, rtol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["total", "own"])
def test_jvps(strategy: gd.Strategy, name: str) -> None:
    merge_fn, of_all = MERGED[name]

    def tangent(w: Any, x: Any) -> Any:
        loss = lambda w: loss_of(merge_fn, w, x)  # noqa: E731
        return jax.jvp(loss, (w,), (jnp.ones_like(w),))[1]

    found = run(strategy, tangent, UNEQUAL, by_number=False)
    ws = jnp.array(WEIGHTS)
    _, expected = jax.jvp(lambda ws: losses(of_all, ws, UNEQUAL), (ws,), (jnp.ones_like(ws),))
    assert sum(numbers(found)) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["total", "own"])
def test_second_derivatives(strategy: gd.Strategy, name: str) -> None:
    """The gradient of the sum of all replicas' squared gradients."""
    merge_fn, of_all = MERGED[name]

    def squared(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: loss_of(merge_fn, w, x))(w) ** 2

    found = run(strategy, jax.grad(squared), UNEQUAL, by_number=False)
    gradient = jax.grad(lambda ws: losses(of_all, ws, UNEQUAL))
    expected = jax.grad(lambda ws: jnp.sum(gradient(ws) ** 2))(jnp.array(WEIGHTS))
    np.testing.assert_allclose(numbers(found), expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["both", "own"])
def test_a_gradient_across_run(strategy: gd.Strategy, name: str) -> None:
    merge_fn, of_all = MERGED[name]

    @gd.function
    def gradient(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            of_replicas = strategy.run(lambda w, x: loss_of(merge_fn, w, x), args=(w, x))
            return strategy.reduce("SUM", of_replicas, axis=None)

        return jax.grad(loss)(w)

    found = gradient(jnp.float32(0.4), distributed(strategy, UNEQUAL))
    expected = jax.grad(lambda w: losses(of_all, [w] * 4, UNEQUAL))(jnp.float32(0.4))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.long
def test_a_gradient_inside_a_gradient_across_run(strategy: gd.Strategy) -> None:
    @gd.function
    def gradient(w: Any, x: Any) -> Any:
        def squared(w: Any) -> Any:
            inner = strategy.run(
                lambda w, x: jax.grad(lambda v: loss_of(total, v, x))(w) ** 2, args=(w, x)
            )
            return strategy.reduce("SUM", inner, axis=None)

        return jax.grad(squared)(w)

    def squared(w: Any) -> Any:
        return jnp.sum(jax.grad(lambda ws: losses(total_of_all, ws, UNEQUAL))(jnp.full(4, w)) ** 2)

    found = gradient(jnp.float32(0.4), distributed(strategy, UNEQUAL))
    np.testing.assert_allclose(found, jax.grad(squared)(jnp.float32(0.4)), rtol=1e-4)


def test_a_variable_is_assigned_once(strategy: gd.Strategy) -> None:
    with strategy.scope():
        scale, calls = gd.Variable(2.0), gd.Variable(0)

    def merge_fn(strategy: gd.Strategy, x: Any) -> Any:
        calls.assign_add(1)
        before = scale.read_value()
        scale.assign_add(1.0)
        return total(strategy, x) * before * scale.read_value()

    def of_all(parts: list[Part]) -> list[Part]:
        return [one * 2.0 * 3.0 for one in total_of_all(parts)]

    gradient = jax.grad(lambda w, x: loss_of(merge_fn, w, x))
    found = run(strategy, gradient, UNEQUAL, by_number=False)
    expected = jax.grad(lambda ws: losses(of_all, ws, UNEQUAL))(jnp.array(WEIGHTS))
    np.testing.assert_allclose(numbers(found), expected, rtol=1e-5)
    assert (int(calls), float(scale)) == (1, 3.0)


def test_collectives_are_not_done_twice(strategy: gd.Strategy) -> None:
    def step(w: Any, x: Any) -> Any:
        gradient = jax.grad(lambda w, x: loss_of(total, w, x))
        return strategy.run(gradient, args=(w, x))

    traced = gd.function(step).trace(distributed(strategy, WEIGHTS), distributed(strategy, UNEQUAL))
    lowered = traced.lower()
    assert [one.kind for one in lowered.collectives] == ["all_reduce", "all_reduce"]


@pytest.mark.long
def test_integers_and_python_values_beside(strategy: gd.Strategy) -> None:
    def merge_fn(strategy: gd.Strategy, x: Any, count: Any, scale: float) -> Any:
        rows = strategy.reduce("SUM", count, axis=None)
        return total(strategy, x) * scale / rows, rows

    def loss(w: Any, x: Any) -> Any:
        count = jnp.int32(x.shape[0])
        y, rows = context().merge_call(merge_fn, args=(w * x, count, 3.0))
        return jnp.sum(y * w) * rows

    def of_all(ws: Any) -> Any:
        parts = [w * jnp.array(row) for w, row in zip(ws, UNEQUAL, strict=True)]
        return sum(y * 3.0 * w for y, w in zip(total_of_all(parts), ws, strict=True))

    found = run(strategy, jax.grad(loss), UNEQUAL, by_number=False)
    np.testing.assert_allclose(numbers(found), jax.grad(of_all)(jnp.array(WEIGHTS)), rtol=1e-5)


@pytest.mark.long
def test_a_result_wider_than_what_is_brought(strategy: gd.Strategy) -> None:
    """What fills a padded corner has no cotangent."""

    def merge_fn(strategy: gd.Strategy, x: Any, y: Any) -> Any:
        return strategy.run(lambda x, y: jnp.zeros_like(y) + jnp.sum(x) ** 2, args=(x, y))

    def loss(w: Any, x: Any) -> Any:
        y = context().merge_call(merge_fn, args=(w[None], x))
        again = context().merge_call(merge_fn, args=(jnp.sum(y)[None], x))
        return jnp.sum(again) * w

    def of_all(ws: Any) -> Any:
        sizes = [len(row) for row in UNEQUAL]
        return sum(n * (n * w**2) ** 2 * w for w, n in zip(ws, sizes, strict=True))

    found = run(strategy, jax.grad(loss), UNEQUAL, by_number=False)
    np.testing.assert_allclose(numbers(found), jax.grad(of_all)(jnp.array(WEIGHTS)), rtol=1e-5)


def test_in_a_loop(strategy: gd.Strategy) -> None:
    def loss(w: Any, x: Any) -> Any:
        def body(carried: Any, _: None) -> tuple[Any, None]:
            merged = context().merge_call(total, args=(carried * x,))
            return carried + 0.1 * merged, None

        return jax.lax.scan(body, w, length=3)[0]

    def of_all(ws: Any) -> Any:
        xs = [jnp.array(row) for row in UNEQUAL]
        for _ in range(3):
            merged = total_of_all([w * x for w, x in zip(ws, xs, strict=True)])
            ws = [w + 0.1 * one for w, one in zip(ws, merged, strict=True)]
        return sum(ws)

    found = run(strategy, jax.grad(loss), UNEQUAL, by_number=False)
    np.testing.assert_allclose(numbers(found), jax.grad(of_all)(jnp.array(WEIGHTS)), rtol=1e-5)


def test_a_gradient_on_some_replicas_alone_is_refused(strategy: gd.Strategy) -> None:
    def replica_fn(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return loss_of(total, w, x)

        return jax.grad(loss)(w) if int(context().replica_id_in_sync_group) else loss(w)

    with pytest.raises(gd.TraceError, match="replica"):
        run(strategy, replica_fn, UNEQUAL, by_number=False)
