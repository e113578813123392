"""Collectives of JAX by the name of the axis, against `jax.shard_map` by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any  # Any: results are pytrees

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import graphdist as gd
from graphdist.ir.analyses import collectives
from graphdist.ir.ops import reducer_of
from tests.passes.execution import check_same_meaning

R = "replica"
N = 4
ROWS = np.random.default_rng(0).standard_normal((N, 4, 8)).astype(np.float32)
AROUND = [(i, (i + 1) % N) for i in range(N)]
Program = Callable[[jax.Array], Any]


@jax.custom_vjp
def _summed(x: jax.Array) -> jax.Array:
    return lax.psum(x, R)


_summed.defvjp(lambda x: (lax.psum(x, R), None), lambda _, g: (lax.pmean(g, R),))


def _in_turn(x: jax.Array) -> jax.Array:
    carry, seen = lax.scan(
        lambda c, row: (c + lax.pmean(jnp.sin(row * c), R), lax.axis_index(R) + c.sum()), x[0], x
    )
    return carry + seen.sum()


DIFFERENTIABLE: dict[str, Program] = {
    "psum": lambda x: lax.psum(x, R),
    "pmean": lambda x: lax.pmean(x, R),
    "psum of a tree": lambda x: lax.psum({"a": x, "b": None, "c": (x[0],)}, R),
    "all_gather": lambda x: lax.all_gather(x, R),
    "all_gather, axis 1": lambda x: lax.all_gather(x, R, axis=1),
    "all_gather, tiled": lambda x: lax.all_gather(x, R, axis=-1, tiled=True),
    "all_gather of numbers": lambda x: lax.all_gather(x.sum(), R),
    "psum_scatter": lambda x: lax.psum_scatter(x, R),
    "psum_scatter, tiled": lambda x: lax.psum_scatter(x, R, scatter_dimension=1, tiled=True),
    "ppermute": lambda x: lax.ppermute(x, R, AROUND),
    "ppermute to some": lambda x: lax.ppermute(x, R, [(0, 2), (2, 1)]),
    "pshuffle": lambda x: lax.pshuffle(x, R, [3, 2, 0, 1]),
    "all_to_all": lambda x: lax.all_to_all(x, R, 0, 0),
    "all_to_all, tiled": lambda x: lax.all_to_all(x, R, 1, 0, tiled=True),
    "axis_index": lambda x: x * lax.axis_index(R),
    "axis_size": lambda x: x * lax.axis_size(R) * lax.psum(2, R),
    "pmean over both axes": lambda x: jax.vmap(lambda r: lax.pmean(r, ("b", R)), axis_name="b")(x),
    "psum over vmap's own": lambda x: jax.vmap(lambda r: lax.psum(r, "b"), axis_name="b")(x),
    "all_gather over both": lambda x: jax.vmap(
        lambda r: lax.all_gather(lax.all_gather(r, "b"), R), axis_name="b"
    )(x),
    "all_gather in vmap": lambda x: jax.vmap(lambda r: lax.all_gather(r, R), in_axes=1)(x),
    "psum_scatter in vmap": lambda x: jax.vmap(
        lambda r: lax.psum_scatter(r, R, tiled=True), in_axes=1
    )(x),
    "all_to_all in vmap": lambda x: jax.vmap(lambda r: lax.all_to_all(r, R, 0, 0), in_axes=1)(x),
    "ppermute in vmap": lambda x: jax.vmap(lambda r: lax.ppermute(r, R, AROUND))(x),
    "in jit": lambda x: jax.jit(lambda y: lax.psum(y, R) * y)(x),
    "in scan": _in_turn,
    "in cond": lambda x: lax.cond(
        lax.psum(x.sum(), R) > 0, lambda y: lax.psum(y, R), lambda y: lax.ppermute(y, R, AROUND), x
    ),
    "in checkpoint": jax.checkpoint(lambda x: jnp.sin(lax.psum(jnp.sin(x), R))),
    "in custom_vjp": lambda x: _summed(x) * x,
}
"""What has a gradient in JAX: of extremes and of integers there is none."""

OTHERS: dict[str, Program] = {
    "pmax": lambda x: lax.pmax(x, R),
    "pmin": lambda x: lax.pmin(x, R),
    "pmax over both axes": lambda x: jax.vmap(lambda r: lax.pmax(r, (R, "b")), axis_name="b")(x),
    "pmin over both axes": lambda x: jax.vmap(lambda r: lax.pmin(r, (R, "b")), axis_name="b")(x),
    "pbroadcast": lambda x: lax.psum(jnp.where(lax.axis_index(R) == 2, x, 0), R),
    "psum of bools": lambda x: lax.psum(x > 0, R),
    "pmax of bools": lambda x: lax.pmax(x > 0, R),
    "ppermute of bools": lambda x: lax.ppermute(x > 0, R, AROUND),
    "psum of integers": lambda x: lax.psum((x * 9).astype(jnp.int32), R),
    "pmean of integers": lambda x: lax.pmean((x * 9).astype(jnp.int32), R),
    "all_to_all of integers": lambda x: lax.all_to_all((x * 9).astype(jnp.int32), R, 0, 1),
    "psum of complex numbers": lambda x: lax.psum(x + 1j * x, R),
    "psum of small floats": lambda x: lax.pmean(x.astype(jnp.bfloat16), R),
    "number over both axes": lambda x: jax.vmap(
        lambda r: r + lax.axis_index(("b", R)), axis_name="b"
    )(x),
    "no elements": lambda x: (lax.ppermute(x[:0], R, AROUND), lax.psum(x[:0], R)),
    "in while_loop": lambda x: lax.while_loop(
        lambda c: lax.psum(c.sum(), R) < 100, lambda c: c + lax.pmax(jnp.abs(c), R) + 1, x
    ),
    "in vmap of while_loop": lambda x: jax.vmap(
        lambda r: lax.while_loop(
            lambda c: lax.pmax(c.sum(), R) < 9, lambda c: c + lax.pmax(jnp.abs(r), R), r
        )
    )(x),
}


def _gradient(program: Program) -> Program:
    def loss(x: jax.Array) -> jax.Array:
        weight = 1.0 + lax.axis_index(R)
        return sum(
            (jnp.sum(jnp.sin(leaf)) * weight for leaf in jax.tree.leaves(program(x))),
            start=0.0 * x.sum(),
        )

    return jax.grad(loss)


PROGRAMS = {**DIFFERENTIABLE, **OTHERS} | {
    f"gradient of {name}": _gradient(program) for name, program in DIFFERENTIABLE.items()
}


def _all(x: jax.Array) -> dict[str, Any]:
    return {name: program(x) for name, program in PROGRAMS.items()}


@cache
def strategy_of(count: int = N) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(count)])


def per_replica(strategy: gd.Strategy, values: Any) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group]
    )


def stacked(strategy: gd.Strategy, value: Any) -> Any:
    parts = strategy.experimental_local_results(value)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *parts)


@cache
def _ours() -> dict[str, Any]:
    strategy = strategy_of()
    result: dict[str, Any] = stacked(
        strategy, strategy.run(_all, args=(per_replica(strategy, ROWS),))
    )
    return result


@cache
def _by_hand() -> dict[str, Any]:
    mesh = jax.make_mesh((N,), (R,), axis_types=(AxisType.Auto,), devices=jax.devices()[:N])
    spec = PartitionSpec(R)
    local = lambda x: jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], _all(x[0]))  # noqa: E731
    mapped = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    result: dict[str, Any] = jax.device_get(jax.jit(mapped)(ROWS))
    return result


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_numbers_are_those_of_shard_map(name: str) -> None:
    ours, by_hand = _ours()[name], _by_hand()[name]
    structure: Any = jax.tree.structure(ours)
    assert structure == jax.tree.structure(by_hand)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(by_hand), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        tolerance = 2e-2 if one.dtype == jnp.bfloat16 else 2e-5
        np.testing.assert_allclose(
            one.astype(np.complex64), other.astype(np.complex64), tolerance, tolerance
        )


def test_the_passes_keep_the_meaning() -> None:
    strategy = strategy_of()
    names = ("pmean", "psum_scatter", "ppermute to some", "all_to_all", "axis_index")
    step = gd.function(
        lambda x: strategy.run(lambda x: [PROGRAMS[name](x) for name in names], args=(x,))
    )
    traced = step.trace(per_replica(strategy, ROWS))
    check_same_meaning(traced.graph, traced.lower().graph, "axis names", to_the_bit=False)


def kinds(program: Program, x: Any = None) -> list[tuple[str, Any]]:
    strategy = strategy_of()
    step = gd.function(lambda x: strategy.run(program, args=(x,)))
    lowered = step.trace(per_replica(strategy, ROWS) if x is None else x).lower()
    found = collectives(lowered.graph)
    return [(node.op.name, reducer_of(node)) for node in found]


def test_they_are_the_collectives_that_passes_see() -> None:
    assert kinds(lambda x: lax.psum(x, R)) == [("all_reduce", "sum")]
    assert kinds(lambda x: lax.pmin(x, R)) == [("all_reduce", "min")]
    assert kinds(lambda x: lax.all_gather(x, R)) == [("all_gather", "")]
    assert kinds(lambda x: lax.psum_scatter(x, R)) == [("reduce_scatter", "sum")]
    assert kinds(lambda x: lax.ppermute(x, R, AROUND)) == [("collective_permute", "")]
    assert kinds(lambda x: lax.all_to_all(x, R, 0, 0)) == [("all_to_all", "")]
    assert kinds(lambda x: lax.pbroadcast(x, (R,), 1)) == [("all_reduce", "sum")]
    # Added up before they are sent, as two of the replica context's are.
    assert kinds(lambda x: lax.pmean(x, R) + lax.pmean(x * x, R)) == [("all_reduce", "sum")]
    # A mirrored value is its own mean, and its own extreme.
    assert kinds(lambda x: (lax.pmean(x, R), lax.pmax(x, R)), jnp.ones(3)) == []


def test_the_size_is_a_python_number_and_the_index_needs_no_trace_a_replica() -> None:
    sizes = []

    def replica_fn() -> jax.Array:
        sizes.append((lax.axis_size(R), lax.psum(1, R), lax.psum(1.5, R)))
        return lax.axis_index(R)

    assert stacked(strategy_of(), strategy_of().run(replica_fn)).tolist() == [0, 1, 2, 3]
    assert sizes == [(4, 4, 6.0)]
    assert all(isinstance(size, int) for size in sizes[0][:2])


def test_a_jitted_function_is_traced_for_each_number_of_replicas() -> None:
    total = jax.jit(lambda x: lax.psum(x, R) / lax.axis_size(R))
    for count in (2, 4, 2):
        strategy = strategy_of(count)
        x = per_replica(strategy, np.arange(count, dtype=np.float32))
        means = stacked(strategy, strategy.run(total, args=(x,)))
        assert means.tolist() == [(count - 1) / 2] * count


def test_gradients_and_maps_around_a_run() -> None:
    strategy = strategy_of()

    def loss(w: jax.Array, x: Any) -> Any:
        def replica_fn(w: jax.Array, x: jax.Array) -> jax.Array:
            own = jnp.sum(w * x)
            sent = lax.ppermute(own, R, AROUND) * lax.axis_index(R)
            return lax.psum(own, R) ** 2 + lax.all_gather(w * x, R)[1].sum() ** 2 + sent

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(w, x)), axis=None)

    def alone(w: jax.Array) -> jax.Array:
        own = jnp.sum(w * ROWS, axis=(1, 2))
        return jnp.mean(own.sum() ** 2 + own[1] ** 2 + jnp.roll(own, 1) * np.arange(N))

    x = per_replica(strategy, ROWS)
    both = gd.function(jax.value_and_grad(loss))(jnp.float32(0.3), x)
    np.testing.assert_allclose(both, jax.jit(jax.value_and_grad(alone))(0.3), 1e-4)
    many = gd.function(lambda ws, x: jax.vmap(lambda w: loss(w, x))(ws))(jnp.arange(3.0), x)
    np.testing.assert_allclose(many, jax.jit(jax.vmap(alone))(jnp.arange(3.0)), 1e-4)


def _of_one(x: jax.Array) -> dict[str, Any]:
    assert lax.axis_size(R) == 1
    return {
        "reduced": [lax.psum(x, R), lax.pmean(x, R), lax.pmax(x, R), lax.pmin(x, R)],
        "gathered": [lax.all_gather(x, R)[0], lax.all_gather(x, R, tiled=True)],
        "scattered": [lax.psum_scatter(x[None], R), lax.psum_scatter(x, R, tiled=True)],
        "sent": [lax.ppermute(x, R, [(0, 0)]), x + lax.axis_index(R)],
        "gradient": jax.grad(lambda y: jnp.sum(lax.pmean(y, R) ** 2))(x) / 2,
        "in jit": jax.jit(lambda y: lax.pmax(y, R))(x),
        "in scan": lax.scan(lambda c, y: (c, lax.psum(y, R)), 0, x)[1],
    }


@pytest.mark.parametrize("inside", [True, False], ids=["in a function", "outside"])
@pytest.mark.parametrize("is_default", [True, False], ids=["default", "one device"])
def test_over_one_replica_they_change_nothing(is_default: bool, inside: bool) -> None:
    strategy: Any = gd.get_strategy() if is_default else gd.OneDeviceStrategy("cpu:1")

    def run(x: Any) -> Any:
        return strategy.run(_of_one, args=(x,))

    x = jnp.array([1.0, 2.0, 3.0])
    values = gd.function(run)(x) if inside else run(x)
    for name, value in values.items():
        for leaf in jax.tree.leaves(value):
            assert not isinstance(leaf, jax.core.Tracer)
            np.testing.assert_array_equal(leaf, x, err_msg=name)


def test_what_nobody_sends_is_zero_on_one_replica_too() -> None:
    strategy = gd.OneDeviceStrategy("cpu:0")
    assert strategy.run(lambda x: lax.ppermute(x, R, []), args=(jnp.ones(2),)).tolist() == [0, 0]


def test_a_name_of_ones_own() -> None:
    def number(name: str) -> Callable[[], jax.Array]:
        return lambda: lax.psum(lax.axis_index(name) + 1, name)

    made = [
        gd.MirroredStrategy(["cpu:0", "cpu:1"], axis_name="rows"),
        gd.CentralStorageStrategy(["cpu:0", "cpu:1"], axis_name="rows"),
        gd.MultiWorkerMirroredStrategy(devices=["cpu:0", "cpu:1"], axis_name="rows"),
        gd.OneDeviceStrategy("cpu:0", axis_name="rows"),
    ]
    for strategy in (*made, copy.deepcopy(made[0])):
        assert strategy.axis_name == "rows"
        count = strategy.num_replicas_in_sync
        numbers = strategy.experimental_local_results(strategy.run(number("rows")))
        assert [int(one) for one in numbers] == [sum(range(1, count + 1))] * count
    assert gd.get_strategy().axis_name == strategy_of().axis_name == R


@pytest.mark.needs("tpu")
def test_a_name_of_ones_own_where_no_device_is() -> None:
    strategy = gd.TPUStrategy(topology="v5e:1x2", axis_name="rows")
    assert strategy.axis_name == "rows"


UNEQUAL = [np.arange(4.0 * rows, dtype=np.float32).reshape(-1, 4) for rows in (2, 3, 2, 1)]


def test_replicas_of_unequal_shapes_meet_in_them() -> None:
    strategy = strategy_of()

    def replica_fn(x: jax.Array) -> dict[str, jax.Array]:
        mean = lax.pmean(x.mean(0), R)
        variance = lax.pmean(((x - mean) ** 2).mean(0), R)
        return {
            "mean": mean,
            "variance": jax.jit(lambda v: lax.pmean(v, R))(variance),
            "gathered": lax.all_gather(x.sum(0), R),
            "numbered": lax.axis_index(R) * len(x) + jax.jit(lambda: lax.axis_index(R))(),
            "sent": lax.ppermute(x.sum(), R, AROUND),
            "exchanged": lax.all_to_all(x.sum(0), R, 0, 0),
            "in scan": lax.scan(lambda c, _: (lax.pmax(c + len(x), R), None), 0, None, 2)[0],
        }

    found = stacked(strategy, strategy.run(replica_fn, args=(per_replica(strategy, UNEQUAL),)))
    mean = np.mean([x.mean(0) for x in UNEQUAL], axis=0)
    sums = np.stack([x.sum(0) for x in UNEQUAL])
    expected = {
        "mean": mean,
        "variance": np.mean([((x - mean) ** 2).mean(0) for x in UNEQUAL], axis=0),
        "gathered": sums,
        "numbered": np.arange(N) * [3, 4, 3, 2],
        "sent": np.roll(sums.sum(1), 1),
        "exchanged": sums.T,
        "in scan": 6,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], np.broadcast_to(value, found[name].shape), 1e-5)


@pytest.mark.long
def test_gradients_through_the_meetings_of_unequal_replicas() -> None:
    strategy = strategy_of()

    def loss(w: jax.Array, x: Any) -> Any:
        def replica_fn(w: jax.Array, x: jax.Array) -> jax.Array:
            sent = lax.ppermute(jnp.sum(w * x) ** 2, R, AROUND)
            exchanged = lax.all_to_all((w * x).sum(0) ** 2, R, 0, 0)
            return sent * lax.axis_index(R) + jnp.sum(exchanged * jnp.arange(4))

        return strategy.reduce("SUM", strategy.run(replica_fn, args=(w, x)), axis=None)

    def alone(w: jax.Array) -> jax.Array:
        sums = jnp.stack([(w * x).sum(0) for x in UNEQUAL])
        sent = jnp.roll(sums.sum(1) ** 2, 1) * np.arange(N)
        return jnp.sum(sent) + jnp.sum(sums.T**2 * np.arange(N))

    x, w = per_replica(strategy, UNEQUAL), jnp.float32(0.1)
    np.testing.assert_allclose(gd.function(jax.grad(loss))(w, x), jax.jit(jax.grad(alone))(w), 1e-5)
    many = gd.function(lambda ws, x: jax.vmap(lambda w: loss(w, x))(ws))(jnp.arange(3.0), x)
    np.testing.assert_allclose(many, jax.jit(jax.vmap(alone))(jnp.arange(3.0)), 1e-5)


def test_replicas_that_use_their_number_as_a_python_value_meet_in_them() -> None:
    def replica_fn() -> jax.Array:
        number = int(gd.get_replica_context().replica_id_in_sync_group)
        return lax.psum(jnp.float32([1, 10, 100, 1000][number]), R) + lax.axis_index(R)

    found = stacked(strategy_of(), strategy_of().run(replica_fn))
    assert found.tolist() == [1111, 1112, 1113, 1114]
