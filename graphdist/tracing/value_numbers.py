"""Value numbering over replica variants: which of their equations compute the same value.

Two equations have one number if they do the same on operands of one number. The numbers of one
segment are taken from one table for all variants: a number that occurs in all of them stands for
work that is done once. Arrays from before the segment are compared by identity. Some equations
belong to one variant and get no number: equations with an effect, and equations that depend on a
padded array, since each variant uses another part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, TypeAlias  # Any: atoms of jaxprs have no common public type

from jax.extend import core as jex

from graphdist.tracing.same_equations import literal_key, same_parameters
from graphdist.tracing.variant_trace import Atom, Equation, VariantTrace, is_read

Numbered: TypeAlias = dict[Any, list[tuple[Equation, int]]]
"""Equations with their numbers, by primitive and numbers of operands."""


class ValueNumbers:
    """The numbers of what one variant computes in a segment."""

    def __init__(self, variant: VariantTrace, table: Numbered, counter: Iterator[int]) -> None:
        """Start without numbers; `table` and `counter` are shared by all variants."""
        self._slots, self._table, self._counter = variant.slots, table, counter
        self._numbers: dict[Any, Any] = {}

    def number(self, equation: Equation) -> int | None:
        """Return the number of what an equation computes, None if it is the variant's own."""
        operands = [self._operand(atom) for atom in equation.invars]
        if None in operands or (equation.effects and not is_read(equation)):
            return None
        alike = self._table.setdefault((equation.primitive, *operands), [])
        found = [number for other, number in alike if same_parameters(other, equation)]
        if not found:
            found = [next(self._counter)]
            alike.append((equation, found[0]))
        for place, variable in enumerate(equation.outvars):
            self._numbers[variable] = (found[0], place)
        return found[0]

    def _operand(self, atom: Atom) -> Any:
        if isinstance(atom, jex.Literal):
            return literal_key(atom)
        slot = self._slots.get(atom)
        if slot is None:
            return self._numbers.get(atom)
        return None if slot.is_padded else ("outside", id(slot.array))


def numbered(
    variants: list[VariantTrace], segments: list[list[Equation]]
) -> list[list[int | None]]:
    """Return the number of each equation of each variant's segment."""
    table: Numbered = {}
    counter = count()
    rows = []
    for variant, equations in zip(variants, segments, strict=True):
        numbers = ValueNumbers(variant, table, counter)
        rows.append([numbers.number(equation) for equation in equations])
    return rows
