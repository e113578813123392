"""What loops over datasets in functions read of Python's state, and what they leave of it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from tests.program.test_looping_functions import STRATEGIES, distributed

ROWS = np.arange(1, 4, dtype=np.float32).repeat(8)[:, None]
RATE: Any = 1.0
CONTEXT = ContextVar("CONTEXT", default=1.0)


def rate() -> Any:
    return RATE


class Model:
    scale: Any = 1.0

    def __init__(self) -> None:
        self.rate: Any = 1.0
        self.params: Any = {"w": jnp.float32(1)}
        self.training = True
        self.loss: Callable[[Any], Any] = lambda x: x
        self.table = np.ones(2, "f")
        self.mode = (jnp.float32(1), "train")
        self.optimizer = optax.sgd(1.0)

    def __call__(self, x: Any) -> Any:
        return x * (1.0 if self.training else 3.0)

    def apply(self, x: Any) -> Any:
        return self.params["w"] * x


def epoch_of(strategy: Any, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def epoch(dataset: Any) -> Any:
        total: Any = 0.0
        for batch in dataset:
            total += read(jnp.mean(batch))
        return total

    return gd.function(epoch)


def set_rate(value: Any) -> None:
    global RATE
    RATE = value


def stale_cases() -> dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]]:
    """Return a function that a loop calls, and what changes its result from once x to thrice x."""
    set_rate(1.0)
    model, box, calls = Model(), {"f": [lambda x: x]}, {"wrapped": functools.partial(pow, 1.0)}
    space = types.SimpleNamespace(model=model)
    name = "rate"

    def defaults(x: Any, factor: Any = 1.0) -> Any:
        return factor * x

    def attribute(x: Any) -> Any:
        return defaults(x) * attribute.factor  # type: ignore[attr-defined]

    attribute.factor = 1.0  # type: ignore[attr-defined]
    gradient = jax.value_and_grad(lambda w, x: w * x * space.model.rate)
    return {
        "attribute": (lambda x: x * model.rate, lambda: setattr(model, "rate", 3.0)),
        "by getattr": (lambda x: x * getattr(model, name), lambda: setattr(model, name, 3.0)),
        "class": (lambda x: x * model.scale, lambda: setattr(model, "scale", 3.0)),
        "global": (lambda x: x * rate(), lambda: set_rate(3.0)),
        "global array": (lambda x: x * rate(), lambda: set_rate(jnp.float32(3))),
        "item": (lambda x: box["f"][0](x), lambda: box["f"].__setitem__(0, lambda x: 3 * x)),
        "params": (lambda x: model.apply(x), lambda: setattr(model, "params", {"w": 3.0})),
        "array of params": (model.apply, lambda: model.params.update(w=jnp.float32(3))),
        "flag": (model, lambda: setattr(model, "training", False)),
        "function": (lambda x: model.loss(x), lambda: setattr(model, "loss", lambda x: 3 * x)),
        "NumPy array": (
            lambda x: x * jnp.sum(jnp.asarray(model.table)) / 2,
            lambda: model.table.fill(3),
        ),
        "numbers of it": (lambda x: x * float(model.table[0]), lambda: model.table.fill(3)),
        "tuple": (
            lambda x: x * model.mode[0],
            lambda: setattr(model, "mode", (jnp.float32(3), "train")),
        ),
        "partial": (
            lambda x: x * calls["wrapped"](1.0),
            lambda: calls.update(wrapped=functools.partial(pow, 3.0)),
        ),
        "default": (defaults, lambda: setattr(defaults, "__defaults__", (3.0,))),
        "of a function": (attribute, lambda: setattr(attribute, "factor", 3.0)),
        "transformed": (lambda x: gradient(1.0, x)[0], lambda: setattr(space.model, "rate", 3.0)),
        "optimizer": (
            lambda x: -model.optimizer.update(x, model.optimizer.init(x))[0],
            lambda: setattr(model, "optimizer", optax.sgd(3.0)),
        ),
        "context": (lambda x: x * CONTEXT.get(), lambda: CONTEXT.set(3.0)),
    }


@pytest.mark.parametrize("name", sorted(stale_cases()))
def test_reads_are_current_in_each_call(name: str) -> None:
    strategy = STRATEGIES["one"]()
    read, change = stale_cases()[name]
    epoch = epoch_of(strategy, read)
    assert float(epoch(distributed(strategy, ROWS))) == pytest.approx(6)
    change()
    assert float(epoch(distributed(strategy, ROWS))) == pytest.approx(18)
    CONTEXT.set(1.0)


def test_arrays_are_inputs_wherever_they_are() -> None:
    strategy, traced, model = STRATEGIES["one"](), Mock(), Model()
    table = {"layers": [model.params], "pair": (jnp.float32(1), None)}

    def read(x: Any) -> Any:
        traced()
        return x * model.apply(1.0) * table["layers"][0]["w"] * table["pair"][0]

    epoch = epoch_of(strategy, read)
    epoch(distributed(strategy, ROWS))
    count = traced.call_count
    for value in (2, 3):
        model.params["w"] = jnp.float32(value)
        table["pair"] = (jnp.float32(value), None)
        assert float(epoch(distributed(strategy, ROWS))) == 6 * value**3
    assert traced.call_count == count


def test_what_is_around_a_loop_happens_once_in_each_call() -> None:
    strategy, model, log = STRATEGIES["one"](), Model(), []
    generator = np.random.default_rng(0)
    drawn = np.random.default_rng(0).random(2)

    @gd.function
    def epoch(dataset: Any) -> Any:
        log.append(generator.random())
        model.params["w"] = model.params["w"] * 2
        total: Any = 0.0
        for batch in dataset:
            total += jnp.mean(batch) * model.params["w"]
        log.append(float(total))
        return total

    for _ in range(2):
        epoch(distributed(strategy, ROWS))
    assert log == [drawn[0], 12, drawn[1], 24]


def test_errors_leave_no_traced_values() -> None:
    strategy, model = STRATEGIES["one"](), Model()

    def fails(x: Any) -> Any:
        model.params["w"] = x
        model.new = x  # type: ignore[attr-defined]
        raise KeyError("w")

    with pytest.raises(KeyError):
        epoch_of(strategy, fails)(distributed(strategy, ROWS))
    assert not hasattr(model, "new")
    assert float(model.params["w"]) == 1

    @gd.function
    def carries(dataset: Any) -> Any:
        for batch in dataset:
            model.rate = model.rate + jnp.mean(batch)
            jnp.ones(2) + jnp.ones(3)

    with pytest.raises(TypeError):
        carries(distributed(strategy, ROWS))
    assert model.rate == 1


def test_an_error_in_the_first_branch_reaches_the_user() -> None:
    strategy = STRATEGIES["one"]()

    @gd.function
    def branches(dataset: Any) -> Any:
        total: Any = 0.0
        for batch in dataset:
            if jnp.sum(batch) > 0:
                total += jnp.ones(2) + jnp.ones(3)
            else:
                total += 1.0
        return total

    with pytest.raises(TypeError, match="incompatible shapes"):
        branches(distributed(strategy, ROWS))


def test_functions_defined_in_a_loop_return() -> None:
    strategy = STRATEGIES["mirrored"]()

    @gd.function
    def epoch(dataset: Any) -> Any:
        total: Any = 0.0
        for batch in dataset:

            def replica_fn(x: Any) -> Any:
                for power in range(3):
                    if power == 2:
                        return jnp.sum(x**power)
                return x

            total += strategy.reduce("SUM", strategy.run(replica_fn, args=(batch,)), axis=None)
        return total

    assert float(epoch(distributed(strategy, ROWS))) == np.sum(ROWS**2)


def test_parameters_may_have_names_of_variables_around_the_loop() -> None:
    strategy, w = STRATEGIES["one"](), jnp.float32(2)

    @gd.function
    def epoch(dataset: Any) -> Any:
        total: Any = 0.0
        for batch in dataset:

            def loss(w: Any) -> Any:
                return w * jnp.mean(batch)  # noqa: B023

            value, gradient = jax.value_and_grad(loss)(w)
            total += value + gradient + (lambda w: w)(w)
        return total

    assert float(epoch(distributed(strategy, ROWS))) == 2 * 6 + 6 + 3 * 2


def test_an_inner_loop_reads_the_element_of_the_outer_one() -> None:
    strategy = STRATEGIES["mirrored"]()

    def product(x: Any, y: Any) -> Any:
        return jnp.sum(x) * jnp.sum(y)

    @gd.function
    def products(outer: Any, inner: Any) -> Any:
        total: Any = 0.0
        for x in outer:
            for y in inner:
                total += strategy.reduce("SUM", strategy.run(product, args=(x, y)), axis=None)
        return total

    found = products(distributed(strategy, ROWS), distributed(strategy, ROWS))
    assert float(found) == 2 * 16 * 36


def test_a_loop_makes_attributes_and_items() -> None:
    strategy, made = STRATEGIES["one"](), types.SimpleNamespace(items={})

    @gd.function
    def last(dataset: Any) -> None:
        for batch in dataset:
            made.loss = jnp.mean(batch)
            made.items["loss"] = made.loss * 2

    last(distributed(strategy, ROWS[:0]))
    assert vars(made) == {"items": {}}
    last(distributed(strategy, ROWS))
    assert (float(made.loss), float(made.items["loss"])) == (3, 6)
