"""The base of typed parameters: a frozen dataclass that is a read-only mapping of its fields.

Each of our operations has a subclass of `Parameters` (`op_parameters.py`). JAX's operations have
plain mappings. Since both are mappings, both are printed, parsed, compared and hashed in the same
way.

1. The names are in the order of the constructor's arguments.
2. A field that equals its default is neither in the mapping nor in the text of a graph.
3. `Parameters.read` makes parameters from a mapping, such as the parser's or a JAX primitive's. It
   raises an error if a parameter is missing, unknown, or of another type than the field.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from numbers import Real
from types import UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from graphdist.ir.errors import TypeRuleError


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
@dataclass(frozen=True, eq=False)
class Parameters(Mapping[str, object]):
    """The parameters of a node. They are equal to every mapping with the same items.

    Each subclass becomes a frozen dataclass.

    >>> class Turning(Parameters):
    ...     axes: tuple[int, ...]
    ...     times: int = 1
    >>> dict(Turning((0, 1))), dict(Turning((0, 1), times=2))
    ({'axes': (0, 1)}, {'axes': (0, 1), 'times': 2})
    """

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        """Make the subclass a frozen dataclass. With `kw_only`, its own fields have no position."""
        dataclass(frozen=True, eq=False, kw_only=kw_only)(cls)

    @classmethod
    def of(cls, node: _HasParameters) -> Self:
        """Return the parameters of a node, which must be of this class."""
        assert isinstance(node.params, cls)
        return node.params

    @classmethod
    def read(cls, items: Mapping[str, object], op: str) -> Self:
        """Return an instance of this class with the items of a mapping.

        Raises `TypeRuleError` if the mapping does not fit this class. `op` is the name of the
        operation in the error.
        """
        known = _fields(cls)
        for name in items:
            if name not in known:
                names = ", ".join(known) or "none"
                raise TypeRuleError(f"{op} has no parameter {name!r}; its parameters: {names}")
        for name, wanted in known.items():
            if name not in items and wanted.default is MISSING:
                raise TypeRuleError(f"{op} lacks its parameter {name!r}: {wanted.written}")
        taken = {}
        for name, item in items.items():
            try:
                taken[name] = _taken(known[name].type, item)
            except TypeError as error:
                what = f"{op} takes {name} as {known[name].written}, not {item!r}"
                raise TypeRuleError(what) from error
        return cls(**taken)

    def __getitem__(self, name: str) -> object:
        known = _fields(type(self)).get(name)
        if known is None or known.is_left_out(value := getattr(self, name)):
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        for name, known in _fields(type(self)).items():
            if not known.is_left_out(getattr(self, name)):
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _HasParameters(Protocol):
    """A node. The class of nodes is in `graph.py`, which imports this module."""

    params: Mapping[str, object]


class _Field(NamedTuple):
    """A field of a parameter class."""

    type: Any  # Any: a class, or a type such as tuple[int, ...]
    written: str
    """The text of the type in the class."""
    default: object
    """`MISSING` if there is no default."""

    def is_left_out(self, value: object) -> bool:
        return self.default is not MISSING and value == self.default


@cache
def _fields(cls: type[Parameters]) -> dict[str, _Field]:
    """Return the fields in the order of the constructor's arguments, keyword-only fields last."""
    types = get_type_hints(cls)
    own = sorted(fields(cls), key=lambda each: bool(each.kw_only))
    return {each.name: _Field(types[each.name], str(each.type), each.default) for each in own}


def _taken(type: Any, value: Any) -> object:  # Any: as above, and any value that a text holds
    """Convert a value to the type of a field; raise `TypeError` if it does not fit.

    >>> _taken(tuple[int, ...], [np.int64(2), 3]), _taken(int | None, None)
    ((2, 3), None)
    """
    origin, arguments = get_origin(type), get_args(type)
    if type is int and not isinstance(value, bool):
        return operator.index(value)
    if origin is UnionType or origin is Union:  # `Union` for `Literal[..] | None`
        for alternative in arguments:
            with suppress(TypeError):
                return _taken(alternative, value)
    if origin is tuple and isinstance(value, tuple | list):
        types = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(types) == len(value):
            return tuple(map(_taken, types, value))
    if not _is_of(type, origin, value):
        raise TypeError(f"{value!r} is not {type}")
    return value


def _is_of(type: Any, origin: object, value: Any) -> bool:  # Any: as above
    """Return whether `value` fits `type`. Integers, tuples and unions are checked by `_taken`."""
    if origin is np.ndarray:  # also random keys of JAX, and an `ArrayPlaceholder`
        return hasattr(value, "dtype") and hasattr(value, "shape")
    if origin is Literal:
        return isinstance(value, str) and value in get_args(type)
    if type is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    return origin is None and type is not int and isinstance(value, type)
