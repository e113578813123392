"""Finds updates that undo what another worker has written: the analysis of a step in two halves.

A server changes a variable as it is by then, so that the changes of all workers are kept. Where a
worker computes the new value itself, of the value that it has read, the server can only replace
the variable by it, and what others have written since the worker has read is lost.

Each value of an update is of one of three kinds. A value *keeps* the variable if the server makes
it of the variable as it is. One is *old* if the worker has made it of what it has read. Any other
one is new. Arithmetic with a value that keeps the variable keeps it: a gradient is old, but what
is subtracted from the variable. Where elements are taken from one of several values, by a choice,
a branch, a scatter or a concatenation, one that is old makes the result old. If the new value of a
variable is old, writes are lost. A variable that is assigned what does not depend on it is not
among them: the last one wins, as the program says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

from graphdist.ir.analyses import producers
from graphdist.ir.flow import reachable, uses
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import CONCATENATE, COND, PUSH
from graphdist.ir.source import Source
from graphdist.passes.by_element import is_scatter


class Kind(IntEnum):
    """What a value of an update is made of."""

    NEW = 0
    KEEPS = 1
    OLD = 2


@dataclass(frozen=True, slots=True)
class LostWrite:
    """A variable whose new value a worker computes of the value that it has read, and where."""

    variable: str
    source: Source

    def __str__(self) -> str:
        return f"{self.what}: {self.source}"

    @property
    def what(self) -> str:
        """Return what is wrong, without the line."""
        return (
            f"variable {self.variable!r} loses what other workers write meanwhile: the worker "
            f"computes its new value, from the value that it has read"
        )


def lost_writes(graph: Graph) -> tuple[LostWrite, ...]:
    """Return the updates that lose writes, of a graph of both halves."""
    return tuple(lost for node in graph.nodes if node.op is PUSH for lost in _of_push(graph, node))


def _of_push(graph: Graph, node: Node) -> Iterator[LostWrite]:
    count = cast(int, node.params["num_variables"])
    names = dict(zip(graph.inputs, (v.name for v in graph.variables), strict=False))
    (update,) = node.graphs
    for place, variable in enumerate(node.operands[:count]):
        after = reachable(uses(graph), [cast(Value, variable)])
        old = [i for i, sent in enumerate(node.operands) if i >= count and sent in after]
        for i in old:  # one of them is enough
            kinds = [Kind.NEW] * len(node.operands)
            kinds[place], kinds[i] = Kind.KEEPS, Kind.OLD
            if _kinds(update, kinds)[place] is Kind.OLD:
                source = _line_behind(graph, cast(Value, node.operands[i])) or node.source
                yield LostWrite(names[cast(Value, variable)], source)
                break


def _line_behind(graph: Graph, value: Value) -> Source | None:
    """Return the nearest line that a value is computed at: functions of JAX may have none."""
    made, pending = producers(graph), [value]
    for found in pending:
        node = made.get(found)
        if node is not None and node.source.frame is not None:
            return node.source
        operands = () if node is None else node.operands
        pending += [v for v in operands if isinstance(v, Value) and v not in pending]
    return None


def _kinds(graph: Graph, given: Sequence[Kind]) -> list[Kind]:
    """Return the kinds of a graph's results, for those of its inputs."""
    kinds: dict[Operand, Kind] = dict(zip(graph.inputs, given, strict=True))
    for node in graph.nodes:
        kinds.update(zip(node.results, _of_node(node, kinds), strict=True))
    return [_kind(kinds, output) for output in graph.outputs]


def _kind(kinds: Mapping[Operand, Kind], operand: Operand) -> Kind:
    return kinds.get(operand, Kind.NEW) if isinstance(operand, Value) else Kind.NEW


def _of_node(node: Node, kinds: Mapping[Operand, Kind]) -> Sequence[Kind]:
    operands = [_kind(kinds, operand) for operand in node.operands]
    name = node.op.name
    if node.op is COND:
        branches = [_kinds(branch, operands[1:]) for branch in node.graphs]
        return [max(of_result) for of_result in zip(*branches, strict=True)]
    if name == "jax.select_n":
        found = max(operands[1:])
    elif name in ("jax.concatenate", "jax.pad", CONCATENATE.name):
        found = max(operands)
    elif name in ("jax.scatter", "jax.dynamic_update_slice"):
        found = max(operands[0], operands[_PLACE_OF_NEW_ELEMENTS[name]])
    elif is_scatter(node):
        found = operands[0]
    elif name in _WITHOUT_VALUE or name.startswith("jax.reduce_"):
        found = Kind.NEW
    else:
        found = Kind.KEEPS if Kind.KEEPS in operands else max(operands, default=Kind.NEW)
    return [found] * len(node.results)


_PLACE_OF_NEW_ELEMENTS = {"jax.scatter": 2, "jax.dynamic_update_slice": 1}
_WITHOUT_VALUE = frozenset(
    f"jax.{name}" for name in ("eq", "ge", "gt", "is_finite", "le", "lt", "ne", "sign")
)
"""Operations that say something of a value, and give nothing of it."""
