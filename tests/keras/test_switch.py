"""Keras trains on a strategy without an import of `graphdist.keras`, or the program is told."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.multi_worker.launch import environment

pytestmark = pytest.mark.long

START = """
import graphdist as gd
gd.config.set_logical_cpu_devices(2)
import numpy as np
strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
x = np.arange(32, dtype=np.float32).reshape(8, 4) / 32

def build(keras):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

def fit(model):
    losses = model.fit(x, x[:, :1], epochs=3, verbose=0).history["loss"]
    on_strategy = type(model.train_function).__module__ == "graphdist.keras.steps"
    print(on_strategy, *(f"{loss:.5f}" for loss in losses))
"""


def outcome(program: str, backend: str = "jax") -> tuple[int, str, str]:
    """Run a program in a process of its own; return its status, output and errors."""
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(program)],
        env=environment(KERAS_BACKEND=backend),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def one_device() -> str:
    """Return the losses of the model on one device, without graphdist."""
    status, output, error = outcome(
        """
        import keras
        model = build(keras)
        model.compile("sgd", "mse")
        fit(model)
        """
    )
    assert status == 0, error
    return output.removeprefix("False ")


PROGRAMS = {
    "as for tf.distribute": """
        import keras
        with strategy.scope():
            model = build(keras)
            model.compile("sgd", "mse")
        fit(model)
        """,
    "made before the scope": """
        import keras
        model = build(keras)
        with strategy.scope():
            model.compile("sgd", "mse")
        fit(model)
        """,
    "made before graphdist.keras": """
        import keras
        model = build(keras)
        import graphdist.keras
        with strategy.scope():
            model.compile("sgd", "mse")
        fit(model)
        """,
    "given to distribute": """
        import keras
        model = build(keras)
        model.compile("sgd", "mse")
        import graphdist.keras
        fit(graphdist.keras.distribute(model, strategy))
        """,
    "in a second scope": """
        import keras
        with strategy.scope():
            pass
        with strategy.scope():
            model = build(keras)
            model.compile("sgd", "mse")
            fit(model)
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_keras_trains_on_the_strategy(name: str, one_device: str) -> None:
    status, output, error = outcome(PROGRAMS[name])
    assert status == 0, error
    assert output == f"True {one_device}"
    assert "Warning" not in error


def test_a_model_compiled_outside_is_told_where_it_is_trained() -> None:
    status, _, error = outcome(
        """
        import keras
        model = build(keras)
        model.compile("sgd", "mse")
        with strategy.scope():
            fit(model)
        """
    )
    assert status == 1
    assert "was made and compiled outside the scope of" in error


def test_keras_that_is_imported_inside_a_scope() -> None:
    status, output, error = outcome(
        """
        with strategy.scope():
            import keras
            model = build(keras)
            model.compile("sgd", "mse")
        fit(model)
        """
    )
    assert status == 0, error
    assert output.startswith("False")
    assert "UserWarning: Keras was imported inside a strategy's scope" in error


def test_another_backend_of_keras() -> None:
    status, _, error = outcome(
        """
        import keras
        outside = build(keras)
        with strategy.scope():
            model = build(keras)
        """,
        backend="numpy",
    )
    assert status == 0, error
    assert error.count("a Keras model is made in the scope of") == 1
    assert "Keras runs on numpy, graphdist on jax. Set KERAS_BACKEND=jax" in error


def test_programs_without_keras_do_not_import_it() -> None:
    status, output, error = outcome(
        """
        import sys
        with strategy.scope():
            pass
        print("keras" in sys.modules, "graphdist.keras" in sys.modules)
        """
    )
    assert (status, output) == (0, "False False\n"), error
