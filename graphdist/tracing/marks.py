"""Marks: primitives that return their operand, and for which the importer makes no node.

A mark on a loop is a request to passes, made by the user or by the code that makes the loop. It
marks a value in the body of the loop, and becomes a parameter of the loop's node:

* `gather`: how often the loop gathers sharded variables, "once" or in "each" iteration;
* `steps`: each iteration is a step of a training loop, and gives the same bits as a single step.

A mark on the operand of a mean says which means of integers over the replicas stay integers. The
mean of different integers is a float. If all replicas hold the same integer, their mean is that
integer. The analysis of the graph tells the two apart, but the dtype is needed earlier, while the
program is traced. So each mean has an id, the same in each trace of the program, and the mark of
its operand has this id. The importer records which value of the graph the operand is. In the first
trace every mean is a float. If the graph proves that integers are the same on all replicas, the
program is traced again, and the proof is repeated on the new graph.

Ids count from 0 again in each region (see `IntegerMeans.region`), so that a mean has the same id in
all replica variants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias  # Any: tracers, and equations of JAX

import jax

from graphdist.ir.graph import Operand
from graphdist.tracing.primitives import identity_without_gradient, linear_primitive, same_type

MeanId: TypeAlias = tuple[str | int, ...]


def _transpose(cotangent: Any, aval: Any, **mark: Any) -> Any:
    return loop_mark_p.bind(cotangent, **mark)


loop_mark_p = linear_primitive("loop_mark", same_type, _transpose)


def marked(value: jax.Array, **mark: str | bool) -> jax.Array:
    """Return `value` with a mark for the loop whose body uses the returned value."""
    result: jax.Array = loop_mark_p.bind(value, **mark)
    return result


def marks_of(jaxpr: Any) -> dict[str, Any]:
    """Return the marks in the jaxpr of a loop's body, as keyword arguments of `Scanning`."""
    marks: dict[str, Any] = {}
    for equation in jaxpr.eqns:
        if equation.primitive is loop_mark_p:
            marks.update(equation.params)
    return marks


integer_mean_p = identity_without_gradient("integer_mean")


class IntegerMeans:
    """The means over replicas of one trace.

    `unequal` has the ids of the means whose integers may differ between replicas. All other means
    of integers stay integers. If `unequal` is None, every mean is a float.
    """

    def __init__(self, unequal: Collection[MeanId] | None = None) -> None:
        """Start without means."""
        self.unequal = unequal
        self.operands: dict[MeanId, list[Operand | None]] = {}
        """The operands of means in the graph, by id; None for an operand without proof."""
        self.are_any = False
        """Whether a mean of integers was traced."""
        self.equal: frozenset[MeanId] = frozenset()
        """The means whose integers are the same on all replicas, as the graph proves."""
        self.uses_replica_id = False
        """Whether a program on one replica uses its replica id, or a value that depends on it."""
        self._region: MeanId = ()
        self._count = 0

    @property
    def unproven(self) -> frozenset[MeanId]:
        """Return the means whose integers are not proven to be equal on all replicas."""
        return frozenset(self.operands) - self.equal

    @contextmanager
    def region(self, *region: str | int) -> Iterator[None]:
        """Count the ids of means from 0 within a region of the program."""
        before = self._region, self._count
        self._region, self._count = (*self._region, *region), 0
        try:
            yield
        finally:
            self._region, self._count = before

    def next_id(self) -> MeanId:
        """Return the id of the next mean.

        A mean of floats also gets an id, since it may be a mean of integers in the next trace.
        """
        mean_id = (*self._region, self._count)
        self._count += 1
        return mean_id

    def is_equal(self, mean_id: MeanId) -> bool:
        """Return whether this trace treats the integers of a mean as equal on all replicas."""
        return self.unequal is not None and mean_id not in self.unequal

    def marked(self, array: jax.Array, mean_id: MeanId) -> jax.Array:
        """Return `array`, the integer operand of a mean, marked with the id of the mean."""
        self.are_any = True
        marked: jax.Array = integer_mean_p.bind(array, mean_id=mean_id)
        return marked

    def note(self, mean_id: MeanId, operand: Operand | None) -> None:
        """Record the operand of a mean in the graph."""
        self.operands.setdefault(mean_id, []).append(operand)
