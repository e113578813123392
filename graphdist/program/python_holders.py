"""Holders of Python values, whose values can be read, replaced for a trace and restored.

A holder is a closure cell, some globals of a module, the attributes of an object or a class, a
list, deque, dict or set, or a random generator, which holds its state. The values of a holder have
keys. While a function is traced, tracers replace the arrays. Afterwards a holder says which value
the function has changed, and restores the values from before the trace.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import random
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any  # Any: users' values

import numpy as np

_MISSING = object()


class Holder:
    """An object of Python that holds values by keys."""

    expression = "{name}"
    """The format of the Python expression of a value, from the holder's `name` and the `key`."""
    kind = ""
    """The kind of the values, for errors."""

    def __init__(self, name: str, owner: Any) -> None:
        """Store the object, and the user's name of the object."""
        self.name, self.owner = name, owner
        self.carried: set[Any] = set()
        """The keys of values in the state of the loop."""

    def values(self) -> dict[Any, Any]:
        """Return the values by their keys."""
        raise NotImplementedError

    def put(self, key: Any, value: Any) -> None:
        """Set a value."""
        raise NotImplementedError

    def remove(self, key: Any) -> None:
        """Remove a value."""
        raise NotImplementedError

    def path(self, key: Any) -> str:
        """Return the Python expression of a value."""
        return self.expression.format(name=self.name, key=key)

    def text(self, key: Any) -> str:
        """Return the expression and the kind of a value, for errors."""
        return f"{self.path(key)}, {self.kind}"

    def may_change(self, key: Any) -> bool:
        """Return whether a value may change, since the user does not see the change."""
        return False

    def changed(self, before: dict[Any, Any]) -> str | None:
        """Return the text of a value that is not the value in `before`; None if there is none.

        A value in the state of the loop may change.
        """
        now = self.values()
        for key in [*before, *(key for key in now if key not in before)]:
            if key in self.carried or self.may_change(key):
                continue
            if not is_same_value(now.get(key, _MISSING), before.get(key, _MISSING)):
                return self.text(key)
        return None

    def restore(self, before: dict[Any, Any], without: Collection[Any] = ()) -> None:
        """Restore the values `before`, but no value whose key is in `without`."""
        now = self.values()
        for key in now:
            if key not in before and key not in without:
                self.remove(key)
        for key, value in before.items():
            if key not in without and now.get(key, _MISSING) is not value:
                self.put(key, value)


class Cell(Holder):
    """The closure cell of a variable. Its only key is the name of the variable."""

    kind = "a variable of the function"

    def values(self) -> dict[Any, Any]:
        """Return the value of the variable, if it has one."""
        try:
            return {self.name: self.owner.cell_contents}
        except ValueError:  # the cell is empty
            return {}

    def put(self, key: Any, value: Any) -> None:
        """Set the variable."""
        self.owner.cell_contents = value

    def remove(self, key: Any) -> None:
        """Remove the value of the variable."""
        del self.owner.cell_contents


class Items(Holder):
    """The items of a dict, or only those with the keys `names`, which may grow."""

    expression = "{name}[{key!r}]"
    kind = "an item of a dict"

    def __init__(
        self, name: str, owner: dict[Any, Any], names: Iterable[Any] | None = None
    ) -> None:
        """Store the dict, and the user's name of the dict."""
        super().__init__(name, owner)
        self.names = None if names is None else dict.fromkeys(names)

    def values(self) -> dict[Any, Any]:
        """Return the items that exist."""
        if self.names is None:
            return dict(self.owner)
        return {name: self.owner[name] for name in self.names if name in self.owner}

    def put(self, key: Any, value: Any) -> None:
        """Set an item."""
        self.owner[key] = value

    def remove(self, key: Any) -> None:
        """Delete an item."""
        del self.owner[key]


class Globals(Items):
    """Some variables of a module; `names` may grow."""

    expression = "{key}"
    names: dict[str, None]

    def __init__(self, owner: dict[str, Any]) -> None:
        """Start with no names; `owner` is the dict of the module."""
        super().__init__("", owner, ())
        self.kind = f"a variable of the module {owner.get('__name__', '')}"


