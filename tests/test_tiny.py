"""A dozen facts, end to end, in a few seconds: the pre-commit hook runs these."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

X = np.random.default_rng(0).standard_normal((8, 4)).astype("f")
W = np.random.default_rng(1).standard_normal((4, 4)).astype("f")


def loss_fn(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ w) - x) ** 2)


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def distributed(strategy: gd.Strategy, batch: np.ndarray = X) -> gd.PerReplica:
    (value,) = strategy.experimental_distribute_dataset([batch])
    assert isinstance(value, gd.PerReplica)
    return value


def test_a_function_is_its_python(strategy: gd.Strategy) -> None:
    double = gd.function(lambda x: x * 2)
    assert (double(X) == X * 2).all()


def test_a_training_step_equals_jax(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(W)

    @gd.function
    def step(x: gd.PerReplica) -> jax.Array:
        def replica_fn(x: jax.Array) -> jax.Array:
            loss, gradient = jax.value_and_grad(loss_fn)(w.read_value(), x)
            w.assign_sub(0.1 * gd.get_replica_context().all_reduce("MEAN", gradient))
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    expected = W
    for _ in range(3):
        loss, gradient = jax.value_and_grad(loss_fn)(expected, X)
        expected = expected - 0.1 * gradient
        assert float(step(distributed(strategy))) == pytest.approx(float(loss), rel=1e-5)
    np.testing.assert_allclose(w, expected, rtol=1e-5)


def test_gradients_flow_across_run_and_reduce(strategy: gd.Strategy) -> None:
    @gd.function
    def gradient(w: jax.Array, x: gd.PerReplica) -> jax.Array:
        def mean_loss(w: jax.Array) -> jax.Array:
            return strategy.reduce("MEAN", strategy.run(loss_fn, args=(w, x)), axis=None)

        return jax.grad(mean_loss)(w)

    expected = jax.grad(loss_fn)(W, X)
    np.testing.assert_allclose(gradient(jnp.asarray(W), distributed(strategy)), expected, atol=1e-6)


def test_a_collective_node_is_a_collective_of_the_module(strategy: gd.Strategy) -> None:
    total = gd.function(lambda x: strategy.reduce("SUM", x, axis=0))
    lowered = total.trace(distributed(strategy)).lower()
    assert [one.kind for one in lowered.collectives] == ["all_reduce"]
    assert lowered.as_text("stablehlo").count("stablehlo.all_reduce") == 1


def test_what_is_mirrored_is_not_reduced(strategy: gd.Strategy) -> None:
    def replica_fn(x: jax.Array) -> jax.Array:
        mean = gd.get_replica_context().all_reduce("MEAN", x)
        return gd.get_replica_context().all_reduce("MEAN", mean)

    twice = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    assert len(twice.trace(distributed(strategy)).lower().collectives) == 1


def test_replicas_have_numbers(strategy: gd.Strategy) -> None:
    ids = strategy.run(lambda: gd.get_replica_context().replica_id_in_sync_group)
    assert [int(value) for value in strategy.experimental_local_results(ids)] == [0, 1]


def test_state_survives_loops_and_gradients(strategy: gd.Strategy) -> None:
    with strategy.scope():
        count = gd.Variable(0.0)

    def replica_fn(x: jax.Array) -> jax.Array:
        def loss(p: jax.Array) -> jax.Array:
            def body(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
                count.assign_add(1.0)
                return carry * p + row.sum(), None

            return jax.lax.scan(body, p, x)[0]

        return jax.grad(loss)(jnp.float32(2))

    strategy.run(replica_fn, args=(distributed(strategy),))
    assert float(count) == 4


def test_a_value_read_earlier_stays_valid(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(W)
    before = w.read_value()
    strategy.run(lambda: w.assign(w * 2))
    assert (before == W).all()
    assert (w.read_value() == W * 2).all()


def test_a_program_that_needs_one_value_of_many_is_refused(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(W)
    with pytest.raises(gd.DistributionError, match="aggregation is NONE"):
        strategy.run(lambda x: w.assign(x), args=(distributed(strategy),))


def test_one_replica_has_no_collectives_and_no_wrapping() -> None:
    strategy = gd.OneDeviceStrategy("cpu:0")
    sum_of = gd.function(
        lambda x: strategy.run(lambda x: gd.get_replica_context().all_reduce("SUM", x), (x,))
    )
    with strategy.scope():
        assert (sum_of(X) == X).all()
        assert sum_of.trace(X).lower().collectives == ()
