"""Value numbering: values with equal numbers are equal, to the bit, wherever they are computed.

A node's results get new numbers unless an earlier node had the same operation, parameters, nested
graphs and numbers of operands (Cocke and Schwartz, "Programming languages and their compilers",
1970). Names, barriers, and roundings to the precision that a value has, whose results are their
operands, pass the numbers on. Results of nodes that may give another value in the next run get new
numbers.

Loops and branches are compared by what they compute. Their nested graphs are numbered, too, with
the numbers of the operands. In an iteration, a slice has the number of the array that is scanned, a
carry that of its first value: loops of equal length, whose carries begin and go on with equal
numbers, have equal carries in each iteration, by induction. A result has a number by the carries
that it is computed from, and not by all: the backward pass often has the loop of the forward pass
with some more results.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from graphdist.ir.analyses import walk
from graphdist.ir.fused_values import BARRIERS
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Carry, Scan, While
from graphdist.ir.ops import COND, READ, SCAN, WHILE

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
        self._depth = 0
        """The number of loops around the values."""

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
        if returns_operands(node):
            self.pass_on(node)
        elif not is_repeatable(node):
            self.add_new(node.results)
        else:
            for result, key in zip(node.results, self._keys_of(node), strict=True):
                self.set(result, self.keyed(key))

    def pass_on(self, node: Node) -> None:
        """Give the results of a node, which are its operands, the numbers that these have."""
        for operand, result in zip(node.operands, node.results, strict=True):
            if (number := self.of(operand)) is not None:
                self.set(result, number)

    def labels(self, nodes: Iterable[Node]) -> dict[int, str]:
        """Return the names that a program gives to values by number, the first of several."""
        labels: dict[int, str] = {}
        for node in nodes:
            if node.op.name == NAMING and (number := self.of(node.results[0])) is not None:
                labels.setdefault(number, str(node.params["name"]))
        return labels

    def _keys_of(self, node: Node) -> Iterator[Hashable]:
        """Yield a key for each result of a node that is repeatable."""
        operands = tuple(map(self.of, node.operands))
        if node.op in (SCAN, WHILE):
            yield from self._keys_of_loop(Scan(node) if node.op is SCAN else While(node))
        elif node.op is COND:
            branches = [self._of_branch(graph, operands[1:]) for graph in node.graphs]
            params = frozen(node.params)
            for outputs in zip(*branches, strict=True):
                yield node.op, operands[0], outputs, params
        else:
            key = node.op, node.graphs, operands, frozen(node.params)
            yield from ((key, index) for index in range(len(node.results)))

    def _of_branch(self, graph: Graph, operands: Sequence[int | None]) -> list[int | None]:
        """Return the numbers of the outputs of a branch."""
        inside = self._inside()
        for value, number in zip(graph.inputs, operands, strict=True):
            assert number is not None, "an operand of a branch has no number"
            inside.set(value, number)
        for node in graph.nodes:
            inside.add(node)
        return list(map(inside.of, graph.outputs))

    def _keys_of_loop(self, loop: Scan | While) -> Iterator[Hashable]:
        """Yield a key for each result of a loop; see the docstring of the module."""
        inside = self._inside(1)
        names = inside._name_inputs(loop, self)
        graphs = (loop.body,) if isinstance(loop, Scan) else (loop.condition, loop.body)
        for node in (node for graph in graphs for node in graph.nodes):
            inside.add(node)
        tested: tuple[Operand, ...] = ()
        goes_on: Hashable
        if isinstance(loop, Scan):
            goes_on = loop.length, loop.params.reverse
        else:
            tested, goes_on = (loop.predicate,), inside.of(loop.predicate)
        behind = _CarriesBehind(graphs, loop.carries)

        def states(operand: Operand) -> int:
            """Return the number of the carries that an operand of the body is computed from."""
            chosen = behind.all_behind(operand, *tested)
            follow = frozenset((names[i], inside.of(loop.carries[i].following)) for i in chosen)
            return self.keyed(("carries", goes_on, follow))

        for place, carry in enumerate(loop.carries):
            yield "last", states(carry.value), names[place]
        for stacked in loop.stacked:
            yield "stacked", states(stacked.output), inside.of(stacked.output)

    def _name_inputs(self, loop: Scan | While, outside: ValueNumbers) -> list[int]:
        """Give numbers to the inputs of a loop's graphs, and return those of the carries."""
        for taken in loop.constants:
            self.set(taken.value, outside._known(taken.operand))
        for taken in loop.scanned:
            number = self.keyed(("slice", self._depth, outside._known(taken.operand)))
            self.set(taken.value, number)
        counts, names = Counter[int](), []
        for carry in loop.carries:
            first = outside._known(carry.first)
            names.append(self.keyed(("carry", self._depth, first, counts[first])))
            counts[first] += 1
            for value in carry.inputs:
                self.set(value, names[-1])
        return names

    def _inside(self, loops: int = 0) -> ValueNumbers:
        """Return the numbers for a nested graph, in so many loops more."""
        inside = ValueNumbers()
        inside._keys, inside._depth = self._keys, self._depth + loops
        return inside

    def _known(self, operand: Operand) -> int:
        number = self.of(operand)
        assert number is not None, "an operand of a loop has no number"
        return number


class _CarriesBehind:
    """The carries that the values in a loop are computed from, as bits of an integer."""

    def __init__(self, graphs: Sequence[Graph], carries: Sequence[Carry]) -> None:
        self._bits: dict[Operand, int] = {
            value: 1 << place for place, carry in enumerate(carries) for value in carry.inputs
        }
        for node in (node for graph in graphs for node in graph.nodes):
            bits = self._of(node.operands)
            self._bits.update(dict.fromkeys(node.results, bits))
        self._following = [self._of((carry.following,)) for carry in carries]

    def all_behind(self, *operands: Operand) -> list[int]:
        """Return the places of all carries that operands are computed from in some iteration."""
        found, places = self._of(operands), range(len(self._following))
        while True:
            chosen = [place for place in places if found >> place & 1]
            more = found
            for place in chosen:
                more |= self._following[place]
            if more == found:
                return chosen
            found = more

    def _of(self, operands: Sequence[Operand]) -> int:
        found = 0
        for operand in operands:
            if type(operand) is Value:
                found |= self._bits.get(operand, 0)
        return found


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
