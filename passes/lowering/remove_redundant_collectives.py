"""Remove collectives of values that are the same on every replica, which no backend of XLA does.

* over R replicas, the mean, max or min of a mirrored value is the value; its sum is R times the
  value;
* an all_gather of a mirrored value is R copies of it, concatenated;
* a result without elements is a constant, and StableHLO has no gather of empty values;
* over one replica every collective is the identity, except a permutation that sends nothing, and
  the replica's id is 0.

Before:  %y = all_reduce(%w) {reducer="sum", group_size=2} : f32[4] mirrored     (%w is mirrored)
After:   %y = scale(%w) {factor=2} : f32[4] mirrored
"""

from __future__ import annotations

import numpy as np

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Node, Operands
from graphdist.ir.op_parameters import Holding, Joining, OverReplicas, Scaling
from graphdist.ir.ops import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    CONCATENATE,
    CONSTANT,
    REDUCE_SCATTER,
    REPLICA_ID,
    SCALE,
    SELECT_REPLICA,
)
from graphdist.ir.rewrite import Answer, rewrite
from graphdist.ir.types import MIRRORED, Type, numpy_dtype

NAME = "remove_redundant_collectives"

_COLLECTIVES = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, COLLECTIVE_PERMUTE, ALL_TO_ALL)
_CANDIDATES = frozenset(op.name for op in (*_COLLECTIVES, REPLICA_ID, SELECT_REPLICA))


def remove_redundant_collectives(graph: Graph) -> Graph:
    """Return the graph without collectives that give replicas nothing new."""
    return rewrite(graph, _remove, NAME, _CANDIDATES)


def _remove(node: Node, operands: Operands, builder: Builder) -> Answer:
    group_size = OverReplicas.of(node).group_size
    if node.op is REPLICA_ID:
        return (Literal.of(0, Type("i32", ())),) if group_size == 1 else None
    if group_size == 1:
        sends = node.op is not COLLECTIVE_PERMUTE or COLLECTIVE_PERMUTE.of(node).pairs
        return operands if sends else None
    type = node.results[0].type
    if not type.size and not type.dtype.startswith("key"):
        nothing = Holding(np.empty(type.shape, numpy_dtype(type.dtype)))
        return builder.add(CONSTANT, (), nothing, at=node)
    if operands[0].type.layout is not MIRRORED:
        return None
    if node.op is ALL_REDUCE:
        if ALL_REDUCE.of(node).reducer != "sum":
            return operands
        return builder.add(SCALE, operands, Scaling(group_size), at=node)
    if node.op is ALL_GATHER:
        params = Joining(ALL_GATHER.of(node).axis)
        return builder.add(CONCATENATE, operands * group_size, params, at=node)
    return None
