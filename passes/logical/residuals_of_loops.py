"""Change what forward loops stack for backward loops, and what these compute again.

The part of `choose_residuals` for loops. From the values that gradients are computed from, it goes
back through the operations to values that are kept, and to those that cannot be computed again. The
forward loop stacks these, after it has computed those that only the backward loop had. The backward
loop scans the stacks, and has the operations in between. A stack in the memory of the host is
copied slice by slice. The barriers with which JAX separates what is computed again go: between two
loops there is nothing to separate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from graphdist.ir.analyses import walk
from graphdist.ir.errors import PlanError
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan, ScanEdit
from graphdist.ir.op_parameters import Copying
from graphdist.ir.ops import COPY_TO
from graphdist.ir.residual_loops import ResidualLoops
from graphdist.ir.rewrite import Copier, renewed
from graphdist.ir.value_numbering import returns_operands

_HOST, _DEVICE = Copying("host"), Copying("device")


@dataclass(frozen=True, eq=False)
class StackedValues:
    """Two loops, and the numbers of the values that the first stacks for the second."""

    loops: ResidualLoops
    stacks: tuple[int, ...]
    on_host: frozenset[int]
    """Those of which the stacks are in the memory of the host."""


def refuse_nested(chosen: Collection[StackedValues]) -> None:
    """Raise `PlanError` if the plan changes loops in the body of a loop that it changes, too."""
    changed = {each.loops.backward.node for each in chosen}
    for each in chosen:
        for loop in (each.loops.forward, each.loops.backward):
            for inner in changed.intersection(walk(loop.body)):
                raise PlanError(
                    "the plan names values of a loop, and of a loop in its body: it may name those "
                    "of one of them",
                    source=loop.node.source,
                    other=inner.source,
                )


def with_stacks(graph: Graph, chosen: Mapping[Node, StackedValues], origin: str) -> Graph:
    """Return the graph, nested graphs included, with other stacks for these backward loops."""
    copier = Copier(origin)
    forward: dict[Node, list[StackedValues]] = {}
    for each in chosen.values():
        forward.setdefault(each.loops.forward.node, []).append(each)
    stacks: dict[_Key, Operand] = {}
    for node in graph.nodes:
        if node in forward:
            _stack(node, forward[node], copier, stacks)
        elif node in chosen:
            _BackwardLoop(chosen[node], copier, stacks).rebuild()
        else:
            copier.copy(node, tuple(with_stacks(nested, chosen, origin) for nested in node.graphs))
    return copier.changed(graph)


_Key = tuple[Node, int]
"""A backward loop, and the number of a value that is stacked for it."""


def _stack(
    node: Node, chosen: list[StackedValues], copier: Copier, stacks: dict[_Key, Operand]
) -> None:
    """Add a forward loop that stacks the chosen values for its backward loops."""
    scan = Scan(node, copier.now(node.operands))
    edit = ScanEdit(scan, copier.origin)
    forward = {each: _forward_values(each.loops, edit, copier) for each in chosen}
    _run_forward(scan.body, forward, edit)
    kept = {edit.inside.now((output,))[0]: result for output, result in scan.stacked}
    added: dict[tuple[Operand, bool], int] = {}
    found: dict[_Key, Value | int] = {}
    for each, values in forward.items():
        for number in each.stacks:
            key = each.loops.backward.node, number
            value, is_on_host = values.operand(number), number in each.on_host
            if value in kept and not is_on_host:  # the loop stacks it anyway
                found[key] = kept[value]
                continue
            if (value, is_on_host) not in added:
                added[value, is_on_host] = len(added)
                copy = value
                if is_on_host:
                    (copy,) = edit.inside.add(COPY_TO, (value,), _HOST, at=node)
                edit.add_stacked(copy)
            found[key] = added[value, is_on_host]
    results = edit.finish(copier)
    copier.put(node.results, results[: len(node.results)])
    for key, place in found.items():
        if isinstance(place, int):
            stacks[key] = results[len(node.results) + place]
        else:
            (stacks[key],) = copier.now((place,))


def _forward_values(loops: ResidualLoops, edit: ScanEdit, copier: Copier) -> _Values:
    values = _Values(loops, edit, copier, loops.forward.body.inputs)
    values.known.update(
        {number: value.value for number, value in loops.values.items() if value.is_forward}
    )
    return values


def _run_forward(body: Graph, forward: Mapping[StackedValues, _Values], edit: ScanEdit) -> None:
    """Add the nodes of a forward body, some of them with the further results that are stacked."""
    fuller = {
        node: values
        for each, values in forward.items()
        for node in each.loops.fuller_for(each.stacks)
    }
    for node in body.nodes:
        if node in fuller:
            edit.inside.put(node.results, fuller[node].run(node))
        else:
            edit.inside.copy(node)


class _Values:
    """The forward values in the body of a loop that is rebuilt, computed when asked for."""

    def __init__(
        self, loops: ResidualLoops, edit: ScanEdit, copier: Copier, inputs: Iterable[Value]
    ) -> None:
        self._loops, self._edit, self._copier = loops, edit, copier
        self.known: dict[int, Operand] = {}
        """Operands of the new body, or values of the old body that it has, by their numbers."""
        for value in inputs:
            number = loops.numbers.of(value)
            if number is not None:
                self.known.setdefault(number, value)

    def operand(self, number: int) -> Operand:
        """Return the operand of the new body that has a number."""
        pending = [number]
        while pending:
            latest = pending[-1]
            behind = [each for each in self._behind(latest) if each not in self.known]
            if latest in self.known or not behind:
                pending.pop()
                self._compute(latest)
            else:
                pending += behind
        return self._edit.inside.now((self.known[number],))[0]

    def run(self, node: Node) -> list[Operand]:
        """Add the fuller node in place of a forward node, and return the latter's results."""
        loops = self._loops
        numbers = [number for number in map(loops.numbers.of, node.results) if number is not None]
        for number in numbers:
            del self.known[number]
        return list(map(self.operand, numbers))

    def _behind(self, number: int) -> tuple[int, ...]:
        """Return the numbers of what a forward value is computed from, without literals."""
        if number in self.known or number in self._loops.shared:
            return ()
        loops = self._loops
        node = loops.values[number].node
        return tuple(
            each
            for operand in node.operands
            if type(operand) is Value and (each := loops.numbers.of(operand)) is not None
        )

    def _compute(self, number: int) -> None:
        if number in self.known:
            return
        loops = self._loops
        if number in loops.shared:
            operand, is_scanned = loops.shared[number]
            add = self._edit.add_scanned if is_scanned else self._edit.add_constant
            self.known[number] = add(self._copier.now((operand,))[0])
            return
        node = loops.values[number].node
        operands = [
            self.operand_of(operand) if type(operand) is Value else operand
            for operand in node.operands
        ]
        types = None if node.op.rule else [result.type for result in node.results]
        graphs = tuple(map(renewed, node.graphs))
        results = self._edit.inside.add(
            node.op, operands, node.params, graphs, at=node, types=types
        )
        for old, new in zip(node.results, results, strict=True):
            found = loops.numbers.of(old)
            if found is not None:
                self.known.setdefault(found, new)

    def operand_of(self, value: Value) -> Operand:
        """Return the operand of the new body for a value of one of the old bodies."""
        number = self._loops.numbers.of(value)
        assert number is not None
        return self._edit.inside.now((self.known[number],))[0]


