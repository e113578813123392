"""The mean of integers: that integer where all replicas provably hold the same, else a float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import graphdist as gd

STEPS = 3
MAKE = [gd.function, lambda step: step]


def replicas(count: int) -> gd.Strategy:
    return gd.MirroredStrategy([f"cpu:{number}" for number in range(count)])


def own(strategy: gd.Strategy, make: Callable[[int], Any]) -> Any:
    """Return a value of each replica's own, made from its number."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: make(context.replica_id_in_sync_group)
    )


def mean(value: Any) -> Any:
    return gd.get_replica_context().all_reduce("MEAN", value)


def first(value: Any) -> Any:
    return value.values[0] if isinstance(value, gd.PerReplica) else value


def adam(params: Any, state: Any, x: Any) -> Any:
    """Return new parameters and the new state, computed by each replica for itself."""
    gradient = mean(jax.grad(lambda p: jnp.sum(p * x))(params))
    updates, state = optax.adam(0.1).update(gradient, state)
    return optax.apply_updates(params, updates), state


def reducers(collectives: Any) -> list[tuple[str, int]]:
    return [(one.reducer, one.bytes) for one in collectives]


@pytest.mark.parametrize("where", ["reduce", "all_reduce"])
@pytest.mark.parametrize("make", MAKE)
def test_the_count_of_an_optimizer_stays_an_integer(where: str, make: Any) -> None:
    strategy = replicas(2)
    traces = []

    def replica_fn(params: Any, state: Any, x: Any) -> Any:
        new = adam(params, state, x)
        return mean(new) if where == "all_reduce" else new

    def step(params: Any, state: Any, x: Any) -> Any:
        traces.append(1)
        new = strategy.run(replica_fn, args=(params, state, x))
        return strategy.reduce("MEAN", new, axis=None)

    step = make(step)
    params = jnp.ones(2)
    state: Any = optax.adam(0.1).init(params)
    x = own(strategy, lambda number: np.full(2, number + 1, np.float32))
    seen = []
    for _ in range(STEPS):
        params, state = step(params, state, x)
        seen.append(len(traces))
    assert (state[0].count.dtype, int(state[0].count)) == (jnp.int32, STEPS)
    assert state[0].mu.dtype == jnp.float32
    if isinstance(step, gd.Function):
        assert seen[0] == seen[-1]  # one program
        lowered = step.trace(params, state, x).lower()
        assert reducers(lowered.collectives) == [("mean", 8)]


# Outside a function what run returns on one replica is an array like any other.
@pytest.mark.parametrize(
    ("count", "make", "where"),
    [(1, MAKE[0], "reduce"), (1, MAKE[0], "all_reduce"), (1, MAKE[1], "all_reduce")]
    + [(2, make, where) for make in MAKE for where in ("reduce", "all_reduce")],
)
def test_the_state_can_be_assigned_back(count: int, make: Any, where: str) -> None:
    """The first trace fails: there the mean is a float, and no value for the variable."""
    strategy = replicas(count)
    with strategy.scope():
        kept = gd.variables(optax.adam(0.1).init(jnp.ones(2)))
        weights = gd.Variable(jnp.ones(2))

    def replica_fn(x: Any) -> Any:
        new = adam(weights.read_value(), gd.read(kept), x)
        if where == "all_reduce":
            gd.assign((weights, kept), mean(new))
        return new

    def step(x: Any) -> None:
        new = strategy.run(replica_fn, args=(x,))
        if where == "reduce":
            gd.assign((weights, kept), strategy.reduce("MEAN", new, axis=None))

    step = make(step)
    x = own(strategy, lambda number: np.full(2, number + 1, np.float32))
    for _ in range(STEPS):
        step(x)
    assert int(kept[0].count.read_value()) == STEPS
    if isinstance(step, gd.Function):
        sent = [("mean", 8)] if count > 1 else []
        assert reducers(step.trace(x).lower().collectives) == sent


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("count", [1, 2])
def test_integers_that_differ_have_a_float_mean(count: int, make: Any) -> None:
    strategy = replicas(count)
    with strategy.scope():
        own_count = gd.Variable(
            np.int32(2),
            synchronization=gd.VariableSynchronization.ON_READ,
            aggregation=gd.VariableAggregation.SUM,
        )
        ref = gd.Variable(np.int32(2))

    def replica_fn(x: Any) -> Any:
        context = gd.get_replica_context()
        number = lax.axis_index(strategy.axis_name)
        values = {
            "argument": x + 1,
            "name": number + 1,
            "on_read": own_count.read_value() + 1,
            "loop": lax.fori_loop(0, 3, lambda _, total: total + x, jnp.int32(0)),
            "mixed": ref.read_value() * x,
        }
        return mean(values), mean(context.replica_id_in_sync_group + 1), values

    def step(x: Any) -> Any:
        inside, number, values = strategy.run(replica_fn, args=(x,))
        return inside, number, strategy.reduce("MEAN", values, axis=None)

    inside, number, outside = make(step)(own(strategy, np.int32))
    middle = (count - 1) / 2
    expected = {
        "argument": middle + 1,
        "name": middle + 1,
        "on_read": 3,
        "loop": 3 * middle,
        "mixed": 2 * middle,
    }
    for found in (inside, outside):
        assert {name: first(one).dtype for name, one in found.items()} == dict.fromkeys(
            expected, jnp.float32
        )
        assert {name: float(first(one)) for name, one in found.items()} == expected
    assert (float(first(number)), first(number).dtype) == (middle + 1, jnp.float32)


