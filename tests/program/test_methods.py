"""Methods that are compiled: whose they are, and how long the object lives."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

import graphdist as gd


class Model:
    def __init__(self, weight: float = 2.0) -> None:
        self.weight = gd.Variable(weight)
        self.traces = 0

    @gd.function
    def step(self, x: float) -> Any:
        self.traces += 1
        return self.weight * x


@dataclass
class Equal:
    """Objects are equal, and have no hash."""

    weight: float
    traces: list[None] = field(default_factory=list, compare=False)

    @gd.function
    def step(self, x: float) -> Any:
        self.traces.append(None)
        return self.weight * x


@dataclass(frozen=True)
class Frozen:
    """Objects with another weight are equal, and have one hash."""

    name: str
    weight: float = field(compare=False)

    @gd.function
    def step(self, x: float) -> Any:
        return self.weight * x


@dataclass(slots=True)
class Slotted:
    """Objects have no hash, and there are no weak references to them."""

    weight: float

    @gd.function
    def step(self, x: float) -> Any:
        return self.weight * x


def test_what_is_looked_up_holds_its_object() -> None:
    step = Model().step
    gc.collect()
    assert float(step(3.0)) == 6
    assert float(partial(Model(5.0).step, 3.0)()) == 15
    assert float(next(map(Model(4.0).step, [2.0]))) == 8
    assert float(copy.copy(Model().step)(1.0)) == 2
    assert float(copy.deepcopy(Model().step)(1.0)) == 2
    assert float(gd.function(Model().step)(1.0)) == 2


def test_an_object_is_compiled_for_once_and_freed() -> None:
    model = Model()
    step = model.step
    assert [float(step(1.0)), float(model.step(2.0)), float(model.step(3.0))] == [2, 4, 6]
    assert model.traces == 1
    assert model.step == step
    assert len({model.step, step}) == 1
    assert model.step != Model().step
    assert isinstance(step, gd.Function)
    assert step.latest is not None
    gone = weakref.ref(model)
    del model, step
    gc.collect()
    assert gone() is None


def test_run_finds_the_program_of_a_method_again() -> None:
    strategy, model = gd.MirroredStrategy(["cpu:0"]), Model()
    for _ in range(3):
        strategy.run(model.step, args=(1.0,))
    assert model.traces == 1
    assert float(strategy.run(Model(7.0).step, args=(1.0,))) == 7


def test_objects_are_told_apart_by_identity() -> None:
    first, second = Equal(2.0), Equal(2.0)
    assert [float(one.step(3.0)) for one in (first, second, first)] == [6, 6, 6]
    assert [len(one.traces) for one in (first, second)] == [1, 1]
    frozen = [Frozen("a", 1.0), Frozen("a", 2.0)]
    assert [float(one.step(3.0)) for one in frozen] == [3, 6]
    assert float(Frozen("a", 5.0).step(3.0)) == 15


def test_an_object_without_identity_is_refused_with_what_to_write() -> None:
    with pytest.raises(gd.ArgumentTypeError) as caught:
        Slotted(1.0).step(2.0)
    text = str(caught.value)
    assert "argument 'self' of step is a Slotted, which is neither an array nor hashable" in text
    assert "hint: declare the class @dataclass(eq=False)" in text
