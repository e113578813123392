"""What the body of a loop over a dataset changes and cannot carry: refused by name.

The body is traced once for all elements, so that a list which it appends to would get one element,
a value of the trace. Watched are lists, dicts, sets and deques that the body names, and functions
beside it that it reaches, as a variable or as an attribute of an object, and attributes that are
numbers. Names that begin with an underscore are not watched, which is what a cache may rely on, nor
are objects whose classes JAX, Keras and the other packages of `_PACKAGES` define.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: users' functions and values

from graphdist.errors import ArgumentError
from graphdist.tracing.state import current_trace
from graphdist.tracing.user_lines import here

Container: TypeAlias = list[Any] | dict[Any, Any] | set[Any] | deque[Any]


@dataclass(frozen=True)
class _Contents:
    """A container and what it held."""

    name: str
    container: Container
    before: Container

    @property
    def has_changed(self) -> bool:
        return len(self.container) != len(self.before)

    def restore(self) -> None:
        self.container.clear()
        if isinstance(self.container, list | deque):
            self.container.extend(self.before)
        else:
            self.container.update(self.before)

    def __str__(self) -> str:
        return f"{self.name}, a {type(self.container).__name__}"


@dataclass(frozen=True)
class _Number:
    """An attribute and the number that it was."""

    name: str
    owner: Any
    attribute: str
    before: Any

    @property
    def has_changed(self) -> bool:
        return vars(self.owner).get(self.attribute) is not self.before

    def restore(self) -> None:
        setattr(self.owner, self.attribute, self.before)

    def __str__(self) -> str:
        return f"{self.name}, a number of a Python object"


class WatchedObjects:
    """The objects that some functions may change."""

    def __init__(self, functions: list[Callable[..., Any]], carried: frozenset[str]) -> None:
        """Look through the functions; `carried` are names, attributes and items in the state."""
        items = {name.partition("[")[0] for name in carried if name.endswith("]")}
        self._carried, self._seen = carried | items, set[int]()
        self._watched: list[_Contents | _Number] = []
        for function in functions:
            self._add_function(function)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Refuse changes in the `with` block if it is traced; undo them if it raises an error."""
        try:
            yield
            if current_trace() is not None:
                self._refuse_changes()
        except Exception:
            for watched in self._watched:
                if watched.has_changed:
                    watched.restore()
            raise

    def _refuse_changes(self) -> None:
        for watched in self._watched:
            if watched.has_changed:
                raise ArgumentError(
                    f"a loop over a dataset changes {watched}: its body is traced once for all "
                    f"elements",
                    source=here(),
                    hint="carry an array, or loop outside the function",
                )

    def _add_function(self, function: Any) -> None:
        if self._is_known(function):
            return
        names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in names:
            if not self._is_known(cell):
                try:
                    self._add(name, cell.cell_contents)
                except ValueError:  # it has no value yet
                    continue
        for name in _names(function.__code__):
            if name in function.__globals__:
                value = function.__globals__[name]
                is_beside = getattr(value, "__globals__", None) is function.__globals__
                if is_beside or not isinstance(value, types.FunctionType):
                    self._add(name, value)

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            self._add_function(value)
        elif self._is_watched(name) and not self._is_known(value):
            self._add_contents(name, value)
            for attribute, held in _attributes(value):
                path = f"{name}.{attribute}"
                if not self._is_watched(attribute) or path in self._carried:
                    continue
                if isinstance(held, int | float | complex) and not isinstance(held, bool):
                    self._watched.append(_Number(path, value, attribute, held))
                else:
                    self._add_contents(path, held)

    def _add_contents(self, name: str, value: Any) -> None:
        if isinstance(value, list | dict | set | deque):
            self._watched.append(_Contents(name, value, value.copy()))

    def _is_watched(self, name: str) -> bool:
        return name not in self._carried and not name.startswith("_")

    def _is_known(self, found: Any) -> bool:
        is_known = id(found) in self._seen
        self._seen.add(id(found))
        return is_known


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object whose class the user defines."""
    if isinstance(value, type | types.ModuleType) or not hasattr(value, "__dict__"):
        return []
    package = type(value).__module__.partition(".")[0]
    return [] if package in _PACKAGES else list(vars(value).items())


_PACKAGES = ("graphdist", "jax", "jaxlib", "numpy", "keras", "flax", "functools")


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that code mentions, and the code in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
