"""The definition and the users of each value of a program, through loops and branches.

A value has one `Definition`. Either a node computes the value, or the value *passes* from other
values: it equals another value, is a slice of one, a stack of slices, or a carry of a loop. The
inputs and outputs of nested graphs are linked to the operands and results of their node, as
`graphdist.ir.loops` pairs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from graphdist.ir.analyses import kept_analysis, walk
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan, While
from graphdist.ir.ops import BARRIER, COND, SCAN, WHILE

BARRIERS = frozenset({BARRIER.name, "jax.optimization_barrier"})


class ValueKind(Enum):
    """How a value comes to be."""

    INPUT = "input"
    """An input of the program."""
    COMPUTED = "computed"
    """A node computes it from its operands."""
    BEHIND_BARRIER = "behind barrier"
    CONSTANT = "constant"
    """The input of a loop's body for an operand that is the same in every iteration."""
    SLICE = "slice"
    """The input of a loop's body for one slice of a scanned operand."""
    CARRY = "carry"
    """The input of a loop's body for a carry: at first an operand, later the body's output."""
    LAST = "last"
    """The result of a loop for a carry: its value after the last iteration."""
    STACK = "stack"
    """The stacked slices that the iterations return."""
    BRANCH_INPUT = "branch input"
    BRANCH_RESULT = "branch result"
    """The result of a `cond`: an output of the branch that runs."""


_DROPPED = {ValueKind.SLICE: -1, ValueKind.STACK: 1}


class Definition(NamedTuple):
    """How a value is defined, and from which values.

    `node` computes the value, or is the loop, `cond` or barrier through which the value passes. It
    is None for an input of the program. `times` is how often a step computes the value, if the
    branches of a `cond` run equally often.
    """

    kind: ValueKind
    node: Node | None
    parents: tuple[Operand, ...]
    times: float

    @property
    def shift(self) -> int:
        """Return the index of a dimension in the value minus its index in the parents."""
        return _DROPPED.get(self.kind, 0)


@dataclass(frozen=True, slots=True)
class Definitions:
    """All values of a program, nested graphs included, in the order in which they are defined.

    For each value, `of` has its definition, `nodes` the nodes that compute with it, and `children`
    the values to which it passes. `passing` lists the values that no node computes. `has_slices`
    says whether one of these is a slice of a scanned operand.
    """

    of: Mapping[Value, Definition]
    nodes: Mapping[Value, list[Node]]
    children: Mapping[Operand, list[Value]]
    passing: Sequence[Value]
    has_slices: bool


@kept_analysis
def has_shared_graphs(graph: Graph) -> bool:
    """Return whether several nodes share a nested graph, so that a value has several definitions.

    Tracing never makes such a graph.
    """
    nested = [inner for node in walk(graph) for inner in node.graphs]
    return len(nested) != len(set(nested))


@kept_analysis
def definitions(graph: Graph) -> Definitions:
    """Return the definitions of the values of a program.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> [definition.kind.value for definition in definitions(graph).of.values()]
    ['input', 'computed']
    """
    of = {value: Definition(ValueKind.INPUT, None, (), 1) for value in graph.inputs}
    for value, definition in _of_nodes(graph, 1):
        of[value] = definition
    nodes: dict[Value, list[Node]] = {}
    children: dict[Operand, list[Value]] = {}
    for value, definition in of.items():
        node = definition.node
        if definition.kind is not ValueKind.COMPUTED:
            for parent in definition.parents:
                if type(parent) is Value:
                    children.setdefault(parent, []).append(value)
        elif node is not None and value is node.results[0]:  # each node once
            for parent in node.operands:
                if type(parent) is Value:  # literals are slow to hash
                    using = nodes.setdefault(parent, [])
                    if node not in using[-1:]:
                        using.append(node)
    passing = [value for value, each in of.items() if each.kind is not ValueKind.COMPUTED]
    has_slices = any(of[value].kind is ValueKind.SLICE for value in passing)
    return Definitions(of, nodes, children, passing, has_slices)


_ITERATIONS_OF_WHILE = 8
"""The number of iterations assumed for a `while`, whose true number is unknown."""


def _of_nodes(graph: Graph, times: float) -> Iterator[tuple[Value, Definition]]:
    for node in graph.nodes:
        inside = times
        if node.op is SCAN:
            inside *= SCAN.of(node).length
        elif node.op is WHILE:
            inside *= _ITERATIONS_OF_WHILE
        elif node.op is COND:
            inside /= len(node.graphs)
        for kind, value, parents in inputs_of_nested(node):
            yield value, Definition(kind, node if parents else None, parents, inside)
        for nested in node.graphs:
            yield from _of_nodes(nested, inside)
        for kind, value, parents in results_of(node):
            yield value, Definition(kind, node, parents, times)


Passed: TypeAlias = tuple[ValueKind, Value, tuple[Operand, ...]]
"""An input of a nested graph, or a result of a node: (its kind, the value, its parents)."""


def inputs_of_nested(node: Node) -> Iterator[Passed]:
    """Yield the inputs of a node's nested graphs.

    An input without parents is one of an update on a parameter server.
    """
    if node.op in (SCAN, WHILE):
        loop = Scan(node) if node.op is SCAN else While(node)
        for operand, value in loop.constants:
            yield ValueKind.CONSTANT, value, (operand,)
        for carry in loop.carries:
            for value in carry.inputs:
                yield ValueKind.CARRY, value, (carry.first, carry.following)
        for operand, value in loop.scanned:
            yield ValueKind.SLICE, value, (operand,)
    elif node.op is COND:
        for branch in node.graphs:
            for operand, value in zip(node.operands[1:], branch.inputs, strict=True):
                yield ValueKind.BRANCH_INPUT, value, (operand,)
    else:
        for nested in node.graphs:
            for value in nested.inputs:
                yield ValueKind.INPUT, value, ()


def results_of(node: Node) -> Iterator[Passed]:
    """Yield the results of a node, with the values that pass to them or compute them."""
    if node.op in (SCAN, WHILE):
        loop = Scan(node) if node.op is SCAN else While(node)
        for carry in loop.carries:
            yield ValueKind.LAST, carry.last, (carry.value,)
        for output, result in loop.stacked:
            yield ValueKind.STACK, result, (output,)
    elif node.op is COND:
        returned = zip(*(branch.outputs for branch in node.graphs), strict=True)
        for result, outputs in zip(node.results, returned, strict=True):
            yield ValueKind.BRANCH_RESULT, result, outputs
    elif node.op.name in BARRIERS:
        for operand, result in zip(node.operands, node.results, strict=True):
            yield ValueKind.BEHIND_BARRIER, result, (operand,)
    else:
        for result in node.results:
            yield ValueKind.COMPUTED, result, node.operands
