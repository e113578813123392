"""Factors, which relate the dimensions of an operation's operands and results.

As in an einsum, each dimension of an operand or a result has a factor, which is an integer or None.
If operands are divided along the dimensions of one factor, all into the same number of shards, then
applying the operation shard by shard gives the result sharded along its dimension of that factor.

* A factor of operands and results *passes through*: `mul` of [a, b] and [a, b] has two such
  factors.
* A factor of operands alone is *summed*: each shard gives a term, and the result is the sum of all
  terms, or their maximum or minimum. `dot_general` of [a, b] and [b, c] sums b.
* A factor of results alone is *new*: each shard of the result is computed from unsharded operands,
  as in a broadcast.
* A dimension without a factor must be unsharded: `cumsum` along it, or a slice of a part of it.

Dimensions of one factor may differ in size: if [8, 4] is reshaped to [32], 8 and 32 have one
factor, since shards of rows are shards of the flattened value. So the number of shards along a
factor must divide each dimension of this factor. In the example it is 2, 4 or 8
(`graphdist.ir.operation_table.divides`).

The design of Shardy's registry of sharding rules is the same (https://openxla.org/shardy,
"sharding representation"). `graphdist.ir.operation_table` has a row for each operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

Dimensions: TypeAlias = tuple[int | None, ...]
"""The factor of each dimension of a value."""

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of an operation, by operand and by result.

    `summed` has the reducer, "sum", "max" or "min", of each factor that no result has. Any other
    factor is in all results, or in one result if results do not depend on each other.

    >>> product = Factors(((0, 1), (1, 2)), ((0, 2),), {1: "sum"})
    >>> product.dimension(product.operands[1], 2), product.dimension(product.results[0], 1)
    (1, None)
    >>> sorted(product.numbers)
    [0, 1, 2]
    """

    operands: tuple[Dimensions, ...]
    results: tuple[Dimensions, ...]
    summed: Mapping[int, str] = field(default_factory=dict)

    @property
    def numbers(self) -> frozenset[int]:
        """Return all factors."""
        found = {of for dims in (*self.operands, *self.results) for of in dims}
        return frozenset(of for of in found if of is not None)

    @staticmethod
    def dimension(dimensions: Dimensions, factor: int) -> int | None:
        """Return the dimension that has a factor; None if none has it."""
        return dimensions.index(factor) if factor in dimensions else None


def shard_shape(dimensions: Dimensions, shape: Shape, factor: int, count: int | Fraction) -> Shape:
    """Return the shape of one of `count` shards along `factor`; `shape` if none has this factor.

    With a `count` of `Fraction(1, n)`, return the shape of the value of which this is one of n
    shards.

    >>> shard_shape((0, 1), (8, 6), 1, 3), shard_shape((None, 0), (8, 6), 1, 3)
    ((8, 2), (8, 6))
    """
    return tuple(
        size // count if of == factor else size for of, size in zip(dimensions, shape, strict=True)
    )
