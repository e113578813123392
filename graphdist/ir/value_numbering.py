"""Value numbering: values with equal numbers are equal, to the bit, wherever they are computed.

A node's results get new numbers unless an earlier node had the same operation, parameters, nested
graphs and numbers of operands (Cocke and Schwartz, "Programming languages and their compilers",
1970). Names, barriers, and roundings to the precision that a value has, whose results are their
operands, pass the numbers on. Results of nodes that may give another value in the next run get new
numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from graphdist.ir.analyses import walk
from graphdist.ir.fused_values import BARRIERS
from graphdist.ir.graph import Node, Operand, Value
from graphdist.ir.ops import READ

NAMING = "jax.name"
_IDENTITIES = BARRIERS | {NAMING}
_REDUCE_PRECISION = "jax.reduce_precision"
_PRECISIONS = {"f64": (11, 52), "f32": (8, 23), "f16": (5, 10), "bf16": (8, 7)}
"""The bits of the exponent and of the mantissa of each dtype."""

NOT_REPEATABLE = frozenset({"jax.rng_uniform"})
"""The operations with a state that is no operand."""

_MAX_BYTES = 2**16
"""Larger arrays are not compared by their bytes."""


class ValueNumbers:
    """The numbers of the values of some graphs."""

    def __init__(self) -> None:
        """Start with no numbers."""
        self._numbers: dict[Value, int] = {}
        self._keys: dict[Hashable, int] = {}

    def of(self, operand: Operand) -> int | None:
        """Return the number of an operand; None for a value that has none."""
        if type(operand) is Value:
            return self._numbers.get(operand)
        return self.keyed(("literal", operand.type.dtype, frozen(operand.value)))  # type: ignore[union-attr]

    def keyed(self, key: Hashable) -> int:
        """Return the number that belongs to a key."""
        return self._keys.setdefault(key, len(self._keys))

    def set(self, value: Value, number: int) -> None:
        """Give a value a number."""
        self._numbers[value] = number

    def add_new(self, values: Sequence[Value]) -> None:
        """Give each value a number of its own."""
        for value in values:
            self.set(value, self.keyed(value))

    def add(self, node: Node) -> None:
        """Give numbers to the results of a node, whose operands all have numbers."""
        operands = tuple(map(self.of, node.operands))
        if returns_operands(node):
            for number, result in zip(operands, node.results, strict=True):
                assert number is not None, f"an operand of {node.op.name} has no number"
                self.set(result, number)
        elif not is_repeatable(node):
            self.add_new(node.results)
        else:
            key = node.op, node.graphs, operands, frozen(node.params)
            for index, result in enumerate(node.results):
                self.set(result, self.keyed((key, index)))


def returns_operands(node: Node) -> bool:
    """Return whether the results of a node are its operands.

    Policies of `jax.checkpoint` round each saved value to the precision that it has.
    """
    if node.op.name == _REDUCE_PRECISION:
        bits = node.params["exponent_bits"], node.params["mantissa_bits"]
        return bits == _PRECISIONS.get(node.results[0].type.dtype)
    return node.op.name in _IDENTITIES


def is_repeatable(node: Node) -> bool:
    """Return whether a replica that runs a node again on equal operands gets equal results."""
    nested = (each for graph in node.graphs for each in walk(graph))
    return all(
        not each.op.has_effect and each.op is not READ and each.op.name not in NOT_REPEATABLE
        for each in (node, *nested)
    )


def frozen(value: object) -> Hashable:
    """Return a key that two parameters share only if they are equal to the bit.

    An object that cannot be compared by value is compared by identity: the nodes keep it alive.

    >>> frozen(0.0) == frozen(-0.0), frozen([1, 2]) == frozen([1, 2])
    (False, True)
    """
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, complex):
        return struct.pack("dd", value.real, value.imag)
    if isinstance(value, tuple | list):
        return (type(value), *map(frozen, value))
    if isinstance(value, Mapping):
        return frozenset((frozen(name), frozen(item)) for name, item in value.items())
    if isinstance(value, np.ndarray):
        if value.nbytes > _MAX_BYTES or value.dtype.hasobject:
            return id(value)
        return value.dtype, value.shape, value.tobytes()
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