class Attributes(Items):
    """The attributes in the `__dict__` of an object, or only the attributes `names`."""

    expression = "{name}.{key}"
    kind = "an attribute of a Python object"

    def __init__(self, name: str, owner: Any, names: Iterable[str] | None = None) -> None:
        """Store the object's `__dict__`."""
        super().__init__(name, vars(owner), names)
        self._class = type(owner)

    def may_change(self, key: Any) -> bool:
        """Return whether an attribute is a property that Python computes once and caches."""
        kind = inspect.getattr_static(self._class, key, None)
        return isinstance(kind, functools.cached_property)


class Slots(Holder):
    """Attributes of an object with `__slots__`, or of a class."""

    expression = "{name}.{key}"

    def __init__(self, name: str, owner: Any, names: Iterable[str]) -> None:
        """Store the object and the names of attributes."""
        super().__init__(name, owner)
        self._names = list(names)
        self._is_class = isinstance(owner, type)
        self.kind = f"an attribute of a {'class' if self._is_class else 'Python object'}"

    def values(self) -> dict[Any, Any]:
        """Return the attributes that have a value."""
        read = vars(self.owner).get if self._is_class else functools.partial(getattr, self.owner)
        values = {name: read(name, _MISSING) for name in self._names}
        return {name: value for name, value in values.items() if value is not _MISSING}

    def put(self, key: Any, value: Any) -> None:
        """Set an attribute, even if the class of the object forbids it (a frozen dataclass)."""
        (type if self._is_class else object).__setattr__(self.owner, key, value)

    def remove(self, key: Any) -> None:
        """Delete an attribute."""
        delattr(self.owner, key)


class Elements(Holder):
    """The elements of a list, deque or set."""

    expression = "{name}[{key!r}]"

    def values(self) -> dict[Any, Any]:
        """Return the elements by their index; of a set, each element is its own key."""
        if isinstance(self.owner, set):
            return {element: element for element in self.owner}
        return dict(enumerate(self.owner))

    def put(self, key: Any, value: Any) -> None:
        """Set an element, or add it to a set."""
        if isinstance(self.owner, set):
            self.owner.add(value)
        else:
            self.owner[key] = value

    def restore(self, before: dict[Any, Any], without: Collection[Any] = ()) -> None:
        """Restore the elements `before`; if their number has changed, also those in `without`."""
        if isinstance(self.owner, list | deque) and len(self.owner) == len(before):
            super().restore(before, without)
        elif not isinstance(self.owner, set) or self.owner != before.keys():
            self.owner.clear()
            add = self.owner.update if isinstance(self.owner, set) else self.owner.extend
            add(before.values())

    def text(self, key: Any) -> str:
        """Return the name and type of the container."""
        return f"{self.name}, a {type(self.owner).__name__}"


class ArrayElements(Holder):
    """The elements of a NumPy array that is a constant of a program."""

    kind = "a NumPy array, in place"

    def values(self) -> dict[Any, Any]:
        """Return the bytes of the array."""
        return {"": self.owner.tobytes()}

    def put(self, key: Any, value: Any) -> None:
        """Set the elements to these bytes, as `values` returns them."""
        self.owner[...] = np.frombuffer(value, self.owner.dtype).reshape(self.owner.shape)


class GeneratorState(Holder):
    """The state of a random generator, of NumPy or of Python."""

    expression = "the state of {name}"
    kind = "a random generator"

    def values(self) -> dict[Any, Any]:
        """Return the state as bytes, which can be compared."""
        get, _ = self._accessors()
        return {"": pickle.dumps(get())}

    def put(self, key: Any, value: Any) -> None:
        """Set the state from bytes."""
        _, put = self._accessors()
        put(pickle.loads(value))

    def _accessors(self) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        """Return the functions that read and set the state."""
        match owner := self.owner:
            case np.random.Generator():
                bits = owner.bit_generator
                return lambda: bits.state, lambda state: setattr(bits, "state", state)
            case np.random.RandomState() | types.ModuleType(set_state=_):
                return owner.get_state, owner.set_state
        return owner.getstate, owner.setstate


def global_generators() -> list[Holder]:
    """Return the generators of `random` and `numpy.random`, which any function may use."""
    return [GeneratorState("numpy.random", np.random), GeneratorState("random", random)]


def is_same_value(first: Any, second: Any) -> bool:
    """Return whether two values are one object, or equal numbers or strings of one type."""
    if first is second:
        return True
    return type(first) is type(second) and isinstance(first, _COMPARED) and bool(first == second)


_COMPARED = (bool, int, float, complex, str, bytes)
