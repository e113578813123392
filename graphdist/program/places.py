"""Where Python keeps values: holders, whose places can be read, set for a moment and restored.

A holder is a closure cell, some globals of a module, the attributes of an object or a class, or a
list, deque, dict or set; a random generator holds its state. Its places have keys. While a function
is traced, places with arrays hold tracers. Afterwards a holder knows which place the function
changed, and gets back the values from before.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import random
import types
from collections import deque
from collections.abc import Iterable
from typing import Any  # Any: users' values

import numpy as np

_MISSING = object()
_PLAIN = (bool, int, float, complex, str, bytes)


class Holder:
    """An object of Python that holds values by keys."""

    def __init__(self, name: str, owner: Any) -> None:
        """Take the object, and the name by which a user knows it."""
        self.name, self.owner = name, owner
        self.carried: set[Any] = set()
        """The keys of places that belong to the state of the loop."""
        self._before: dict[Any, Any] = {}
        self._during: dict[Any, Any] = {}

    def values(self) -> dict[Any, Any]:
        """Return the values by their keys."""
        raise NotImplementedError

    def put(self, key: Any, value: Any) -> None:
        """Give a place another value."""
        raise NotImplementedError

    def remove(self, key: Any) -> None:
        """Let a place have no value."""
        raise NotImplementedError

    def path(self, key: Any) -> str:
        """Return a place as Python writes it."""
        return self.name

    def text(self, key: Any) -> str:
        """Return the name of a place, and of what kind it is."""
        raise NotImplementedError

    def may_change(self, key: Any) -> bool:
        """Return whether a change of a place is no change for the user."""
        return False

    def begin(self) -> None:
        """Remember the values."""
        self._before = self.values()

    def are_set(self) -> None:
        """Take the present values as those that the traced function finds."""
        self._during = self.values()

    def changed(self) -> str | None:
        """Return the name of a place that has another value than `are_set` found."""
        now = self.values()
        for key in [*self._during, *(key for key in now if key not in self._during)]:
            if key in self.carried or self.may_change(key):
                continue
            if not _is_same(now.get(key, _MISSING), self._during.get(key, _MISSING)):
                return self.text(key)
        return None

    def restore(self) -> None:
        """Give all places the values that `begin` found, except places of the loop's state."""
        now = self.values()
        for key in now:
            if key not in self._before and key not in self.carried:
                self.remove(key)
        for key, value in self._before.items():
            if key not in self.carried and now.get(key, _MISSING) is not value:
                self.put(key, value)


class Cell(Holder):
    """A variable of a function around."""

    def values(self) -> dict[Any, Any]:
        """Return the value under the name of the variable."""
        try:
            return {self.name: self.owner.cell_contents}
        except ValueError:  # it has no value yet
            return {}

    def put(self, key: Any, value: Any) -> None:
        """Give the variable another value."""
        self.owner.cell_contents = value

    def remove(self, key: Any) -> None:
        """Let the variable have no value."""
        del self.owner.cell_contents

    def text(self, key: Any) -> str:
        """Return the name of the variable."""
        return f"{key}, a variable of the function"


class Items(Holder):
    """The items of a dict."""

    def values(self) -> dict[Any, Any]:
        """Return the items."""
        return dict(self.owner)

    def put(self, key: Any, value: Any) -> None:
        """Give an item another value."""
        self.owner[key] = value

    def remove(self, key: Any) -> None:
        """Delete an item."""
        del self.owner[key]

    def path(self, key: Any) -> str:
        """Return the item as Python writes it."""
        return f"{self.name}[{key!r}]"

    def text(self, key: Any) -> str:
        """Return the item, and that it is one."""
        return f"{self.path(key)}, an item of a dict"


class Globals(Items):
    """Some variables of a module; `names` may grow."""

    def __init__(self, name: str, owner: dict[str, Any]) -> None:
        """Take the dict of a module."""
        super().__init__(name, owner)
        self.names: set[str] = set()

    def values(self) -> dict[Any, Any]:
        """Return the variables that have a value."""
        return {name: self.owner[name] for name in self.names if name in self.owner}

    def path(self, key: Any) -> str:
        """Return the name of the variable."""
        return str(key)

    def text(self, key: Any) -> str:
        """Return the name of the variable."""
        return f"{key}, a variable of the module {self.owner.get('__name__', '')}"


