"""Properties of Python values, by which the walk over them treats them differently."""

from __future__ import annotations

import enum
import functools
import sys
import types
from typing import Any  # Any: users' values

import jax
import numpy as np

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


def is_same_value(first: Any, second: Any) -> bool:
    """Return whether two values are one object, or equal numbers or strings of one type."""
    if first is second:
        return True
    return type(first) is type(second) and isinstance(first, _COMPARED) and bool(first == second)


_COMPARED = (bool, int, float, complex, str, bytes)


def hashable(structure: Any) -> Any:
    """Return the structure of a pytree, or its text if its static parts have no hash."""
    try:
        hash(structure)
    except TypeError:
        return str(structure)
    return structure
