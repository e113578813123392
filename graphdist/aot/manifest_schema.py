"""The schema of a saved step's manifest, and the check of a manifest against it.

The hashes of a file are no signature, so a manifest may hold anything that JSON can hold. Every
field that is read is described here, and checked before it is read.
`loaded_step.py` checks whether manifest and module agree.
"""

from __future__ import annotations

from typing import Any  # Any: JSON

from graphdist.ir.mesh import MEMBER, REPLICA
from graphdist.ir.types import dtype_name, is_dtype
from graphdist.runtime.files.serialization import PLATFORMS
from graphdist.runtime.processes.json_schema import (
    Wanted,
    each_value,
    integer,
    mismatch,
    one_of,
    or_none,
    shape_within,
    wrong,
)

MOST_REPLICAS = 2**20
DEEPEST_RESULT = 100
"""The largest depth of nested containers in a result."""
LARGEST_SIZE = 2**48
"""The largest number of elements of a value, on all replicas together."""

_shape = shape_within(32, LARGEST_SIZE)
_replicas = integer(1, MOST_REPLICAS)


def _dtype(actual: Any, at: str) -> str | None:
    is_known = isinstance(actual, str) and is_dtype(actual)
    return None if is_known else wrong(at, actual, "no dtype")


def _long_dtype(actual: Any, at: str) -> str | None:
    """Return what is wrong with a dtype that has NumPy's name, or None."""
    return _dtype(dtype_name(actual) if isinstance(actual, str) else actual, at)


def _distribution(actual: Any, at: str) -> str | None:
    known = (["mirrored", None, REPLICA], ["per_replica", None, REPLICA])
    if actual is None or actual in known:
        return None
    is_sharded = isinstance(actual, list) and len(actual) == 3 and actual[0] == "sharded"
    if is_sharded and not integer(0, 31)(actual[1], at) and actual[2] in (REPLICA, MEMBER):
        return None
    return wrong(at, actual, "no distribution")


def _plain(actual: Any, at: str) -> str | None:
    is_plain = actual is None or isinstance(actual, str | int | float)
    return None if is_plain else wrong(at, actual, "no plain value")


_TYPE = {"dtype": _dtype, "shape": _shape, "distribution": _distribution}
_SHAPES = or_none([_shape])
_ARGUMENT_KINDS: dict[str, Wanted] = {
    "array": {"shape": _shape, "dtype": _long_dtype, "weak": bool},
    "number": {"type": one_of("int", "float", "complex")},
    "per_replica": {"type": _TYPE, "shapes": _SHAPES},
    "static": {"value": _plain},
}
_LEAF_KINDS: dict[str, Wanted] = {
    "output": {},
    "mirrored": {"num_replicas": _replicas},
    "static": {"value": _plain},
}


def _argument(actual: Any, at: str) -> str | None:
    described = {"kind": one_of(*_ARGUMENT_KINDS), "name": str, "place": str}
    return mismatch(actual, described, at) or mismatch(actual, _ARGUMENT_KINDS[actual["kind"]], at)


def _tree(actual: Any, at: str, depth: int = 0) -> str | None:
    """Return what is wrong in the description of a result, or None."""
    if depth > DEEPEST_RESULT:
        return f"the result has more than {DEEPEST_RESULT} containers inside each other"
    if isinstance(actual, dict) and "leaf" in actual:
        problem = mismatch(actual["leaf"], one_of(*_LEAF_KINDS), f"{at}.leaf")
        return problem or mismatch(actual, _LEAF_KINDS[actual["leaf"]], at)
    if problem := mismatch(actual, {"node": one_of("none", "dict", "list", "tuple")}, at):
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
    problem = mismatch(actual, each_value(_plain), at)
    return problem or next(filter(None, (_printable(key, at) for key in actual)), None)


def _printable(actual: Any, at: str) -> str | None:
    """Return what is wrong with a short text that errors quote unchanged, or None."""
    is_printable = isinstance(actual, str) and len(actual) <= 200 and actual.isprintable()
    return None if is_printable else wrong(at, actual, "not a short text that can be printed")


MANIFEST: Wanted = {
    "versions": dict.fromkeys(("graphdist", "jax", "jaxlib", "libtpu"), _printable),
    "flags": _options,
    "compiler_options": _options,
    "platforms": [one_of(*PLATFORMS)],
    "target": {
        "platform": _printable,
        "device_kind": _printable,
        "num_devices": int,
        "layout": _printable,
    },
    "boundary": {
        "name": str,
        "num_replicas": _replicas,
        "num_groups": _replicas,
        "num_cores": _replicas,
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
                "sharded_along": or_none(integer(0, 31)),
                "core": or_none(integer(0, 31)),
            }
        ],
    },
    "interface": {
        "arguments": [_argument],
        "result": _tree,
        "per_replica": [bool],
        "shapes": [_SHAPES],
    },
}
"""The fields that are read; `artifact.py` has checked `format`, `members` and `hash` before."""


def with_defaults(manifest: Any) -> Any:
    """Return a manifest with the fields that files of earlier versions do not have."""
    boundary = manifest.get("boundary") if isinstance(manifest, dict) else None
    if not isinstance(boundary, dict):
        return manifest
    variables = boundary.get("variables")
    if isinstance(variables, list):
        described = [{"core": None, **v} if isinstance(v, dict) else v for v in variables]
        boundary = {**boundary, "variables": described}
    return {**manifest, "boundary": {"num_cores": 1, **boundary}}
