"""Which means of integers over the replicas stay integers.

The mean of different integers is a float. If all replicas hold the same integer, their mean is that
integer. The analysis of the graph tells the two apart, but the dtype is needed earlier, while the
program is traced. So each mean has a number, which it keeps from one trace to the next. Its operand
passes through a primitive that has the number as parameter. The importer makes no node of the
primitive, and notes the value of the graph that is its operand. In the first trace every mean is a
float. If the graph proves that integers are the same on all replicas, the program is traced again,
and the proof is made again on the new graph.

Numbering restarts at each place (see `IntegerMeans.at`), so that a mean has the same number in all
replica variants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias  # Any: tracers and tangents have no common public type

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from graphdist.ir.graph import Operand

MeanNumber: TypeAlias = tuple[str | int, ...]

integer_mean_p = Primitive("integer_mean")
integer_mean_p.def_abstract_eval(
    lambda x, *, number: ShapedArray(x.shape, x.dtype, weak_type=x.weak_type)
)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, number: MeanNumber) -> tuple[Any, Any]:
    result = integer_mean_p.bind(*primals, number=number)
    return result, ad.Zero(jax.typeof(result).to_tangent_aval())


def _batched(
    operands: Sequence[Any], dims: Sequence[int], *, number: MeanNumber
) -> tuple[Any, int]:
    return integer_mean_p.bind(*operands, number=number), dims[0]


ad.primitive_jvps[integer_mean_p] = _jvp
batching.primitive_batchers[integer_mean_p] = _batched


class IntegerMeans:
    """The means over replicas of one trace.

    `unlike` are the numbers of the means whose integers may differ, all others stay integers; with
    None every mean is a float.
    """

    def __init__(self, unlike: Collection[MeanNumber] | None = None) -> None:
        """Start with no mean taken."""
        self.unlike = unlike
        self.operands: dict[MeanNumber, list[Operand | None]] = {}
        """The operands of means in the graph, by number; None where the graph has no such value."""
        self.are_any = False
        """Whether a mean of integers was taken."""
        self.equal: frozenset[MeanNumber] = frozenset()
        """The means that the graph proves to be of one integer."""
        self.replica_was_asked = False
        """Whether a program on one replica uses its number, or a value that depends on it."""
        self._place: MeanNumber = ()
        self._count = 0

    @property
    def unproven(self) -> frozenset[MeanNumber]:
        """Return the means of which the graph proves nothing."""
        return frozenset(self.operands) - self.equal

    @contextmanager
    def at(self, *place: str | int) -> Iterator[None]:
        """Count within this place."""
        before = self._place, self._count
        self._place, self._count = (*self._place, *place), 0
        try:
            yield
        finally:
            self._place, self._count = before

    def next_number(self) -> MeanNumber:
        """Return the number of a mean; of floats too: in the next trace they may be integers."""
        number = (*self._place, self._count)
        self._count += 1
        return number

    def is_one(self, number: MeanNumber) -> bool:
        """Return whether the integers of a mean are taken for one that all replicas hold."""
        return self.unlike is not None and number not in self.unlike

    def marked(self, array: jax.Array, number: MeanNumber) -> jax.Array:
        """Return the integers of a mean with its mark on them."""
        self.are_any = True
        marked: jax.Array = integer_mean_p.bind(array, number=number)
        return marked

    def note(self, number: MeanNumber, operand: Operand | None) -> None:
        """Note the operand of a mean in the graph."""
        self.operands.setdefault(number, []).append(operand)
