"""What reductions make of leaves that are no floats: None stays, one integer stays an integer."""

from __future__ import annotations

from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd


@pytest.fixture(params=[1, 2])
def strategy(request: pytest.FixtureRequest) -> gd.Strategy:
    return gd.MirroredStrategy([f"cpu:{number}" for number in range(request.param)])


def number(strategy: gd.Strategy) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.full(1, context.replica_id_in_sync_group + 1, np.float32)
    )


@pytest.mark.parametrize("make", [gd.function, lambda step: step])
@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_none_in_a_tree_stays_none(strategy: gd.Strategy, op: str, make: Any) -> None:
    def replica_fn(x: Any) -> Any:
        context = gd.get_replica_context()
        tree = {"w": x, "static": None, "layers": [None, (x * 2, None)]}
        return context.all_reduce(op, tree), context.all_gather(tree, axis=0), tree

    def step(x: Any) -> Any:
        reduced, gathered, own = strategy.run(replica_fn, args=(x,))
        return reduced, gathered, strategy.reduce(op, own, axis=None)

    reduced, gathered, combined = make(step)(number(strategy))
    size = strategy.num_replicas_in_sync
    expected = [1 / size, 2 / size] if op == "MEAN" else [1, 2]
    expected = [e * sum(range(size + 1)) for e in expected]
    for tree in (reduced, combined):
        assert tree["static"] is None
        assert tree["layers"][0] is tree["layers"][1][1] is None
        found = (tree["w"], tree["layers"][1][0])
        assert [float(strategy.experimental_local_results(x)[0][0]) for x in found] == expected
    assert gathered["static"] is None
    whole = strategy.experimental_local_results(gathered["w"])[0]
    assert whole.tolist() == list(range(1, size + 1))


@pytest.mark.parametrize("make", [gd.function, lambda gather: gather])
def test_gather_takes_trees_in_which_none_stays_none(strategy: gd.Strategy, make: Any) -> None:
    def gather(tree: Any) -> Any:
        return strategy.gather(tree, axis=0)

    x, size = number(strategy), strategy.num_replicas_in_sync
    tree = {"w": x, "static": None, "layers": [None, (x * 2, np.ones(3, np.float32))]}
    gathered = make(gather)(tree)
    assert gathered["static"] is None
    assert gathered["layers"][0] is None
    assert gathered["w"].tolist() == list(range(1, size + 1))
    assert gathered["layers"][1][0].tolist() == list(range(2, 2 * size + 1, 2))
    assert gathered["layers"][1][1].tolist() == [1, 1, 1]


def test_the_gradient_of_a_model_with_static_fields_is_reduced(strategy: gd.Strategy) -> None:
    model = equinox.nn.MLP(2, 1, width_size=4, depth=1, key=jax.random.key(0))

    gradient_of: Any = equinox.filter_grad  # Any: it is typed in part

    def replica_fn(x: Any) -> Any:
        def loss(model: Any) -> Any:
            return jnp.sum(model(jnp.tile(x, 2)) ** 2)

        return gd.get_replica_context().all_reduce("MEAN", gradient_of(loss)(model))

    gradient = strategy.run(replica_fn, args=(number(strategy),))
    assert gradient.activation is None
    assert gradient.layers[0].weight is not None


def test_none_alone_is_refused(strategy: gd.Strategy) -> None:
    for name, argument in (("all_reduce", {"reduce_op": "SUM"}), ("all_gather", {"axis": 0})):

        def replica_fn(name: str = name, argument: Any = argument) -> Any:
            return getattr(gd.get_replica_context(), name)(value=None, **argument)

        with pytest.raises(gd.ArgumentError, match=f"{name} of None"):
            strategy.run(replica_fn)


@pytest.mark.parametrize("make", [gd.function, lambda step: step])
def test_the_mean_of_one_integer_is_that_integer(make: Any) -> None:
    """A count that is not distributed, as in the state of an optimizer."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        kept = gd.Variable(np.int32(7))
    state = {"count": jnp.int32(16_777_217), "mu": jnp.ones(2)}

    def replica_fn(state: Any, x: Any) -> Any:
        context = gd.get_replica_context()
        means = context.all_reduce("MEAN", {**state, "kept": kept.read_value()})
        own = context.all_reduce("MEAN", context.replica_id_in_sync_group)
        return means, own, x

    def step(state: Any, x: Any) -> Any:
        means, own, _ = strategy.run(replica_fn, args=(state, x))
        return means, own, strategy.reduce("MEAN", {**state, "kept": kept}, axis=None)

    for rows in (4, 3):  # replicas that are traced as one, and one by one
        batch = strategy.experimental_distribute_dataset([np.ones(rows, np.float32)])
        means, own, combined = make(step)(state, next(iter(batch)))
        for tree in (jax.tree.map(lambda leaf: leaf.values[1], means), combined):
            assert (int(tree["count"]), tree["count"].dtype) == (16_777_217, jnp.int32)
            assert (int(tree["kept"]), tree["kept"].dtype) == (7, jnp.int32)
            assert tree["mu"].dtype == jnp.float32
        assert (float(own.values[0]), own.values[0].dtype) == (0.5, jnp.float32)


def test_an_integer_in_a_mirrored_variable_stays_one_on_one_replica_too() -> None:
    strategy = gd.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        kept = gd.Variable(np.int32(7))
    mean = strategy.run(lambda: gd.get_replica_context().all_reduce("MEAN", kept.read_value()))
    assert mean.dtype == strategy.reduce("MEAN", kept, axis=None).dtype == jnp.int32
