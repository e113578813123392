"""Tagged values against tagged values: every difference, with the path to it.

Equal means:

* floats within 1e-6 of each other, relatively; integers, bools and structure exactly; a Python
  number is a rank-0 array;
* 64 bits compare as 32: JAX keeps 32 unless it is told otherwise;
* where TensorFlow has a `PerReplica`, a `Mirrored` of the same values will do; where it hands out
  the variable behind one copy, the copy's value will do;
* a dimension that TensorFlow's spec leaves open may be known;
* devices are the same if platform and number are, however they are written;
* an error is met by one of the same Python class. An error of TensorFlow's operations, and what
  its own code raises by accident because an argument was never checked (`AssertionError`,
  `AttributeError`, `IndexError`), is met by any error of graphdist's.

Where TensorFlow goes by the identity of Python objects, graphdist goes by values, and that is what
is compared:

* one replica is never wrapped, and equal Python objects of all replicas are one value;
* an array that replicas return is `PerReplica`, also where TensorFlow finds one object in all;
* the mean of integers is a float32, also of one replica.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: JSON

Tagged: TypeAlias = Any

TOLERANCE = 1e-6
NARROW = {"int64": "int32", "float64": "float32", "complex128": "complex64"}
KINDS = {"bool": "bool", "int": "int", "float": "float"}
OPERATION_ERRORS = {
    "AbortedError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "OutOfRangeError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
}
NEVER_CHECKED = {"AssertionError", "AttributeError", "IndexError"}
BUILT_IN = {"JSONDecodeError": "ValueError"}
"""Errors of the standard library by the built-in class that users catch them as."""
RETURNED_BY_RUN = {"run", "merge_call", "variable_matrix", "variable_matrix_function"}
REDUCING = {"reduce", "all_reduce"}
INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
DISTRIBUTED = {"PerReplica", "Mirrored"}
SEQUENCES = {"tuple", "list", "PerReplica", "Mirrored", "PerReplicaSpec"}
SEQUENCES |= {"MirroredVariable", "SyncOnReadVariable"}
SAME_TAG = {("PerReplica", "Mirrored"), ("TensorShape", "list"), ("TensorShape", "tuple")}
ONE_COPY = {"Variable", "AggregatingVariable"}
DEVICE = re.compile(r"(?:/job:\w+/replica:\d+/task:\d+)?/?(?:device:)?(cpu|gpu):(\d+)", re.I)
VARIABLES = {"MirroredVariable", "SyncOnReadVariable", "AggregatingVariable", "ResourceVariable"}
SUBCLASSES = {
    "ReplicaContext": {"_MirroredReplicaContext", "_DefaultReplicaContext"},
    "_OneDeviceReplicaContext": {"ReplicaContext"},
    "_DefaultReplicaContext": {"ReplicaContext"},
    "_MirroredReplicaContext": {"ReplicaContext"},
    "_UnreadVariable": VARIABLES,
    "Mirrored": {"MirroredVariable"},
    "_BatchDataset": {"Dataset"},
    "_MapDataset": {"Dataset"},
    "OwnedIterator": {"DatasetIterator"},
    "DefaultInputIterator": {"DatasetIterator"},
}
"""Names of TensorFlow's classes, and of those whose objects are such, here or there."""


@dataclass(frozen=True)
class Difference:
    """Where two values differ, and in what."""

    path: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.path or 'result'}: expected {self.expected}, got {self.actual}"


