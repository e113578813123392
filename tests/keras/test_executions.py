"""Executions of several steps: the calls of callbacks, the programs that run, and "auto"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

from graphdist.keras import automatic_steps, stacked_batches, steps
from tests.keras.models import batches, classifier, mirrored, rows, scope_of

pytestmark = pytest.mark.filterwarnings("ignore:.*(shuffle=True|ran out of data)")

ROWS = 60  # in batches of 7: 8 batches, and a last batch of 4 rows


class Calls(keras.callbacks.Callback):
    """Records all calls of a callback, with numbers and logs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[Any] = []
        self.logs: list[Any] = []

    def _record(self, name: str, *numbers: int, logs: Any = None) -> None:
        self.names.append((name, *numbers, sorted(logs or {})))
        self.logs.append(jax.tree.map(np.asarray, dict(logs or {})))


def _recorded(name: str, has_number: bool) -> Callable[..., None]:
    if has_number:
        return lambda self, number, logs=None: self._record(name, number, logs=logs)
    return lambda self, logs=None: self._record(name, logs=logs)


for _what in ("train", "test", "predict"):
    for _when in ("begin", "end"):
        for _name, _has_number in ((_what, False), (f"{_what}_batch", True)):
            _full = f"on_{_name}_{_when}"
            setattr(Calls, _full, _recorded(_full, _has_number))
for _when in ("begin", "end"):
    setattr(Calls, f"on_epoch_{_when}", _recorded(f"on_epoch_{_when}", True))


class Batches(keras.utils.PyDataset):
    """Nine batches by index."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return list(batches(ROWS))[index]


INPUTS: dict[str, Callable[[Any, Any], Any]] = {
    "arrays": lambda model, calls: model.fit(
        *rows(ROWS), batch_size=7, epochs=2, verbose=0, callbacks=[calls],
        validation_data=rows(30), validation_batch_size=7,
    ),
    "fewer steps": lambda model, calls: model.fit(
        *rows(ROWS), batch_size=7, epochs=3, steps_per_epoch=5, verbose=0, callbacks=[calls]
    ),
    "a generator": lambda model, calls: model.fit(batches(ROWS), verbose=0, callbacks=[calls]),
    "a generator with steps": lambda model, calls: model.fit(
        batches(12 * ROWS), verbose=0, epochs=2, steps_per_epoch=4, callbacks=[calls]
    ),
    "batches by index": lambda model, calls: model.fit(
        Batches(), verbose=0, epochs=2, shuffle=False, callbacks=[calls], validation_data=Batches()
    ),
    "evaluated": lambda model, calls: model.evaluate(
        *rows(ROWS), batch_size=7, verbose=0, callbacks=[calls]
    ),
    "predicted": lambda model, calls: model.predict(
        rows(ROWS)[0], batch_size=7, verbose=0, callbacks=[calls]
    ),
    "predicted from a generator": lambda model, calls: model.predict(
        ((x,) for x, _ in batches(ROWS)), verbose=0, callbacks=[calls]
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("number", [1, 4, 50])
@pytest.mark.parametrize("name", INPUTS)
def test_callbacks_are_called_as_by_keras_itself(name: str, number: int) -> None:
    recorded = []
    for strategy in (None, mirrored(2)):
        keras.utils.set_random_seed(1)
        with scope_of(strategy):
            model = classifier(steps_per_execution=number)
        calls = Calls()
        INPUTS[name](model, calls)
        recorded.append(calls)
    alone, together = recorded
    assert alone.names == together.names
    for here, there in zip(*map(jax.tree.leaves, (alone.logs, together.logs)), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-5)
    assert len(alone.names) > 3


def compiled(of: steps.Steps) -> list[str]:
    """Return the names of the programs that were compiled for steps, one for each program."""
    return sorted(
        function.name
        for function in (of.program, of._several)
        for _ in range(function._kept.num_compiled)
    )


@pytest.mark.long
def test_an_epoch_needs_a_program_for_its_executions_its_rest_and_its_last_batch() -> None:
    with mirrored(2).scope():
        model = classifier(steps_per_execution=3)
    for _ in range(2):
        model.fit(*rows(ROWS), batch_size=7, epochs=2, verbose=0)
    assert compiled(model.train_function) == ["classifier_train_step"] + 2 * [
        "classifier_train_steps"
    ]


@pytest.mark.long
def test_rests_of_many_lengths_are_not_all_compiled() -> None:
    with mirrored(2).scope():
        model = classifier(steps_per_execution=20)
    for count in range(2, 10):
        model.fit(batches(7 * count), verbose=0)
    names = compiled(model.train_function)
    assert names == ["classifier_train_step"] + 4 * ["classifier_train_steps"]
    assert int(model.optimizer.iterations) == sum(range(2, 10))


def test_large_batches_are_stacked_in_equal_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows(ROWS)
    monkeypatch.setattr(stacked_batches, "MOST_BYTES", 3 * (x[:6].nbytes + y[:6].nbytes))
    with mirrored(2).scope():
        model = classifier(steps_per_execution=4)
    model.fit(x, y, batch_size=6, verbose=0)
    assert compiled(model.train_function) == ["classifier_train_steps"]  # of two steps
    assert int(model.optimizer.iterations) == 10


def test_auto_joins_steps_as_soon_as_it_is_known_how_many_are_worth_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "steps_worth", lambda seconds: 4)

    with mirrored(2).scope():
        model = classifier(steps_per_execution="auto")
    for data in (rows(140), None):
        calls = Calls()
        if data is None:
            model.fit(batches(140), callbacks=[calls], verbose=0)
        else:
            model.fit(*data, batch_size=7, callbacks=[calls], verbose=0)
        ends = [numbers[0] for name, *numbers in calls.names if name == "on_train_batch_end"]
        assert ends == ([0, 1, 2, 3, 7, 11, 15, 19] if data else [3, 7, 11, 15, 19])
    assert compiled(model.train_function) == ["classifier_train_step", "classifier_train_steps"]


def test_auto_is_1_for_a_saved_model_and_without_a_strategy(tmp_path: Path) -> None:
    with mirrored(2).scope():
        model = classifier(steps_per_execution="auto")
    assert repr(model.steps_per_execution) == "auto"
    model.fit(*rows(ROWS), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.steps_per_execution) is int
    alone = classifier(steps_per_execution="auto")
    assert isinstance(alone.steps_per_execution, automatic_steps.Automatic)
    assert len(alone.fit(*rows(ROWS), verbose=0).history["loss"]) == 1
