"""A walk over the Python state that functions read.

The walk starts at functions and values. The names in the code of each function lead to closure
cells, globals, attributes of objects and classes, items of containers, and to all functions,
methods, partials and callable objects in them. Each value is one of:

* an array: an input, which can be replaced;
* a number, string or other plain value: part of the key, by type and value;
* a function: part of the key by its code; the walk continues in it;
* a container: part of the key by its length and keys; the walk continues in its items;
* another object: part of the key by its identity; the walk continues in the attributes that one of
  the functions names.

The walk does not enter the code of installed packages, only the closures of their functions. Nor
does it enter objects whose classes belong to Python's library or to `PACKAGES`, since their caches
change while a function is traced. If only a base class of an object belongs to `PACKAGES`, an
attribute of the object is watched only if a function names it.
"""

from __future__ import annotations

import enum
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: users' functions and values
from weakref import ReferenceType, WeakKeyDictionary

import jax
import numpy as np

from graphdist.program.code_names import closure_of, names_of
from graphdist.program.python_holders import (
    ArrayElements,
    Attributes,
    Cell,
    Elements,
    GeneratorState,
    Globals,
    Holder,
    Items,
    Slots,
)
from graphdist.tracing.user_lines import CodeOwner, owner_of
from graphdist.values.distributed import Mirrored, PerReplicaArray

PLAIN = (
    *(bool, int, float, complex, str, bytes, types.NoneType, np.dtype, enum.Enum),
    *(range, slice, types.EllipsisType, types.NotImplementedType),
)
"""Values that never change, and are compared by type and value."""
PACKAGES = frozenset(
    ("graphdist", "jax", "jaxlib", "numpy", "keras", "flax", "optax", "tensorflow", "torch")
)
"""Packages whose objects keep caches, which a trace fills."""
CONTAINERS = frozenset(("types", "collections", "argparse", "builtins", "_thread"))
"""Modules of Python's library whose objects hold users' values."""
_MAX_ITEMS = 10_000
"""The largest container whose items the walk enters. A larger one is treated as an object."""
_ANY = "*"
"""All names of attributes."""


@dataclass(frozen=True)
class Input:
    """A value with arrays: where it is held, its leaves and its structure."""

    name: str
    holder: Holder
    key: Any
    leaves: list[Any]
    structure: Any
    indices: list[int]
    """The indices of the leaves that are arrays."""


