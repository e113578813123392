"""graphdist's values in the recording's tagged form.

A name of a class is given as TensorFlow's counterpart is called: by what the object is, since names
of private classes are nobody's contract.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping
from typing import Any  # Any: values of any program, and JSON

import jax
import numpy as np

import graphdist as gd

SPECS = (jax.ShapeDtypeStruct,)
NO_ARRAYS = (str, bool, int, float, type(None))


class Encoded(dict[str, Any]):
    """Tagged already."""


def device_name(device: Any) -> str:
    """Return the name of a JAX device as graphdist writes it."""
    return f"{device.platform}:{device.id}"


def first_device(array: Any) -> Any:
    """Return the first of the devices that hold an array."""
    return min(array.devices(), key=lambda device: int(device.id))


def class_name(value: Any) -> str:
    """Return the name of the class that TensorFlow has for what this is."""
    if isinstance(value, gd.Variable):
        return variable_class(value)
    if isinstance(value, gd.PerReplica | gd.Mirrored):
        return "PerReplica" if isinstance(value, gd.PerReplica) else "Mirrored"
    if isinstance(value, jax.Array):
        return "EagerTensor"
    if isinstance(value, gd.ReplicaContext):
        return "_DefaultReplicaContext" if value.strategy.is_default else "ReplicaContext"
    if getattr(value, "is_default", False):
        return "_DefaultDistributionStrategy"
    return type(value).__name__


def variable_class(variable: gd.Variable) -> str:
    """Return which of TensorFlow's variable classes a variable stands for."""
    strategy: Any = variable.strategy
    kind = type(strategy).__name__
    if kind.startswith("CentralStorage"):
        return "AggregatingVariable"
    if strategy.is_default or kind.startswith("OneDevice"):
        return "ResourceVariable"
    is_on_read = variable.synchronization is gd.VariableSynchronization.ON_READ
    return "SyncOnReadVariable" if is_on_read else "MirroredVariable"


def encode(value: Any, replicas: int = 1) -> Any:
    """Return the tagged form; `replicas` is how many a per-replica spec speaks for."""
    if value is None or isinstance(value, Encoded):
        return value
    if isinstance(value, enum.Enum):
        return {"t": "enum", "v": str(value)}
    if isinstance(value, bool | int | str):
        return {"t": type(value).__name__, "v": value}
    if isinstance(value, float) and not isinstance(value, np.generic):
        return {"t": "float", "v": _finite(value)}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _array(value)
    distributed = _distributed(value, replicas)
    return _container(value, replicas) if distributed is None else distributed


def _distributed(value: Any, replicas: int) -> dict[str, Any] | None:
    if isinstance(value, gd.Variable):
        return _variable(value)
    if isinstance(value, gd.PerReplica | gd.Mirrored):
        return {"t": class_name(value), "v": [encode(part, replicas) for part in value.values]}
    if isinstance(value, gd.IndexedSlices):
        return _slices(value)
    if isinstance(value, gd.PerReplicaSpec):
        spec = _spec(value)
        return {"t": "PerReplicaSpec", "v": [spec] * replicas}
    if isinstance(value, SPECS):
        return _spec(value)
    if isinstance(value, np.dtype):
        return {"t": "DType", "v": value.name}
    return None


def _container(value: Any, replicas: int) -> dict[str, Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return _record(value, fields, replicas)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _record(value, value._fields, replicas)
    if isinstance(value, tuple | list):
        return {"t": type(value).__name__, "v": [encode(item, replicas) for item in value]}
    if isinstance(value, Mapping):
        return {"t": "dict", "v": {str(k): encode(item, replicas) for k, item in value.items()}}
    if isinstance(value, type):
        return {"t": "type", "v": value.__name__}
    return {"t": "object", "v": class_name(value)}


def _record(value: Any, fields: Any, replicas: int) -> dict[str, Any]:
    of = {name: encode(getattr(value, name), replicas) for name in fields}
    return {"t": "namedtuple", "cls": type(value).__name__, "v": of}


def _variable(variable: gd.Variable) -> dict[str, Any]:
    tag, copies = variable_class(variable), [encode(copy) for copy in variable.values]
    if tag == "AggregatingVariable" and len(copies) > 1:
        tag = "SyncOnReadVariable"
    if tag in ("MirroredVariable", "SyncOnReadVariable"):
        return {"t": tag, "v": copies}
    return {"t": tag.removeprefix("Resource"), "v": copies[0]}


def _slices(slices: gd.IndexedSlices) -> dict[str, Any]:
    """Return slices; where their arrays are per replica, one for each, as TensorFlow has them."""
    names = ("values", "indices", "dense_shape")
    fields = {name: getattr(slices, name) for name in names}
    if not isinstance(slices.values, gd.PerReplica):
        return {"t": "IndexedSlices", **{name: encode(part) for name, part in fields.items()}}
    parts = [
        {name: part.values[i] if isinstance(part, gd.PerReplica) else part for name, part in of}
        for i, of in enumerate([fields.items()] * len(slices.values.values))
    ]
    return {"t": "PerReplica", "v": [_slices(gd.IndexedSlices(**part)) for part in parts]}


def _spec(spec: Any) -> dict[str, Any]:
    return {"t": "TensorSpec", "shape": list(spec.shape), "dtype": np.dtype(spec.dtype).name}


def _finite(value: float) -> Any:
    return value if math.isfinite(value) else repr(value)


def _array(value: Any) -> dict[str, Any]:
    whole = np.asarray(value)
    if whole.dtype.kind == "c":
        items: Any = [str(item) for item in whole.ravel().tolist()]
    elif whole.dtype.kind in "biuf":
        items = _numbers(whole.tolist())
    else:  # of bfloat16 numpy knows no kind
        items = _numbers(whole.astype(np.float32).tolist())
    return {"t": "tensor", "dtype": whole.dtype.name, "shape": list(whole.shape), "v": items}


def _numbers(items: Any) -> Any:
    if isinstance(items, list):
        return [_numbers(item) for item in items]
    return _finite(items) if isinstance(items, float) else items


def encode_error(error: BaseException) -> Encoded:
    """Return an error as the names of its classes and its first line.

    An error that Python raises because a program or graphdist trips is none that a case can expect.
    """
    classes = ["Tripped"] if _tripped(error) else [kind.__name__ for kind in type(error).__mro__]
    return Encoded(error=classes, message=str(error).partition("\n")[0])


def _tripped(error: BaseException) -> bool:
    if isinstance(error, gd.GraphdistError):
        return False
    if isinstance(error, AttributeError):  # expected of the objects that users hold, and of None
        kind = type(error.obj)
        return error.obj is not None and not kind.__module__.startswith("graphdist")
    return isinstance(error, AssertionError | IndexError | jax.errors.JAXTypeError)


def attempt(fn: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `fn(*arguments)` returns, tagged, or the error it raises."""
    try:
        result = encode(fn(*arguments))
    except Exception as error:
        return encode_error(error)
    return Encoded(result) if isinstance(result, dict) else result
