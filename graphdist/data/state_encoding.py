"""The states of other libraries' iterators as values of JSON, and back.

Values that JSON has are kept: text, bool, int, float, None, lists, and dicts with text as keys. Any
other value becomes a dict with the key "graphdist", which names its type: bytes, tuples, sets,
dicts with other keys, arrays and numbers of NumPy, and torch's tensors in the host's memory. They
come back with their types. Nothing else is taken: a state is data, and reading one runs no code of
the folder it is in, as unpickling would.
"""

from __future__ import annotations

import base64
import importlib
from collections import OrderedDict
from typing import Any  # Any: states of all kinds, JSON

import numpy as np

from graphdist.quoted import quoted
from graphdist.values.distributed import type_name

MOST_LEVELS = 200
"""How deep a state may be nested, since JSON is read by recursion."""
_TYPE = "graphdist"
_CONTENT = "content"
_PLAIN = (str, bool, int, float, type(None))
_COLLECTIONS: dict[str, Any] = {
    kind.__name__: kind for kind in (tuple, set, frozenset, dict, OrderedDict)
}


def encoded(value: Any, levels: int = MOST_LEVELS) -> Any:
    """Return a copy of a state as a value of JSON.

    Raises `TypeError` for a value of another type, `ValueError` for one that is nested more than
    `levels` deep.

    >>> encoded({"next": 3, "random": b"ab"})
    {'next': 3, 'random': {'graphdist': 'bytes', 'content': 'YWI='}}
    >>> decoded(encoded((1, {2: np.int64(3)})))
    (1, {2: np.int64(3)})
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if levels == 0:  # a value that contains itself is nested without end
        raise ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
    if kind is list:
        return [encoded(item, levels - 1) for item in value]
    if kind is dict and _TYPE not in value and all(type(key) is str for key in value):
        return {key: encoded(item, levels - 1) for key, item in value.items()}
    if kind in _COLLECTIONS.values():
        items = map(list, value.items()) if isinstance(value, dict) else value
        return _tagged(kind.__name__, encoded(list(items), levels - 1))
    if kind is bytes:
        return _tagged("bytes", _text(value))
    if kind is np.ndarray or (isinstance(value, np.generic) and kind is value.dtype.type):
        return _of_array("array" if kind is np.ndarray else "number", value, value)
    if _is_tensor(value):
        return _of_array("tensor", value.numpy(force=False), value)
    raise TypeError(f"it has a value of type {type_name(value)}")


def _tagged(name: str, content: Any) -> dict[str, Any]:
    return {_TYPE: name, _CONTENT: content}


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _is_tensor(value: Any) -> bool:
    return type(value).__module__ == "torch" and type(value).__name__ == "Tensor"


def _of_array(name: str, array: Any, value: Any) -> dict[str, Any]:
    if array.dtype.kind not in "biufc":
        raise TypeError(f"it has a {type_name(value)} of dtype {array.dtype}")
    content = _text(np.ascontiguousarray(array).tobytes())
    return {**_tagged(name, content), "dtype": array.dtype.str, "shape": list(array.shape)}


def decoded(value: Any) -> Any:
    """Return the state of which `encoded` made this value; raises `ValueError` for any other."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TYPE not in value:
        return {key: decoded(item) for key, item in value.items()}
    name, content = value[_TYPE], value[_CONTENT]
    if name in _COLLECTIONS:
        return _COLLECTIONS[name](decoded(content))
    if name == "bytes":
        return base64.b64decode(content)
    if name not in ("array", "number", "tensor"):
        raise ValueError(f"a state has a value of the unknown type {quoted(name)}")
    flat = np.frombuffer(base64.b64decode(content), np.dtype(value["dtype"]))
    array = flat.reshape(value["shape"]).copy()
    if name == "tensor":
        return importlib.import_module("torch").from_numpy(array)
    return array if name == "array" else array[()]
