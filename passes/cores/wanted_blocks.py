"""The blocks along a dimension that values should be sharded in (`graphdist.ir.blocks_of_cores`).

They are known where a value is taken apart: by a split, by slices, or by a reshape behind which
there are slices. The analysis goes backwards from there, to what the value is computed from, as far
as the weights. So these are put in order, and not what they are multiplied with.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import TypeAlias

from graphdist.ir import ops
from graphdist.ir.blocks_of_cores import (
    Blocks,
    BlocksOfValues,
    fused_dimensions,
    is_alike,
    scaled,
)
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.jax_parameters import integers, parameter
from graphdist.ir.loops import Scan
from graphdist.ir.operation_table import factors_of

_Found: TypeAlias = dict[tuple[Operand, int], Blocks]


def wanted_blocks(graph: Graph) -> BlocksOfValues:
    """Return the blocks in which values are wanted, nested graphs included."""
    found: _Found = {}
    _of_graph(graph, found)
    return found


def _of_graph(graph: Graph, found: _Found) -> None:
    for node in reversed(graph.nodes):
        if node.op is ops.SCAN:
            _of_scan(Scan(node), found)
            continue
        for nested in node.graphs:
            _of_graph(nested, found)
        for operand, dimension, blocks in (*_taken_apart(node, found), *_passed_on(node, found)):
            _want(operand, dimension, blocks, found)


def _of_scan(scan: Scan, found: _Found) -> None:
    for output, result in scan.stacked:
        for dimension in range(len(output.type.shape)):
            _want(output, dimension, found.get((result, dimension + 1)), found)
    _of_graph(scan.body, found)
    for operand, inside in scan.constants:
        for dimension in range(len(operand.type.shape)):
            _want(operand, dimension, found.get((inside, dimension)), found)


def _want(operand: Operand, dimension: int, blocks: Blocks | None, found: _Found) -> None:
    if blocks is not None and type(operand) is Value:
        others = found.get((operand, dimension), blocks)
        borders = sorted({0, *accumulate(blocks), *accumulate(others)})
        if len(borders) > 2:  # one block is none
            found[operand, dimension] = tuple(end - start for start, end in pairwise(borders))


def _taken_apart(node: Node, found: _Found) -> Iterator[tuple[Operand, int, Blocks]]:
    """Yield the blocks that a node makes of its operand."""
    name = node.op.name
    if name == "jax.split":
        yield node.operands[0], parameter(node, "axis"), integers(node, "sizes")
    elif name == "jax.unstack":
        yield node.operands[0], parameter(node, "axis"), (1,) * len(node.results)
    elif name == "jax.slice":
        (operand,) = node.operands
        starts, limits = integers(node, "start_indices"), integers(node, "limit_indices")
        for dimension, size in enumerate(operand.type.shape):
            borders = sorted({0, starts[dimension], limits[dimension], size})
            if len(borders) > 2 and starts[dimension] < limits[dimension]:
                yield operand, dimension, tuple(end - start for start, end in pairwise(borders))
    elif name == "jax.reshape":
        (operand,), (result,) = node.operands, node.results
        for fused in fused_dimensions(operand.type.shape, result.type.shape):
            if set(found.get((result, fused.parts), ())) == {1}:
                yield operand, fused.whole, fused.blocks


def _passed_on(node: Node, found: _Found) -> Iterator[tuple[Operand, int, Blocks]]:
    """Yield the blocks of operands whose elements become those of results with blocks."""
    factors = factors_of(node) if is_alike(node) else None
    if factors is None:
        return
    for dims, result in zip(factors.results, node.results, strict=True):
        for dimension, factor in enumerate(dims):
            blocks = found.get((result, dimension))
            if blocks is None or factor is None:
                continue
            for own, operand in zip(factors.operands, node.operands, strict=True):
                if factor in own:
                    along = own.index(factor)
                    of_operand = scaled(blocks, operand.type.shape[along])
                    if of_operand is not None:
                        yield operand, along, of_operand
