"""The memory of a step with sharded variables, by its large parts, counted on the graph.

The sum can be compared with the compiler's peak. The peak is higher by short-lived values, such as
products inside a layer and unsharded gradients before they are scattered. The peak is lower if the
compiler writes a layer into the buffer of the previous layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

from graphdist.ir.analyses import producers, users
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan
from graphdist.ir.ops import ALL_GATHER, REDUCE_SCATTER, SCAN, TAKE_PART


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """The large parts of a device's memory, in bytes."""

    variables: int
    """Parameters and slots, sharded or unsharded."""
    gradients: int
    """The shards of gradients."""
    saved: int
    """The values that loops save for the backward pass, such as the inputs of layers."""
    full: int
    """The largest size of the unsharded values in a loop: parameters that an iteration gathers for
    itself or ahead for the next iteration, parameters gathered before the loop, and gradients that
    the loop adds up."""

    @property
    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(astuple(self))


def memory_parts(graph: Graph) -> MemoryParts:
    """Return the parts of the memory that the graph of a device needs."""
    return MemoryParts(
        variables=sum(variable.held(graph.mesh).bytes for variable in graph.variables),
        gradients=_bytes(value for node in graph.nodes for value in _slices_of_gradients(node)),
        saved=_saved_bytes(graph),
        full=_full_in_loops(graph) or _bytes(_gathers(graph).difference(graph.outputs)),
    )


def _bytes(values: Iterable[Operand]) -> int:
    return sum(value.type.bytes for value in values)


def _slices_of_gradients(node: Node) -> Iterator[Value]:
    if node.op is REDUCE_SCATTER:
        yield from node.results
    elif node.op is SCAN:
        yield from filter(_is_slice, node.results)


def _saved_bytes(graph: Graph) -> int:
    """Return the bytes that loops save for later loops, with the most that a loop's body saves."""
    own = _bytes(
        result
        for node in graph.nodes
        if node.op is SCAN
        for result in node.results
        if not _is_slice(result) and any(map(_is_loop, users(graph).get(result, ())))
    )
    bodies = (node.graphs[0] for node in filter(_is_loop, graph.nodes))
    return own + max(map(_saved_bytes, bodies), default=0)


def _is_loop(node: Node) -> bool:
    """Return whether a node is a loop of the program, not a loop over parts of a gradient."""
    return node.op is SCAN and not _scatters(node)


def _is_slice(value: Value) -> bool:
    layout = value.type.layout
    return layout is not None and layout.dimension is not None


def _full_in_loops(graph: Graph) -> int:
    """Return the largest size of unsharded values in a loop of the graph."""
    gathered = _gathers(graph)
    scattered = set(_sums(graph))
    most = 0
    for node in filter(_is_loop, graph.nodes):
        constants = (taken.operand for taken in Scan(node).constants)
        around = gathered.intersection(constants) | scattered.intersection(node.results)
        within = max(_gathered(node.graphs[0]), _full_in_loops(node.graphs[0]))
        most = max(most, _bytes(around) + within)
    return most


def _sums(graph: Graph) -> Iterator[Value]:
    """Yield each result of a loop that a later node reduce_scatters.

    Nodes with one operand, such as conversions, may stand between.
    """
    makers = producers(graph)
    for node in filter(_scatters, graph.nodes):
        for value in node.operands:
            while value in makers and len(makers[value].operands) == 1:
                (value,) = makers[value].operands
            if value in makers and makers[value].op is SCAN:
                yield value


def _scatters(node: Node) -> bool:
    """Return whether a node reduce-scatters a gradient, at once or part by part."""
    if node.op is SCAN:
        return any(inner.op is TAKE_PART for inner in node.graphs[0].nodes)
    return node.op is REDUCE_SCATTER


def _gathered(body: Graph) -> int:
    """Return the bytes that an iteration gathers for itself and for the next iteration."""
    made = _gathers(body)
    return _bytes(made) + _bytes(made.intersection(body.outputs))


def _gathers(graph: Graph) -> set[Value]:
    """Return the results of the all_gathers of a graph, without those in loops and branches."""
    return {node.results[0] for node in graph.nodes if node.op is ALL_GATHER}
