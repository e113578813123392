"""The schema of a saved step's manifest, and the check of a manifest against it.

The hashes of a file are no signature, so a manifest may hold anything that JSON can hold. Every
field that is read is described here and checked first: code that reads a manifest can rely on it.
`loaded_step.py` checks whether manifest and module agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias  # Any: JSON

from graphdist.ir.types import dtype_name, is_dtype
from graphdist.runtime.files.serialization import PLATFORMS

MOST_REPLICAS = 2**20
DEEPEST_RESULT = 100
"""The largest depth of nested containers in a result."""
LARGEST_SIZE = 2**48
"""The largest number of elements of a value, on all replicas together."""

Wanted: TypeAlias = Any
"""A class; a dict of keys, each with what its value must be; a list with what each element must be;
or a function that returns what is wrong with a value, or None."""


def mismatch(found: Any, wanted: Wanted, at: str = "") -> str | None:
    """Return the first value in JSON that is not as wanted, and its place, or None.

    >>> mismatch({"sizes": [1, "2"]}, {"sizes": [int]})
    "sizes[1] is '2', not an int"
    >>> mismatch({"sizes": [1, 2]}, {"sizes": [int]}) is None
    True
    """
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return _wrong(at, found, "not an object")
        for key, wanted_value in wanted.items():
            if key not in found:
                return f"{at or 'the manifest'} has no {key}"
            if said := mismatch(found[key], wanted_value, f"{at}.{key}" if at else key):
                return said
        return None
    if isinstance(wanted, list):
        if not isinstance(found, list):
            return _wrong(at, found, "not a list")
        each = (mismatch(element, wanted[0], f"{at}[{i}]") for i, element in enumerate(found))
        return next(filter(None, each), None)
    if isinstance(wanted, type):
        # In Python `True` is an `int`.
        if isinstance(found, wanted) and (wanted is bool or not isinstance(found, bool)):
            return None
        return _wrong(at, found, f"not {'an' if wanted is int else 'a'} {wanted.__name__}")
    said = wanted(found, at)
    return said and str(said)


def _wrong(at: str, found: Any, why: str) -> str:
    shown = repr(found)
    return f"{at} is {shown if len(shown) <= 60 else f'{shown[:57]}...'}, {why}"


def _count(least: int, most: int) -> Callable[[Any, str], str | None]:
    def check(found: Any, at: str) -> str | None:
        is_count = isinstance(found, int) and not isinstance(found, bool)
        if is_count and least <= found <= most:
            return None
        return _wrong(at, found, f"not an integer from {least} to {most}")

    return check


def _one_of(*known: Any) -> Callable[[Any, str], str | None]:
    def check(found: Any, at: str) -> str | None:
        if any(found == value and type(found) is type(value) for value in known):
            return None
        return _wrong(at, found, f"not one of {', '.join(map(repr, known))}")

    return check


def _or_none(wanted: Wanted) -> Callable[[Any, str], str | None]:
    return lambda found, at: None if found is None else mismatch(found, wanted, at)


def _shape(found: Any, at: str) -> str | None:
    if said := mismatch(found, [_count(0, LARGEST_SIZE)], at):
        return said
    elements = 1
    for size in found:
        elements *= size
    if elements > LARGEST_SIZE or len(found) > 32:
        return _wrong(at, found, f"more than 32 dimensions or {LARGEST_SIZE} elements")
    return None


def _dtype(found: Any, at: str) -> str | None:
    is_known = isinstance(found, str) and is_dtype(found)
    return None if is_known else _wrong(at, found, "no dtype")


def _long_dtype(found: Any, at: str) -> str | None:
    """Return what is wrong with a dtype that has NumPy's name, or None."""
    return _dtype(dtype_name(found) if isinstance(found, str) else found, at)


_copies = _count(1, MOST_REPLICAS)


def _distribution(found: Any, at: str) -> str | None:
    known = (["mirrored", None, 1], ["per_replica", None, 1])
    if found is None or found in known:
        return None
    if said := mismatch(found, [lambda element, place: None], at):
        return said
    is_sharded = len(found) == 3 and found[0] == "sharded"
    if is_sharded and not _count(0, 31)(found[1], at) and not _copies(found[2], at):
        return None
    return _wrong(at, found, "no distribution")