class Walk:
    """A walk, and its results."""

    def __init__(
        self,
        functions: Iterable[Any],
        values: Mapping[str, Any],
        attributes: set[str],
        local: frozenset[str] = frozenset(),
        carried: frozenset[tuple[int, Any]] = frozenset(),
        arrays_are_constants: bool = False,
    ) -> None:
        """Walk from the functions, and from the values of their variables.

        `attributes` has the names of attributes that functions are known to read; the walk adds
        names. The loop carries the variables `local` and the values in `carried`, each given as a
        pair: the id of the object that holds the value, and the key.
        """
        self._attributes, self._carried = attributes, carried
        self._arrays_are_constants = arrays_are_constants
        known = -1
        while known < len(attributes):  # an object may come before names of its attributes
            known = len(attributes)
            self._walk(functions, values, local)

    def _walk(
        self, functions: Iterable[Any], values: Mapping[str, Any], local: frozenset[str]
    ) -> None:
        self.arrays: list[Any] = []
        self.kept: list[Any] = []
        self.key: list[Any] = []
        self.inputs: list[Input] = []
        self.holders: list[Holder] = []
        self._globals: dict[int, Globals] = {}
        self.iterators: list[str] = []
        self._seen: dict[int, int] = {}
        self._classes: set[type] = set()
        self._work: deque[tuple[str, Any, Holder | None, Any]] = deque()
        for function in functions:
            self._add_function(function, local)
        for name, value in values.items():
            self._push(name, value)
        while self._work:
            self._visit(*self._work.popleft())

    def _visit(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        add = _method_for(value)
        if add not in _COMPARED_BY_VALUE:
            if id(value) in self._seen:
                self.key.append(self._seen[id(value)])
                return
            self._see(value)
        add(self, name, value, holder, key)

    def _see(self, value: Any) -> None:
        self._seen[id(value)] = len(self._seen)
        self.kept.append(value)

    def _add_plain(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self.key.append((type(value), value.hex() if type(value) is float else value))

    def _push(self, name: str, value: Any, holder: Holder | None = None, key: Any = None) -> None:
        self._work.append((name, value, holder, key))

    def _hold(self, holder: Holder) -> Holder:
        holder.carried = {key for owner, key in self._carried if owner == id(holder.owner)}
        self.holders.append(holder)
        return holder

    def _push_all(self, holder: Holder, names: Iterable[Any]) -> None:
        """Push the values that a holder has for the keys `names`, except those a loop carries."""
        values = holder.values()
        for key in names:
            if key in values and key not in holder.carried:
                self._push(holder.path(key), values[key], holder, key)

    def _add_arrays(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        """Add the arrays of a value as inputs, and all else to the key."""
        leaves, structure = jax.tree.flatten(value)
        indices = [index for index, leaf in enumerate(leaves) if self._is_input(leaf)]
        if holder is None or not indices:
            indices = []
        else:
            self.inputs.append(Input(name, holder, key, leaves, structure, indices))
            self.arrays += [leaves[index] for index in indices]
        self.key.append((type(value), hashable(structure), tuple(indices)))
        inputs = set(indices)
        for index, leaf in enumerate(leaves):
            if index in inputs:
                continue
            if _method_for(leaf) is Walk._add_arrays:
                self._add_constant(name, leaf)
            else:
                self._push(name, leaf)

    def _is_input(self, leaf: Any) -> bool:
        if self._arrays_are_constants and may_be_constant(leaf):
            return False
        return _method_for(leaf) is Walk._add_arrays and is_of_numbers(leaf)

    def _add_constant(self, name: str, array: Any) -> None:
        self.kept.append(array)
        if isinstance(array, np.ndarray) and array.dtype.hasobject:
            self.key.append(id(array))
        elif isinstance(array, np.ndarray | np.generic) or may_be_constant(array):
            numbers = np.asarray(array)
            self.key.append((type(array), numbers.dtype, numbers.shape, numbers.tobytes()))
            if isinstance(array, np.ndarray) and array.flags.writeable:
                self._hold(ArrayElements(name, array))
        else:
            self.key.append(id(array))

    def _add_tree(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        """Add a pytree that is no list and no dict, such as a tuple or a module of nnx."""
        if isinstance(value, tuple):
            if not any(map(self._is_input, jax.tree.leaves(value))):
                self.key.append((type(value), len(value)))
                for index, item in enumerate(value):
                    self._push(f"{name}[{index}]", item)
                return
        else:
            self._add_class(type(value))
        self._add_arrays(name, value, holder, key)

    def _add_dict(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        keys = list(value)
        self.key.append((type(value), tuple(plain_or_id(each) for each in keys)))
        self.kept += keys
        if len(keys) <= _MAX_ITEMS:
            self._push_all(self._hold(Items(name, value)), keys)

    def _add_elements(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self.key.append((type(value), len(value)))
        if len(value) > _MAX_ITEMS or isinstance(value, frozenset):
            self.key.append(id(value))
        elif isinstance(value, set):
            self._hold(Elements(name, value))
            self.key.append(frozenset(map(plain_or_id, value)))
        else:
            self._push_all(self._hold(Elements(name, value)), range(len(value)))

    def _add_any_function(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self._add_function(value)

    def _add_function(self, function: Any, local: frozenset[str] = frozenset()) -> None:
        if id(function) not in self._seen:
            self._see(function)
        code = function.__code__
        self.key.append(id(code))
        names = names_of(code)
        if vars(function):
            held = self._hold(Attributes(function.__name__, function))
            self._push_all(held, self._named(vars(function)))
        wrapped = vars(function).get("__wrapped__")
        if wrapped is not None:
            self._push(function.__name__, wrapped)
        if names.owner is not CodeOwner.USER:
            for name, value in closure_of(function).items():  # the code is not entered
                self._push(name, value)
            return
        self._attributes |= names.attributes
        if names.reads_any_attribute:
            self._attributes.add(_ANY)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name not in local and id(cell) not in self._seen:
                self._see(cell)
                self._push_all(self._hold(Cell(name, cell)), [name])
        for values in (function.__defaults__ or (), (function.__kwdefaults__ or {}).values()):
            for value in values:
                self._push(f"a default value of {function.__name__}", value)
        self._add_globals(function.__globals__, names.globals)
        for name in names.modules:
            if name in sys.modules:
                self._push(name, sys.modules[name])

    def _add_globals(self, variables: dict[str, Any], names: Sequence[str]) -> None:
        holder = self._globals.get(id(variables))
        if holder is None:
            holder = self._globals[id(variables)] = Globals(variables)
            self._hold(holder)
        added = [name for name in names if name not in holder.names]
        holder.names |= dict.fromkeys(added)
        self._push_all(holder, added)

    def _add_method(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self._push(name, value.__func__)
        self._push(name.rpartition(".")[0] or name, value.__self__)

    def _add_partial(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        for part in (value.func, value.args, value.keywords):
            self._push(name, part)

    def _add_reference(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self._push(name, value())

    def _add_context(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self._push(name, value.get(None))

    def _add_module(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self.key.append(id(value))
        file = getattr(value, "__file__", None)
        if file is not None and owner_of(file) is CodeOwner.USER:
            self._add_globals(vars(value), self._named(vars(value)))

    def _add_generator(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self.key.append(id(value))
        self._hold(GeneratorState(name, value))

    def _add_iterator(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self.key.append(id(value))
        self.iterators.append(f"{name}, a {type(value).__name__}")

    def _add_class_value(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self.key.append(id(value))
        self._add_class(value)
        for method in ("__init__", "__new__", "__post_init__"):
            function = getattr(value, method, None)
            if isinstance(function, types.FunctionType):
                self._push(f"{name}.{method}", function)

    def _add_class(self, kind: type) -> None:
        for each in kind.__mro__:
            if each in self._classes or not is_of_user(each):
                continue
            self._classes.add(each)
            held = vars(each)
            holder = self._hold(Slots(each.__name__, each, self._named(held)))
            for attribute in [*self._named(held), *filter(is_called, held)]:
                value = held[attribute]
                if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
                    continue
                for function in functions_of(value):
                    self._push(f"{each.__name__}.{attribute}", function, holder, attribute)

    def _add_object(self, name: str, value: Any, holder: Holder | None, key: Any) -> None:
        self.key.append(id(value))
        kind = type(value)
        if not is_of_user(kind) and kind.__module__ not in CONTAINERS:
            wrapped = wrapped_by(value)
            if wrapped is not None:
                self._push(name, wrapped)
            return
        self._add_class(kind)
        is_mixed = any(package_of(base) in PACKAGES for base in kind.__mro__)
        if hasattr(value, "__dict__"):
            attributes = vars(value)
            named = self._named(attributes, all_of=not is_of_user(kind))
            watched = [each for each in named if each[0] != "_"] if is_mixed else None
            held = Attributes(name, value, watched)
            self._push_all(self._hold(held), named)
        slots = [each for base in kind.__mro__ for each in slots_of(base)]
        if slots and is_of_user(kind):
            self._push_all(self._hold(Slots(name, value, slots)), self._named(slots))

    def _named(self, names: Iterable[str], all_of: bool = False) -> list[str]:
        """Return those attributes in `names` that the functions name."""
        if all_of or _ANY in self._attributes:
            return [name for name in names if isinstance(name, str) and name[:2] != "__"]
        return sorted(self._attributes.intersection(names))


_Method: TypeAlias = Callable[[Walk, str, Any, Holder | None, Any], None]
_METHODS: tuple[tuple[tuple[type, ...], _Method], ...] = (
    (PLAIN, Walk._add_plain),
    ((PerReplicaArray, Mirrored, np.ndarray, np.generic, jax.Array), Walk._add_arrays),
    ((dict,), Walk._add_dict),
    ((list, deque, set, frozenset), Walk._add_elements),
    ((types.FunctionType,), Walk._add_any_function),
    ((types.MethodType,), Walk._add_method),
    ((functools.partial,), Walk._add_partial),
    ((ContextVar,), Walk._add_context),
    ((ReferenceType,), Walk._add_reference),
    ((type,), Walk._add_class_value),
    ((types.ModuleType,), Walk._add_module),
    ((np.random.Generator, np.random.RandomState, random.Random), Walk._add_generator),
)
"""The methods that add values, by the types of the values. The first that fits is used."""
_COMPARED_BY_VALUE = (Walk._add_plain, Walk._add_arrays, Walk._add_tree, Walk._add_method)
"""The methods that leave the id out of the key, since each read may return a new object."""
_ITERATORS = ("builtins", "itertools")
_known_methods: WeakKeyDictionary[type, _Method] = WeakKeyDictionary()


def _method_for(value: Any) -> _Method:
    """Return the method that adds a value, which depends only on the value's type."""
    method = _known_methods.get(type(value))
    if method is None:
        method = _known_methods[type(value)] = _method_for_type_of(value)
    return method


def _method_for_type_of(value: Any) -> _Method:
    for kinds, method in _METHODS:
        if isinstance(value, kinds):
            return method
    if not jax.tree_util.all_leaves([value]):
        return Walk._add_tree
    is_iterator = hasattr(type(value), "__next__") and type(value).__module__ in _ITERATORS
    return Walk._add_iterator if is_iterator else Walk._add_object


def slots_of(kind: type) -> list[str]:
    """Return the names of attributes that a class keeps in slots."""
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def functions_of(value: Any) -> list[Any]:
    """Return the functions in an attribute of a class, such as a property; else the attribute."""
    match value:
        case staticmethod() | classmethod():
            return [value.__func__]
        case property():
            return [each for each in (value.fget, value.fset) if each is not None]
        case functools.cached_property():
            return [value.func]
    return [value]


def is_called(name: str) -> bool:
    """Return whether a method may be called without its name, as an operator calls `__add__`."""
    return name[:2] == name[-2:] == "__" and name not in _UNCALLED


_UNCALLED = frozenset(
    (
        *("__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__"),
        *("__repr__", "__str__", "__format__", "__del__", "__sizeof__", "__dir__"),
        *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__"),
        *("__deepcopy__", "__doc__", "__module__", "__dict__", "__weakref__", "__slots__"),
        *("__annotations__", "__qualname__", "__match_args__", "__orig_bases__"),
        *("__parameters__", "__abstractmethods__", "__static_attributes__", "__firstlineno__"),
        *("__dataclass_fields__", "__dataclass_params__"),
    )
)
"""Attributes of classes that no statement calls."""


def wrapped_by(value: Any) -> Any:
    """Return the user's function that an object wraps, such as the result of `jax.jit`."""
    try:
        return getattr(value, "__wrapped__", None) if callable(value) else None
    except Exception:
        return None


def package_of(kind: type) -> str:
    """Return the package that defines a class."""
    return kind.__module__.partition(".")[0]


def is_of_user(kind: type) -> bool:
    """Return whether a class is neither of Python's library nor of `PACKAGES`."""
    package = package_of(kind)
    return package not in PACKAGES and package not in sys.stdlib_module_names


def is_of_numbers(array: Any) -> bool:
    """Return whether devices can hold an array."""
    return not isinstance(array, np.ndarray | np.generic) or array.dtype.kind in "biufcV"


def may_be_constant(array: Any) -> bool:
    """Return whether the values of an array can be part of a key."""
    if isinstance(array, np.ndarray | np.generic):
        return True
    return (
        isinstance(array, jax.Array)
        and not isinstance(array, jax.core.Tracer)
        and not array.is_deleted()
        and array.is_fully_addressable
        and array.size <= _MOST_NUMBERS
        and not jax.numpy.issubdtype(array.dtype, jax.dtypes.extended)
    )


_MOST_NUMBERS = 64
"""The largest size of an array of JAX whose values become part of a key."""


def plain_or_id(value: Any) -> Any:
    """Return a value's part of a key: type and value of a plain value, the id of an object."""
    return (type(value), value) if isinstance(value, PLAIN) else id(value)


def hashable(structure: Any) -> Any:
    """Return the structure of a pytree, or its text if its static parts have no hash."""
    try:
        hash(structure)
    except TypeError:
        return str(structure)
    return structure