@dataclass(frozen=True)
class Comparison:
    """How the results of one case are compared."""

    is_returned_by_run: bool = False
    is_mean: bool = False

    @staticmethod
    def of(name: str) -> Comparison:
        """Return the comparison for the case of a name."""
        family, *parts = name.partition("|")[0].split("/")
        return Comparison(family in RETURNED_BY_RUN, family in REDUCING and "MEAN" in parts)

    def differences(self, expected: Tagged, actual: Tagged, path: str = "") -> Iterator[Difference]:
        """Yield every difference of a value from the recorded one."""
        if _is_error(expected) or _is_error(actual):
            if not _same_error(expected, actual):
                yield _difference(path, expected, actual)
            return
        if isinstance(expected, list) and isinstance(actual, list):  # one result a worker
            yield from self._sequence(expected, actual, path)
            return
        expected = self._by_value(expected, actual)
        if not isinstance(expected, dict) or not isinstance(actual, dict):
            if expected != actual:
                yield _difference(path, expected, actual)
            return
        tag = expected.get("t")
        if tag is None:  # the recording's own container
            yield from self._items(expected, actual, path)
        elif tag in ONE_COPY and actual.get("t") in ("tensor", *ONE_COPY):
            one = actual if actual["t"] == "tensor" else actual["v"]
            yield from self.differences(expected["v"], one, path)
        elif tag in SEQUENCES and _same_tag(tag, actual.get("t")):
            yield from self._sequence(expected["v"], actual["v"], path)
        elif tag in ("dict", "namedtuple") and tag == actual.get("t"):
            yield from self._items(expected["v"], actual["v"], path)
        elif tag == "IndexedSlices" == actual.get("t"):
            parts = ("values", "indices", "dense_shape")
            one, other = ({part: side[part] for part in parts} for side in (expected, actual))
            yield from Comparison()._items(one, other, path)  # indices stay integers
        elif not _same_leaf(expected, actual):
            yield _difference(path, expected, actual)

    def _by_value(self, expected: Tagged, actual: Tagged) -> Tagged:
        """Return what is expected where values decide, not the identity of Python objects."""
        wrapped = isinstance(actual, dict) and actual.get("t") in DISTRIBUTED
        if not isinstance(expected, dict):
            return expected
        if expected.get("t") == "PerReplica" and not wrapped:
            first, *others = expected["v"]
            is_one = all(other == first for other in others) and not _is_array(first)
            return first if is_one or not others else expected
        if _is_array(expected) and wrapped and self.is_returned_by_run:
            return {"t": "PerReplica", "v": [expected] * len(actual["v"])}
        if self.is_mean and _is_array(expected) and expected.get("dtype") in INTEGERS:
            return {**expected, "dtype": "float32"}
        return expected

    def _sequence(self, expected: Tagged, actual: Tagged, path: str) -> Iterator[Difference]:
        if len(expected) != len(actual):
            yield _difference(path, expected, actual)
            return
        for place, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from self.differences(one, other, f"{path}[{place}]")

    def _items(self, expected: Tagged, actual: Tagged, path: str) -> Iterator[Difference]:
        if set(expected) != set(actual):
            yield Difference(path, f"the keys {list(expected)}", f"{list(actual)}")
            return
        for key, one in expected.items():
            yield from self.differences(one, actual[key], f"{path}.{key}")


def _same_tag(expected: str, actual: str | None) -> bool:
    return (expected, actual) in SAME_TAG or expected == actual


def _is_array(value: Tagged) -> bool:
    return isinstance(value, dict) and value.get("t") in ("tensor", "ndarray", *ONE_COPY)


def _same_leaf(expected: Tagged, actual: Tagged) -> bool:
    tag = expected["t"]
    if tag in ("tensor", "ndarray", *KINDS):
        return _same_array(_as_array(expected), _as_array(actual))
    if not _same_tag(tag, actual.get("t")):
        return False
    if tag in ("DType", "TensorShape"):
        return bool(expected["v"] == actual["v"])
    if tag == "TensorSpec":
        return _narrow(expected["dtype"]) == _narrow(actual["dtype"]) and _fits(
            expected["shape"], actual["shape"]
        )
    one, other = (_canonical(str(side["v"])) for side in (expected, actual))
    return one == other or other in SUBCLASSES.get(one, ())


def _canonical(text: str) -> str:
    device = DEVICE.fullmatch(text)
    return f"{device[1].lower()}:{device[2]}" if device else text


def _fits(expected: list[int | None] | None, actual: list[int]) -> bool:
    if expected is None:
        return True
    pairs = zip(expected, actual, strict=False)
    return len(expected) == len(actual) and all(one == other for one, other in pairs)


def _as_array(value: Tagged) -> Tagged:
    """Return a Python number as a rank-0 array, whose dtype is only a kind."""
    if value.get("t") in KINDS:
        return {"t": "tensor", "dtype": KINDS[value["t"]], "shape": [], "v": value["v"]}
    return value


