"""Checks of what `layouts_over_cores` says of a split program, against an interpreted run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from graphdist.ir import ops
from graphdist.ir.analyses import walk
from graphdist.ir.arrays import Held
from graphdist.ir.factor_rules import dimensions_after_reshape
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.interpreter import Evaluate, interpret
from graphdist.ir.layouts_over_cores import layouts_over_cores
from graphdist.ir.types import MIRRORED, Layout, is_partial
from tests.passes.execution import Trial
from tests.properties.exact import check_arrays


def check_layouts_over_cores(split: Graph, trial: Trial, evaluate: Evaluate) -> None:
    """Check that what is said to be the same on each core is, and that exchanges take what fits."""
    found = layouts_over_cores(split)

    def observe(node: Node, _: Sequence[Held], results: Sequence[Held], ran: Sequence[int]) -> None:
        for value, held in zip(node.results, results, strict=True):
            if found[value] is MIRRORED:
                on_cores = zip((device // split.num_cores for device in ran), held, strict=True)
                for _replica, cores in groupby(on_cores, itemgetter(0)):
                    first, *others = (array for _, array in cores)
                    for other in others:
                        check_arrays(first, other, node.op.name)

    interpret(split, trial.arguments, evaluate, trial.state, observe)
    is_clear = not any(_is_open(node, found) for node in walk(split))
    for node in walk(split):
        held = {found[each] for each in node.operands if type(each) is Value} - {None, MIRRORED}
        if node.op is ops.ALL_GATHER_OVER_CORES and is_clear:
            axis = ops.ALL_GATHER_OVER_CORES.of(node).axis
            assert {each and each.dimension for each in held} <= {axis, None}, node
        elif node.op in (ops.ALL_REDUCE_OVER_CORES, ops.REDUCE_SCATTER_OVER_CORES):
            assert all(map(is_partial, held)), node
        elif node.op is ops.SLICE_OF_CORE:
            assert not held, node
    assert all(found[each] is MIRRORED for each in split.outputs if type(each) is Value)


def _is_open(node: Node, found: Mapping[Value, Layout | None]) -> bool:
    """Return whether a reshape leaves open along which dimension its result is sharded."""
    if node.op.name != "jax.reshape" or type(node.operands[0]) is not Value:
        return False
    layout, (result,) = found[node.operands[0]], node.results
    along = layout.dimension if layout is not None else None
    if along is None:
        return False
    shape = node.operands[0].type.shape
    return shape[along] == 1 or len(dimensions_after_reshape(shape, along, result.type.shape)) > 1
