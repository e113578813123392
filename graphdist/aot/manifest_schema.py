"""The schema of a saved step's manifest, and the check of a manifest against it.

The hashes of a file are no signature, so a manifest may hold anything that JSON can hold. Every
field that is read is described here and checked first: code that reads a manifest can rely on it.
`loaded_step.py` checks whether manifest and module agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias  # Any: JSON

from graphdist.ir.mesh import MEMBER, REPLICA
from graphdist.ir.types import dtype_name, is_dtype
from graphdist.runtime.files.serialization import PLATFORMS

MOST_REPLICAS = 2**20
DEEPEST_RESULT = 100
"""The largest depth of nested containers in a result."""
LARGEST_SIZE = 2**48
"""The largest number of elements of a value, on all replicas together."""

Wanted: TypeAlias = Any
"""A class; a dict with the schema of each key's value; a list with the schema of each element; or a
function that returns what is wrong with a value, or None."""


def mismatch(actual: Any, wanted: Wanted, at: str = "") -> str | None:
    """Return what is wrong with the first value in JSON that breaks a schema; None if none does.

    >>> mismatch({"sizes": [1, "2"]}, {"sizes": [int]})
    "sizes[1] is '2', not an int"
    >>> mismatch({"sizes": [1, 2]}, {"sizes": [int]}) is None
    True
    """
    if isinstance(wanted, dict):
        if not isinstance(actual, dict):
            return _wrong(at, actual, "not an object")
        for key, wanted_value in wanted.items():
            if key not in actual:
                return f"{at or 'the manifest'} has no {key}"
            if problem := mismatch(actual[key], wanted_value, f"{at}.{key}" if at else key):
                return problem
        return None
    if isinstance(wanted, list):
        if not isinstance(actual, list):
            return _wrong(at, actual, "not a list")
        each = (mismatch(element, wanted[0], f"{at}[{i}]") for i, element in enumerate(actual))
        return next(filter(None, each), None)
    if isinstance(wanted, type):
        # In Python `True` is an `int`.
        if isinstance(actual, wanted) and (wanted is bool or not isinstance(actual, bool)):
            return None
        return _wrong(at, actual, f"not {'an' if wanted is int else 'a'} {wanted.__name__}")
    problem = wanted(actual, at)
    return problem and str(problem)


def _wrong(at: str, actual: Any, why: str) -> str:
    shown = repr(actual)
    return f"{at} is {shown if len(shown) <= 60 else f'{shown[:57]}...'}, {why}"


def _count(least: int, most: int) -> Callable[[Any, str], str | None]:
    def check(actual: Any, at: str) -> str | None:
        is_count = isinstance(actual, int) and not isinstance(actual, bool)
        if is_count and least <= actual <= most:
            return None
        return _wrong(at, actual, f"not an integer from {least} to {most}")

    return check


def _one_of(*known: Any) -> Callable[[Any, str], str | None]:
    def check(actual: Any, at: str) -> str | None:
        if any(actual == value and type(actual) is type(value) for value in known):
            return None
        return _wrong(at, actual, f"not one of {', '.join(map(repr, known))}")

    return check


def _or_none(wanted: Wanted) -> Callable[[Any, str], str | None]:
    return lambda actual, at: None if actual is None else mismatch(actual, wanted, at)


def _shape(actual: Any, at: str) -> str | None:
    if problem := mismatch(actual, [_count(0, LARGEST_SIZE)], at):
        return problem
    elements = 1
    for size in actual:
        elements *= size
    if elements > LARGEST_SIZE or len(actual) > 32:
        return _wrong(at, actual, f"more than 32 dimensions or {LARGEST_SIZE} elements")
    return None


def _dtype(actual: Any, at: str) -> str | None:
    is_known = isinstance(actual, str) and is_dtype(actual)
    return None if is_known else _wrong(at, actual, "no dtype")


def _long_dtype(actual: Any, at: str) -> str | None:
    """Return what is wrong with a dtype that has NumPy's name, or None."""
    return _dtype(dtype_name(actual) if isinstance(actual, str) else actual, at)