@pytest.mark.parametrize("make", MAKE)
def test_of_several_means_only_those_of_one_integer_are_integers(make: Any) -> None:
    """What follows from an integer that stays one is an integer too, however long the chain."""
    strategy = replicas(2)

    def replica_fn(count: Any, x: Any) -> Any:
        differing = []
        for _ in range(8):
            count = mean(count + 1)
            differing.append(mean(count + x))
        total = gd.get_replica_context().all_reduce("SUM", x)
        return count, differing, mean(total), mean(jnp.arange(3))

    def step(count: Any, x: Any) -> Any:
        return strategy.run(replica_fn, args=(count, x))

    count, differing, total, constant = make(step)(jnp.int32(4), own(strategy, np.int32))
    assert (int(first(count)), first(count).dtype) == (12, jnp.int32)
    assert [float(first(one)) for one in differing] == [i + 5.5 for i in range(8)]
    assert {first(one).dtype for one in differing} == {np.dtype(jnp.float32)}
    assert (int(first(total)), first(total).dtype) == (1, jnp.int32)
    assert first(constant).tolist() == [0, 1, 2]
    assert first(constant).dtype == jnp.int32


@pytest.mark.parametrize("make", MAKE)
def test_replicas_that_are_traced_one_by_one(make: Any) -> None:
    strategy = replicas(2)

    def replica_fn(count: Any, x: Any) -> Any:
        rows = mean(jnp.int32(x.shape[0]))
        merged = gd.get_replica_context().merge_call(
            lambda strategy, count: strategy.reduce("MEAN", count, axis=None), (count + 3,)
        )
        return mean(count + 1), rows, merged, mean(count + 2)

    def step(count: Any, x: Any) -> Any:
        return strategy.run(replica_fn, args=(count, x))

    batch = next(iter(strategy.experimental_distribute_dataset([np.ones(3, np.float32)])))
    found = [first(one) for one in make(step)(jnp.int32(4), batch)]
    assert [(float(one), str(one.dtype)) for one in found] == [
        (5, "int32"),
        (1.5, "float32"),
        (7, "int32"),
        (6, "int32"),
    ]


def test_python_values_of_a_replica_are_told_apart() -> None:
    strategy = replicas(2)

    def replica_fn() -> Any:
        is_first = int(gd.get_replica_context().replica_id_in_sync_group) == 0
        return mean(jnp.int32(3 if is_first else 5)), mean(jnp.int32(7) + 0 * 2)

    different, equal = map(first, strategy.run(replica_fn))
    assert (float(different), different.dtype) == (4.0, jnp.float32)
    assert (int(equal), equal.dtype) == (7, jnp.int32)


@pytest.mark.parametrize("make", MAKE)
def test_a_loop_may_carry_the_state(make: Any) -> None:
    """The first trace fails: a float comes out of a step that an integer goes into."""
    strategy = replicas(2)

    def replica_fn(count: Any, x: Any) -> Any:
        def body(carry: Any, _: None) -> Any:
            new = mean(carry + 1)
            return new, mean(new * x)

        def branch(count: Any) -> Any:
            return mean(count + 1)

        counted = lax.cond(count > 0, branch, lambda count: count, count)
        return (*lax.scan(body, count, length=STEPS), counted)

    count, products, counted = make(lambda count, x: strategy.run(replica_fn, args=(count, x)))(
        jnp.int32(4), own(strategy, np.int32)
    )
    assert (int(first(count)), first(count).dtype) == (7, jnp.int32)
    assert (first(products).tolist(), first(products).dtype) == ([2.5, 3.0, 3.5], jnp.float32)
    assert (int(first(counted)), first(counted).dtype) == (5, jnp.int32)


def test_a_carry_that_differs_is_refused_as_it_was() -> None:
    strategy = replicas(2)

    def replica_fn(x: Any) -> Any:
        return lax.scan(lambda carry, _: (mean(carry), None), x, length=2)

    with pytest.raises(TypeError, match="carry"):
        strategy.run(replica_fn, args=(own(strategy, np.int32),))


