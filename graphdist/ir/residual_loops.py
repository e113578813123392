"""The values of the forward pass that the backward pass of a loop needs, and how it gets them.

JAX differentiates a `scan` into two: a loop that runs forward and stacks residuals, and a reversed
loop that scans them. What `jax.checkpoint` does not save, the body of the reversed loop computes
again. Value numbering (`value_numbering.py`) finds which values of the two bodies are equal in an
iteration. Both bodies share

* the constants and the scanned operands of the loops, if they are there when the forward loop
  begins: equal operands, equal inputs of the bodies;
* the residuals: an input of the backward body has the number of the output that was stacked.

From there the numbers follow for all nodes of the forward body, and for those of the backward body
that depend on no gradient. These nodes together are the *forward values*: whatever the program
does now, each of them may be stacked by the forward loop, or computed in the backward loop. A carry
of the forward loop and the result of an effect cannot be computed again.

A loop or a `cond` of the forward body often stands in the backward body with further results, for
the gradients. All of them are then values of that fuller node, which may take the place of the
other one in the forward body, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from graphdist.ir.analyses import kept_analysis, producer_of, walk
from graphdist.ir.forward_values import ForwardValue, ForwardValues
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan, Taken
from graphdist.ir.ops import SCAN
from graphdist.ir.source import Source
from graphdist.ir.value_names import ValueName, text_of_name
from graphdist.ir.value_numbering import ValueNumbers, is_repeatable, returns_operands


@dataclass(eq=False)
class ResidualLoops(ForwardValues):
    """A loop that runs forward, the reversed loop that scans its residuals, and their values."""

    forward: Scan = field(kw_only=True)
    backward: Scan = field(kw_only=True)
    shared: dict[int, tuple[Operand, bool]] = field(default_factory=dict)
    """Operands of the loops by the number of the body's input, and whether they are scanned."""
    repeated: set[Node] = field(default_factory=set)
    """The nodes of the backward body that depend on no gradient."""
    fuller: dict[Node, Node] = field(default_factory=dict)
    """Nodes of the backward body with the results of a forward node, and others, by the latter."""

    @property
    def source(self) -> Source:
        """Return the lines of the forward loop."""
        return self.forward.node.source

    @property
    def iterations(self) -> int:
        """Return the number of iterations of the loops."""
        return self.forward.length

    @property
    def forward_nodes(self) -> tuple[Node, ...]:
        """Return the nodes of the forward body."""
        return self.forward.body.nodes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of both bodies."""
        return (*self.forward.body.nodes, *self.backward.body.nodes)

    def runs_forward(self, value: ForwardValue) -> bool:
        """Return whether the forward loop has the value, or gets it with a fuller node."""
        return value.is_forward or value.node in self.fuller.values()

    @cached_property
    def stacks(self) -> dict[Value, int]:
        """Return the stacks that the backward loop scans now, with the numbers of their slices."""
        numbers = {result: self.numbers.of(output) for output, result in self.forward.stacked}
        scanned = {operand for operand, _ in self.backward.scanned}
        return {
            stack: number
            for stack, number in numbers.items()
            if number is not None and stack in scanned
        }

    @property
    def stacked(self) -> set[int]:
        """Return the numbers of the values that the backward loop scans now."""
        return set(self.stacks.values())

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """Return the numbers of the forward values that gradients are computed from, in order."""
        body = self.backward.body
        read = [
            operand
            for node in body.nodes
            if node not in self.repeated and not returns_operands(node)
            for operand in node.operands
        ]
        numbers = (self.numbers.of(each) for each in (*read, *body.outputs) if type(each) is Value)
        return tuple(dict.fromkeys(each for each in numbers if each is not None))

    def fuller_for(self, stacks: Iterable[int]) -> set[Node]:
        """Return the nodes of the forward body that stacks need with their further results."""
        pending, seen = list(stacks), set[int]()
        while pending:
            number = pending.pop()
            value = self.values.get(number)
            if number not in seen and value is not None and not value.is_forward:
                seen.add(number)
                pending += value.operands
        needed = {self.values[number].node for number in seen}
        return {node for node, fuller in self.fuller.items() if fuller in needed}


def outermost_loops(graph: Graph) -> tuple[ResidualLoops, ...]:
    """Return the residual loops that are in no body of others."""
    found = residual_loops(graph)
    nested = {
        node
        for loops in found
        for loop in (loops.forward, loops.backward)
        for node in walk(loop.body)
    }
    return tuple(loops for loops in found if loops.backward.node not in nested)


@kept_analysis
def residual_loops(graph: Graph) -> tuple[ResidualLoops, ...]:
    """Return the loops of a graph and of its nested graphs whose residuals may be chosen.

    The names of values are counted over all of them.
    """
    counts: Counter[str] = Counter()
    return tuple(_found(graph, counts))


def _found(graph: Graph, counts: Counter[str]) -> Iterator[ResidualLoops]:
    for node in graph.nodes:
        if node.op is SCAN and (forward := _forward_loop(Scan(node), graph)) is not None:
            yield _numbered(forward, Scan(node), graph, counts)
    for node in graph.nodes:
        for nested in node.graphs:
            yield from _found(nested, counts)


def _forward_loop(backward: Scan, graph: Graph) -> Scan | None:
    """Return the loop whose stacked results a loop scans in reverse; None if there is none."""
    for operand, _ in backward.scanned:
        node = producer_of(operand, graph)
        if node is None or node.op is not SCAN:
            continue
        forward = Scan(node)
        is_stacked = any(result is operand for _, result in forward.stacked)
        is_reversed = forward.params.reverse != backward.params.reverse
        if is_stacked and is_reversed and forward.length == backward.length:
            return forward
    return None


def _numbered(forward: Scan, backward: Scan, graph: Graph, counts: Counter[str]) -> ResidualLoops:
    loops = ResidualLoops(ValueNumbers(), forward=forward, backward=backward)
    outside = _Outside(graph, loops.numbers)
    for taken in forward.constants:
        _share(loops, taken, outside, is_scanned=False)
    for taken in forward.scanned:
        _share(loops, taken, outside, is_scanned=True)
    carries = [carry.value for carry in forward.carries]
    loops.numbers.add_new(carries)
    loops.carried.update({loops.numbers.keyed(value): value for value in carries})
    for node in forward.body.nodes:
        loops.numbers.add(node)
    stacks = {result: output for output, result in forward.stacked}
    late = _made_behind(forward.node, graph)
    for taken in backward.constants:
        if taken.operand not in late:
            _share(loops, taken, outside, is_scanned=False)
    for taken in backward.scanned:
        output = stacks.get(taken.operand)  # type: ignore[arg-type]  # a literal is no stack
        if output is None and taken.operand not in late:
            _share(loops, taken, outside, is_scanned=True)
        elif output is not None and (number := loops.numbers.of(output)) is not None:
            loops.numbers.set(taken.value, number)
    for node in backward.body.nodes:
        if returns_operands(node):
            loops.numbers.pass_on(node)
        elif is_repeatable(node) and None not in map(loops.numbers.of, node.operands):
            loops.repeated.add(node)
            loops.numbers.add(node)
    _name(loops, counts)
    return loops


def _name(loops: ResidualLoops, counts: Counter[str]) -> None:
    """Fill in the forward values and their names, which are counted in the order of the bodies."""
    labels = loops.numbers.labels(loops.nodes)
    for number, value in loops.carried.items():
        text = labels.get(number) or value.hint or "carry"
        loops.carried_names[number] = _counted(text, counts)
    for node in loops.forward.body.nodes:
        _add(loops, node, labels, counts, is_forward=True)
    for node in loops.backward.body.nodes:
        if node in loops.repeated:
            _add(loops, node, labels, counts, is_forward=False)
            if node.graphs:
                _prefer(loops, node)


def _made_behind(node: Node, graph: Graph) -> set[Operand]:
    """Return the results of a node of the graph and of all nodes behind it."""
    later = graph.nodes[graph.nodes.index(node) :]
    return {result for each in later for result in each.results}


def _share(loops: ResidualLoops, taken: Taken, outside: _Outside, *, is_scanned: bool) -> None:
    """Give an input of a body the number of the operand outside the loops that it stands for."""
    number = outside.number(taken.operand)
    if is_scanned:
        number = loops.numbers.keyed(("slice", number))
    loops.numbers.set(taken.value, number)
    loops.shared.setdefault(number, (taken.operand, is_scanned))


def _add(
    loops: ResidualLoops,
    node: Node,
    labels: Mapping[int, str],
    counts: Counter[str],
    *,
    is_forward: bool,
) -> None:
    if returns_operands(node):
        return
    operands = _numbers_of_operands(loops, node)
    for index, result in enumerate(node.results):
        number = loops.numbers.of(result)
        if number is None or number in loops.values or number in loops.shared:
            continue
        name = _counted(text_of_name(node, labels.get(number)), counts)
        loops.values[number] = ForwardValue(number, result, node, index, operands, name, is_forward)


def _prefer(loops: ResidualLoops, node: Node) -> None:
    """Take forward values from a node of the backward body that has them with further results.

    Its operands must be there when the forward node runs.
    """
    found = {loops.numbers.of(result): index for index, result in enumerate(node.results)}
    operands, ready = _numbers_of_operands(loops, node), _first_places(loops)
    begin = max((ready.get(number, -1) for number in operands), default=-1)
    for other in loops.forward.body.nodes:
        own = [n for n in map(loops.numbers.of, other.results) if n is not None]
        is_part = other.op is node.op and found.keys() > set(own)
        if is_part and other not in loops.fuller and begin < min(ready[number] for number in own):
            loops.fuller[other] = node
            for number in own:
                value = loops.values[number]
                loops.values[number] = replace(
                    value, node=node, index=found[number], operands=operands
                )


def _first_places(loops: ResidualLoops) -> dict[int, int]:
    """Return the place in the forward body behind which each value may be computed."""
    places: dict[int, int] = {}
    for place, (number, value) in enumerate(loops.values.items()):
        behind = (places.get(operand, -1) for operand in value.operands)
        places[number] = place if value.is_forward else max(behind, default=-1)
    return places


def _numbers_of_operands(loops: ResidualLoops, node: Node) -> tuple[int, ...]:
    return tuple(n for n in map(loops.numbers.of, node.operands) if n is not None)


def _counted(text: str, counts: Counter[str]) -> ValueName:
    counts[text] += 1
    return ValueName(text, counts[text])


class _Outside:
    """The numbers of values outside the loops, which are numbered when they are asked for."""

    def __init__(self, graph: Graph, numbers: ValueNumbers) -> None:
        self._graph, self._numbers = graph, numbers

    def number(self, operand: Operand) -> int:
        pending: list[Operand] = [operand]
        while pending:
            value = pending[-1]
            node = producer_of(value, self._graph)
            if self._numbers.of(value) is not None:
                pending.pop()
            elif type(value) is Value and (node is None or node.graphs or not is_repeatable(node)):
                self._numbers.add_new([value])
            else:
                assert node is not None
                behind = [each for each in node.operands if self._numbers.of(each) is None]
                if behind:
                    pending += behind
                else:
                    self._numbers.add(node)
        number = self._numbers.of(operand)
        assert number is not None
        return number
