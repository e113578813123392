"""Which values should end up in shards, since what they become is stored or split in shards.

The layouts over cores follow the order of the nodes (`split_over_cores.py`). A gradient of which
each core has a term would be reduced in full, if nothing said that its parameter is sharded. So
this analysis goes backwards: the value that is assigned to a sharded variable is wanted in the
variable's shards, the value that the user splits in the shards of the split, and so is what they
are computed from element by element. An optimizer's slots are reached this way, too, and what a
layer adds to activations that the next layer splits. A sum that a loop adds up is wanted in terms,
which are reduced once, behind the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphdist.ir import ops
from graphdist.ir.analyses import producer_of, use_counts
from graphdist.ir.blocks_of_cores import over_cores
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Carry, Scan
from graphdist.ir.operation_table import ELEMENTWISE, factors_of, linear_operands
from graphdist.ir.types import Layout

_ALIKE = (ops.TO_REPLICAS, ops.REDUCE, ops.ALL_REDUCE, ops.AGGREGATE, ops.BARRIER)
_TRANSPOSE = "jax.transpose"


def wanted_layouts(graph: Graph, dimensions: Mapping[str, int | None]) -> dict[Operand, Layout]:
    """Return the layouts over cores that values are wanted in, nested graphs included.

    `dimensions` has the dimension along which each variable is sharded over cores.
    """
    wanted: dict[Operand, Layout] = {}
    _of_graph(graph, dimensions, wanted)
    return wanted


def terms_of_sums(body: Graph, sums: Sequence[Carry]) -> set[Value]:
    """Return what a loop adds to sums, and what that is computed from by linear operations."""
    counts, found = use_counts(body), set[Value]()
    following = [carry.following for carry in sums]
    while following:
        node = producer_of(following.pop(), body)
        if node is None:
            continue
        values = [i for i, operand in enumerate(node.operands) if type(operand) is Value]
        if any(set(values) <= set(together) for together in linear_operands(node)):
            terms = [node.operands[i] for i in values if counts[node.operands[i]] == 1]
            following += terms
            found.update(term for term in terms if type(term) is Value)
    return found


def _of_graph(
    graph: Graph, dimensions: Mapping[str, int | None], wanted: dict[Operand, Layout]
) -> None:
    for node in reversed(graph.nodes):
        if node.op is ops.ASSIGN:
            dimension = dimensions[ops.ASSIGN.of(node).variable.name]
            if dimension is not None:
                _want(node.operands, over_cores(dimension), wanted)
        elif node.op is ops.SPLIT_OVER_CORES:
            axis = ops.SPLIT_OVER_CORES.of(node).axis
            if axis is not None:
                _want(node.operands, over_cores(axis), wanted)
        elif node.op is ops.SCAN:
            _of_scan(node, dimensions, wanted)
        elif node.op is ops.COND:
            for branch in node.graphs:
                _pass_to(branch.outputs, node.results, wanted)
                _of_graph(branch, dimensions, wanted)
        elif node.op in _ALIKE or node.op.is_identity:
            for operand, result in zip(node.operands, node.results, strict=True):
                _pass_to((operand,), (result,), wanted)
        elif node.op.name in ELEMENTWISE or node.op.name == _TRANSPOSE:
            _of_elements(node, wanted)
        else:
            for nested in node.graphs:
                _of_graph(nested, dimensions, wanted)


def _of_elements(node: Node, wanted: dict[Operand, Layout]) -> None:
    (result,) = node.results
    along, factors = wanted[result].dimension if result in wanted else None, factors_of(node)
    if along is None or factors is None:
        return
    factor = factors.results[0][along]
    for operand, dimensions in zip(node.operands, factors.operands, strict=True):
        if factor is not None and factor in dimensions:
            _want((operand,), over_cores(dimensions.index(factor)), wanted)


def _of_scan(
    node: Node, dimensions: Mapping[str, int | None], wanted: dict[Operand, Layout]
) -> None:
    scan = Scan(node)
    for carry in scan.carries:
        _pass_to((carry.first, carry.following), (carry.last, carry.last), wanted)
    for output, result in scan.stacked:
        if result in wanted and (along := wanted[result].dimension):  # not the iterations
            _want((output,), over_cores(along - 1), wanted)
    _of_graph(scan.body, dimensions, wanted)
    new = [
        carry for carry in scan.carries if carry.value in wanted and carry.following not in wanted
    ]
    for carry in scan.carries:
        _pass_to((carry.first, carry.following), (carry.value, carry.value), wanted)
    if new:
        _of_graph(scan.body, dimensions, wanted)


def _pass_to(
    operands: Sequence[Operand], results: Sequence[Operand], wanted: dict[Operand, Layout]
) -> None:
    for operand, result in zip(operands, results, strict=True):
        if result in wanted:
            _want((operand,), wanted[result], wanted)


def _want(operands: Sequence[Operand], layout: Layout, wanted: dict[Operand, Layout]) -> None:
    for operand in operands:
        if type(operand) is Value:
            wanted.setdefault(operand, layout)
