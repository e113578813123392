"""Models, layers and variables of Keras."""

from __future__ import annotations

from typing import Any

import graphdist.keras  # before keras: it chooses the backend

# isort: split
import keras
import numpy as np

import graphdist as gd
from graphdist.keras.installed import require_jax
from graphdist.keras.unpublished_names import class_of_keras
from tests.errors.programs import pair, per_replica
from tests.errors.refusal import Refused

X, Y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)


def _layers(*more: Any) -> list[Any]:
    return [keras.Input((2,)), *more, keras.layers.Dense(1)]


def _compiled(kind: Any = keras.Sequential, *more: Any) -> Any:
    model = kind(_layers(*more), name="scores")
    model.compile("sgd", "mse")
    return model


def _placed(kind: Any = keras.Sequential, *more: Any) -> Any:
    with pair().scope():
        return _compiled(kind, *more)


def keras_on_another_backend(refused: Refused) -> None:
    with refused(NotImplementedError):
        require_jax("torch")


def keras_without_the_class_of_data(refused: Refused) -> None:
    version, keras.__version__ = keras.__version__, "99.0"
    try:
        with refused(NotImplementedError):
            class_of_keras("DataAdapter", "keras.elsewhere")
    finally:
        keras.__version__ = version


def keras_model_made_outside_the_scope(refused: Refused) -> None:
    model = _compiled()
    strategy = pair()
    with strategy.scope(), refused(RuntimeError):
        model.fit(X, Y, verbose=0)
    graphdist.keras.distribute(model, strategy).train_on_batch(X, Y)


def keras_model_with_other_trainable_weights(refused: Refused) -> None:
    model = _placed()
    model.fit(X, Y, verbose=0)
    model.layers[0].trainable = False
    with refused(ValueError):
        model.fit(X, Y, verbose=0)


def keras_model_compiled_for_another_strategy(refused: Refused) -> None:
    model = _placed()
    with pair().scope(), refused(RuntimeError):
        model.compile("sgd", "mse")
    model.train_on_batch(X, Y)


def keras_model_that_is_a_layer(refused: Refused) -> None:
    layer: Any = keras.layers.Dense(1)
    with refused(TypeError):
        graphdist.keras.distribute(layer, pair())


def keras_weights_in_a_checkpoint(refused: Refused) -> None:
    weights = _placed().weights
    with refused(TypeError):
        gd.train.Checkpoint(weights=weights)
    gd.train.Checkpoint(weights=[graphdist.keras.variable_of(weight) for weight in weights])


def keras_model_with_its_own_function_of_steps(refused: Refused) -> None:
    class Own(keras.Sequential):
        def make_train_function(self, force: bool = False) -> Any:
            return None

    with refused(NotImplementedError):
        graphdist.keras.distribute(Own(), pair())


def keras_train_step_without_the_optimizer(refused: Refused) -> None:
    class Still(keras.Sequential):
        def train_step(self, state: Any, data: Any) -> Any:
            return {"loss": 0.0}, state

    model = _placed(Still)
    with refused(NotImplementedError):
        model.fit(X, Y, verbose=0)
    assert model.evaluate(X, Y, verbose=0) >= 0


def keras_train_step_of_another_backend(refused: Refused) -> None:
    class OfTensorFlow(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return {"loss": 0.0}

    model = _placed(OfTensorFlow)
    with refused(ValueError):
        model.fit(X, Y, verbose=0)


def keras_batch_smaller_than_the_replicas(refused: Refused) -> None:
    model = _placed()
    with refused.with_a_warning():
        model.fit(X[:1], Y[:1], verbose=0)


def keras_layer_with_state_in_python(refused: Refused) -> None:
    class Counter(keras.layers.Layer):
        calls = 0

        def call(self, inputs: Any) -> Any:
            self.calls += 1
            return inputs

    model = _placed(keras.Sequential, Counter(name="counter"))
    with refused.with_a_warning():
        model.fit(X, Y, verbose=0)


class Largest(keras.layers.Layer):
    """Keeps the largest input."""

    def __init__(self, aggregation: str) -> None:
        super().__init__(name="largest")
        self.most = self.add_weight(
            shape=(), initializer="zeros", trainable=False, aggregation=aggregation, name="most"
        )

    def call(self, inputs: Any) -> Any:
        self.most.assign(keras.ops.maximum(self.most, keras.ops.max(inputs)))
        return inputs


def keras_weight_without_an_aggregation(refused: Refused) -> None:
    model = _placed(keras.Sequential, Largest("none"))
    with refused(ValueError):
        model.fit(X, Y, verbose=0)


def keras_weight_that_is_no_sum(refused: Refused) -> None:
    model = _placed(keras.Sequential, Largest("sum"))
    with refused(ValueError):
        model.fit(X, Y, verbose=0)


def keras_metric_that_does_not_add_up(refused: Refused) -> None:
    class Peak(keras.metrics.Sum):
        def update_state(self, values: Any, sample_weight: Any = None) -> None:
            self.total.assign(keras.ops.maximum(self.total, keras.ops.max(values)))

    peak = Peak(name="peak")
    with refused(ValueError):
        pair().run(lambda: peak.update_state(X))


def keras_model_run_eagerly(refused: Refused) -> None:
    model = _placed()
    model.run_eagerly = True
    with refused.with_a_warning():
        model.fit(X, Y, verbose=0)


def keras_targets_beside_a_dataset(refused: Refused) -> None:
    model, dataset = _placed(), gd.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    with refused(ValueError):
        model.fit(dataset, Y, verbose=0)
    model.fit(dataset, verbose=0)


def keras_class_weight_of_elements_without_targets(refused: Refused) -> None:
    model, dataset = _placed(), gd.data.Dataset.from_tensor_slices(X).batch(4)
    with refused(ValueError):
        model.fit(dataset, class_weight={0: 2.0}, verbose=0)


def keras_step_without_a_strategy(refused: Refused) -> None:
    with refused(RuntimeError):
        graphdist.keras.training_step(_compiled(), X, Y)


def keras_step_of_rows_that_do_not_divide(refused: Refused) -> None:
    with refused(ValueError):
        graphdist.keras.training_step(_placed(), X[:3], Y[:3])


def keras_variable_of_another_strategy(refused: Refused) -> None:
    weight = keras.Variable(1.0, name="weight")
    pair().run(lambda: weight.assign(2.0))
    with refused(RuntimeError):
        pair().run(lambda: weight.assign(3.0))


def keras_variable_that_is_an_array(refused: Refused) -> None:
    array: Any = X
    with refused(TypeError):
        graphdist.keras.variable_of(array)


def keras_variable_that_would_differ(refused: Refused) -> None:
    strategy, weight = pair(), keras.Variable(1.0, name="weight")
    with refused(ValueError):
        strategy.run(lambda value: weight.assign(value), args=(per_replica(strategy, X[0, 0]),))
    assert float(weight.value) == 1.0


def keras_variable_assigned_where_it_is_differentiated(refused: Refused) -> None:
    weight = keras.Variable(1.0, name="weight")

    def loss() -> Any:
        weight.assign(weight * 2)
        return weight.value

    with refused(ValueError):
        pair().run(lambda: graphdist.keras.value_and_grad(loss, [weight])())


def keras_gradient_outside_functions(refused: Refused) -> None:
    weight = keras.Variable(1.0)
    with refused(RuntimeError):
        graphdist.keras.value_and_grad(lambda: weight * 2, [weight])()


def keras_batch_normalization_with_renorm(refused: Refused) -> None:
    with refused(NotImplementedError):
        graphdist.keras.SynchronizedBatchNormalization(renorm=True)