def _same_array(expected: Tagged, actual: Tagged) -> bool:
    if actual.get("t") not in ("tensor", "ndarray"):
        return False
    if not _same_dtype(expected["dtype"], actual["dtype"]):
        return False
    return expected["shape"] == actual["shape"] and _same_numbers(expected["v"], actual["v"])


def _same_dtype(expected: str, actual: str) -> bool:
    if expected in KINDS or actual in KINDS:  # a Python number has no width
        return expected.rstrip("0123456789") == actual.rstrip("0123456789")
    return _narrow(expected) == _narrow(actual)


def _narrow(dtype: str) -> str:
    return NARROW.get(dtype, dtype)


def _same_numbers(expected: Any, actual: Any) -> bool:
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(expected) != len(actual):
            return False
        return all(map(_same_numbers, expected, actual))
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, int) and isinstance(actual, int):
        return expected == actual
    one, other = complex(expected), complex(actual)
    if one != one or other != other:
        return one != one and other != other
    return one == other or abs(one - other) <= TOLERANCE * max(abs(one), abs(other))


def _is_error(value: Tagged) -> bool:
    return isinstance(value, dict) and "error" in value


def _same_error(expected: Tagged, actual: Tagged) -> bool:
    if not _is_error(expected) or not _is_error(actual):
        return False
    recorded = expected["error"]
    name = recorded["type"] if isinstance(recorded, dict) else recorded
    name = BUILT_IN.get(name, name)
    classes = actual["error"]
    by_accident = name in OPERATION_ERRORS or name in NEVER_CHECKED
    return name in classes or (by_accident and "GraphdistError" in classes)


def _difference(path: str, expected: Tagged, actual: Tagged) -> Difference:
    return Difference(path, show(expected), show(actual))


def show(value: Tagged) -> str:
    """Return a tagged value as it is read."""
    if _is_error(value):
        return _show_error(value)
    if isinstance(value, list):
        return f"[{', '.join(map(show, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    tag = value.get("t")
    if tag in ("tensor", "ndarray"):
        return f"{value['dtype']}{value['shape']} {value['v']}"
    if tag in ("int", "float", "bool", "str"):
        return repr(value["v"])
    if tag in ("list", "tuple"):
        items = ", ".join(map(show, value["v"]))
        return f"[{items}]" if tag == "list" else f"({items})"
    if tag == "TensorSpec":
        return f"TensorSpec({value['shape']}, {value['dtype']})"
    fields = value["v"] if tag in ("dict", "namedtuple") else None if tag else value
    if isinstance(fields, dict):
        return f"{{{', '.join(f'{key}: {show(field)}' for key, field in fields.items())}}}"
    inner = show(value["v"] if "v" in value else value.get("values"))
    return f"{tag}{inner}" if inner.startswith("[") else f"{tag}({inner})"


def _show_error(value: Tagged) -> str:
    recorded = value["error"]
    if isinstance(recorded, dict):
        return f"the error {recorded['type']}"
    if isinstance(recorded, str):
        return f"the error {recorded}"
    return f"the error {recorded[0]}: {value.get('message', '')}"


def pattern_of_equality(value: Tagged) -> Tagged:
    """Return the value with the number of the first equal array in place of an array's items.

    For values that only another library's generator of random numbers could give.
    """
    seen: list[Any] = []

    def replace(part: Tagged) -> Tagged:
        if isinstance(part, list):
            return [replace(one) for one in part]
        if not isinstance(part, dict):
            return part
        if part.get("t") in ("tensor", "ndarray"):
            if part["v"] not in seen:
                seen.append(part["v"])
            return {"t": "list", "v": [_of_shape(part), replace_number(seen.index(part["v"]))]}
        return {key: replace(one) for key, one in part.items()}

    def replace_number(number: int) -> Tagged:
        return {"t": "int", "v": number}

    return replace(value)


def _of_shape(array: Tagged) -> Tagged:
    return {"t": "TensorSpec", "shape": array["shape"], "dtype": array["dtype"]}
