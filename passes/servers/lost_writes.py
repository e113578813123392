"""Finds updates that undo what another worker has written: the analysis of a step that is cut.

A server applies an update to the current value of a variable, so that the changes of all workers
are kept. If a worker computes the new value itself, from the value that it has read, the server can
only replace the variable. Everything that other workers have written since that read is lost.

Each value of an update's graph has a kind:

* a value *keeps* the variable if the server computes the value from the variable's current value;
* a value is *old* if the worker has computed it from the variable's value that the worker has read;
* a value is *new* in all other cases.

The result of arithmetic keeps the variable if one operand does: an old gradient may be subtracted
from the variable. If an operation takes elements from one of several values (a choice, a branch, a
scatter or a concatenation), the result is old if one of these values is old. Writes are lost if the
new value of a variable is old. A variable is not reported if its new value does not depend on its
old value, because the program itself says that the last write wins.

A choice can lose writes, too. Suppose that workers change a variable in every tenth step, and that
a worker recognizes this step only by a count that it has read. Other workers change the count
meanwhile. So it may happen that no worker sees the tenth step, or that two workers see it, and
gradients that were added up are lost. A choice of a scalar, such as a learning rate, is not
reported, because the scalar is only behind by some steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from graphdist.ir.analyses import producers, walk
from graphdist.ir.flow import Vertex, reachable, uses
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import CONCATENATE, COND
from graphdist.ir.source import Source
from graphdist.passes.servers.by_element import is_scatter
from graphdist.passes.servers.cut_step import CutStep, ServerRead, Update


class Kind(IntEnum):
    """The kind of a value of an update, by what it depends on."""

    NEW = 0
    KEEPS = 1
    OLD = 2


@dataclass(frozen=True, slots=True)
class LostWrite:
    """A variable whose new value a worker computes from the values that it has read.

    If `is_chosen`, the read values only decide whether the variable is changed.
    """

    variable: str
    source: Source
    is_chosen: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.source}"

    @property
    def what(self) -> str:
        """Return the description of the lost write, without the user's line."""
        if self.is_chosen:
            return (
                f"variable {self.variable!r} is changed or not by what the worker has read, and "
                f"other workers change that meanwhile: some changes would be lost, or made twice"
            )
        return (
            f"variable {self.variable!r} loses what other workers write meanwhile: the worker "
            f"computes its new value, from the value that it has read"
        )


def lost_writes(cut: CutStep) -> tuple[LostWrite, ...]:
    """Return the lost writes of all updates."""
    worker = _Worker(cut)
    return tuple(lost for update in cut.updates for lost in _of_update(worker, update))


class _Worker:
    """Which values of the worker's graph depend on arguments, and which on variables."""

    def __init__(self, cut: CutStep) -> None:
        self.graph, self.sent = cut.worker, cut.sent
        self._reads = list(zip(cut.read, cut.reads, strict=True))
        reads = [value for value, read in self._reads if _is_of_arguments(read, cut)]
        arguments = self.graph.inputs[: len(self.graph.inputs) - len(cut.reads)]
        self.of_arguments = reachable(uses(self.graph), [*arguments, *reads])
        assigned = {name for update in cut.updates for name in update.variables}
        self.of_state = self.computed_of(assigned)

    def computed_of(self, variables: Collection[str]) -> set[Vertex]:
        """Return the values that are computed from the reads of these variables."""
        starts = [
            value
            for value, read in self._reads
            if any(variable.name in variables for variable in read.variables)
        ]
        return reachable(uses(self.graph), starts)

    def sent_to(self, update: Update) -> list[tuple[Value, Operand]]:
        """Return the inputs of an update that the worker sends, each with the sent value."""
        return [(i, self.sent[n]) for i, n in zip(update.taken, update.sent, strict=True)]


def _is_of_arguments(read: ServerRead, cut: CutStep) -> bool:
    """Return whether arguments decide which rows are read."""
    if cut.rows is None or not read.is_of_rows:
        return False
    indices = cut.rows.outputs[[r for r in cut.reads if r.is_of_rows].index(read)]
    return indices in reachable(uses(cut.rows), cut.rows.inputs)


