"""The state of Python around a loop: what its functions read, without the loop's own state."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any  # Any: users' values

from graphdist.errors import ArgumentError
from graphdist.program.loop_body import ConvertedLoop
from graphdist.program.loop_operators import Undefined
from graphdist.program.python_state import PythonState
from graphdist.tracing.user_lines import here


def state_of(
    loop: ConvertedLoop,
    rest: dict[str, Any],
    attributes: set[str],
    arrays_are_constants: bool = False,
) -> PythonState:
    """Return what the functions of a loop read; `rest` are variables that it does not carry.

    Raises `ArgumentError` for an item of the loop's state whose index the loop changes.
    """
    of_user = loop.of_user
    functions = [function for function in (of_user.body, of_user.extra_test) if function]
    carried = frozenset(_carried_places(of_user))
    given = {name: value for name, value in rest.items() if not isinstance(value, Undefined)}
    return PythonState(
        functions, given, attributes, frozenset(of_user.names), carried, arrays_are_constants
    )


def place_of(loop: ConvertedLoop, name: str) -> tuple[Any, Any] | None:
    """Return the holder and the key behind the name of an attribute or item; None without one."""
    owner_code, key_code, attribute = _parts(name)
    body: Any = loop.body
    variables = body.__globals__, _variables(body)
    try:
        owner = eval(owner_code, *variables)
        if key_code is not None:
            return owner, eval(key_code, *variables)
    except Exception:  # it has no value yet
        return None
    is_in_dict = hasattr(owner, "__dict__") and not isinstance(owner, type)
    return vars(owner) if is_in_dict else owner, attribute


def remove_undefined(loop: ConvertedLoop) -> None:
    """Remove attributes and items that the loop was to give a value, and did not."""
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
                    source=here(),
                    hint="use an array: x = x.at[i].set(value)",
                )


def _variables(body: Any) -> dict[str, Any]:
    found = {}
    for name, cell in zip(body.__code__.co_freevars, body.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    return found


@lru_cache(maxsize=1024)
def _parts(name: str) -> tuple[types.CodeType, types.CodeType | None, str | None]:
    """Return the code of the owner, and of the index or the name of the attribute."""
    node: Any = ast.parse(name, mode="eval").body

    def code(part: Any) -> types.CodeType:
        return compile(ast.fix_missing_locations(ast.Expression(part)), "<loop>", "eval")

    if isinstance(node, ast.Attribute):
        return code(node.value), None, node.attr
    return code(node.value), code(node.slice), None
