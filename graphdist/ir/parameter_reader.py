"""The reader of parameters and literals: none, numbers, strings, tuples, dicts, dtypes, arrays.

It reads the text that `printer` writes in the braces after a node. Variables are looked up by name
among the declarations of the graph, tokens such as `<0: GatherDimensionNumbers>` by index in a side
table.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdist.ir.arrays import Array
from graphdist.ir.graph import GraphVariable, Literal
from graphdist.ir.numerals import array_from_numbers, rounded_to
from graphdist.ir.opaque_placeholders import OpaquePlaceholders, Placeholder
from graphdist.ir.tokens import Cursor
from graphdist.ir.types import Type, is_dtype, numpy_dtype

_MOST_ELEMENTS = 2**63
_MOST_DIMENSIONS = 64  # the limit of numpy
_CONSTANTS = {"none": None, "true": True, "false": False}


class ParameterReader:
    """Reads parameters at the position of the cursor.

    >>> reader = ParameterReader(Cursor('axes=(0, 1), mode="clip", limit=[none, -inf]}'), ())
    >>> reader.items()
    {'axes': (0, 1), 'mode': 'clip', 'limit': [None, -inf]}
    """

    def __init__(self, cursor: Cursor, opaques: Sequence[object] | OpaquePlaceholders) -> None:
        """Start with no variables declared."""
        self.cursor = cursor
        self.opaques = opaques
        self.variables: dict[str, GraphVariable] = {}
        self._placeholders: dict[str, Placeholder] = {}
        self._types: dict[str, Type] = {}

    def items(self) -> dict[str, object]:
        """Read `key=value, ..}`."""
        cursor = self.cursor
        items: dict[str, object] = {}
        for _ in cursor.items("}"):
            start = cursor.place
            key = cursor.name()
            if key in items:
                cursor.fail(f"{key!r} is given twice", start)
            cursor.expect("=")
            items[key] = self.parameter()
        return items

    def variable_name(self) -> str:
        """Read `@name`."""
        name = self.cursor.take("variable")[1:]
        return self.cursor.unquote(name) if name.startswith('"') else name

    def parameter(self) -> object:
        """Read one value."""
        cursor, start = self.cursor, self.cursor.place
        value = self._untyped()
        if not isinstance(value, bool | int | float | complex) or not cursor.accept(":"):
            return value
        with cursor.refusing(start):
            return array_from_numbers(cursor.take("word"), (), [value])[()]

    def literal(self) -> Literal:
        """Read a number and its dtype, as an operand."""
        cursor, start = self.cursor, self.cursor.place
        number = self._untyped()
        if not isinstance(number, bool | int | float | complex):
            cursor.fail("expected a value or a literal such as 0.5:f32", start)
        cursor.expect(":")
        dtype = cursor.take("word")
        with cursor.refusing(start):
            return Literal.of(rounded_to(number, dtype), Type(dtype, ()))

    def _untyped(self) -> object:
        """Read one value, without the dtype that may follow a number."""
        cursor, start = self.cursor, self.cursor.place
        kind, text = cursor.kind, cursor.text
        if kind == "variable":
            name = self.variable_name()
            if name not in self.variables:
                cursor.fail(f"variable {name!r} is not declared", start)
            return self.variables[name]
        if kind == "end":
            cursor.fail("expected a value, found the end of the line")
        cursor.advance()
        if kind == "number":
            return cursor.integer_of(text) if text.lstrip("-").isdigit() else float(text)
        if kind == "string":
            return cursor.unquote(text)
        if kind == "opaque":
            if isinstance(self.opaques, OpaquePlaceholders):
                # Equal tokens were printed for one object, so they become one object again.
                return self._placeholders.setdefault(text, self.opaques.of(text))
            number = cursor.integer_of(text[1:].partition(":")[0])
            if number >= len(self.opaques):
                count = len(self.opaques)
                cursor.fail(f"{text} is not among the {count} opaque parameters given", start)
            return self.opaques[number]
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        with cursor.inside():
            if text == "(":
                return tuple(self._sequence(")"))
            if text == "[":
                return self._sequence("]")
            if text == "{":
                return self.items()
            return self._constructed(text, start)

    def _sequence(self, end: str) -> list[object]:
        """Read `value, ..` and `end`. There may be a comma before `end`."""
        cursor = self.cursor
        items: list[object] = []
        while not cursor.accept(end):
            items.append(self.parameter())
            if cursor.text != end:
                cursor.expect(",")
        return items

    def _constructed(self, text: str, start: tuple[int, int]) -> object:
        """Read the rest of `dtype<..>`, `array<..>` or `complex(..)`."""
        cursor = self.cursor
        with cursor.refusing(start):
            if text == "dtype" and cursor.accept("<"):
                dtype = numpy_dtype(cursor.take("word"))
                cursor.expect(">")
                return dtype
            if text == "array" and cursor.accept("<"):
                return self._array()
            if text == "complex" and cursor.accept("("):
                real, imaginary = self._numbers(")")
                return complex(float(real), float(imaginary))  # type: ignore[arg-type]
        cursor.fail(f"expected a value, found {text!r}", start)

    def _array(self) -> Array:
        cursor = self.cursor
        dtype, shape, _ = self.type()
        if cursor.accept(">"):
            return array_from_numbers(dtype, shape, ())
        cursor.expect(":")
        return array_from_numbers(dtype, shape, self._numbers(">"))

    def type(self) -> Type:
        """Read dtype and shape."""
        cursor, start = self.cursor, self.cursor.place
        text = cursor.take("type")
        type = self._types.get(text)
        if type is None:
            dtype, _, sizes = text[:-1].partition("[")
            if not is_dtype(dtype):
                cursor.fail(f"no dtype {dtype!r}", start)
            shape = tuple(cursor.integer_of(size) for size in sizes.split(",") if size)
            if len(shape) > _MOST_DIMENSIONS:
                cursor.fail(f"{len(shape)} dimensions; the limit is {_MOST_DIMENSIONS}", start)
            type = Type(dtype, shape)
            if max((*shape, type.size)) >= _MOST_ELEMENTS:
                cursor.fail("a value of 2**63 elements or more", start)
            self._types[text] = type
        return type

    def _numbers(self, end: str) -> list[bool | int | float | complex]:
        numbers = []
        for item in self._sequence(end):
            if not isinstance(item, bool | int | float | complex):
                raise ValueError(f"expected numbers, found {item!r}")
            numbers.append(item)
        return numbers
