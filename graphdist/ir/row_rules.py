"""The type rules of the operations that read and write rows of a value which is held in shards.

The shards are those of the cores of a replica, or of the replicas of a group. What the cores do is
alike on all replicas; what the replicas do differs.
"""

from __future__ import annotations

from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graphs, Types
from graphdist.ir.op_parameters import (
    AlongAxis,
    Indexing,
    IndexingOnCore,
    IndexingOnReplica,
    KeepingRows,
    KeepingRowsOfCore,
    KeepingRowsOfReplica,
)
from graphdist.ir.types import PER_REPLICA, Type, is_integer, join, sharded


def index_on_core_rule(type: Type, params: IndexingOnCore) -> Types:
    """Return the type of rows of indices."""
    return (_rows_of_indices(type, params, "index_on_core"),)


def index_on_replica_rule(type: Type, params: IndexingOnReplica) -> Types:
    """Return the type of rows of indices, which differ between the replicas of a group."""
    return (_rows_of_indices(type, params, "index_on_replica").with_layout(PER_REPLICA),)


def _rows_of_indices(type: Type, params: Indexing, name: str) -> Type:
    if not is_integer(type.dtype) or not type.shape or params.component >= type.shape[-1]:
        raise TypeRuleError(f"{name} of {type}: it takes rows of integers")
    return type


def keep_rows_of_core_rule(types: Types, params: KeepingRowsOfCore, graphs: Graphs) -> Types:
    """Return the type of what is kept of a value."""
    return (_kept_rows(types, params, "keep_rows_of_core"),)


def keep_rows_of_replica_rule(types: Types, params: KeepingRowsOfReplica, graphs: Graphs) -> Types:
    """Return the type of what is kept of a value: a term of each replica."""
    return (_kept_rows(types, params, "keep_rows_of_replica").with_layout(PER_REPLICA),)


def _kept_rows(types: Types, params: KeepingRows, name: str) -> Type:
    if len(types) != 2:
        raise TypeRuleError(f"{name} takes 2 operands, not {len(types)}")
    value, indices = types
    rows = tuple(size for dim, size in enumerate(value.shape) if dim not in params.offset_dims)
    if rows != indices.shape[:-1]:
        raise TypeRuleError(f"{name} of {value} for indices {indices}")
    return value.with_layout(join((value.layout, indices.layout)))


def as_shard_rule(type: Type, params: AlongAxis) -> Types:
    """Return the type of a shard that each replica has computed by itself."""
    if not 0 <= params.axis < len(type.shape):
        raise TypeRuleError(
            f"as_shard along dimension {params.axis} of {type}, which has {len(type.shape)} "
            "dimensions"
        )
    return (type.with_layout(sharded(params.axis, params.mesh.axis)),)