_TYPE = {"dtype": _dtype, "shape": _shape, "distribution": _distribution}
_SHAPES = _or_none([_shape])
_ARGUMENT_KINDS: dict[str, Wanted] = {
    "array": {"shape": _shape, "dtype": _long_dtype, "weak": bool},
    "number": {"type": _one_of("int", "float", "complex")},
    "per_replica": {"type": _TYPE, "shapes": _SHAPES},
    "static": {"value": lambda found, at: _plain(found, at)},
}
_LEAF_KINDS: dict[str, Wanted] = {
    "output": {},
    "mirrored": {"num_replicas": _count(1, MOST_REPLICAS)},
    "static": {"value": lambda found, at: _plain(found, at)},
}


def _plain(found: Any, at: str) -> str | None:
    is_plain = found is None or isinstance(found, str | int | float)
    return None if is_plain else _wrong(at, found, "no plain value")


def _argument(found: Any, at: str) -> str | None:
    if said := mismatch(found, {"kind": _one_of(*_ARGUMENT_KINDS), "name": str, "place": str}, at):
        return said
    return mismatch(found, _ARGUMENT_KINDS[found["kind"]], at)


def _tree(found: Any, at: str, depth: int = 0) -> str | None:
    """Return what is wrong in the description of a result, or None."""
    if depth > DEEPEST_RESULT:
        return f"the result has more than {DEEPEST_RESULT} containers inside each other"
    if isinstance(found, dict) and "leaf" in found:
        said = mismatch(found["leaf"], _one_of(*_LEAF_KINDS), f"{at}.leaf")
        return said or mismatch(found, _LEAF_KINDS[found["leaf"]], at)
    if said := mismatch(found, {"node": _one_of("none", "dict", "list", "tuple")}, at):
        return said
    if found["node"] == "none":
        return None
    inside = {"children": [lambda child, place: _tree(child, place, depth + 1)]}
    if found["node"] == "dict":
        inside["keys"] = [str]
    if said := mismatch(found, inside, at):
        return said
    if found["node"] == "dict" and len(set(found["keys"])) != len(found["children"]):
        return f"{at} has {len(found['children'])} children for its keys"
    return None


def _options(found: Any, at: str) -> str | None:
    if not isinstance(found, dict):
        return _wrong(at, found, "not an object")
    for key, value in found.items():
        if said := _printable(key, at) or _plain(value, f"{at}.{key}"):
            return said
    return None


def _printable(found: Any, at: str) -> str | None:
    """Return what is wrong with a short text that errors repeat as it is, or None."""
    is_printable = isinstance(found, str) and len(found) <= 200 and found.isprintable()
    return None if is_printable else _wrong(at, found, "not a short text that can be printed")


MANIFEST: Wanted = {
    "versions": dict.fromkeys(("graphdist", "jax", "jaxlib", "libtpu"), _printable),
    "flags": _options,
    "compiler_options": _options,
    "platforms": [_one_of(*PLATFORMS)],
    "target": {
        "platform": _printable,
        "device_kind": _printable,
        "num_devices": int,
        "layout": _printable,
    },
    "boundary": {
        "name": str,
        "num_replicas": _count(1, MOST_REPLICAS),
        "inputs": [_TYPE],
        "outputs": [_TYPE],
        "output_shapes": [_shape],
        "returns_per_replica": [bool],
        "variables": [
            {
                "name": str,
                "type": _TYPE,
                "synchronization": str,
                "aggregation": str,
                "trainable": bool,
                "donated": bool,
                "sharded_along": _or_none(_count(0, 31)),
                "num_copies": _copies,
            }
        ],
    },
    "interface": {
        "arguments": [_argument],
        "result": lambda found, at: _tree(found, at),
        "per_replica": [bool],
        "shapes": [_SHAPES],
    },
}
"""The fields that are read; `artifact.py` has checked `format`, `members` and `hash` before."""