def _distribution(actual: Any, at: str) -> str | None:
    known = (["mirrored", None, REPLICA], ["per_replica", None, REPLICA])
    if actual is None or actual in known:
        return None
    if problem := mismatch(actual, [lambda element, at: None], at):
        return problem
    is_sharded = len(actual) == 3 and actual[0] == "sharded"
    if is_sharded and not _count(0, 31)(actual[1], at) and actual[2] in (REPLICA, MEMBER):
        return None
    return _wrong(at, actual, "no distribution")


_TYPE = {"dtype": _dtype, "shape": _shape, "distribution": _distribution}
_SHAPES = _or_none([_shape])
_ARGUMENT_KINDS: dict[str, Wanted] = {
    "array": {"shape": _shape, "dtype": _long_dtype, "weak": bool},
    "number": {"type": _one_of("int", "float", "complex")},
    "per_replica": {"type": _TYPE, "shapes": _SHAPES},
    "static": {"value": lambda actual, at: _plain(actual, at)},
}
_LEAF_KINDS: dict[str, Wanted] = {
    "output": {},
    "mirrored": {"num_replicas": _count(1, MOST_REPLICAS)},
    "static": {"value": lambda actual, at: _plain(actual, at)},
}


def _plain(actual: Any, at: str) -> str | None:
    is_plain = actual is None or isinstance(actual, str | int | float)
    return None if is_plain else _wrong(at, actual, "no plain value")


def _argument(actual: Any, at: str) -> str | None:
    if problem := mismatch(
        actual, {"kind": _one_of(*_ARGUMENT_KINDS), "name": str, "place": str}, at
    ):
        return problem
    return mismatch(actual, _ARGUMENT_KINDS[actual["kind"]], at)


def _tree(actual: Any, at: str, depth: int = 0) -> str | None:
    """Return what is wrong in the description of a result, or None."""
    if depth > DEEPEST_RESULT:
        return f"the result has more than {DEEPEST_RESULT} containers inside each other"
    if isinstance(actual, dict) and "leaf" in actual:
        problem = mismatch(actual["leaf"], _one_of(*_LEAF_KINDS), f"{at}.leaf")
        return problem or mismatch(actual, _LEAF_KINDS[actual["leaf"]], at)
    if problem := mismatch(actual, {"node": _one_of("none", "dict", "list", "tuple")}, at):
        return problem
    if actual["node"] == "none":
        return None
    inside = {"children": [lambda child, at: _tree(child, at, depth + 1)]}
    if actual["node"] == "dict":
        inside["keys"] = [str]
    if problem := mismatch(actual, inside, at):
        return problem
    if actual["node"] == "dict" and len(set(actual["keys"])) != len(actual["children"]):
        return f"{at} has {len(actual['children'])} children for its keys"
    return None


def _options(actual: Any, at: str) -> str | None:
    if not isinstance(actual, dict):
        return _wrong(at, actual, "not an object")
    for key, value in actual.items():
        if problem := _printable(key, at) or _plain(value, f"{at}.{key}"):
            return problem
    return None


def _printable(actual: Any, at: str) -> str | None:
    """Return what is wrong with a short text that errors repeat as it is, or None."""
    is_printable = isinstance(actual, str) and len(actual) <= 200 and actual.isprintable()
    return None if is_printable else _wrong(at, actual, "not a short text that can be printed")


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
        "num_groups": _count(1, MOST_REPLICAS),
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
            }
        ],
    },
    "interface": {
        "arguments": [_argument],
        "result": lambda actual, at: _tree(actual, at),
        "per_replica": [bool],
        "shapes": [_SHAPES],
    },
}
"""The fields that are read; `artifact.py` has checked `format`, `members` and `hash` before."""
