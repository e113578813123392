"""Numbers in the text of a graph: how they are written and read.

1. A number is written in the fewest digits that identify it *in its dtype*: 0.1 in f32 is `0.1`,
   although the f32 nearest to it is 0.10000000149011612.
2. A number that is read from text is rounded to the number of its shortest text. Tracing rounds
   literals in the same way.
3. Two numbers of one dtype are the same if and only if their texts are equal. So all nans are the
   same, and -0.0 differs from 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from graphdist.ir.types import dtype_name, is_dtype, is_inexact, is_integer, numpy_dtype

Number = bool | int | float | complex
# Not from `arrays.py`, which imports the graph: modules would import each other in a circle.
Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

MAX_INLINE = 16
"""The largest number of elements of an array whose elements are written into the text."""

_PARTS = {"c64": "f32", "c128": "f64"}


def rounded_to(value: Number, dtype: str) -> Number:
    """Return the number of the shortest text of `value` in `dtype`.

    Raises `ValueError` if the dtype cannot hold the value.

    >>> rounded_to(0.10000000149011612, "f32"), rounded_to(2, "f16"), rounded_to(7, "i8")
    (0.1, 2.0, 7)
    """
    if not is_dtype(dtype):
        raise ValueError(f"no dtype {dtype!r}")
    if dtype == "bool":
        if isinstance(value, bool):
            return value
    elif is_integer(dtype):
        if isinstance(value, int) and not isinstance(value, bool) and _holds(dtype, value):
            return value
    elif dtype in _PARTS:
        value, part = complex(value), _PARTS[dtype]
        return complex(*(float(_float_text(x, part)) for x in (value.real, value.imag)))
    elif is_inexact(dtype) and not isinstance(value, bool | complex):
        return float(_float_text(float(value), dtype))
    raise ValueError(f"{value} is not a number of dtype {dtype}")


def _holds(dtype: str, value: int) -> bool:
    bits = int(dtype[1:])
    lowest = 0 if dtype[0] == "u" else -(1 << bits - 1)
    return lowest <= value < lowest + (1 << bits)


def number_text(value: Number, dtype: str) -> str:
    """Return the text of a number in this dtype.

    >>> number_text(0.10000000149011612, "f32"), number_text(1, "bool"), number_text(1j, "c64")
    ('0.1', 'true', 'complex(0.0, 1.0)')
    """
    if dtype == "bool":
        return "true" if value else "false"
    if isinstance(value, int) and is_integer(dtype):
        return str(int(value))
    if dtype in _PARTS or isinstance(value, complex):
        value, part = complex(value), _PARTS.get(dtype, "f64")
        return f"complex({_float_text(value.real, part)}, {_float_text(value.imag, part)})"
    return _float_text(float(value), dtype)


def _float_text(value: float, dtype: str) -> str:
    # Not from the cache: it never finds nan, since nan != nan, and would return 0.0 for -0.0.
    if dtype == "f64" or not value or value != value:
        return repr(value)
    return _short_text(value, dtype)


@lru_cache
def _short_text(value: float, dtype: str) -> str:
    if not is_inexact(dtype):
        return repr(value)
    make = numpy_dtype(dtype).type
    with np.errstate(all="ignore"):
        exact = float(make(value))  # the number that the dtype holds
        for digits in range(1, 10):
            short = float(f"{exact:.{digits}g}")
            if float(make(short)) == exact:
                return repr(short)
        return repr(exact)


def array_from_numbers(dtype: str, shape: tuple[int, ...], values: Sequence[Number]) -> Array:
    """Return the array of `values` in row-major order.

    Raises `ValueError` if their number does not fit the shape, or the dtype cannot hold them.

    >>> array_from_numbers("bf16", (2, 1), [1.0, 2.0]).shape
    (2, 1)
    """
    if len(values) != prod(shape):
        wanted = f"{dtype}[{','.join(map(str, shape))}]"
        raise ValueError(f"elements for {wanted}: {len(values)}, not {prod(shape)}")
    elements = [rounded_to(value, dtype) for value in values]
    array: Array = np.array(elements, dtype=numpy_dtype(dtype))
    return array.reshape(shape)


def array_text(array: Array) -> str | None:
    """Return the text of a small array of numbers.

    None if the array is large, if its elements are no numbers, or if the text would not give back
    the same bits.

    >>> array_text(np.array([[1, 2]], np.int32))
    'array<i32[1,2]: 1, 2>'
    """
    dtype = dtype_name(array.dtype)
    if array.size > MAX_INLINE or not _is_number(dtype):
        return None
    values = [plain_number(element, dtype) for element in array.ravel()]
    # Only a nan can fail here: text loses its sign and payload.
    if array_from_numbers(dtype, array.shape, values).tobytes() != array.tobytes():
        return None
    elements = ", ".join(number_text(value, dtype) for value in values)
    shape = ",".join(map(str, array.shape))
    return f"array<{dtype}[{shape}]: {elements}>" if values else f"array<{dtype}[{shape}]>"


def scalar_text(scalar: np.generic) -> str | None:
    """Return the text of a numpy scalar; None if the text would not give back the same bits.

    >>> scalar_text(np.int64(3)), scalar_text(np.str_("a"))
    ('3:i64', None)
    """
    array = np.asarray(scalar)
    dtype = dtype_name(array.dtype)
    if array_text(array) is None or numpy_dtype(dtype).type is not type(scalar):
        return None
    return f"{number_text(plain_number(scalar, dtype), dtype)}:{dtype}"


def _is_number(dtype: str) -> bool:
    return dtype == "bool" or is_integer(dtype) or is_inexact(dtype)


def plain_number(element: np.generic | Array, dtype: str) -> Number:
    """Return the Python number of an element, or of an array of rank 0.

    `item()` fails for the dtypes of ml_dtypes.
    """
    if dtype == "bool":
        return bool(element)
    if is_integer(dtype):
        return int(element)
    if dtype in _PARTS:
        return complex(element)
    return float(element)
