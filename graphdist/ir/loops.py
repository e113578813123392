"""Loops: the operands, the carries and the results of a `scan` or a `while`.

This module alone knows the order of a loop's operands, inputs, outputs and results:

* `scan` takes (constants, carries, scanned) and returns (carries, stacked). Its body takes the
  constants, the carries and one slice of each scanned operand along dimension 0, and returns the
  next carries and one slice of each stacked result.
* `while` takes (constants of the condition, constants of the body, carries) and returns the
  carries. Its condition takes (constants of the condition, carries); its body takes (constants of
  the body, carries) and returns the next carries.

`Scan` and `While` are views of a node that pair the values outside the loop with the values inside.
`ScanEdit` builds a changed scan:

    edit = ScanEdit(Scan(node, operands), "my_pass")
    edit.environment[old] = edit.add_constant(operand)     # replaces `old` in the new body
    edit.keep_nodes()
    results = edit.finish(builder)                         # one for each result of the old node
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Node, Operand, Value
from graphdist.ir.op_parameters import Looping, Scanning
from graphdist.ir.rewrite import Copier
from graphdist.ir.types import PER_REPLICA, Type

T = TypeVar("T")


class Taken(NamedTuple):
    """A constant or scanned operand, and the input of the body for the operand or its slice."""

    operand: Operand
    value: Value


class Carry(NamedTuple):
    """A value that each iteration passes to the next."""

    first: Operand
    """The operand with which the loop begins."""
    value: Value
    """The input of the body."""
    following: Operand
    """The output of the body, with which the next iteration begins."""
    last: Value
    """The result of the loop."""
    tested: tuple[Value, ...] = ()
    """The input of a `while`'s condition."""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Return the inputs of the nested graphs."""
        return (*self.tested, self.value)


class Stacked(NamedTuple):
    """A result that stacks an output of the body, one slice per iteration along dimension 0."""

    output: Operand
    result: Value


def scan_parts(
    params: Scanning, items: Sequence[T]
) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
    """Split `items`, one for each operand, into items for constants, carries, scanned operands."""
    constants = params.num_consts
    scanned = constants + params.num_carry
    return items[:constants], items[constants:scanned], items[scanned:]


