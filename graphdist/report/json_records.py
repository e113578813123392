"""Conversion between JSON and records: dataclasses of numbers, texts, lists and records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints  # Any: JSON

Record = TypeVar("Record")

NOT_IN_JSON: Mapping[str, bool] = {"not in JSON": True}
"""The metadata of a field that is not in the JSON of its record. The field has a default."""
_WORDS = {int: "whole number", float: "number", str: "text", bool: "truth value"}


def json_of(value: Any, *computed: str) -> Any:
    """Convert a record, or the value of one of its fields, to JSON.

    `computed` are names of properties whose values the JSON of the record also has.

    >>> from graphdist.report.step_report import StoredVariables
    >>> json_of(StoredVariables(3, 2, 64, 32))
    {'count': 3, 'sliced': 2, 'full_bytes': 64, 'held_bytes': 32}
    """
    if is_dataclass(value):
        names = [each.name for each in _in_json(value)]
        return {name: json_of(getattr(value, name)) for name in (*names, *computed)}
    if isinstance(value, tuple | list):
        return [json_of(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def read_record(kind: type[Record], found: Any) -> Record:
    """Return the record of class `kind` that a JSON object describes.

    Names that are no fields are ignored. Raises `KeyError` for a missing field, `TypeError` for a
    field of another type.

    >>> from graphdist.report.step_report import StoredVariables
    >>> read = {"count": 3, "sliced": 2, "full_bytes": 64, "held_bytes": 32, "more": 0}
    >>> read_record(StoredVariables, read)
    StoredVariables(count=3, sliced=2, full_bytes=64, held_bytes=32)
    """
    if not isinstance(found, Mapping):
        raise TypeError(f"{found!r} is no object")
    types = get_type_hints(kind)
    values = {}
    for each in _in_json(kind):
        if each.name in found:
            values[each.name] = _value(types[each.name], found[each.name])
        elif each.default is MISSING and each.default_factory is MISSING:
            raise KeyError(each.name)
    return kind(**values)


def _in_json(record: Any) -> list[Field[Any]]:
    return [each for each in fields(record) if each.metadata != NOT_IN_JSON]


def _value(kind: Any, found: Any) -> Any:
    """Convert a JSON value to a type. Raise `TypeError` if the value does not fit the type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if type(None) in arguments:
        return None if found is None else _value(arguments[0], found)
    if isinstance(kind, type) and is_dataclass(kind):
        return read_record(kind, found)
    if origin is dict:
        if not isinstance(found, Mapping):
            raise TypeError(f"{found!r} is no object")
        return {str(key): _value(arguments[1], value) for key, value in found.items()}
    if origin is tuple:
        if not isinstance(found, list):
            raise TypeError(f"{found!r} is no list")
        if arguments[-1] is Ellipsis:
            arguments = arguments[:1] * len(found)
        return tuple(_value(*pair) for pair in zip(arguments, found, strict=True))
    allowed = (int, float) if kind is float else kind
    if not isinstance(found, allowed) or (isinstance(found, bool) and kind is not bool):
        raise TypeError(f"{found!r} is no {_WORDS[kind]}")
    return found
