"""Random programs whose loops read and change Python's state, against the same without functions.

A program reads some places in its loop's body, by functions beside it, and changes some there,
before and after the loop, and between two calls. Its results and the places are the same as in
plain Python, or it is refused by an error of ours.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

# A loop that asks an iterator and cannot be traced is run element by element, and says so.
pytestmark = pytest.mark.filterwarnings("ignore::graphdist.ElementByElementWarning")

STRATEGY = gd.OneDeviceStrategy("cpu:0")
ROWS = np.arange(1, 6, dtype=np.float32)
RATE: Any = 1.0
MEMORY: dict[str, Any] = {}


class Base:
    """A class whose attribute is read through an instance of another."""

    shared: Any = 1.0

    def method(self) -> Any:
        return self.shared


class Slotted(Base):
    __slots__ = ("own",)

    def __init__(self) -> None:
        self.own: Any = 1.0

    @property
    def doubled(self) -> Any:
        return 2 * self.own

    def __call__(self) -> Any:
        return self.own + self.shared


@dataclass(frozen=True)
class Frozen:
    value: Any


class World:
    """The places of one program."""

    def __init__(self) -> None:
        global RATE
        RATE, Base.shared = 1.0, 1.0
        MEMORY.clear()
        MEMORY.update(value=1.0, nested=[1.0, {"deep": 1.0}])
        self.number: Any = 1.0
        self.items: list[Any] = [1.0, 2.0]
        self.pair: Any = (1.0, jnp.float32(2))
        self.space = types.SimpleNamespace(value=1.0)
        self.slotted = Slotted()
        self.frozen = Frozen(1.0)
        self.function: Callable[[], Any] = lambda: 1.0
        self.partial = functools.partial(max, 1.0)
        self.numbers = np.ones(2, "f")
        cell: Any = 1.0

        def read_cell() -> Any:
            return cell

        def set_cell(value: Any) -> None:
            nonlocal cell
            cell = value

        self.read_cell, self.set_cell = read_cell, set_cell

    @property
    def values(self) -> list[float]:
        """Return the values of all places."""
        return [float(np.sum(read(self))) for read, _ in PLACES.values()]


def set_global(world: World, value: Any) -> None:
    global RATE
    RATE = value


def set_in_place(world: World, value: Any) -> None:
    world.numbers[0] = value


PLACES: dict[str, tuple[Callable[[World], Any], Callable[[World, Any], Any]]] = {
    "attribute": (lambda w: w.number, lambda w, x: setattr(w, "number", x)),
    "element": (lambda w: w.items[1], lambda w, x: w.items.__setitem__(1, x)),
    "tuple": (lambda w: w.pair[1], lambda w, x: setattr(w, "pair", (1.0, x))),
    "namespace": (lambda w: w.space.value, lambda w, x: vars(w.space).update(value=x)),
    "slot": (lambda w: w.slotted.own, lambda w, x: setattr(w.slotted, "own", x)),
    "property": (lambda w: w.slotted.doubled, lambda w, x: setattr(w.slotted, "own", x)),
    "call": (lambda w: w.slotted(), lambda w, x: setattr(w.slotted, "own", x)),
    "class": (lambda w: w.slotted.method(), lambda w, x: setattr(Base, "shared", x)),
    "frozen": (lambda w: w.frozen.value, lambda w, x: setattr(w, "frozen", Frozen(x))),
    "function": (lambda w: w.function(), lambda w, x: setattr(w, "function", lambda: x)),
    "partial": (
        lambda w: w.partial(0.0),
        lambda w, x: setattr(w, "partial", functools.partial(jnp.maximum, x)),
    ),
    "cell": (lambda w: w.read_cell(), lambda w, x: w.set_cell(x)),
    "global": (lambda w: RATE, set_global),
    "item": (lambda w: MEMORY["value"], lambda w, x: MEMORY.update(value=x)),
    "deep item": (
        lambda w: MEMORY["nested"][1]["deep"],
        lambda w, x: MEMORY["nested"][1].update(deep=x),
    ),
    "array": (lambda w: jnp.sum(jnp.asarray(w.numbers)), set_in_place),
    "NumPy": (lambda w: float(np.sum(w.numbers)), set_in_place),
}
"""How a place is read and set, by the kind of it."""


def over_the_dataset(step: Step, dataset: Any) -> Any:
    total = jnp.float32(0)
    for batch in dataset:
        total = step(total, batch)
    return total


def with_numbers(step: Step, dataset: Any) -> Any:
    total = jnp.float32(0)
    for number, batch in zip(range(4), dataset):  # noqa: B905
        total = step(total, batch) + number
    return total


def of_the_first(step: Step, dataset: Any) -> Any:
    total = jnp.float32(0)
    for batch in islice(dataset, 3):
        total = step(total, batch)
    return total


def by_next(step: Step, dataset: Any) -> Any:
    total, batches = jnp.float32(0), iter(dataset)
    for _ in range(4):
        total = step(total, next(batches))
    return total + jnp.sum(next(batches))


def by_sum(step: Step, dataset: Any) -> Any:
    return sum(step(jnp.float32(1), batch) for batch in dataset)


Step = Callable[[Any, Any], Any]
LOOPS = (over_the_dataset, over_the_dataset, with_numbers, of_the_first, by_next, by_sum)
"""In what words the loop is written."""


def program(number: int) -> Callable[[Callable[..., Any]], list[Any]]:
    """Return a random program; it is given what wraps its function."""
    draw = random.Random(number)
    names = sorted(PLACES)
    reads = [PLACES[name][0] for name in draw.sample(names, 3)]
    around = [PLACES[name][1] for name in draw.sample(names, 2)]
    between = [PLACES[name][1] for name in draw.sample(names, 2)]
    inside = [(*PLACES[draw.choice(names)],)] if draw.random() < 0.3 else []
    is_array, value = draw.random() < 0.5, draw.choice((2.0, 3.0, 5.0))
    given = jnp.float32(value) if is_array else value
    loop = draw.choice(LOOPS)

    def run(wrap: Callable[..., Any]) -> list[Any]:
        world = World()

        def step(total: Any, batch: Any) -> Any:
            for read in reads:
                total = total * 0.5 + batch[0] * read(world)
            for read, write in inside:
                write(world, read(world) + 1)
            return total

        def epoch(dataset: Any) -> Any:
            around[0](world, given)
            total = loop(step, dataset)
            around[1](world, given + 1)
            return total

        function, found = wrap(epoch), []
        for call in range(2):
            dataset = STRATEGY.experimental_distribute_dataset(
                gd.data.Dataset.from_tensor_slices(ROWS).batch(1)
            )
            found += [float(function(dataset)), *world.values]
            for write in between:
                write(world, given + 2 + call)
        leaves = jax.tree.leaves([vars(world), vars(world.space), world.slotted.own, MEMORY])
        assert not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        return found

    return run


def check(number: int) -> bool:
    """Return whether a program was not refused; raises an error if it is silently different."""
    run = program(number)
    expected = run(lambda function: function)
    try:
        found = run(gd.function)
    except (gd.ArgumentError, gd.UnsupportedError):
        return False
    np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=f"program {number}")
    return True


def test_programs_are_as_in_python_or_refused() -> None:
    taken = [check(number) for number in range(4)]
    assert any(taken)


@pytest.mark.long
def test_more_programs_are_as_in_python_or_refused() -> None:
    taken = [check(number) for number in range(4, 504)]
    assert 250 < sum(taken) < 500
