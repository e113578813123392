"""Loops over datasets inside functions that are refused, with the user's line and the name."""

from __future__ import annotations

import functools
import itertools
import linecache
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import graphdist as gd
from tests.program.test_looping_functions import STRATEGIES, distributed, sum_of

LOG: list[Any] = []
CALLS = 0
BOX = {"n": 0}
CACHE: dict[int, Any] = {}


def call() -> None:
    global CALLS
    CALLS += 1


def fill() -> None:
    BOX["n"] += 1


def ones(size: int) -> Any:
    if size not in CACHE:
        CACHE[size] = jnp.ones(size)
    return CACHE[size]


class Meter:
    """Counts by `+=`."""

    kept = 0

    def __init__(self) -> None:
        self.count = 0

    def __iadd__(self, other: int) -> Meter:
        self.count += other
        return self


def logged(value: Any) -> Any:
    LOG.append(value)
    return value


class Refusals:
    """Functions with loops that are refused, and what is said."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.seen: set[int] = set()
        self.count = 0
        self._hidden = 0
        self.meter = Meter()
        self.random = np.random.default_rng(0)
        self.legacy = np.random.RandomState(0)
        self.python = random.Random(0)
        self.numbers = itertools.count()
        self.histogram = np.zeros(4)
        self.rngs = nnx.Rngs(0)
        self.linear: Any = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
        self.optimizer = nnx.Optimizer(self.linear, optax.sgd(0.1), wrt=nnx.Param)

    def calls(self, dataset: Any) -> Any:
        for _ in dataset:
            call()

    def fills(self, dataset: Any) -> Any:
        for _ in dataset:
            fill()

    def fills_a_cache(self, dataset: Any) -> Any:
        for batch in dataset:
            sum_of(self.strategy, batch) * ones(1)[0]

    def binds(self, dataset: Any) -> Any:
        n = 0

        def bump() -> None:
            nonlocal n
            n += 1

        for _ in dataset:
            bump()
        return n

    def add(self) -> None:
        self.meter += 1

    def adds(self, dataset: Any) -> Any:
        for _ in dataset:
            self.add()

    def hide(self) -> None:
        self._hidden += 1

    def hides(self, dataset: Any) -> Any:
        for _ in dataset:
            self.hide()

    def keep(self) -> None:
        Meter.kept += 1

    def keeps(self, dataset: Any) -> Any:
        for _ in dataset:
            self.keep()

    def makes(self, dataset: Any) -> Any:
        for _ in dataset:
            setattr(self, "made", True)  # noqa: B010

    def draws(self, dataset: Any) -> Any:
        for batch in dataset:
            sum_of(self.strategy, batch) * self.random.random()

    def draws_as_before(self, dataset: Any) -> Any:
        for batch in dataset:
            sum_of(self.strategy, batch) * self.legacy.rand()

    def draws_in_python(self, dataset: Any) -> Any:
        for batch in dataset:
            sum_of(self.strategy, batch) * self.python.random()

    def draws_from_numpy(self, dataset: Any) -> Any:
        for batch in dataset:
            sum_of(self.strategy, batch) * np.random.rand()

    def draws_from_random(self, dataset: Any) -> Any:
        for batch in dataset:
            sum_of(self.strategy, batch) * random.random()

    def draws_keys(self, dataset: Any) -> Any:
        for batch in dataset:
            sum_of(self.strategy, batch) * jax.random.uniform(self.rngs())

    def train(self, value: Any) -> None:
        gradients = nnx.grad(lambda linear: jnp.sum(linear(value[None])))(self.linear)
        self.optimizer.update(self.linear, gradients)

    def updates_a_module(self, dataset: Any) -> Any:
        for batch in dataset:
            self.train(sum_of(self.strategy, batch))

    def numbers_steps(self, dataset: Any) -> Any:
        for batch in dataset:
            sum_of(self.strategy, batch) * next(self.numbers)

    def takes_in_turn(self, dataset: Any) -> Any:
        factors = iter([1.0, 2.0])
        for batch in dataset:
            sum_of(self.strategy, batch) * next(factors)

    def grows(self, dataset: Any) -> Any:
        found: list[Any] = []
        for batch in dataset:
            found = found + [sum_of(self.strategy, batch)]  # noqa: RUF005
        return found

    def grows_in_place(self, dataset: Any) -> Any:
        found: list[Any] = []
        for batch in dataset:
            found += [sum_of(self.strategy, batch)]
        return found

    def grows_from_one(self, dataset: Any) -> Any:
        found: Any = (0.0,)
        for batch in dataset:
            found = (*found, sum_of(self.strategy, batch))
        return found

    def indexes(self, dataset: Any) -> Any:
        factors, i, total = [1.0, 2.0], 0, 0.0
        for batch in dataset:
            total += factors[i] * sum_of(self.strategy, batch)
            i += 2
        return total

    def sets_items(self, dataset: Any) -> Any:
        counts, i = [0, 0], 0
        for _ in dataset:
            counts[i] += 1
            i += 2
        return counts

    def keys(self, dataset: Any) -> Any:
        losses: dict[Any, Any] = {}
        for i, batch in enumerate(dataset):
            losses[i] = sum_of(self.strategy, batch)
        return losses

    def count_in_place(self) -> None:
        self.histogram[1] += 1

    def counts_in_place(self, dataset: Any) -> Any:
        for _ in dataset:
            self.count_in_place()

    def returns(self, dataset: Any) -> Any:
        for batch in dataset:
            return batch

    def returns_in_a_loop_of_its_own(self, dataset: Any) -> Any:
        for batch in dataset:

            def replica_fn(x: Any) -> Any:
                for power in range(3):
                    if power < 2:
                        continue
                    return x**power
                return x

            self.strategy.run(replica_fn, args=(batch,))

    def appends(self, dataset: Any) -> Any:
        found: list[Any] = []
        for batch in dataset:
            found.append(batch)
        return found

    def appends_to_a_global(self, dataset: Any) -> Any:
        for batch in dataset:
            LOG.append(batch)

    def appends_in_a_function_beside(self, dataset: Any) -> Any:
        for batch in dataset:
            logged(batch)

    def adds_to_an_attribute(self, dataset: Any) -> Any:
        for _ in dataset:
            self.seen.add(len(self.seen))

    def bump(self) -> None:
        self.count += 1

    def counts_in_a_method(self, dataset: Any) -> Any:
        for _ in dataset:
            self.bump()

    def makes_text(self, dataset: Any) -> Any:
        text = ""
        for _ in dataset:
            text = text + "."
        return text

    def compares_rows(self, dataset: Any) -> Any:
        count = 0
        for batch in dataset:
            if self.strategy.reduce("SUM", batch, axis=0) > 0:
                count += 1
        return count

    def defines_in_one_branch(self, dataset: Any) -> Any:
        for batch in dataset:
            if sum_of(self.strategy, batch) > 0:
                found = jnp.zeros(())
        return found


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("returns", "return batch", "a loop is left by return"),
        ("returns_in_a_loop_of_its_own", "continue", "replica_fn has break or continue, and ret"),
        ("appends", "for batch in dataset:", "changes found, a list"),
        ("appends_to_a_global", "for batch in dataset:", "changes LOG, a list"),
        ("appends_in_a_function_beside", "for batch in dataset:", "changes LOG, a list"),
        ("adds_to_an_attribute", "for _ in dataset:", "changes self.seen, a set"),
        ("counts_in_a_method", "for _ in dataset:", "changes self.count, an attribute of a Python"),
        ("calls", "for _ in dataset:", "changes CALLS, a variable of the module tests"),
        ("fills", "for _ in dataset:", r"changes BOX\['n'\], an item of a dict"),
        ("fills_a_cache", "for batch in dataset:", r"changes CACHE\[1\], an item of a dict"),
        ("binds", "for _ in dataset:", "changes n, a variable of the function"),
        ("adds", "for _ in dataset:", "changes self.meter.count, an attribute of a Python"),
        ("hides", "for _ in dataset:", "changes self._hidden, an attribute of a Python"),
        ("keeps", "for _ in dataset:", "changes Meter.kept, an attribute of a class"),
        ("makes", "for _ in dataset:", "changes self.made, an attribute of a Python"),
        ("draws", "for batch in dataset:", "the state of self.random, a random generator"),
        ("draws_as_before", "for batch in dataset:", "the state of self.legacy, a random gen"),
        ("draws_in_python", "for batch in dataset:", "the state of self.python, a random gen"),
        ("draws_from_numpy", "for batch in dataset:", "the state of numpy.random, a random gen"),
        ("draws_from_random", "for batch in dataset:", "the state of random, a random gen"),
        (
            "draws_keys",
            "for batch in dataset:",
            "changes self.rngs, a Rngs(.|\n)*draw from jax.ran",
        ),
        ("updates_a_module", "for batch in dataset:", "changes self.linear, a Linear"),
        ("numbers_steps", "for batch in dataset:", "reads elements of self.numbers, a count"),
        ("takes_in_turn", "for batch in dataset:", "reads elements of factors, a list_iterator"),
        ("grows", "for batch in dataset:", "found is a list after a step"),
        ("grows_in_place", "for batch in dataset:", "changes found, a list"),
        ("grows_from_one", "for batch in dataset:", r"found is \(\*,\) before a step of the loop"),
        ("indexes", "total += factors[i]", "a traced value is an index of a Python sequence"),
        ("sets_items", "for _ in dataset:", r"changes counts\[i\], and its index i"),
        ("keys", "losses[i] =", "a traced value is a key of a dict or set in a loop"),
        ("counts_in_place", "for _ in dataset:", "changes self.histogram, a NumPy array, in pl"),
        ("makes_text", "for _ in dataset:", "text is a str after a step"),
        ("compares_rows", "if self.strategy", r"a condition has the shape \[6\]"),
        ("defines_in_one_branch", "if sum_of", "found is an array or undefined"),
    ],
)
def test_what_cannot_be_a_loop_is_refused(name: str, line: str, says: str) -> None:
    strategy = STRATEGIES["mirrored"]()
    refusals = Refusals(strategy)
    function = gd.function(getattr(refusals, name))
    with pytest.raises((gd.ArgumentError, gd.UnsupportedError), match=says) as at:
        function(distributed(strategy))
    assert at.value.source is not None
    frame = at.value.source.frame
    assert frame is not None
    assert frame.file == __file__
    with open(__file__) as source:
        assert line in source.read().splitlines()[frame.line - 1]
    assert (LOG, refusals.seen, refusals.count) == ([], set(), 0)
    assert (CALLS, BOX, refusals.meter.count, Meter.kept) == (0, {"n": 0}, 0, 0)
    assert (refusals._hidden, sum(refusals.histogram), CACHE) == (0, 0, {})
    assert float(refusals.linear.bias[0]) == 0
    assert not hasattr(refusals, "made")
    assert refusals.random.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize("steps", [0, True, "4"])
def test_numbers_of_steps(steps: Any) -> None:
    with pytest.raises((gd.ArgumentError, gd.ArgumentTypeError), match="steps_per_execution is"):
        gd.function(lambda x: x, steps_per_execution=steps)


def test_a_value_of_the_trace_that_python_caches_is_refused_by_the_next_trace() -> None:
    strategy, cached = STRATEGIES["mirrored"](), functools.cache(jnp.ones)

    @gd.function
    def total(dataset: Any) -> Any:
        found = 0.0
        for batch in dataset:
            found += sum_of(strategy, batch) * cached(1)[0]
        return found

    with pytest.raises(gd.TraceError, match="computed while another function was traced"):
        total(distributed(strategy))


@pytest.mark.parametrize("known", [None, "import sys\n", "def g(x):\n    return x\n"])
def test_code_without_source_is_refused(known: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = STRATEGIES["mirrored"]()
    scope: dict[str, Any] = {}
    exec("def f(dataset):\n    for batch in dataset: pass", scope)
    if known is None:
        monkeypatch.delitem(linecache.cache, "<string>", raising=False)
    else:  # of `python -c`, as Python 3.13 has it
        lines = known.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, "<string>", (len(known), None, lines, "<string>"))
    with pytest.raises(gd.UnsupportedError, match="the source of f cannot be read"):
        gd.function(scope["f"])(distributed(strategy))
