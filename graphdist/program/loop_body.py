"""The body of a converted loop over a dataset, as a function from state to state.

The state has the arrays and numbers among the Python variables that the body assigns, by name. All
other variables that the body assigns are in `rest`, and no step may change them. `state_of` returns
the Python state that the loop's functions read, without the variables that the loop carries.

A body is traced once for all elements. If Python needs the value of a traced array, the array may
come from outside of the loop, and could be a constant of the program instead of an input. In this
case `NeedsNumbers` is raised, so that the caller traces again with constants. Otherwise JAX's error
is explained in terms of loops.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any  # Any: users' values

import jax
import jax.numpy as jnp

from graphdist.data.dataset_reduction import as_array, in_steps, require_same_kind
from graphdist.errors import ArgumentError, GraphdistError
from graphdist.program.code_names import closure_of
from graphdist.program.loop_operators import (
    ConvertedLoop,
    LoopOperators,
    Numbered,
    Undefined,
    is_traced,
    is_value,
)
from graphdist.program.python_state import PythonState
from graphdist.program.python_walk import Walk
from graphdist.tracing.user_lines import where_raised
from graphdist.values.distributed import is_array, structure_text


def with_numbers(loop: ConvertedLoop, numbered: Numbered) -> ConvertedLoop:
    """Return a loop that calls the body of `loop` with each element and the counters' numbers."""
    numbers = [each.first for each in numbered.counters]

    def body(element: Any) -> None:
        items = [element] if numbered.num_others == 1 else list(element)
        for each, number in zip(numbered.counters, numbers, strict=True):
            items.insert(each.position, number)
        loop.body(tuple(items))
        numbers[:] = [
            number + each.step for each, number in zip(numbered.counters, numbers, strict=True)
        ]

    names = [f"the count at {each.position}" for each in numbered.counters]
    return replace(loop.carrying(names, numbers), body=body)


def sum_loop(fn: Callable[[Any], Any], total: list[Any]) -> ConvertedLoop:
    """Return a loop that adds `fn(element)` to `total[0]` for each element."""

    def body(element: Any) -> None:
        total[0] = total[0] + fn(element)

    of_user = ConvertedLoop(None, fn, lambda: (), lambda state: None, ())
    return replace(of_user.carrying(["the sum"], total), body=body)


class LoopBody:
    """The body of a converted loop, run as a step.

    Arrays and numbers are carried from step to step. `rest` has the loop's other variables, such as
    bools and Python objects, with their values before the loop.
    """

    def __init__(self, loop: ConvertedLoop) -> None:
        """Start before the first step, with the current values of the variables."""
        self.loop = loop
        self.carried: dict[str, Any] = {}
        self.rest: dict[str, Any] = {}
        for name, value in zip(loop.names, loop.get_state(), strict=True):
            (self.carried if is_carried(value) else self.rest)[name] = value
        self.state: PythonState
        """The Python state that the loop's functions read."""
        self.last = self.carried
        """The state after the latest steps."""
        self.has_run = False
        """Whether a step has run."""

    def set(self, state: dict[str, Any]) -> None:
        """Set the variables to the values of a state."""
        values = {**self.rest, **state}
        self.loop.set_state(tuple(values[name] for name in self.loop.names))

    def continues(self, state: dict[str, Any]) -> bool:
        """Return whether the loop goes on: False if `break` has left it."""
        self.last = state
        if self.loop.extra_test is None:
            return True
        self.set(state)
        return bool(self.loop.extra_test())

    def step_on(self, arrays: Sequence[Any], state: dict[str, Any], element: Any) -> dict[str, Any]:
        """Return the state after a step that reads `arrays` in place of those in `self.state`.

        Raises `NeedsNumbers` if some arrays may have to be constants, and no step has run yet.
        """
        can_retry = self.state.has_arrays_for_python and not self.has_run
        with noticed_needs(can_retry), self.state.replaced(arrays):
            return self.step(state, element)

    def step(self, state: dict[str, Any], element: Any) -> dict[str, Any]:
        """Return the state after a step, which is traced.

        Raises `ArgumentError` for a variable that becomes something else than an array or number.
        """
        loop = self.loop
        self.set(state)
        continues = True if loop.extra_test is None else loop.extra_test()
        if not is_traced(continues):
            if continues:  # an earlier step of the same program may have left the loop
                loop.body(element)
            return self._after(state)
        body, names = partial(loop.body, element), loop.names
        LoopOperators().if_stmt(
            continues, body, lambda: None, loop.get_state, loop.set_state, names, len(names)
        )
        return {name: value for name, value in self._after(state).items() if name in state}

    def _after(self, state: dict[str, Any]) -> dict[str, Any]:
        state_after = {}
        for name, value in zip(self.loop.names, self.loop.get_state(), strict=True):
            before = self.rest.get(name)
            if name in self.rest and (value is before or isinstance(value, Undefined)):
                continue
            if not is_value(value) or isinstance(before, list | dict | set):
                raise ArgumentError(
                    f"{name} is a {type(value).__name__} after a step of the loop, which is traced "
                    f"once for all elements",
                    hint="change arrays and numbers in the loop; build other objects outside of it",
                )
            _require_same_structure(name, state.get(name, value), value)
            state_after[name] = jax.tree.map(as_array, value)
        return state_after


def _require_same_structure(name: str, before: Any, after: Any) -> None:
    old, new = (structure_text(jax.tree.structure(value)) for value in (before, after))
    if old != new:
        raise ArgumentError(
            f"{name} is {old} before a step of the loop, and {new} after it: the loop is one "
            f"program for all elements",
            hint="keep its structure: write to an array that is large enough, "
            "x = x.at[i].set(value), or collect results in a loop outside the function",
        )


