"""Every synchronization with every aggregation, in both contexts, inside functions and outside.

The numbers are those of `tf.distribute` on two replicas: a variable starts at 1, replica r writes r
+ 1, cross-replica code writes 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist import VariableAggregation as Aggregation
from graphdist import VariableSynchronization as Synchronization

ON_WRITE, ON_READ, AUTO = Synchronization.ON_WRITE, Synchronization.ON_READ, Synchronization.AUTO
NONE, SUM, MEAN = Aggregation.NONE, Aggregation.SUM, Aggregation.MEAN
FIRST = Aggregation.ONLY_FIRST_REPLICA


STRATEGIES: dict[str, Callable[[], gd.Strategy]] = {
    "mirrored": lambda: gd.MirroredStrategy(["cpu:0", "cpu:1"]),
    "central": lambda: gd.CentralStorageStrategy(["cpu:0", "cpu:1"]),
    "central_elsewhere": lambda: gd.CentralStorageStrategy(["cpu:0", "cpu:1"], "cpu:2"),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> gd.Strategy:
    return STRATEGIES[request.param]()


def variable(strategy: gd.Strategy, *options: Any, start: Any = 1.0) -> gd.Variable:
    with strategy.scope():
        return gd.Variable(start, synchronization=options[0], aggregation=options[1])


def number() -> jax.Array:
    return jnp.float32(gd.get_replica_context().replica_id_in_sync_group + 1)


def copies(strategy: gd.Strategy, of: gd.Variable) -> list[float]:
    """Return what each replica reads."""
    read = strategy.run(lambda: of.read_value() + 0)
    return [float(value) for value in strategy.experimental_local_results(read)]


REPLICA_WRITES = [
    # synchronization, aggregation, copies and reading after assign, after assign_add
    (AUTO, SUM, [3, 3], 3, [4, 4], 4),
    (ON_WRITE, SUM, [3, 3], 3, [4, 4], 4),
    (ON_WRITE, MEAN, [1.5, 1.5], 1.5, [2.5, 2.5], 2.5),
    (ON_WRITE, FIRST, [1, 1], 1, [2, 2], 2),
    (ON_READ, SUM, [1, 2], 3, [2, 3], 5),
    (ON_READ, MEAN, [1, 2], 1.5, [2, 3], 2.5),
    (ON_READ, FIRST, [1, 2], 1, [2, 3], 2),
]


@pytest.mark.long
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("case", REPLICA_WRITES, ids=lambda case: f"{case[0].name}-{case[1].name}")
def test_writes_in_replica_context(strategy: gd.Strategy, case: Any, inside: bool) -> None:
    synchronization, aggregation, assigned, read, added, read_added = case
    for method, expected, reading in (
        ("assign", assigned, read),
        ("assign_add", added, read_added),
    ):
        of = variable(strategy, synchronization, aggregation)

        def step(of: gd.Variable = of, method: str = method) -> Any:
            return strategy.run(lambda: getattr(of, method)(number()))

        returned = gd.function(step)() if inside else step()
        assert [float(value) for value in returned.values] == expected
        assert copies(strategy, of) == expected
        assert float(of) == reading
        with strategy.scope():
            assert float(gd.function(of.read_value)()) == reading


def test_subtracting_is_adding_the_negative(strategy: gd.Strategy) -> None:
    of = variable(strategy, ON_WRITE, MEAN)
    strategy.run(lambda: of.assign_sub(number()))
    assert float(of) == -0.5


CROSS_WRITES = [
    # synchronization, aggregation, copies after assign(3), reading, copies after assign_add(3)
    (ON_WRITE, NONE, [3, 3], 3, [4, 4]),
    (ON_WRITE, SUM, [3, 3], 3, [4, 4]),
    (ON_WRITE, MEAN, [3, 3], 3, [4, 4]),
    (ON_READ, SUM, [1.5, 1.5], 3, None),
    (ON_READ, MEAN, [3, 3], 3, [4, 4]),
    (ON_READ, FIRST, [3, 3], 3, [4, 4]),
]


@pytest.mark.long
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("case", CROSS_WRITES, ids=lambda case: f"{case[0].name}-{case[1].name}")
def test_writes_in_cross_replica_context(strategy: gd.Strategy, case: Any, inside: bool) -> None:
    synchronization, aggregation, assigned, reading, added = case

    def call(method: Any) -> None:
        with strategy.scope():
            gd.function(lambda: method(3.0))() if inside else method(3.0)

    of = variable(strategy, synchronization, aggregation)
    call(of.assign)
    assert copies(strategy, of) == assigned
    assert float(of) == reading
    of = variable(strategy, synchronization, aggregation)
    if added is None:
        with pytest.raises(gd.ArgumentError, match="adding to it in cross-replica context"):
            call(of.assign_add)
    else:
        call(of.assign_add)
        assert copies(strategy, of) == added


def test_an_integer_total_that_does_not_divide_is_not_lost(strategy: gd.Strategy) -> None:
    of = variable(strategy, ON_READ, SUM, start=np.int32(1))
    of.assign(3)
    assert int(of) == 3


@pytest.mark.parametrize("synchronization", [AUTO, ON_WRITE])
def test_different_values_and_no_aggregation_are_refused(
    strategy: gd.Strategy, synchronization: Any
) -> None:
    of = variable(strategy, synchronization, NONE)
    for method in (of.assign, of.assign_add):
        with pytest.raises(gd.DistributionError):
            strategy.run(lambda method=method: method(number()))
    strategy.run(lambda: of.assign(5.0))
    assert copies(strategy, of) == [5, 5]


def test_on_read_without_aggregation_is_each_replicas_own(strategy: gd.Strategy) -> None:
    of = variable(strategy, ON_READ, NONE)
    strategy.run(lambda: of.assign_add(number()))
    assert copies(strategy, of) == [2, 3]
    for use in (of.read_value, lambda: of.assign(3.0), lambda: of + 1):
        with pytest.raises(gd.ArgumentError):
            use()
    assert repr(of).startswith("<Variable 'variable' f32[] per_replica on cpu:")
    assert repr(of).endswith(": 2.0 | 3.0>")


def test_only_the_first_replicas_flag(strategy: gd.Strategy) -> None:
    of = variable(strategy, ON_WRITE, FIRST, start=np.array([True, False]))
    strategy.run(lambda: of.assign(jnp.array([False, True]) ^ (number() > 1)))
    assert of.read_value().tolist() == [False, True]


@pytest.mark.long
def test_a_variable_is_an_array(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(jnp.arange(6.0).reshape(2, 3), name="w")
    expected = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(w + 1, expected + 1)
    np.testing.assert_array_equal(1 - w, 1 - expected)
    np.testing.assert_array_equal(w @ w[0], expected @ expected[0])
    np.testing.assert_array_equal(jnp.sin(w[...]), jnp.sin(expected))
    np.testing.assert_array_equal(jnp.asarray(w), expected)
    np.testing.assert_array_equal(-w * w / 2, -expected * expected / 2)
    np.testing.assert_array_equal(w > 2, expected > 2)
    np.testing.assert_array_equal(np.asarray(w), expected)
    assert (w.shape, w.ndim, w.size, len(w)) == ((2, 3), 2, 6, 2)
    assert w.dtype == np.float32
    assert w.trainable
    inside = strategy.run(
        lambda: jnp.sum(w * w) + w[1, 2] + jax.grad(lambda x: (x * w).sum())(w * 1).sum()
    )
    assert float(inside.values[0]) == (expected**2).sum() + 5 + 15


@pytest.mark.long
def test_pytrees_of_variables(strategy: gd.Strategy) -> None:
    tree = {"layer": [jnp.zeros(2), {"bias": jnp.ones(3)}], "step": jnp.int32(0)}
    with strategy.scope():
        variables = gd.variables(tree)
    assert variables["layer"][1]["bias"].name == "layer_1_bias"
    chex = jax.tree.map(lambda a, b: bool((a == b).all()), gd.read(variables), tree)
    assert all(jax.tree.leaves(chex))
    gd.assign(variables, jax.tree.map(lambda x: x + 1, tree))
    assert gd.read(variables)["step"] == 1

    @gd.function
    def step() -> Any:
        def replica_fn() -> None:
            gd.assign(variables, jax.tree.map(lambda x: x + 1, gd.read(variables)))

        return strategy.run(replica_fn)

    step()
    assert gd.read(variables)["step"] == 2


def test_a_variable_made_in_the_first_trace() -> None:
    class Layer:
        w: gd.Variable | None = None

        @gd.function
        def __call__(self, x: jax.Array) -> jax.Array:
            if self.w is None:
                self.w = gd.Variable(lambda: jnp.full(3, 2.0), name="w")
            return self.w * x

    layer = Layer()
    assert layer(jnp.ones(3)).tolist() == [2, 2, 2]
    assert layer(jnp.ones(1)).tolist() == [2, 2, 2]
    assert layer.w is not None
    assert float(layer.w[0]) == 2


def test_dtype_of_the_declaration_and_of_python_numbers(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(1, dtype=jnp.bfloat16)
    assert w.dtype == jnp.bfloat16
    w.assign(2.5)
    strategy.run(lambda: w.assign_add(1))
    assert float(w) == 3.5