def _of_update(worker: _Worker, update: Update) -> Iterator[LostWrite]:
    found = False
    for position, variable in enumerate(update.variables):
        after = worker.computed_of([variable])
        old = [(i, sent) for i, sent in worker.sent_to(update) if sent in after]
        for i, sent in old:  # a single old input can make the new value old
            kinds = [(update.graph.inputs[position], Kind.KEEPS), (i, Kind.OLD)]
            if _kinds(update.graph, kinds)[position] is Kind.OLD:
                yield LostWrite(variable, _line_behind(worker.graph, sent) or update.source)
                found = True
                break
    if not found and (source := _choice_by_state(worker, update)) is not None:
        yield LostWrite(update.variables[0], source, is_chosen=True)


def _choice_by_state(worker: _Worker, update: Update) -> Source | None:
    """Return the user's line of a choice that depends on read variables and on no argument."""
    sent = worker.sent_to(update)
    of_arguments = [i for i, value in sent if value in worker.of_arguments]
    behind = [i for i, value in sent if value in worker.of_state and i not in of_arguments]
    otherwise = reachable(uses(update.graph), of_arguments)
    decides = reachable(uses(update.graph), behind) - otherwise
    nodes = [*walk(worker.graph), *walk(update.graph)]
    made: dict[Operand, Node] = {result: node for node in nodes for result in node.results}
    of_worker: dict[Operand, Operand] = dict(sent)
    for node in walk(update.graph):
        if node.op.name == "jax.mul":
            choosing = [v for v in node.operands if v in decides and _is_mask(v, made, of_worker)]
        else:
            is_choice = node.op is COND or node.op.name == "jax.select_n"
            choosing = [v for v in node.operands[:1] if is_choice and v in decides]
        if choosing and node.results[0].type.size > 1:
            return node.source if node.source.frame else update.source
    return None


def _is_mask(
    value: Operand, made: Mapping[Operand, Node], of_worker: Mapping[Operand, Operand]
) -> bool:
    """Return whether a value is a comparison's result as 0 or 1: a factor that makes a choice."""
    pending = [value]
    while pending:
        found = pending.pop()
        found = of_worker.get(found, found)
        if found.type.dtype == "bool":
            return True
        node = made.get(found)
        if node is not None and node.op.name in _OF_MASKS:
            pending += node.operands
    return False


def _line_behind(graph: Graph, value: Value) -> Source | None:
    """Return the nearest known line at or before a value: functions of JAX may have no line."""
    made, pending = producers(graph), [value]
    for found in pending:
        node = made.get(found)
        if node is not None and node.source.frame is not None:
            return node.source
        operands = () if node is None else node.operands
        pending += [v for v in operands if isinstance(v, Value) and v not in pending]
    return None


def _kinds(graph: Graph, of_inputs: Iterable[tuple[Operand, Kind]]) -> list[Kind]:
    """Return the kind of each output of a graph; an input without a kind is new."""
    kinds = dict(of_inputs)
    for node in graph.nodes:
        kinds.update(zip(node.results, _of_node(node, kinds), strict=True))
    return [kinds.get(output, Kind.NEW) for output in graph.outputs]


def _of_node(node: Node, kinds: Mapping[Operand, Kind]) -> Sequence[Kind]:
    operands = [kinds.get(operand, Kind.NEW) for operand in node.operands]
    name = node.op.name
    if node.op is COND:
        branches = [_kinds(b, zip(b.inputs, operands[1:], strict=True)) for b in node.graphs]
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
_OF_MASKS = ("jax.broadcast_in_dim", "jax.convert_element_type", "jax.mul", "jax.sub")
_WITHOUT_VALUE = frozenset(
    f"jax.{name}" for name in ("eq", "ge", "gt", "is_finite", "le", "lt", "ne", "sign")
)
"""Operations whose results depend on a value but have none of its elements."""
