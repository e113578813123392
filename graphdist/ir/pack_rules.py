"""The type rules of packs: values of one dtype, flattened and joined to one dimension."""

from __future__ import annotations

from collections.abc import Sequence

from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graphs, Types
from graphdist.ir.op_parameters import PackingSlices, Unpacking, UnpackingSlices
from graphdist.ir.parameters import Parameters
from graphdist.ir.shape_rules import part_length
from graphdist.ir.types import Type, join, sharded


def pack_rule(types: Types, params: Parameters, graphs: Graphs) -> Types:
    """Return the type of values that are flattened and joined."""
    dtypes = {type.dtype for type in types}
    if len(dtypes) != 1:
        raise TypeRuleError(f"pack takes operands of one dtype, not {sorted(dtypes)}")
    size = sum(type.size for type in types)
    return (Type(types[0].dtype, (size,), join(type.layout for type in types)),)


def unpack_rule(type: Type, params: Unpacking) -> Types:
    """Return the types of the pieces of a pack, or of their shards."""
    pieces = _pieces(type, params.shapes)
    if params.axes:
        slices = [sharded(axis, params.over) for axis in params.axes]
        pieces = tuple(map(Type.with_layout, pieces, slices))
    return pieces


def _pieces(type: Type, shapes: Sequence[tuple[int, ...]]) -> tuple[Type, ...]:
    pieces = tuple(map(type.shaped, shapes))
    if len(type.shape) != 1 or sum(piece.size for piece in pieces) != type.size:
        raise TypeRuleError(
            f"unpack of {type} into {sum(piece.size for piece in pieces)} elements: {shapes}"
        )
    return pieces


def pack_slices_rule(
    types: Types, params: PackingSlices | UnpackingSlices, graphs: Graphs
) -> Types:
    """Return the type of values of which all first shards are packed before all second ones."""
    if len(params.axes) != len(types):
        raise TypeRuleError(
            f"pack_slices of {len(types)} operands along {len(params.axes)} dimensions"
        )
    for type, axis in zip(types, params.axes, strict=True):
        part_length(type, axis, params.group_size, "pack_slices", "replicas")
    return pack_rule(types, params, graphs)


def unpack_slices_rule(type: Type, params: UnpackingSlices) -> Types:
    """Return the types of the full values of such a pack."""
    pieces = _pieces(type, params.shapes)
    pack_slices_rule(pieces, params, ())
    return pieces
