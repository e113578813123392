"""Values of a trace that a function leaves behind: refused by name, and put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import graphdist as gd

TOTAL: Any = jnp.zeros(())
STATE: dict[str, Any] = {"total": jnp.zeros(())}


class Model:
    def __init__(self) -> None:
        self.w = jnp.ones(())
        self.kept: list[Any] = []
        self._cache: Any = None

    def set(self, x: Any) -> Any:
        self.w = self.w + x
        return self.w

    def keep(self, x: Any) -> Any:
        self.kept.append(x * 2)
        return x

    def cached(self, x: Any) -> Any:
        self._cache = x * 2
        return self._cache + 1

    @gd.function
    def step(self, x: Any) -> Any:
        return self.set(x)

    @gd.function
    def quick(self, x: Any) -> Any:
        return self.cached(x)


MODEL = Model()


def set_global(x: Any) -> Any:
    global TOTAL
    TOTAL = TOTAL + x
    return TOTAL


def set_item_of_global(x: Any) -> Any:
    STATE["total"] = STATE["total"] + x
    return x


def set_attribute_of_global(x: Any) -> Any:
    MODEL.w = MODEL.w + x
    return x


def around() -> Callable[[Any], Any]:
    total = jnp.zeros(())

    def set_variable_around(x: Any) -> Any:
        nonlocal total
        total = total + x
        return total

    return set_variable_around


LEAKS: list[tuple[Callable[[Any], Any], str]] = [
    (set_global, "TOTAL"),
    (set_attribute_of_global, "MODEL.w"),
    (around(), "total"),
    (Model().set, "self.w"),
    (set_item_of_global, "STATE"),
]


@pytest.mark.parametrize(("fn", "name"), LEAKS)
def test_a_value_that_is_left_behind_is_refused_by_name(
    fn: Callable[[Any], Any], name: str
) -> None:
    with pytest.raises(gd.ArgumentError) as caught:
        gd.function(fn)(jnp.ones(()))
    text = str(caught.value)
    assert f" leaves a value of its trace in {name}: " in text
    assert "test_leaked_values.py:" in text
    assert "hint: make it a gd.Variable" in text


def test_the_old_value_is_put_back() -> None:
    model = Model()
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    calls: list[Callable[[], Any]] = [
        lambda: model.step(1.0),
        lambda: strategy.run(model.set, args=(jnp.ones(()),)),
    ]
    for call in calls:
        with pytest.raises(gd.ArgumentError, match=r"in self\.w:"):
            call()
    assert float(model.w) == 1
    with pytest.raises(gd.ArgumentError, match=r"in 'w' of the Model that it is given:"):
        gd.function(lambda model, x: model.set(x))(model, 1.0)
    assert float(model.w) == 1
    assert [float(value) for value in (TOTAL, MODEL.w)] == [0, 1]


def test_a_list_may_collect_what_is_traced() -> None:
    model = Model()
    assert [float(gd.function(model.keep)(x)) for x in (1.0, 2.0)] == [1, 2]
    assert len(model.kept) == 2


def test_a_cache_of_values_of_the_trace_runs() -> None:
    model = Model()
    assert [float(model.quick(x)) for x in (1.0, 2.0)] == [3, 5]
