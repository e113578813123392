"""The type rules of the operations over the cores of a replica.

Shapes are those on a core. What each core of a replica holds is like the operand between replicas:
the cores of one index in all replicas hold values of the operand's layout.
"""

from __future__ import annotations

from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graphs, Types
from graphdist.ir.op_parameters import (
    AlongAxisOverCores,
    ExchangingBorders,
    ExchangingOverCores,
    OrderingBlocks,
    OverCores,
    ReducingOverCores,
    RotatingOverCores,
    SlicingAhead,
    SplittingOverCores,
)
from graphdist.ir.shape_rules import of_length, part_length
from graphdist.ir.types import MIRRORED, Type, join


def core_id_rule(types: Types, params: OverCores, graphs: Graphs) -> Types:
    """Return the type of the index of a core."""
    return (Type("i32", (), MIRRORED),)


def split_over_cores_rule(type: Type, params: SplittingOverCores) -> Types:
    """Return the type of a value that the user splits."""
    if params.axis is not None:
        _shard_of_core(type, params.axis, params, "split_over_cores")
    return (type,)


def all_reduce_over_cores_rule(type: Type, params: ReducingOverCores) -> Types:
    """Return the type of a reduction over cores."""
    if type.dtype.startswith("key") or (type.dtype == "bool" and params.reducer == "sum"):
        raise TypeRuleError(f"all_reduce_over_cores by {params.reducer} is not defined for {type}")
    return (type,)


def reduce_scatter_over_cores_rule(type: Type, params: AlongAxisOverCores) -> Types:
    """Return the type of a core's shard of a sum."""
    return (_shard_of_core(type, params.axis, params, "reduce_scatter_over_cores"),)


def slice_of_core_rule(type: Type, params: AlongAxisOverCores) -> Types:
    """Return the type of a core's shard of a value."""
    return (_shard_of_core(type, params.axis, params, "slice_of_core"),)


def ordering_rule(type: Type, params: OrderingBlocks) -> Types:
    """Return the type of a value whose blocks are put in the order of cores, or back."""
    axis, blocks = params.axis, params.blocks
    if not 0 <= axis < len(type.shape) or sum(blocks) != type.shape[axis]:
        raise TypeRuleError(f"blocks of {blocks} elements along dimension {axis} of {type}")
    if any(size % params.num_cores for size in blocks):
        raise TypeRuleError(f"{params.num_cores} cores do not divide blocks of {blocks} elements")
    return (of_length(type, axis, type.shape[axis]),)


def all_gather_over_cores_rule(type: Type, params: AlongAxisOverCores) -> Types:
    """Return the type of the joined shards of all cores."""
    if not 0 <= params.axis < len(type.shape):
        raise TypeRuleError(f"all_gather_over_cores along dimension {params.axis} of {type}")
    return (of_length(type, params.axis, type.shape[params.axis] * params.num_cores),)


def all_to_all_over_cores_rule(type: Type, params: ExchangingOverCores) -> Types:
    """Return the type of shards along another dimension."""
    part = _shard_of_core(type, params.split_axis, params, "all_to_all_over_cores")
    if not 0 <= params.concat_axis < len(type.shape) or params.concat_axis == params.split_axis:
        raise TypeRuleError(f"all_to_all_over_cores of {type} joins along {params.concat_axis}")
    joined = part.shape[params.concat_axis] * params.num_cores
    return (of_length(part, params.concat_axis, joined),)


def _shard_of_core(type: Type, axis: int, params: OverCores, name: str) -> Type:
    """Return the type of a core's shard.

    The shards of cores are not those of replicas. So a value that is sharded over replicas along
    this dimension becomes per replica.
    """
    return of_length(type, axis, part_length(type, axis, params.num_cores, name, "cores"))


def rotate_over_cores_rule(type: Type, params: RotatingOverCores) -> Types:
    """Return the type of another core's value."""
    return (type,)


def slice_ahead_rule(type: Type, params: SlicingAhead) -> Types:
    """Return the type of another core's shard of a value."""
    return (_shard_of_core(type, params.axis, params, "slice_ahead"),)


def join_ahead_rule(types: Types, params: AlongAxisOverCores, graphs: Graphs) -> Types:
    """Return the type of the joined shards of all cores, of which the first is the core's own."""
    first, axis = types[0], params.axis
    if len(types) != params.num_cores or not 0 <= axis < len(first.shape):
        raise TypeRuleError(f"join_ahead of {len(types)} shards {first} along dimension {axis}")
    if any((each.dtype, each.shape) != (first.dtype, first.shape) for each in types):
        raise TypeRuleError(f"join_ahead of shards of several types: {', '.join(map(str, types))}")
    joined = of_length(first, axis, first.shape[axis] * params.num_cores)
    return (joined.with_layout(join(tuple(each.layout for each in types))),)


def exchange_borders_rule(type: Type, params: ExchangingBorders) -> Types:
    """Return the type of a core's shard with the borders of its neighbours."""
    axis, borders = params.axis, (params.before, params.after)
    if not 0 <= axis < len(type.shape) or not 0 <= min(borders) <= max(borders) <= type.shape[axis]:
        raise TypeRuleError(f"exchange_borders of {type} along {axis}, {borders} elements")
    if params.reducer not in ("sum", "max", "min"):
        raise TypeRuleError(f"exchange_borders for a reduction by {params.reducer!r}")
    return (of_length(type, axis, type.shape[axis] + sum(borders)),)


def add_borders_rule(type: Type, params: ExchangingBorders) -> Types:
    """Return the type of a core's shard, of what the core has for it and for its neighbours."""
    axis, borders = params.axis, (params.before, params.after)
    length = type.shape[axis] - sum(borders) if 0 <= axis < len(type.shape) else 0
    if not 0 <= min(borders) <= max(borders) <= length or params.reducer != "sum":
        raise TypeRuleError(
            f"add_borders of {type} along {axis}, {borders} elements, by {params.reducer}"
        )
    return (of_length(type, axis, length),)
