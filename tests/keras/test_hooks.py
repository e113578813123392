"""What graphdist takes of Keras: public names, and two that one module has."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import graphdist as gd
import graphdist.keras
from graphdist.keras import placed_variables, unpublished_names
from graphdist.keras.placed_variables import is_placed
from tests.keras.models import classifier, mirrored, rows

SOURCES = sorted(Path(graphdist.keras.__file__).parent.glob("*.py"))
CHANGED = f"Keras {keras.__version__} has changed what graphdist.keras relies on: "


def unpublished(source: Path) -> Iterator[str]:
    """Yield what a module reads or writes with an underscore, and is not its own."""
    nodes = list(ast.walk(ast.parse(source.read_text())))
    parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [alias.name for alias in node.names]
            yield from (name for name in [*names, getattr(node, "module", "")] if is_inside(name))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            yield from [node.attr] if is_private(node.attr) else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield from [node.value] if is_private(node.value) or is_inside(node.value) else []


def is_private(name: str) -> bool:
    own = name.startswith("_graphdist")
    return name.startswith("_") and name.isidentifier() and not name.endswith("_") and not own


def is_inside(name: str | None) -> bool:
    return (name or "").startswith("keras.src")


def test_one_module_has_all_unpublished_names_of_keras() -> None:
    found = {source.stem: sorted(set(unpublished(source))) for source in SOURCES}
    data = "keras.src.trainers.data_adapters.data_adapter"
    assert {name: names for name, names in found.items() if names} == {
        "unpublished_names": [
            "_enumerate_iterator",
            "_get_jax_state",
            "_keras_call_info_injected",
            "_num_batches",
            "_steps_seen",
            "_trainable_variables",
            "_trainable_variables_indices",
            "_value",
            data,
            "keras.src.trainers.epoch_iterator",
        ]
    }


def test_keras_still_reads_the_state_of_a_step_in_one_method() -> None:
    method = getattr(keras.Model, unpublished_names.STATE_OF_A_STEP, None)
    assert method is not None, CHANGED + "it has no method `_get_jax_state`: values are copied"
    wanted = {f"{name}_variables" for name in ("trainable", "non_trainable", "optimizer")}
    taken = set(inspect.signature(method).parameters)
    assert wanted | {"metrics_variables"} <= taken, CHANGED + f"`_get_jax_state` takes {taken}"


def test_keras_still_takes_an_adapter_as_data() -> None:
    adapter = unpublished_names.DataAdapter
    wanted = {"get_numpy_iterator", "get_jax_iterator", "num_batches", "batch_size"}
    assert wanted <= set(dir(adapter)), CHANGED + "`DataAdapter` has other methods"


def test_keras_still_counts_the_steps_of_an_epoch_in_a_method() -> None:
    epoch = unpublished_names.EpochIterator(np.ones((6, 1)), batch_size=2, steps_per_epoch=2)
    steps = getattr(epoch, unpublished_names.STEPS_OF_AN_EPOCH)()
    assert next(steps)[:2] == (0, 0), CHANGED + "`EpochIterator` yields other numbers"
    assert unpublished_names.steps_left(epoch, 0) == [1, 2]


def test_a_keras_without_the_class_of_data_is_told() -> None:
    with pytest.raises(gd.errors.UnsupportedError, match=r"no class DataAdapter in keras\.gone"):
        unpublished_names.class_of_keras("DataAdapter", "keras.gone")


@pytest.mark.long
def test_values_are_copied_where_keras_reads_the_state_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`fit` works if Keras's own method runs, as it would with a Keras that has another."""
    models = []
    for is_hidden in (False, True):
        with mirrored().scope():
            model = classifier()
        if is_hidden:
            name = unpublished_names.STATE_OF_A_STEP
            monkeypatch.setattr(keras.Model, name, getattr(keras.Model, name).__wrapped__)
        history = model.fit(*rows(), batch_size=7, epochs=2, verbose=0).history
        models.append([history, model.get_weights()])
    for one, other in zip(*map(jax.tree.leaves, models), strict=True):
        np.testing.assert_array_equal(one, other)


def test_variables_before_one_that_cannot_be_placed_keep_one_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = [keras.Variable([1.0]), keras.Variable([2.0])]

    def fails_at_the_second(value: Any, **options: Any) -> Any:
        if value[0] == 2.0:
            raise MemoryError
        return gd.Variable(value, **options)

    monkeypatch.setattr(placed_variables, "Variable", fails_at_the_second)
    with pytest.raises(MemoryError):
        placed_variables.placed_variables(weights, mirrored())
    for weight, value in zip(weights, (1.0, 2.0), strict=True):
        assert weight.value.tolist() == [value]
        weight.assign([5.0])
        assert weight.value.tolist() == [5.0]
    assert list(map(is_placed, weights)) == [True, False]


def test_an_array_that_the_user_holds_stays() -> None:
    weight = keras.Variable([1.0, 2.0])
    held = weight.value
    mirrored().run(lambda: weight.assign(weight * 2))
    assert held.tolist() == [1.0, 2.0]
    assert weight.value.tolist() == [2.0, 4.0]


def test_a_variable_of_the_users_own_class_keeps_it() -> None:
    class Doubled(keras.Variable):
        def doubled(self) -> Any:
            return self.value * 2

    weight = Doubled([1.0])
    strategy = mirrored()
    assert strategy.run(weight.doubled).values[1].tolist() == [2.0]
    assert is_placed(weight)
    assert type(weight) is Doubled
    assert weight.doubled().tolist() == [2.0]


@pytest.mark.long
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float32", "bfloat16", "float16"])
def test_first_values_have_the_precision_of_the_variable(policy: str) -> None:
    """A layer that is used in a function first reads its new weights cast."""
    layer = layers.Dense(16, dtype=policy, kernel_initializer=keras.initializers.GlorotNormal(1))
    mirrored().run(lambda: layer(np.ones((2, 4), np.float32)))
    kind = "float32" if policy == "mixed_bfloat16" else policy
    twin = layers.Dense(16, dtype=kind, kernel_initializer=keras.initializers.GlorotNormal(1))
    twin.build((2, 4))
    np.testing.assert_array_equal(layer.kernel.numpy(), twin.kernel.numpy())
    assert layer.kernel.dtype == kind


def test_a_value_given_in_a_scope_of_keras_goes_before_the_value_of_the_strategy() -> None:
    weight = keras.Variable([1.0])
    mirrored().run(lambda: weight.assign([3.0]))
    with keras.StatelessScope([(weight, np.array([5.0], np.float32))]) as scope:
        assert weight.value.tolist() == [5.0]
        weight.assign([7.0])
    assert weight.value.tolist() == [3.0]
    assert scope.get_current_value(weight).tolist() == [7.0]


def test_assigning_one_variable_to_another_places_neither() -> None:
    placed, other = keras.Variable([1.0]), keras.Variable([2.0])
    mirrored().run(lambda: placed.assign([3.0]))
    placed.assign(other)
    assert placed.value.tolist() == [2.0]
    assert not is_placed(other)


def test_a_step_for_shapes_leaves_weights_and_metrics_as_they_are() -> None:
    with mirrored().scope():
        model = classifier()
    x, y = rows(8)
    model.train_on_batch(x, y)
    before = [each.numpy() for each in [*model.weights, *model.metrics_variables]]
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (x, y)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graphdist.keras.training_step(model, *shapes)
    after = [each.numpy() for each in [*model.weights, *model.metrics_variables]]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
