"""Loops over datasets inside functions that are refused, with the user's line and the name."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import graphdist as gd
from tests.program.test_looping_functions import STRATEGIES, distributed, sum_of

LOG: list[Any] = []


def logged(value: Any) -> Any:
    LOG.append(value)
    return value


class Refusals:
    """Functions with loops that are refused, and what is said."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.seen: set[int] = set()
        self.count = 0

    def returns(self, dataset: Any) -> Any:
        for batch in dataset:
            return batch

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
        ("appends", "for batch in dataset:", "changes found, a list"),
        ("appends_to_a_global", "for batch in dataset:", "changes LOG, a list"),
        ("appends_in_a_function_beside", "for batch in dataset:", "changes LOG, a list"),
        ("adds_to_an_attribute", "for _ in dataset:", "changes self.seen, a set"),
        ("counts_in_a_method", "for _ in dataset:", "changes self.count, an attribute of a Python"),
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


@pytest.mark.parametrize("steps", [0, True, "4"])
def test_numbers_of_steps(steps: Any) -> None:
    with pytest.raises((gd.ArgumentError, gd.ArgumentTypeError), match="steps_per_execution is"):
        gd.function(lambda x: x, steps_per_execution=steps)


def test_code_without_source_is_refused() -> None:
    strategy = STRATEGIES["mirrored"]()
    scope: dict[str, Any] = {}
    exec("def f(dataset):\n    for batch in dataset: pass", scope)
    with pytest.raises(gd.UnsupportedError, match="the source of f cannot be read"):
        gd.function(scope["f"])(distributed(strategy))