def returned_parts(params: Scanning, items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Split `items`, one for each result of a scan, into items for carries and stacked results."""
    return items[: params.num_carry], items[params.num_carry :]


def while_parts(
    params: Looping, items: Sequence[T]
) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
    """Split `items`, one for each operand of a `while`.

    Return the items for constants of the condition, for constants of the body, and for carries.
    """
    of_condition = params.num_cond_consts
    carries = of_condition + params.num_body_consts
    return items[:of_condition], items[of_condition:carries], items[carries:]


def type_of_slice(type: Type) -> Type:
    """Return the type of one iteration's slice of a scanned operand."""
    layout = type.layout
    if layout is not None and layout.dimension is not None:
        layout = layout.along(layout.dimension - 1) if layout.dimension else PER_REPLICA
    return Type(type.dtype, type.shape[1:], layout)


class Scan:
    """A view of a scan node. A rewrite may view it with other operands than the node has."""

    __slots__ = ("body", "carries", "constants", "node", "params", "scanned", "stacked")

    def __init__(self, node: Node, operands: Sequence[Operand] | None = None) -> None:
        """Store the parts of the node."""
        params, operands = Scanning.of(node), node.operands if operands is None else operands
        (body,) = node.graphs
        self.node, self.params, self.body = node, params, body
        constants, first, scanned = scan_parts(params, operands)
        inputs = scan_parts(params, body.inputs)
        following, outputs = returned_parts(params, body.outputs)
        last, stacks = returned_parts(params, node.results)
        self.constants = tuple(map(Taken, constants, inputs[0]))
        self.carries = tuple(map(Carry, first, inputs[1], following, last))
        self.scanned = tuple(map(Taken, scanned, inputs[2]))
        self.stacked = tuple(map(Stacked, outputs, stacks))

    @property
    def length(self) -> int:
        """Return the number of iterations."""
        return self.params.length

    @property
    def is_unrolled(self) -> bool:
        """Return whether the emitted program has the iterations one after another, and no loop."""
        return (self.params.unroll or 1) >= self.length


class While:
    """A view of a while node, which pairs the constants of the condition, then those of the body.

    A `while` scans no operand and stacks no result.
    """

    __slots__ = ("body", "carries", "condition", "constants", "predicate", "scanned", "stacked")

    def __init__(self, node: Node) -> None:
        """Store the parts of the node; `predicate` says whether there is another iteration."""
        condition, body = node.graphs
        of_condition, of_body, first = while_parts(Looping.of(node), node.operands)
        self.constants = (
            *map(Taken, of_condition, condition.inputs),
            *map(Taken, of_body, body.inputs),
        )
        self.condition, self.body = condition, body
        inputs, tested = body.inputs[len(of_body) :], condition.inputs[len(of_condition) :]
        self.carries = tuple(map(Carry, first, inputs, body.outputs, node.results, zip(tested)))
        self.scanned: tuple[Taken, ...] = ()
        self.stacked: tuple[Stacked, ...] = ()
        (self.predicate,) = condition.outputs


class ScanEdit:
    """A new scan that is built from an old one: its operands, its results, the nodes of its body.

    `inside` builds the new body. `environment` maps values of the old body to the operands that
    replace them.
    """

    def __init__(self, scan: Scan, origin: str) -> None:
        """Begin with the operands and results of `scan`, and no nodes in the body."""
        self.inside = Copier(origin)
        self.node, self._params, self._body = scan.node, scan.params, scan.body
        self._constants = list(scan.constants)
        self._carries = [Taken(carry.first, carry.value) for carry in scan.carries]
        self._scanned = list(scan.scanned)
        self._following = {carry.value: carry.following for carry in scan.carries}
        self._outputs = {stacked.result: stacked.output for stacked in scan.stacked}

    @property
    def environment(self) -> dict[Operand, Operand]:
        """Return the operands that replace values of the old body."""
        return self.inside.environment

    def replace(self, value: Value, operand: Operand, type: Type | None = None) -> Value:
        """Replace the operand that belongs to the body's input `value`; return the new input.

        The new input has `type`. The default is the type of the operand, or of a slice of the
        operand if the operand is scanned.
        """
        for taken in (self._constants, self._carries, self._scanned):
            for place, (_, old) in enumerate(taken):
                if old is value:
                    found = type_of_slice(operand.type) if taken is self._scanned else operand.type
                    new = Value(found if type is None else type, value.hint)
                    taken[place] = Taken(operand, new)
                    if value in self._following:
                        self._following[new] = self._following.pop(value)
                    self.environment[value] = new
                    return new
        raise KeyError(value)

    def drop(self, values: Collection[Value]) -> None:
        """Remove the constants and scanned operands whose inputs of the body are in `values`."""
        self._constants = [taken for taken in self._constants if taken.value not in values]
        self._scanned = [taken for taken in self._scanned if taken.value not in values]

    def add_constant(self, operand: Operand, hint: str = "") -> Value:
        """Add an operand that is the same in all iterations; return the body's input for it."""
        self._constants.append(Taken(operand, Value(operand.type, hint)))
        return self._constants[-1].value

    def add_scanned(self, operand: Operand, hint: str = "") -> Value:
        """Add a scanned operand; return the body's input for its slice."""
        self._scanned.append(Taken(operand, Value(type_of_slice(operand.type), hint)))
        return self._scanned[-1].value

    def add_carry(self, first: Operand, hint: str = "") -> Value:
        """Add a carry; return the body's input for it. `follow` must then set its next value."""
        self._carries.append(Taken(first, Value(first.type, hint)))
        return self._carries[-1].value

    def follow(self, carry: Value, following: Operand) -> None:
        """Set the value of `carry` with which the next iteration begins."""
        self._following[carry] = following

    def stack(self, result: Value, output: Operand) -> None:
        """Set the output of the body that is stacked for `result`, a result of the old scan."""
        self._outputs[result] = output

    def add_stacked(self, output: Operand) -> None:
        """Stack an output of the body; `finish` returns its result behind those of the old scan."""
        self._outputs[Value(output.type)] = output

    def keep_nodes(self, without: Collection[Node] = ()) -> None:
        """Add the nodes of the old body, but not those in `without`."""
        for node in self._body.nodes:
            if node not in without:
                self.inside.copy(node)

    def finish(self, builder: Builder) -> tuple[Value, ...]:
        """Add the loop to the builder; return a value for each result of the old scan.

        The results of `add_stacked` follow, in the order of the calls.
        """
        taken = (*self._constants, *self._carries, *self._scanned)
        outputs = (*(self._following[value] for _, value in self._carries), *self._outputs.values())
        body = self._body.replace(
            inputs=tuple(value for _, value in taken),
            nodes=tuple(self.inside.nodes),
            outputs=self.inside.now(outputs),
        )
        operands, node = tuple(operand for operand, _ in taken), self.node
        num_constants, num_carries = len(self._constants), len(self._carries)
        params = replace(self._params, num_consts=num_constants, num_carry=num_carries)
        if params == self._params and len(outputs) == len(node.results):
            results = builder.keep(node, operands, (body,))
        else:
            results = builder.add(node.op, operands, params, (body,), at=node.source)
        return (*results[: self._params.num_carry], *results[num_carries:])
