"""The kinds of Python values, which the walk over them treats differently."""

from __future__ import annotations

import enum
import functools
import random
import sys
import types
from collections import deque
from contextvars import ContextVar
from typing import Any  # Any: users' values
from weakref import ReferenceType, WeakKeyDictionary

import jax
import numpy as np

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


class PythonKind(enum.Enum):
    """The kind of a value, by which the walk reads it."""

    PLAIN = enum.auto()
    ARRAY = enum.auto()
    TREE = enum.auto()
    """A pytree that is no list and no dict: to replace its arrays, a new pytree is built."""
    DICT = enum.auto()
    ELEMENTS = enum.auto()
    FUNCTION = enum.auto()
    METHOD = enum.auto()
    PARTIAL = enum.auto()
    CONTEXT = enum.auto()
    REFERENCE = enum.auto()
    CLASS = enum.auto()
    MODULE = enum.auto()
    GENERATOR = enum.auto()
    ITERATOR = enum.auto()
    OBJECT = enum.auto()


_kinds: WeakKeyDictionary[type, PythonKind] = WeakKeyDictionary()
_TYPES: tuple[tuple[tuple[type, ...], PythonKind], ...] = (
    (PLAIN, PythonKind.PLAIN),
    ((PerReplicaArray, Mirrored, np.ndarray, np.generic, jax.Array), PythonKind.ARRAY),
    ((dict,), PythonKind.DICT),
    ((list, deque, set, frozenset), PythonKind.ELEMENTS),
    ((types.FunctionType,), PythonKind.FUNCTION),
    ((types.MethodType,), PythonKind.METHOD),
    ((functools.partial,), PythonKind.PARTIAL),
    ((ContextVar,), PythonKind.CONTEXT),
    ((ReferenceType,), PythonKind.REFERENCE),
    ((type,), PythonKind.CLASS),
    ((types.ModuleType,), PythonKind.MODULE),
    ((np.random.Generator, np.random.RandomState, random.Random), PythonKind.GENERATOR),
)


def kind_of_value(value: Any) -> PythonKind:
    """Return the kind of a value; all values of a type have one.

    >>> kind_of_value(3), kind_of_value([3]), kind_of_value((3,))
    (<PythonKind.PLAIN: 1>, <PythonKind.ELEMENTS: 5>, <PythonKind.TREE: 3>)
    """
    kind = _kinds.get(type(value))
    if kind is None:
        kind = _kinds[type(value)] = _new_kind(value)
    return kind


def _new_kind(value: Any) -> PythonKind:
    for types_of_kind, kind in _TYPES:
        if isinstance(value, types_of_kind):
            return kind
    if not jax.tree_util.all_leaves([value]):
        return PythonKind.TREE
    is_iterator = hasattr(type(value), "__next__") and type(value).__module__ in _ITERATORS
    return PythonKind.ITERATOR if is_iterator else PythonKind.OBJECT


_ITERATORS = ("builtins", "itertools")


def slots_of(kind: type) -> list[str]:
    """Return the names of attributes that a class keeps in slots."""
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def functions_of(value: Any) -> list[Any]:
    """Return the functions of an attribute of a class, or its value."""
    match value:
        case staticmethod() | classmethod():
            return [value.__func__]
        case property():
            return [each for each in (value.fget, value.fset) if each is not None]
        case functools.cached_property():
            return [value.func]
    return [value]


def is_called(name: str) -> bool:
    """Return whether statements may call a method without its name, such as an operator."""
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
