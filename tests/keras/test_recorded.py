"""What TensorFlow 2.21 recorded of its Keras under `tf.distribute`: a linear model, small batches.

Under CentralStorageStrategy TensorFlow's metrics were wrong; its weights and predictions were the
same. There the losses of one device are expected.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from tests.conformance.environment import strategy_of

STRATEGIES = [("one", 1), ("mirrored", 2), ("central", 2), ("default", 1)]

# Rows, in batches of 4: loss and mean absolute error of two epochs, and the weight.
FITS = {
    8: (
        [24.852394104003906, 20.09935760498047],
        [4.451250076293945, 4.003031253814697],
        1.19125056,
    ),
    6: (
        [14.863953590393066, 12.715633392333984],
        [3.4724998474121094, 3.2117671966552734],
        1.1445322,
    ),
}


def linear(strategy: Any) -> Any:
    with strategy.scope():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((1,)), dense])
        model.compile(keras.optimizers.SGD(0.001), "mse", metrics=["mae"])
    return model


def column(first: int, count: int) -> Any:
    return np.arange(first, first + count, dtype=np.float32)[:, None]


@pytest.mark.parametrize(("kind", "replicas"), STRATEGIES)
@pytest.mark.parametrize("count", FITS)
def test_fit(count: int, kind: str, replicas: int) -> None:
    model, x = linear(strategy_of(kind, replicas)), column(1, count)
    history = model.fit(x, 2 * x, batch_size=4, epochs=2, verbose=0, shuffle=False).history
    loss, mae, weight = FITS[count]
    np.testing.assert_allclose(history["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(history["mae"], mae, rtol=1e-6)
    np.testing.assert_allclose(model.get_weights()[0], [[weight]], rtol=1e-6)


@pytest.mark.parametrize(("kind", "replicas"), STRATEGIES)
def test_evaluate_and_predict_with_a_partial_batch(kind: str, replicas: int) -> None:
    model, x = linear(strategy_of(kind, replicas)), column(1, 5)
    assert model.evaluate(x, 2 * x, batch_size=4, verbose=0) == [11.0, 3.0]
    predicted = model.predict(column(0, 5), batch_size=4, verbose=0)
    assert predicted.ravel().tolist() == [0, 1, 2, 3, 4]