class _BackwardLoop:
    """A backward loop that is rebuilt: it scans the chosen stacks, and computes what is needed."""

    def __init__(
        self, chosen: StackedValues, copier: Copier, stacks: Mapping[_Key, Operand]
    ) -> None:
        loops = chosen.loops
        self._loops, self._copier = loops, copier
        self._scan = Scan(loops.backward.node, copier.now(loops.backward.node.operands))
        self._edit = ScanEdit(self._scan, copier.origin)
        dropped = {value for operand, value in loops.backward.scanned if operand in loops.stacks}
        self._edit.drop(dropped)
        inputs = (value for value in loops.backward.body.inputs if value not in dropped)
        self._values = _Values(loops, self._edit, copier, inputs)
        for output, _ in loops.forward.stacked:
            if type(output) is not Value and (number := loops.numbers.of(output)) is not None:
                self._values.known[number] = output
        for number in chosen.stacks:
            value = loops.value_of(number)
            stack = stacks[loops.backward.node, number]
            slice: Operand = self._edit.add_scanned(stack, value.hint)
            if number in chosen.on_host:
                source = loops.backward.node.source
                (slice,) = self._edit.inside.add(COPY_TO, (slice,), _DEVICE, at=source)
            self._values.known[number] = slice

    def rebuild(self) -> None:
        """Add the loop to the graph."""
        inside, body = self._edit.inside, self._loops.backward.body
        for node in body.nodes:
            if returns_operands(node):
                for operand, result in zip(node.operands, node.results, strict=True):
                    if self._loops.numbers.of(result) is None:  # else it is had when it is read
                        inside.put((result,), inside.now((operand,)))
            elif node not in self._loops.repeated:
                self._require(node.operands)
                inside.copy(node)
        self._require(body.outputs)
        results = self._edit.finish(self._copier)
        self._copier.put(self._loops.backward.node.results, results)

    def _require(self, operands: tuple[Operand, ...]) -> None:
        """Compute the forward values among these operands in the new body."""
        for operand in operands:
            if type(operand) is Value and operand not in self._edit.environment:
                new = self._operand(operand)
                if new is not operand:
                    self._edit.environment[operand] = new

    def _operand(self, operand: Operand) -> Operand:
        """Return the operand of the new body for one of the old."""
        inside, numbers = self._edit.inside, self._loops.numbers
        number = numbers.of(operand) if type(operand) is Value else None
        if number is None or operand in inside.environment:
            return inside.now((operand,))[0]
        return self._values.operand(number)
