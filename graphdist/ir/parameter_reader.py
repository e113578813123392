"""The reader of parameters and literals: none, numbers, strings, tuples, dicts, dtypes, arrays.

The reader takes the text that `printer` writes in the braces after a node. Variables are looked up
by name among the declarations of the graph. Tokens such as `<0: GatherDimensionNumbers>` are looked
up by index in a side table.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdist.ir.graph import GraphVariable, Literal
from graphdist.ir.numerals import Array, array_from_numbers, rounded_to
from graphdist.ir.opaque_placeholders import OpaquePlaceholders, Placeholder
from graphdist.ir.tokens import MOST_CHARACTERS, Cursor
from graphdist.ir.types import Type, is_dtype, numpy_dtype

_MOST_ELEMENTS = 2**63
_MOST_DIMENSIONS = 64  # the limit of numpy
_CONSTANTS = {"none": None, "true": True, "false": False}


class ParameterReader(Cursor):
    """A cursor that reads parameters.

    >>> reader = ParameterReader('axes=(0, 1), mode="clip", limit=[none, -inf]}', ())
    >>> reader.parameters()
    {'axes': (0, 1), 'mode': 'clip', 'limit': [None, -inf]}
    """

    def __init__(
        self,
        text: str,
        opaques: Sequence[object] | OpaquePlaceholders,
        first_line: int = 1,
        max_characters: int = MOST_CHARACTERS,
    ) -> None:
        """Begin at the first token, with no variables declared."""
        super().__init__(text, first_line, max_characters)
        self.opaques = opaques
        self.variables: dict[str, GraphVariable] = {}
        self._placeholders: dict[str, Placeholder] = {}
        self._types: dict[str, Type] = {}

    def parameters(self) -> dict[str, object]:
        """Read `key=value, ..}`."""
        items: dict[str, object] = {}
        for _ in self.items("}"):
            start = self.place
            key = self.name()
            if key in items:
                self.fail(f"{key!r} is given twice", start)
            self.expect("=")
            items[key] = self.parameter()
        return items

    def variable_name(self) -> str:
        """Read `@name`."""
        name = self.take("variable")[1:]
        return self.unquote(name) if name.startswith('"') else name

    def parameter(self) -> object:
        """Read one value."""
        start = self.place
        value = self._untyped()
        if not isinstance(value, bool | int | float | complex) or not self.accept(":"):
            return value
        with self.refusing(start):
            return array_from_numbers(self.take("word"), (), [value])[()]

    def literal(self) -> Literal:
        """Read a number and its dtype, as an operand."""
        start = self.place
        number = self._untyped()
        if not isinstance(number, bool | int | float | complex):
            self.fail("expected a value or a literal such as 0.5:f32", start)
        self.expect(":")
        dtype = self.take("word")
        with self.refusing(start):
            return Literal.of(rounded_to(number, dtype), Type(dtype, ()))

    def _untyped(self) -> object:
        """Read one value, without the dtype that may follow a number."""
        start = self.place
        kind, text = self.kind, self.text
        if kind == "variable":
            name = self.variable_name()
            if name not in self.variables:
                self.fail(f"variable {name!r} is not declared", start)
            return self.variables[name]
        if kind == "end":
            self.fail("expected a value, found the end of the line")
        self.advance()
        if kind == "number":
            return self.integer_of(text) if text.lstrip("-").isdigit() else float(text)
        if kind == "string":
            return self.unquote(text)
        if kind == "opaque":
            if isinstance(self.opaques, OpaquePlaceholders):
                # Equal tokens were printed for one object, so they become one object again.
                return self._placeholders.setdefault(text, self.opaques.of(text))
            number = self.integer_of(text[1:].partition(":")[0])
            if number >= len(self.opaques):
                count = len(self.opaques)
                self.fail(f"{text} is not among the {count} opaque parameters given", start)
            return self.opaques[number]
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        with self.inside():
            if text == "(":
                return tuple(self._sequence(")"))
            if text == "[":
                return self._sequence("]")
            if text == "{":
                return self.parameters()
            return self._constructed(text, start)

    def _sequence(self, end: str) -> list[object]:
        """Read `value, ..` and `end`. There may be a comma before `end`."""
        items: list[object] = []
        while not self.accept(end):
            items.append(self.parameter())
            if self.text != end:
                self.expect(",")
        return items

    def _constructed(self, text: str, start: tuple[int, int]) -> object:
        """Read the rest of `dtype<..>`, `array<..>` or `complex(..)`."""
        with self.refusing(start):
            if text == "dtype" and self.accept("<"):
                dtype = numpy_dtype(self.take("word"))
                self.expect(">")
                return dtype
            if text == "array" and self.accept("<"):
                return self._array()
            if text == "complex" and self.accept("("):
                real, imaginary = self._numbers(")")
                return complex(float(real), float(imaginary))  # type: ignore[arg-type]
        self.fail(f"expected a value, found {text!r}", start)

    def _array(self) -> Array:
        dtype, shape, _ = self.type()
        if self.accept(">"):
            return array_from_numbers(dtype, shape, ())
        self.expect(":")
        return array_from_numbers(dtype, shape, self._numbers(">"))

    def type(self) -> Type:
        """Read dtype and shape."""
        start = self.place
        text = self.take("type")
        type = self._types.get(text)
        if type is None:
            dtype, _, sizes = text[:-1].partition("[")
            if not is_dtype(dtype):
                self.fail(f"no dtype {dtype!r}", start)
            shape = tuple(self.integer_of(size) for size in sizes.split(",") if size)
            if len(shape) > _MOST_DIMENSIONS:
                self.fail(f"{len(shape)} dimensions; the limit is {_MOST_DIMENSIONS}", start)
            type = Type(dtype, shape)
            if max((*shape, type.size)) >= _MOST_ELEMENTS:
                self.fail("a value of 2**63 elements or more", start)
            self._types[text] = type
        return type

    def _numbers(self, end: str) -> list[bool | int | float | complex]:
        numbers = []
        for item in self._sequence(end):
            if not isinstance(item, bool | int | float | complex):
                raise ValueError(f"expected numbers, found {item!r}")
            numbers.append(item)
        return numbers
