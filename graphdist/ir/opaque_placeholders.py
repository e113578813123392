"""Placeholders for the parameters that the text of a graph does not hold.

For such a parameter, the text has an index and a label, such as `<5: ndarray f32[64]>`. If the text
is parsed for a graph that is not run, a `Placeholder` with this label becomes the parameter.
Placeholders with equal labels are equal, since nothing else is known about the parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ARRAY = re.compile(r"[\w.]+ (?P<dtype>\w+(?:<\w+>)?)\[(?P<shape>[\d,]*)\]")
_DIMENSIONS = r" \(((?:\d{1,2}, )*\d{1,2})\)"
_CONVOLUTION = re.compile(f"ConvDimensionNumbers{3 * _DIMENSIONS}")
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Placeholder:
    """A parameter of which only the label is known."""

    label: str


@dataclass(frozen=True)
class ArrayPlaceholder(Placeholder):
    """An array of which only dtype and shape are known. Types in the graph depend on them."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ConvolutionPlaceholder(Placeholder):
    """The dimensions of a convolution's operand, kernel and result: batch, features, space."""

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


class OpaquePlaceholders:
    """A side table that fits any text: it has a placeholder for every token."""

    def of(self, text: str) -> Placeholder:
        """Return the placeholder for a parameter with this text.

        >>> OpaquePlaceholders().of("<5: ndarray f32[64,2]>")
        ArrayPlaceholder(label='ndarray f32[64,2]', dtype='f32', shape=(64, 2))
        >>> OpaquePlaceholders().of("<0: GatherDimensionNumbers>")
        Placeholder(label='GatherDimensionNumbers')
        """
        label = text[1:-1].partition(":")[2].strip()
        if numbers := _CONVOLUTION.fullmatch(label):
            specs = (tuple(map(int, each.split(", "))) for each in numbers.groups())
            return ConvolutionPlaceholder(label, *specs)
        match = _ARRAY.fullmatch(label)
        sizes = [size for size in match["shape"].split(",") if size] if match else []
        if match is None or any(len(size) > _MOST_DIGITS for size in sizes):
            return Placeholder(label)
        return ArrayPlaceholder(label, match["dtype"], tuple(map(int, sizes)))


PLACEHOLDERS = OpaquePlaceholders()
