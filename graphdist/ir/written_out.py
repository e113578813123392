"""The values of a forward pass that a backward pass in the same graph needs, outside of loops.

Without a `scan` over its layers a step has both passes in one graph. What `jax.checkpoint` does not
save stands there twice. Three kinds of nodes are told apart:

* *Backward*: JAX made the node when it transposed a function. JAX notes that in the name stack of
  each equation, under `jax.grad`, `jax.vjp` and whatever calls them, and nodes keep it
  (`Source.is_transposed`). What depends on a result of such a node depends on a gradient.
* *Repeated*: the node depends on no gradient, and `jax.checkpoint` computes it again for the
  backward pass (`Source.is_replayed`).
* *Forward*: all other nodes that depend on no gradient.

The numbers of the values (`value_numbering.py`) show which repeated values are those of forward
nodes. The values of both are the *forward values*; those that backward nodes read are needed.
Whatever is said of a node, to compute a value again gives the same value: a wrong kind costs time
or memory, and no bit of a result. Inputs, variables, effects, and the loops whose own residuals are
chosen are there for both passes.

Layers that Python's `for` runs are one place of the program. The values of a place, which have the
same lines on the whole stack of calls, operation, type, and index among the results of their nodes,
have one name. So have values to which the program gives one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from graphdist.ir.analyses import kept_analysis, walk
from graphdist.ir.forward_values import ForwardValue, ForwardValues
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import ASSIGN, READ, variable_named_by
from graphdist.ir.residual_loops import residual_loops
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.value_names import ValueName, text_of_name
from graphdist.ir.value_numbering import ValueNumbers, is_repeatable, returns_operands


@dataclass(eq=False)
class WrittenOut(ForwardValues):
    """The forward and the backward pass that stand in one graph, and the forward values."""

    graph: Graph = field(kw_only=True)
    backward: set[Node] = field(default_factory=set)
    """The nodes of the backward pass, and loops that are computed again as they stand."""
    repeated: set[Node] = field(default_factory=set)
    """The nodes that depend on no gradient, and are computed again for the backward pass."""
    passed: set[Node] = field(default_factory=set)
    """The nodes of the backward pass whose results are their operands."""
    there: dict[int, Value] = field(default_factory=dict)
    """What both passes have anyway, by its number."""

    @property
    def source(self) -> Source:
        """Return the lines of the first node of the backward pass."""
        return next((n.source for n in self.graph.nodes if n in self.backward), UNKNOWN)

    @property
    def iterations(self) -> int:
        """Return 1: no loop repeats the values."""
        return 1

    @property
    def forward_nodes(self) -> tuple[Node, ...]:
        """Return the nodes that compute forward values for the first time."""
        return tuple(dict.fromkeys(v.node for v in self.values.values() if v.is_forward))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of the graph."""
        return self.graph.nodes

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """Return the numbers of the forward values that backward nodes read, in order."""
        read = (o for node in self.graph.nodes if node in self.backward for o in node.operands)
        numbers = (self.numbers.of(operand) for operand in read if type(operand) is Value)
        return tuple(dict.fromkeys(n for n in numbers if n is not None and n in self.values))

    @cached_property
    def stacked(self) -> set[int]:
        """Return the numbers of the values that the backward pass reads from forward nodes."""
        origins: dict[Operand, Operand] = {}
        made, found = set[Operand](), set[int]()
        for node in self.graph.nodes:
            if returns_operands(node):
                for operand, result in zip(node.operands, node.results, strict=True):
                    origins[result] = origins.get(operand, operand)
            elif node in self.backward or node in self.repeated:
                for operand in node.operands:
                    number = self.numbers.of(operand) if type(operand) is Value else None
                    if number in self.values and origins.get(operand, operand) in made:
                        found.add(number)
            else:
                made.update(node.results)
        return found


@kept_analysis
def written_out(graph: Graph) -> tuple[WrittenOut, ...]:
    """Return the passes that stand in a graph, or in a nested one, outside of residual loops."""
    loops = {
        node for each in residual_loops(graph) for node in (each.forward.node, each.backward.node)
    }
    found = tuple(_found(graph, loops))
    _name(found)
    return found


def _found(graph: Graph, loops: set[Node]) -> Iterator[WrittenOut]:
    passes = WrittenOut(ValueNumbers(), graph=graph)
    _number(passes, loops)
    if passes.backward and passes.values:
        yield passes
    for node in graph.nodes:
        if node not in loops:
            for nested in node.graphs:
                yield from _found(nested, loops)


def _number(passes: WrittenOut, loops: set[Node]) -> None:
    """Tell the kinds of nodes apart, and number the values that depend on no gradient."""
    numbers, versions = passes.numbers, dict[str, int]()
    numbers.add_new(passes.graph.inputs)
    _have(passes, passes.graph.inputs)
    for node in passes.graph.nodes:
        source, is_known = node.source, None not in map(numbers.of, node.operands)
        if returns_operands(node):
            numbers.pass_on(node)
            if source.is_transposed:
                passes.passed.add(node)
        elif not is_known or (source.is_transposed and not source.is_replayed):
            if source.is_transposed:
                passes.backward.add(node)
        elif node.op is READ:
            name = variable_named_by(node).name
            numbers.set(node.results[0], numbers.keyed(("read", name, versions.get(name, 0))))
            _have(passes, node.results)
        elif node in loops or not is_repeatable(node):
            if node in loops and source.is_replayed:
                passes.backward.add(node)
                numbers.add(node)
            else:
                numbers.add_new(node.results)
            _have(passes, node.results)
        else:
            numbers.add(node)
            _add(passes, node)
        for each in (node, *(inner for nested in node.graphs for inner in walk(nested))):
            if each.op is ASSIGN:
                name = variable_named_by(each).name
                versions[name] = versions.get(name, 0) + 1


def _have(passes: WrittenOut, values: tuple[Value, ...]) -> None:
    for value in values:
        number = passes.numbers.of(value)
        if number is not None and number not in passes.values:
            passes.there.setdefault(number, value)


def _add(passes: WrittenOut, node: Node) -> None:
    """Add the forward values of a node, whose names follow."""
    if node.source.is_replayed:
        passes.repeated.add(node)
    operands = tuple(n for n in map(passes.numbers.of, node.operands) if n is not None)
    for index, result in enumerate(node.results):
        number = passes.numbers.of(result)
        if number is not None and number not in passes.values and number not in passes.there:
            passes.values[number] = ForwardValue(
                number, result, node, index, operands, ValueName(""), node not in passes.repeated
            )


def _name(found: tuple[WrittenOut, ...]) -> None:
    """Name the forward values: one name for those of one place of the program."""
    places: dict[str, dict[Hashable, int]] = {}
    for passes in found:
        labels = passes.numbers.labels(passes.graph.nodes)
        for number, value in passes.values.items():
            label, node, type = labels.get(number), value.node, value.value.type
            text = text_of_name(node, label)
            place: Hashable = (node.source.frames, type.dtype, type.shape, value.index)
            counts = places.setdefault(text, {})
            count = counts.setdefault(None if label else place, len(counts) + 1)
            passes.values[number] = replace(value, name=ValueName(text, count))
