"""In-place operators of variables, all refused: they would put an array in a variable's place."""

from __future__ import annotations

from typing import Any, NoReturn  # Any: the right operand

from graphdist.errors import UnsupportedError
from graphdist.tracing.user_lines import here


class InPlaceOperators:
    """Operators that Python would carry out by binding the variable's name to a new array."""

    name: str

    def __iadd__(self, other: Any) -> NoReturn:
        raise self._in_place("+=", "assign_add(value)")

    def __isub__(self, other: Any) -> NoReturn:
        raise self._in_place("-=", "assign_sub(value)")

    def __imul__(self, other: Any) -> NoReturn:
        raise self._in_place("*=", "assign(v * value)")

    def __itruediv__(self, other: Any) -> NoReturn:
        raise self._in_place("/=", "assign(v / value)")

    def _in_place(self, operator: str, method: str) -> UnsupportedError:
        return UnsupportedError(
            f"variable {self.name!r} {operator} value would put an array in the variable's place",
            source=here(),
            hint=f"write v.{method}",
        )
