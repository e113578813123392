"""A Keras model in the other tools: compiled ahead of time, viewed, and models of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import graphdist as gd
import graphdist.keras
from graphdist.ir.analyses import walk
from graphdist.tools.compile import main as compile_main
from graphdist.viz.identities import paths
from graphdist.viz.model import model_of
from tests.keras.models import classifier, mirrored, rows

STEP = """
import graphdist.keras, jax, keras

def make_step(strategy, batch: int = 8):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="only")])
        model.compile("adam", "mse", metrics=["mae"])
    x = jax.ShapeDtypeStruct((batch, 4), "float32")
    return graphdist.keras.training_step(model, x, jax.ShapeDtypeStruct((batch, 3), "float32"))
"""


def shapes(*arrays: Any) -> list[Any]:
    return [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]


@pytest.mark.needs("tpu")
def test_a_step_is_compiled_for_a_topology(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps.py"
    file.write_text(STEP)
    assert compile_main([f"{file}:make_step", "--topology", "v5e:2x2"]) == 0
    printed = capsys.readouterr().out
    assert "  Fits " in printed
    assert "train_step on v5e:2x2, 4 devices" in printed


@pytest.mark.long
def test_the_step_is_the_one_that_fit_runs() -> None:
    with mirrored(2).scope():
        model = classifier()
    x, y = rows(8)
    step, arguments = graphdist.keras.training_step(model, *shapes(x, y))
    lowered = step.trace(*arguments).lower()
    assert [collective.kind for collective in lowered.collectives] == ["all_reduce"]
    model.train_on_batch(x, y)
    assert model.train_function.program is step


def test_rows_that_replicas_cannot_share_are_refused() -> None:
    with mirrored(2).scope():
        model = classifier()
    with pytest.raises(gd.errors.ArgumentError, match="a batch of 7 rows is not split evenly"):
        graphdist.keras.training_step(model, *shapes(*rows(7)))


def test_a_model_without_a_strategy_has_no_step() -> None:
    with pytest.raises(gd.errors.ContextError, match="model 'classifier' has no strategy"):
        graphdist.keras.training_step(classifier(), *shapes(*rows(8)))


def test_layers_are_groups_of_the_graph() -> None:
    with mirrored(2).scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(8, "relu", name="hidden"),
                layers.Dense(3, name="last"),
            ]
        )
        model.compile("adam", "mse")
    step, arguments = graphdist.keras.training_step(model, *shapes(rows(8)[0], np.ones((8, 3))))
    groups = set(paths(model_of(step.trace(*arguments).graph)))
    assert {("hidden",), ("last",), ("backward", "hidden"), ("backward", "last")} <= groups
    assert any(part.startswith("adam") for path in groups for part in path)


def test_each_operation_has_lines_of_keras_and_of_the_user() -> None:
    with mirrored(2).scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(8, "gelu"),
                layers.UnitNormalization(),
                layers.BatchNormalization(),
            ]
        )
        model.compile("adam", "mse")
    step, arguments = graphdist.keras.training_step(model, *shapes(rows(8)[0], np.ones((8, 8))))
    for node in walk(step.trace(*arguments).graph):
        frames = node.source.frames
        assert node.op.name == "constant" or frames[-1].file == __file__, node
        assert not node.op.name.startswith("jax.") or "keras" in frames[0].file


def trains(model: Any, x: Any, y: Any) -> None:
    """Train for a step, and look whether weights have changed."""
    before = model.get_weights()
    history = model.fit(x, y, batch_size=len(y), verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert any((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))


@pytest.mark.long
def test_an_application_of_keras_trains() -> None:
    with mirrored(2).scope():
        model = keras.applications.MobileNet(
            input_shape=(32, 32, 3), alpha=0.25, weights=None, classes=3
        )
        model.compile("adam", "sparse_categorical_crossentropy")
    random = np.random.default_rng(0)
    trains(model, random.normal(size=(4, 32, 32, 3)).astype(np.float32), np.arange(4) % 3)


@pytest.mark.needs("keras-hub")
def test_a_model_of_keras_hub_trains() -> None:
    import keras_hub as hub

    with mirrored(2).scope():
        backbone = hub.models.BertBackbone(
            vocabulary_size=50,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
            max_sequence_length=6,
        )
        scores = layers.Dense(3)(backbone.output["pooled_output"])
        model = keras.Model(backbone.input, scores)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tokens = np.random.default_rng(0).integers(0, 50, (4, 6))
    inputs = {"token_ids": tokens, "segment_ids": 0 * tokens, "padding_mask": 0 * tokens + 1}
    trains(model, inputs, np.arange(4) % 3)