def test_variables_are_made_once() -> None:
    strategy = replicas(2)
    made: list[gd.Variable] = []

    @gd.function
    def always(count: Any) -> Any:
        with strategy.scope():
            made.append(gd.Variable(np.float32(1)))
        return strategy.run(lambda count: mean(count + 1), args=(count,))

    mean_of_one = first(always(jnp.int32(4)))
    assert (int(mean_of_one), mean_of_one.dtype) == (5, jnp.float32)
    assert len(made) == 1

    kept: list[gd.Variable] = []

    @gd.function
    def guarded(count: Any) -> Any:
        if not kept:
            with strategy.scope():
                kept.append(gd.Variable(np.float32(1)))
        kept[0].assign_add(1.0)
        return strategy.run(lambda count: mean(count + 1), args=(count,))

    mean_of_one = first(guarded(jnp.int32(4)))
    assert (int(mean_of_one), mean_of_one.dtype) == (5, jnp.int32)
    assert float(kept[0].read_value()) == 2.0


def test_a_program_that_needs_the_float_keeps_it() -> None:
    strategy = replicas(2)
    with strategy.scope():
        average = gd.Variable(0.0)

    @gd.function
    def step(count: Any) -> Any:
        new = strategy.run(lambda count: count + 1, args=(count,))
        average.assign(strategy.reduce("MEAN", new, axis=None))
        return strategy.reduce("MEAN", new, axis=None)

    assert step(jnp.int32(4)).dtype == jnp.float32
    assert float(average.read_value()) == 5.0


def test_an_error_of_the_program_is_that_of_the_first_trace() -> None:
    strategy = replicas(2)

    def replica_fn(x: Any) -> Any:
        raise ValueError(f"the mean is a {mean(x + 1).dtype}")

    with pytest.raises(ValueError, match="a float32"):
        strategy.run(replica_fn, args=(jnp.int32(1),))


def test_gradients_and_batches_pass_through() -> None:
    strategy = replicas(2)

    def replica_fn(count: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            step = mean(count + 1)
            assert step.dtype in (jnp.int32, jnp.float32)
            return jnp.sum(w * x) * step

        many = jax.vmap(lambda c: mean(c + count))(jnp.arange(3))
        return jax.grad(jax.checkpoint(loss))(jnp.ones(2)), many

    x = own(strategy, lambda number: np.full(2, number + 1, np.float32))
    gradient, many = strategy.run(replica_fn, args=(jnp.int32(4), x))
    assert [one.tolist() for one in gradient.values] == [[5, 5], [10, 10]]
    assert (first(many).tolist(), first(many).dtype) == ([4, 5, 6], jnp.int32)


SOURCES = ("argument", "variable", "constant", "own", "number")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_any_arithmetic(seed: int) -> None:
    """A mean is an integer exactly where nothing in it is a replica's own, and its value is right.

    On two replicas; on one an argument counts as a replica's own.
    """
    chosen = np.random.default_rng(seed)
    used = chosen.choice(SOURCES, size=4)
    ops = chosen.choice(np.array(["add", "multiply", "maximum", "minimum"]), size=3)

    def value(inputs: dict[str, Any], numpy: Any) -> Any:
        total = inputs[used[0]]
        for op, name in zip(ops, used[1:], strict=True):
            total = getattr(numpy, op)(total, inputs[name])
        return total

    for count in (1, 2):
        strategy = replicas(count)
        with strategy.scope():
            variable = gd.Variable(np.int32(3))

        def replica_fn(argument: Any, x: Any, variable: gd.Variable = variable) -> Any:
            inputs = {
                "argument": argument,
                "variable": variable.read_value(),
                "constant": jnp.full((2,), 7, jnp.int32),
                "own": x,
            }
            if "number" in used:
                inputs["number"] = gd.get_replica_context().replica_id_in_sync_group
            return mean(jnp.broadcast_to(value(inputs, jnp) + 0, (2,)))

        found = first(strategy.run(replica_fn, args=(jnp.int32(5), own(strategy, np.int32))))
        known = {"argument": 5, "variable": 3, "constant": 7}
        expected = np.mean([value(known | {"own": i, "number": i}, np) for i in range(count)])
        differ = {"own", "number"} | ({"argument"} if count == 1 else set())
        assert found.tolist() == [expected] * 2
        assert found.dtype == (jnp.float32 if differ.intersection(used) else jnp.int32)


@pytest.mark.parametrize("count", [1, 2])
def test_a_metric_beside_it_changes_nothing(count: int) -> None:
    """A metric adds what all replicas share on one of them, which asks for no number on one."""
    strategy = replicas(count)
    with strategy.scope():
        loss, steps = gd.metrics.Mean(), gd.Variable(np.int32(0))

    @gd.function
    def step() -> None:
        loss.update_state(2.0)
        strategy.run(lambda: steps.assign(mean(steps.read_value() + 1)))

    step()
    step()
    assert (int(steps.read_value()), float(loss.result())) == (2, 2.0)
