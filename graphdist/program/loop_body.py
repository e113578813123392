"""The body of a converted loop over a dataset, as a function from state to state.

The state are the variables of Python that the body assigns, by name, if they are arrays and
numbers. The others are the rest, which no step may change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any  # Any: users' values

import jax
import jax.numpy as jnp

from graphdist.data.dataset_reduction import as_array, in_steps, require_same_kind
from graphdist.errors import ArgumentError
from graphdist.program.loop_operators import (
    GetState,
    LoopOperators,
    Numbered,
    SetState,
    Undefined,
    is_traced,
    is_value,
)
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import is_array, structure_text


@dataclass(frozen=True)
class ConvertedLoop:
    """The functions that the conversion made of a loop, in one call of the user's function."""

    operators: LoopOperators
    names: tuple[str, ...]
    extra_test: Callable[[], Any] | None
    body: Callable[[Any], None]
    get_state: GetState
    set_state: SetState
    converted_from: ConvertedLoop | None = None
    """The loop that has the user's functions, if this one has others."""

    @property
    def of_user(self) -> ConvertedLoop:
        """Return the loop that has the user's functions."""
        return self.converted_from or self

    def values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the variables as the state and the rest."""
        state: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, value in zip(self.names, self.get_state(), strict=True):
            (state if is_carried(value) else rest)[name] = value
        return state, rest


def with_numbers(loop: ConvertedLoop, numbered: Numbered) -> ConvertedLoop:
    """Return a loop that gives the body of `loop` each element with its numbers."""
    numbers = [each.first for each in numbered.numbers]

    def get() -> tuple[Any, ...]:
        return (*numbers, *loop.get_state())

    def put(state: tuple[Any, ...]) -> None:
        numbers[:] = state[: len(numbers)]
        loop.set_state(tuple(state[len(numbers) :]))

    def body(element: Any) -> None:
        items = [element] if numbered.num_others == 1 else list(element)
        for each, number in zip(numbered.numbers, numbers, strict=True):
            items.insert(each.place, number)
        loop.body(tuple(items))
        numbers[:] = [
            number + each.step for each, number in zip(numbered.numbers, numbers, strict=True)
        ]

    names = (*(f"the number at {each.place}" for each in numbered.numbers), *loop.names)
    return ConvertedLoop(loop.operators, names, loop.extra_test, body, get, put, loop.of_user)


def sum_loop(
    operators: LoopOperators, fn: Callable[[Any], Any], start: Any
) -> tuple[ConvertedLoop, Callable[[], Any]]:
    """Return a loop that adds up what a function returns for each element, and the sum so far."""
    total = start

    def get() -> tuple[Any, ...]:
        return (total,)

    def put(state: tuple[Any, ...]) -> None:
        nonlocal total
        (total,) = state

    def body(element: Any) -> None:
        nonlocal total
        total = total + fn(element)

    of_user = ConvertedLoop(operators, (), None, fn, lambda: (), lambda state: None)
    loop = ConvertedLoop(operators, ("the sum",), None, body, get, put, of_user)
    return loop, lambda: total


class LoopBody:
    """One step of a loop, given the rest."""

    def __init__(self, loop: ConvertedLoop, rest: dict[str, Any]) -> None:
        """Take the functions of the loop."""
        self.loop, self.rest = loop, rest
        self.last: dict[str, Any] = {}
        """The state after the latest steps."""
        self.has_run = False
        """Whether a step has been run."""

    def set(self, state: dict[str, Any]) -> None:
        """Give the variables the values of a state."""
        values = {**self.rest, **state}
        self.loop.set_state(tuple(values[name] for name in self.loop.names))

    def goes_on(self, state: dict[str, Any]) -> bool:
        """Return whether `break` has not left the loop."""
        self.last = state
        if self.loop.extra_test is None:
            return True
        self.set(state)
        return bool(self.loop.extra_test())

    def step(self, state: dict[str, Any], element: Any) -> dict[str, Any]:
        """Return the state after a step; it is traced.

        Raises `ArgumentError` for a variable that becomes an object.
        """
        loop = self.loop
        self.set(state)
        goes_on = True if loop.extra_test is None else loop.extra_test()
        if not is_traced(goes_on):
            if goes_on:  # the host may run several steps, of which one has left the loop
                loop.body(element)
            return self._after(state)
        loop.operators.if_stmt(
            goes_on,
            lambda: loop.body(element),
            lambda: None,
            loop.get_state,
            loop.set_state,
            loop.names,
            len(loop.names),
        )
        return {name: value for name, value in self._after(state).items() if name in state}

    def _after(self, state: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, value in zip(self.loop.names, self.loop.get_state(), strict=True):
            before = self.rest.get(name)
            if name in self.rest and (value is before or isinstance(value, Undefined)):
                continue
            if not is_value(value) or isinstance(before, list | dict | set):
                raise ArgumentError(
                    f"{name} is a {type(value).__name__} after a step of the loop, which is traced "
                    f"once for all elements",
                    source=here(),
                    hint="change arrays and numbers in the loop; build other objects outside of it",
                )
            _require_same_structure(name, state.get(name, value), value)
            found[name] = jax.tree.map(as_array, value)
        return found


def _require_same_structure(name: str, before: Any, after: Any) -> None:
    old, new = (structure_text(jax.tree.structure(value)) for value in (before, after))
    if old != new:
        raise ArgumentError(
            f"{name} is {old} before a step of the loop, and {new} after it: the loop is one "
            f"program for all elements",
            source=here(),
            hint="keep its structure: write into an array that is large enough, "
            "x = x.at[i].set(value), or collect results in a loop outside the function",
        )


def scan(loop: ConvertedLoop, elements: Any) -> None:
    """Run a loop over stacked elements, in a trace; give the variables their last values.

    A variable without a value before the loop begins with zeros, a number with the dtype that a
    step gives it. Raises `ArgumentError` for a variable whose type changes from step to step.
    """
    carried, rest = loop.values()
    state = jax.tree.map(as_array, carried)
    body = LoopBody(loop, rest)
    _, after = jax.eval_shape(
        partial(jax.lax.scan, lambda state, element: (state, body.step(state, element))),
        state,
        elements,
    )
    zeros = {name: jax.tree.map(_zero, leaves) for name, leaves in after.items()}
    numbers = {name for name, value in carried.items() if not is_array(value)}
    for name in numbers & after.keys():
        state[name] = jax.tree.map(lambda old, new: old.astype(new.dtype), state[name], zeros[name])
    require_same_kind(carried, state, {name: zeros[name] for name in state})
    body.set(in_steps(body.step, {**zeros, **state}, elements))


def _zero(stacked: jax.ShapeDtypeStruct) -> Any:
    return jnp.zeros(stacked.shape[1:], stacked.dtype)


def is_carried(value: Any) -> bool:
    """Return whether a value is an array or a number; a flag is a constant until a step sets it."""
    return is_value(value) and not isinstance(value, bool)
