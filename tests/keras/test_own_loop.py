"""Keras's models, metrics, losses and optimizers in `strategy.run`: the user's own loop."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import layers

import graphdist as gd
import graphdist.keras
from graphdist.keras.placed_variables import is_placed
from tests.keras.models import mirrored, rows, scope_of

BATCH = 8


def network(*extra: Any) -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential([layers.Dense(8, "relu"), *extra, layers.Dense(3, "softmax")])


def optimizers() -> dict[str, Callable[[], Any]]:
    kinds = keras.optimizers
    return {
        "adam": lambda: kinds.Adam(0.01, clipnorm=0.1),
        "accumulating": lambda: kinds.SGD(0.1, gradient_accumulation_steps=2),
        "averaged": lambda: kinds.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
        "loss scale": lambda: kinds.LossScaleOptimizer(kinds.SGD(0.1), initial_scale=4.0),
    }


class Loop:
    """The loop that a user writes: everything of Keras is used in the replica function."""

    def __init__(self, strategy: gd.Strategy | None, make: Callable[[], Any]) -> None:
        self.strategy = gd.get_strategy() if strategy is None else strategy
        with scope_of(strategy):
            self.model, self.optimizer = network(), make()
            self.loss = keras.losses.SparseCategoricalCrossentropy()
            self.mean = keras.metrics.Mean()
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()
        self.step = gd.function(self._step)

    def _step(self, x: Any, y: Any) -> Any:
        return self.strategy.run(self._replica, args=(x, y))

    def _replica(self, x: Any, y: Any) -> Any:
        def loss_of() -> Any:
            predicted = self.model(x, training=True)
            self.accuracy.update_state(y, predicted)
            loss = self.loss(y, predicted)
            return self.optimizer.scale_loss(loss), loss

        if not self.model.built:
            self.model.build(x.shape)
        variables = self.model.trainable_variables
        if not self.optimizer.built:
            self.optimizer.build(variables)
        (_, loss), grads = graphdist.keras.value_and_grad(loss_of, variables, has_aux=True)()
        self.optimizer.apply(grads, variables)
        self.mean.update_state(gd.get_replica_context().all_reduce("SUM", loss))

    def epoch(self) -> list[float]:
        x, y = rows(3 * BATCH)
        for start in range(0, len(x), BATCH):
            part = slice(start, start + BATCH)
            self.step(*(split(values[part], self.strategy) for values in (x, y)))
        found = [float(self.mean.result()), float(self.accuracy.result())]
        self.mean.reset_state()
        self.accuracy.reset_state()
        return found


def split(values: Any, strategy: Any) -> Any:
    parts = np.split(values, strategy.num_replicas_in_sync)
    return strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(parts[context.replica_id_in_sync_group])
    )


@pytest.mark.long
@pytest.mark.parametrize("name", optimizers())
def test_a_loop_is_the_same_on_replicas_as_on_one_device(name: str) -> None:
    loops = [Loop(strategy, optimizers()[name]) for strategy in (None, mirrored(2))]
    alone, together = ([loop.epoch(), loop.epoch()] for loop in loops)
    np.testing.assert_allclose(alone, together, rtol=1e-5)
    for here, there in zip(*(loop.model.get_weights() for loop in loops), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-6)
    steps = [int(loop.optimizer.variables[0].value) for loop in loops]
    assert steps[0] == steps[1]


def per_replica(strategy: Any, *parts: Any) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(parts[context.replica_id_in_sync_group])
    )


def test_layers_and_optimizers_are_built_in_the_first_step() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model, optimizer = network(), keras.optimizers.Adam(0.1)

    def step(x: Any) -> Any:
        model(x)
        values = [variable.value for variable in model.variables]
        optimizer.apply([jnp.ones_like(value) for value in values], model.trainable_variables)
        return values[0]

    began = strategy.run(step, args=(per_replica(strategy, np.ones((2, 4)), np.ones((2, 4))),))
    assert all(is_placed(each) for each in [*model.variables, *optimizer.variables])
    np.testing.assert_allclose(model.weights[0].value, began.values[0] - 0.1, atol=1e-6)
    assert int(optimizer.variables[0].value) == 1


def test_gradients_are_summed_before_they_are_clipped() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        weight, optimizer = keras.Variable([5.0]), keras.optimizers.SGD(1.0, clipvalue=3.0)
    gradient = per_replica(strategy, [2.0], [2.5])
    strategy.run(lambda grad: optimizer.apply([grad], [weight]), args=(gradient,))
    assert weight.numpy().tolist() == [2.0]  # of each alone it would be 1, the rest of 4.5: 0.5


def test_a_stateless_optimizer_sums_gradients_once() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        weight, optimizer = keras.Variable([5.0]), keras.optimizers.SGD(1.0)
        optimizer.build([weight])

    def step(grad: Any) -> Any:
        state = [each.value for each in optimizer.variables]
        return optimizer.stateless_apply(state, [grad], [weight.value])[0]

    found = strategy.run(step, args=(per_replica(strategy, [1.0], [2.0]),))
    assert [part.tolist() for part in found[0].values] == [[2.0], [2.0]]


def test_a_missing_gradient_is_left_out() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        weights, optimizer = [keras.Variable([1.0]), keras.Variable([1.0])], keras.optimizers.SGD()
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        strategy.run(lambda: optimizer.apply([None, jnp.ones(1)], weights))
    assert [weight.numpy().tolist() for weight in weights] == [[1.0], [pytest.approx(0.98)]]


def test_losses_that_are_means_count_once() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1, kernel_regularizer="l2")])
        model.compile("sgd", "mse")
        model.set_weights([np.ones((1, 1)), np.zeros(1)])
    x = per_replica(strategy, [[1.0]], [[3.0]])

    def losses(x: Any) -> Any:
        target, predicted = jnp.zeros((1, 1)), model(x)
        kinds = {"mean": "sum_over_batch_size", "sum": "sum", "none": "none"}
        found = {
            name: keras.losses.MeanSquaredError(reduction=kind)(target, predicted)
            for name, kind in kinds.items()
        }
        return {**found, "compiled": model.compute_loss(x, target, predicted)}

    found = strategy.run(losses, args=(x,))
    values = {name: np.ravel([*value.values]).tolist() for name, value in found.items()}
    assert values["mean"] == [0.5, 4.5]
    assert values["sum"] == values["none"] == [1.0, 9.0]
    np.testing.assert_allclose(values["compiled"], [0.505, 4.505])
    inside = strategy.run(lambda: sum(model.losses)).values
    np.testing.assert_allclose(inside, [0.01, 0.01])  # as TensorFlow has it: not divided


def test_random_layers_draw_other_numbers_on_each_replica_and_in_each_step() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        dropout = layers.Dropout(0.5, seed=3)
    step = gd.function(lambda: strategy.run(lambda: dropout(jnp.ones(64), training=True)))
    drawn = [np.asarray(part) for _ in range(2) for part in step().values]
    assert len({part.tobytes() for part in drawn}) == 4
    np.testing.assert_array_equal(drawn[0], layers.Dropout(0.5, seed=3)(np.ones(64), training=True))


def test_moving_averages_are_means_and_may_be_of_all_rows() -> None:
    strategy = mirrored(2)
    x = per_replica(strategy, [[0.0], [2.0]], [[10.0], [14.0]])
    for kind, variance in (
        (layers.BatchNormalization, 1.75),
        (graphdist.keras.SynchronizedBatchNormalization, 0.5 + 0.5 * 32.75),
    ):
        with strategy.scope():
            layer = kind(momentum=0.5)
        gd.function(lambda x, layer=layer: strategy.run(layer, (x,), {"training": True}))(x)
        assert layer.moving_mean.numpy().tolist() == [3.25]
        assert layer.moving_variance.numpy().tolist() == [variance]


def test_losses_that_layers_add_are_seen() -> None:
    class Adds(layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(jnp.sum(inputs))
            return inputs

    layer = Adds()

    def step(x: Any) -> Any:
        layer(x)
        return sum(layer.losses)

    strategy = mirrored(2)
    found = strategy.run(step, args=(per_replica(strategy, [1.0], [5.0]),))
    assert [float(part) for part in found.values] == [1.0, 5.0]


@pytest.mark.long
def test_a_recurrent_layer_runs_in_a_replica() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        layer = layers.LSTM(4, dropout=0.5, seed=1)
    x = np.ones((2, 3, 2), np.float32)
    found = strategy.run(layer, args=(per_replica(strategy, x, 2 * x),))
    np.testing.assert_allclose(found.values[1], layer(2 * x), rtol=1e-5)


def test_variables_are_read_and_assigned_outside_functions_and_by_plain_keras() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = network()
        model.build((None, 4))
    x = np.ones((2, 4), np.float32)
    strategy.run(lambda: model(x))
    weight = model.weights[0]
    weight.assign(weight * 0 + 2)
    assert np.unique(graphdist.keras.variable_of(weight)).tolist() == [2.0]
    again = keras.Model(inputs := keras.Input((4,)), model(inputs))  # JAX finds out its shapes
    np.testing.assert_allclose(again(x), strategy.run(lambda: model(x)).values[0], rtol=1e-6)
    assert "value=[[2." in repr(weight)


def test_a_copy_of_a_placed_variable_is_a_plain_one() -> None:
    metric = keras.metrics.Sum()
    strategy = mirrored(2)
    strategy.run(lambda: metric.update_state(3.0))
    for twin in (copy.deepcopy(metric.total), pickle.loads(pickle.dumps(metric.total))):
        assert not is_placed(twin)
        assert float(twin.value) == 6.0
        twin.assign(1.0)
    assert float(metric.result()) == 6.0


def test_metrics_are_read_and_reset_inside_functions() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        total = keras.metrics.Sum()

    @gd.function
    def step() -> Any:
        before = total.result()
        strategy.run(lambda: total.update_state(2.0))
        after = total.result()
        total.reset_state()
        return before, after, total.result()

    with strategy.scope():
        assert [[float(value) for value in step()] for _ in range(2)] == [[0.0, 4.0, 0.0]] * 2


def test_a_state_in_a_scan_goes_on() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        total = keras.metrics.Sum()

    def replica(values: Any) -> None:
        def body(carry: Any, value: Any) -> Any:
            total.update_state(value)
            return carry, None

        jax.lax.scan(body, 0, values)

    strategy.run(replica, args=(per_replica(strategy, [1.0, 2.0], [3.0, 4.0]),))
    assert float(total.result()) == 10.0


def test_a_variable_has_one_strategy() -> None:
    metric = keras.metrics.Mean(name="losses")
    mirrored(2).run(lambda: metric.update_state(1.0))
    with pytest.raises(gd.errors.ContextError) as raised:
        mirrored(2).run(lambda: metric.update_state(1.0))
    assert "Keras variable 'losses/total' belongs to" in str(raised.value)


def test_a_gradient_outside_functions_is_refused() -> None:
    weight = keras.Variable(1.0)
    with pytest.raises(gd.errors.ContextError, match="taken outside a function"):
        graphdist.keras.value_and_grad(lambda: weight * 2, [weight])()


def test_a_differentiated_variable_is_not_assigned() -> None:
    weight = keras.Variable(1.0, name="w")

    def step() -> Any:
        def assigned() -> Any:
            weight.assign(weight * 2)
            return weight.value

        return graphdist.keras.value_and_grad(assigned, [weight])()

    with pytest.raises(gd.errors.ArgumentError, match="'w' is assigned in the function"):
        mirrored(2).run(step)


def test_a_variable_is_not_assigned_inside_remat() -> None:
    weight = keras.Variable(1.0, name="w")

    def assigned(x: Any) -> Any:
        weight.assign(weight + x)
        return x * 2

    with pytest.raises(gd.errors.TraceError, match=r"'w' is assigned inside jax\.checkpoint"):
        mirrored(2).run(lambda: keras.remat(assigned)(jnp.float32(1)))


def test_parameters_that_would_differ_are_refused() -> None:
    strategy = mirrored(2)
    weight = keras.Variable([1.0], name="w")
    with pytest.raises(gd.errors.DistributionError, match="'w'"):
        strategy.run(weight.assign, args=(per_replica(strategy, [1.0], [2.0]),))


def test_only_keras_variables_are_on_strategies() -> None:
    no_variable: Any = np.ones(2)
    with pytest.raises(gd.errors.ArgumentTypeError, match="takes a Keras variable, not ndarray"):
        graphdist.keras.variable_of(no_variable)
