"""Which equations of replica variants compute the same values.

Two equations get the same value number if primitive, parameters and nested jaxprs are the same, and
their operands have the same numbers. The numbers of a segment come from one table for all variants.
An equation whose number occurs in all variants is computed once. Arrays from before the segment are
compared by identity. Equations with an effect get no number. Equations on a padded array get none
either, since each variant uses another part of the array.

The comparison may miss that two equations are the same. In this case each variant computes the
value, and results stay the same. It never treats different equations as the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, TypeAlias  # Any: equations and parameters of JAX are untyped

import jax
import numpy as np
from jax.extend import core as jex

from graphdist.tracing.slots import Slot

NumberTable: TypeAlias = dict[Any, list[tuple[Any, int]]]
"""Equations with their value numbers, by primitive and the numbers of their operands."""


def same_parameters(equation: Any, other: Any) -> bool:
    """Return whether two equations apply the same operation to their operands."""
    if equation.primitive is not other.primitive or equation.params.keys() != other.params.keys():
        return False
    return all(_is_same(value, other.params[name]) for name, value in equation.params.items())


def literal_key(atom: Any) -> Any:
    """Return the type and bytes of a literal, to compare literals; None for a variable."""
    if not isinstance(atom, jex.Literal):
        return None
    value = np.asarray(atom.val)
    return atom.aval, value.tobytes()


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two parameters mean the same, jaxprs equation by equation."""
    if value is other:
        return True
    if isinstance(value, jex.ClosedJaxpr) and isinstance(other, jex.ClosedJaxpr):
        if len(value.consts) != len(other.consts):
            return False
        are_same = all(a is b for a, b in zip(value.consts, other.consts, strict=True))
        return are_same and _are_same_jaxprs(value.jaxpr, other.jaxpr)
    if isinstance(value, jex.Jaxpr) and isinstance(other, jex.Jaxpr):
        return _are_same_jaxprs(value, other)
    if isinstance(value, tuple | list) and isinstance(other, tuple | list):
        return len(value) == len(other) and all(map(_is_same, value, other))
    if isinstance(value, np.ndarray | jax.Array) or callable(value):
        return False  # other objects; functions are rules of differentiation
    try:
        return type(value) is type(other) and bool(value == other)
    except Exception:  # comparisons of JAX's own parameters may raise anything
        return False


def _are_same_jaxprs(jaxpr: Any, other: Any) -> bool:
    if len(jaxpr.eqns) != len(other.eqns):
        return False
    names: dict[Any, Any] = {}

    def are_alike(atoms: Sequence[Any], others: Sequence[Any]) -> bool:
        return len(atoms) == len(others) and all(map(is_alike, atoms, others))

    def is_alike(atom: Any, peer: Any) -> bool:
        if isinstance(atom, jex.Literal) or isinstance(peer, jex.Literal):
            return literal_key(atom) == literal_key(peer)
        return names.get(atom) is peer

    def declare(variables: Sequence[Any], peers: Sequence[Any]) -> bool:
        names.update(zip(variables, peers, strict=False))
        return [v.aval for v in variables] == [p.aval for p in peers]

    if not declare([*jaxpr.constvars, *jaxpr.invars], [*other.constvars, *other.invars]):
        return False
    for equation, peer in zip(jaxpr.eqns, other.eqns, strict=True):
        if not (same_parameters(equation, peer) and are_alike(equation.invars, peer.invars)):
            return False
        if not declare(equation.outvars, peer.outvars):
            return False
    return are_alike(jaxpr.outvars, other.outvars)


def is_read(equation: Any) -> bool:
    """Return whether an equation reads a variable, or a part of one."""
    return bool(equation.primitive.name == "get")


def value_numbers(
    slots: Sequence[dict[Any, Slot]], segments: Sequence[Sequence[Any]]
) -> list[list[int | None]]:
    """Return, for each variant's segment, the value number of each equation or None."""
    table: NumberTable = {}
    counter = count()
    rows = []
    for known, equations in zip(slots, segments, strict=True):
        numbering = _Numbering(known, table, counter)
        rows.append([numbering.number(equation) for equation in equations])
    return rows


class _Numbering:
    """The value numbers of one variant. All variants share `table` and `counter`."""

    def __init__(self, slots: dict[Any, Slot], table: NumberTable, counter: Iterator[int]) -> None:
        self._slots, self._table, self._counter = slots, table, counter
        self._numbers: dict[Any, Any] = {}

    def number(self, equation: Any) -> int | None:
        """Return the value number of an equation; None if each variant must compute it itself."""
        operands = [self._operand(atom) for atom in equation.invars]
        if None in operands or (equation.effects and not is_read(equation)):
            return None
        candidates = self._table.setdefault((equation.primitive, *operands), [])
        same = (number for other, number in candidates if same_parameters(other, equation))
        number = next(same, None)
        if number is None:
            number = next(self._counter)
            candidates.append((equation, number))
        for index, variable in enumerate(equation.outvars):
            self._numbers[variable] = (number, index)
        return number

    def _operand(self, atom: Any) -> Any:
        if isinstance(atom, jex.Literal):
            return literal_key(atom)
        slot = self._slots.get(atom)
        if slot is None:
            return self._numbers.get(atom)
        return None if slot.is_padded else ("outside", id(slot.array))