def scan(body: LoopBody, elements: Any) -> None:
    """Trace a loop over stacked elements, and set its variables to their values after the loop.

    A variable without a value before the loop starts as zeros. A Python number gets the dtype that
    it has after an iteration. Raises `ArgumentError` for a variable whose type changes between
    iterations.
    """
    carried = body.carried
    state = jax.tree.map(as_array, carried)
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
    """Return whether a value is carried: an array or a number, but not a bool."""
    return is_value(value) and not isinstance(value, bool)


NEED_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""The errors that JAX raises if Python needs the value of a traced array."""


class NeedsNumbers(Exception):
    """Python may need the values of an array that is an input."""


@contextmanager
def noticed_needs(can_retry: bool) -> Iterator[None]:
    """Raise `NeedsNumbers` for an error that may come from a tracer in place of an array.

    Without `can_retry` the step cannot be traced again with constants. In this case explain JAX's
    error in terms of loops instead.
    """
    try:
        yield
    except GraphdistError:
        raise
    except (TypeError, ValueError, AttributeError, *NEED_VALUES) as error:
        if can_retry:
            raise NeedsNumbers from error
        explained = _explained_need(error)
        if explained is None:
            raise
        what, hint = explained
        raise ArgumentError(
            f"{what} in a loop over a dataset, whose body is traced once for all elements",
            source=where_raised(error),
            hint=hint,
        ) from error


def _explained_need(error: Exception) -> tuple[str, str] | None:
    """Return what Python needs, as text, and a hint; None for any other error."""
    text = str(error)
    if isinstance(error, jax.errors.TracerIntegerConversionError):
        return (
            "a traced value is an index of a Python sequence, or a Python integer,",
            "make the sequence an array: jnp.asarray(sequence)[index]",
        )
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return (
            "a traced value is given to a function that takes NumPy arrays",
            "use the function of jax.numpy; change arrays by x = x.at[i].add(value)",
        )
    if isinstance(error, NEED_VALUES):
        return (
            "Python needs the value of a traced array",
            "write the condition with jnp.where, or leave the loop first",
        )
    if "item assignment" in text or "setting an array element" in text:
        return "an array is changed in place", "assign a new one: x = x.at[i].set(value)"
    if "unhashable type" in text and "Tracer" in text:
        return (
            "a traced value is a key of a dict or set",
            "use an array that it is an index of: x = x.at[i].set(value)",
        )
    return None


# The Python state around the loop.


def state_of(
    body: LoopBody, attributes: set[str], arrays_are_constants: bool = False
) -> PythonState:
    """Return the state that a loop's functions read.

    Raises `ArgumentError` for an item in the loop's state whose index the loop changes.
    """
    of_user = body.loop.of_user
    functions = [function for function in (of_user.body, of_user.extra_test) if function]
    values = {name: value for name, value in body.rest.items() if not isinstance(value, Undefined)}
    local, carried = frozenset(of_user.names), frozenset(_carried_places(of_user))
    return PythonState(Walk(functions, values, attributes, local, carried, arrays_are_constants))


def place_of(loop: ConvertedLoop, name: str) -> tuple[Any, Any] | None:
    """Return the object and the key of an attribute or item; None if the object has no value.

    `name` is its expression, such as `a.b` or `a[i]`.
    """
    owner_code, key_code, attribute = _parts(name)
    body: Any = loop.body
    variables = body.__globals__, closure_of(body)
    try:
        owner = eval(owner_code, *variables)
        if key_code is not None:
            return owner, eval(key_code, *variables)
    except Exception:  # a variable in the name has no value
        return None
    is_in_dict = hasattr(owner, "__dict__") and not isinstance(owner, type)
    return vars(owner) if is_in_dict else owner, attribute


def remove_undefined(loop: ConvertedLoop) -> None:
    """Remove the attributes and items whose assignment in the loop has not run (`Undefined`)."""
    for name, value in zip(loop.names, loop.get_state(), strict=True):
        if name.isidentifier() or not isinstance(value, Undefined):
            continue
        place = place_of(loop, name)
        if place is None:
            continue
        owner, key = place
        if isinstance(owner, dict):
            owner.pop(key, None)
        elif isinstance(key, str):
            delattr(owner, key)


def _carried_places(loop: ConvertedLoop) -> Iterator[tuple[int, Any]]:
    body: Any = loop.body
    for name in loop.names:
        if name.isidentifier():
            if name not in body.__code__.co_freevars:
                yield id(body.__globals__), name
            continue
        _require_fixed_index(loop, name)
        place = place_of(loop, name)
        if place is not None:
            owner, key = place
            if isinstance(owner, list) and isinstance(key, int) and key < 0:
                key += len(owner)
            yield id(owner), key


def _require_fixed_index(loop: ConvertedLoop, name: str) -> None:
    node = ast.parse(name, mode="eval").body
    for part in ast.walk(node):
        if not isinstance(part, ast.Subscript):
            continue
        for variable in ast.walk(part.slice):
            if isinstance(variable, ast.Name) and variable.id in loop.names:
                raise ArgumentError(
                    f"a loop over a dataset changes {name}, and its index {variable.id}: the body "
                    f"is traced once for all elements",
                    hint="use an array: x = x.at[i].set(value)",
                )


@lru_cache(maxsize=1024)
def _parts(name: str) -> tuple[types.CodeType, types.CodeType | None, str | None]:
    """Return the code of the object, the code of the index, and the name of the attribute.

    For an attribute the code of the index is None, for an item the name of the attribute.
    """
    node: Any = ast.parse(name, mode="eval").body

    def code(part: Any) -> types.CodeType:
        return compile(ast.fix_missing_locations(ast.Expression(part)), "<loop>", "eval")

    if isinstance(node, ast.Attribute):
        return code(node.value), None, node.attr
    return code(node.value), code(node.slice), None