class Attributes(Items):
    """The attributes in the `__dict__` of an object, or the attributes of `names` alone."""

    def __init__(self, name: str, owner: Any, names: Iterable[str] | None = None) -> None:
        """Take the object."""
        super().__init__(name, vars(owner))
        self._class, self._names = type(owner), None if names is None else set(names)

    def values(self) -> dict[Any, Any]:
        """Return the attributes."""
        if self._names is None:
            return dict(self.owner)
        return {name: self.owner[name] for name in self._names if name in self.owner}

    def may_change(self, key: Any) -> bool:
        """Return whether the attribute is one that Python computes once, and keeps."""
        kind = inspect.getattr_static(self._class, key, None)
        return isinstance(kind, functools.cached_property)

    def path(self, key: Any) -> str:
        """Return the attribute as Python writes it."""
        return f"{self.name}.{key}"

    def text(self, key: Any) -> str:
        """Return the attribute, and whose it is."""
        return f"{self.path(key)}, an attribute of a Python object"


class Slots(Holder):
    """Attributes of an object with `__slots__`, or of a class."""

    def __init__(self, name: str, owner: Any, names: Iterable[str]) -> None:
        """Take the object and the names of attributes."""
        super().__init__(name, owner)
        self._names = list(names)

    def values(self) -> dict[Any, Any]:
        """Return the attributes that have a value."""
        if isinstance(self.owner, type):
            return {
                name: vars(self.owner)[name] for name in self._names if name in vars(self.owner)
            }
        found = ((name, getattr(self.owner, name, _MISSING)) for name in self._names)
        return {name: value for name, value in found if value is not _MISSING}

    def put(self, key: Any, value: Any) -> None:
        """Give an attribute another value, also of an object that refuses it."""
        if isinstance(self.owner, type):
            type.__setattr__(self.owner, key, value)
        else:
            object.__setattr__(self.owner, key, value)

    def remove(self, key: Any) -> None:
        """Delete an attribute."""
        delattr(self.owner, key)

    def path(self, key: Any) -> str:
        """Return the attribute as Python writes it."""
        return f"{self.name}.{key}"

    def text(self, key: Any) -> str:
        """Return the attribute, and whose it is."""
        kind = "class" if isinstance(self.owner, type) else "Python object"
        return f"{self.path(key)}, an attribute of a {kind}"


class Elements(Holder):
    """The elements of a list, deque or set."""

    def values(self) -> dict[Any, Any]:
        """Return the elements by their number, of a set by themselves."""
        if isinstance(self.owner, set):
            return {element: element for element in self.owner}
        return dict(enumerate(self.owner))

    def put(self, key: Any, value: Any) -> None:
        """Give an element another value, or add it to a set."""
        if isinstance(self.owner, set):
            self.owner.add(value)
        else:
            self.owner[key] = value

    def restore(self) -> None:
        """Give the elements of `begin`."""
        if isinstance(self.owner, list | deque) and len(self.owner) == len(self._before):
            super().restore()
        elif not isinstance(self.owner, set) or self.owner != self._before.keys():
            self.owner.clear()
            add = self.owner.update if isinstance(self.owner, set) else self.owner.extend
            add(self._before.values())

    def path(self, key: Any) -> str:
        """Return the element as Python writes it."""
        return f"{self.name}[{key!r}]"

    def text(self, key: Any) -> str:
        """Return the name of the container."""
        return f"{self.name}, a {type(self.owner).__name__}"


class Numbers(Holder):
    """The numbers of a NumPy array that a program has as a constant."""

    def values(self) -> dict[Any, Any]:
        """Return the bytes of the array."""
        return {"": self.owner.tobytes()}

    def put(self, key: Any, value: Any) -> None:
        """Give the array other numbers."""
        self.owner[...] = np.frombuffer(value, self.owner.dtype).reshape(self.owner.shape)

    def text(self, key: Any) -> str:
        """Return the name of the array."""
        return f"{self.name}, a NumPy array, in place"


class GeneratorState(Holder):
    """The state of a random generator, of NumPy or of Python."""

    def values(self) -> dict[Any, Any]:
        """Return the state as bytes, which can be compared."""
        return {"": pickle.dumps(self._get())}

    def put(self, key: Any, value: Any) -> None:
        """Give the generator another state."""
        state = pickle.loads(value)
        match self.owner:
            case np.random.Generator():
                self.owner.bit_generator.state = state
            case np.random.RandomState() | types.ModuleType(set_state=_):
                self.owner.set_state(state)
            case _:
                self.owner.setstate(state)

    def _get(self) -> Any:
        match self.owner:
            case np.random.Generator():
                return self.owner.bit_generator.state
            case np.random.RandomState() | types.ModuleType(get_state=_):
                return self.owner.get_state()
        return self.owner.getstate()

    def text(self, key: Any) -> str:
        """Return the name of the generator."""
        return f"the state of {self.name}, a random generator"


def global_generators() -> list[Holder]:
    """Return the generators of `random` and `numpy.random`, which any function may use."""
    return [GeneratorState("numpy.random", np.random), GeneratorState("random", random)]


def _is_same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    return type(first) is type(second) and isinstance(first, _PLAIN) and first == second
