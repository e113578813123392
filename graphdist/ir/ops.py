"""The operations of a graph, each with its type rule.

Three kinds:

* operations of the strategy, in LOGICAL graphs: `read`, `assign`, `aggregate`, `replica_id`,
  `to_replicas`, `reduce`, `gather`, and the collectives, which a replica function may call itself;
* operations that lowering makes: the collectives and a few local operations (`select_replica`,
  `to_partial`, `own_slice`, `random_shard`, `scale`, `pack`, `unpack`, `pack_slices`,
  `unpack_slices`, `concatenate`, `reshape`, `count_step`);
* operations imported from JAX, named `jax.<primitive>`. They keep JAX's primitive and parameters.
  They have no type rule here, so the caller who builds the node states dtypes and shapes.

A type rule maps operand types, parameters and nested graphs to result types, layouts included.
These rules *are* the replication analysis: `passes/logical/infer_layouts.py` adds only the layouts
of the inputs and the fixpoint of loops. A rule raises `TypeRuleError`.

Each operation has a class of parameters (`op_parameters.py`): `ALL_GATHER.of(node).axis`.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdist.ir.control_flow_rules import cond_rule, scan_rule, while_rule
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.factor_rules import dimension_after_reshape
from graphdist.ir.graph import Graph, GraphVariable, Node, Op, TypedOp
from graphdist.ir.mesh import MeshShape
from graphdist.ir.op_parameters import (
    Aggregating,
    AlongAxis,
    Branching,
    CountingSteps,
    Exchanging,
    Gathering,
    Holding,
    Joining,
    Looping,
    OfVariable,
    OverReplicas,
    PackingSlices,
    Permuting,
    RandomBits,
    ReduceScattering,
    Reducing,
    Reshaping,
    Scaling,
    Scanning,
    Selecting,
    TakingPart,
    Unpacking,
    UnpackingSlices,
)
from graphdist.ir.parameters import Parameters
from graphdist.ir.stack_rules import join_parts_rule, take_part_rule, take_step_rule
from graphdist.ir.types import (
    MIRRORED,
    PER_REPLICA,
    Type,
    dtype_name,
    join,
    join_alike,
    own_slice,
    partial,
    sharded,
)

REDUCERS = ("sum", "mean", "max", "min")


def _one(types: Sequence[Type], name: str) -> Type:
    if len(types) != 1:
        raise TypeRuleError(f"{name} takes 1 operand, not {len(types)}")
    return types[0]


def _read(types: Sequence[Type], params: OfVariable, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    return (params.variable.type,)


def _assign(types: Sequence[Type], params: OfVariable, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type, variable = _one(types, "assign"), params.variable
    if (type.dtype, type.shape) != (variable.type.dtype, variable.type.shape):
        raise TypeRuleError(
            f"variable {variable.name!r} is {variable.type}, the value assigned to it is {type}"
        )
    return ()


def _aggregate(
    types: Sequence[Type], params: Aggregating, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type, variable = _one(types, "aggregate"), params.variable
    if type.layout is None:
        return (type,)
    if variable.type.layout is not MIRRORED:
        return (type.with_layout(PER_REPLICA),)
    reduces = params.context == "replica" and variable.aggregation != "none"
    return (type.with_layout(MIRRORED) if reduces else type,)


def _of_each_replica(type: Type, params: OverReplicas) -> tuple[Type, ...]:
    """Return the type with a per-replica layout; mirrored for one replica."""
    return (type.with_layout(MIRRORED if params.group_size == 1 else PER_REPLICA),)


def _replica_id(
    types: Sequence[Type], params: OverReplicas, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    return _of_each_replica(Type("i32", ()), params)


def _to_replicas(
    types: Sequence[Type], params: OverReplicas, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    return (_one(types, "to_replicas"),)


def _check_reducer(type: Type, reducer: str, name: str) -> None:
    if reducer not in REDUCERS:
        raise TypeRuleError(f"{name} reduces by one of {', '.join(REDUCERS)}, not {reducer!r}")
    orders = reducer in ("max", "min")
    if (type.dtype == "bool" and not orders) or type.dtype.startswith("key"):
        raise TypeRuleError(f"{name} by {reducer} is not defined for {type}")
    if reducer == "mean" and type.dtype[0] in "iu":
        raise TypeRuleError(
            f"{name} by mean is not defined for {type}: convert it to a float first"
        )


def _all_reduce(
    types: Sequence[Type], params: Reducing, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type = _one(types, "all_reduce")
    _check_reducer(type, params.reducer, "all_reduce")
    _check_partial(type, params, "all_reduce")
    return (type.with_layout(MIRRORED),)


def _grown(type: Type, axis: int, group_size: int, name: str) -> Type:
    """Return the type with dimension `axis` multiplied by the number of replicas in a group."""
    if not 0 <= axis < len(type.shape):
        raise TypeRuleError(
            f"{name} along dimension {axis} of {type}, which has {len(type.shape)} dimensions"
        )
    shape = (*type.shape[:axis], type.shape[axis] * group_size, *type.shape[axis + 1 :])
    return Type(type.dtype, shape, MIRRORED)


def _all_gather(
    types: Sequence[Type], params: AlongAxis, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type, axis = _one(types, "all_gather"), params.mesh.axis
    held = type.layout
    if held is not None and held.dimension is not None and held.axis != axis:
        raise TypeRuleError(f"all_gather over {axis} of {type}, which is sharded over {held.axis}")
    return (_grown(type, params.axis, params.group_size, "all_gather"),)


def _reduce_scatter(
    types: Sequence[Type], params: ReduceScattering, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type = _one(types, "reduce_scatter")
    if params.reducer not in ("sum", "mean"):
        raise TypeRuleError(f"reduce_scatter is by sum or mean, not by {params.reducer!r}")
    _check_reducer(type, params.reducer, "reduce_scatter")
    _check_partial(type, params, "reduce_scatter")
    return (_slice_of(type, params.axis, params, "reduce_scatter"),)


def _collective_permute(
    types: Sequence[Type], params: Permuting, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type, group_size, pairs = _one(types, "collective_permute"), params.group_size, params.pairs
    for what, ends in zip(("source", "target"), zip(*pairs, strict=True), strict=False):
        outside = [replica for replica in ends if not 0 <= replica < group_size]
        if outside:
            raise TypeRuleError(
                f"collective_permute has replica {outside[0]} as a {what}, of {group_size} replicas"
            )
        if len(set(ends)) != len(ends):
            raise TypeRuleError(
                f"collective_permute has one replica as a {what} twice: {list(pairs)}"
            )
    return _of_each_replica(type, params)


def _all_to_all(
    types: Sequence[Type], params: Exchanging, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type, split, size = _one(types, "all_to_all"), params.split_axis, params.group_size
    _slice_of(type, split, params, "all_to_all")
    part = (*type.shape[:split], type.shape[split] // size, *type.shape[split + 1 :])
    joined = _grown(type.shaped(part), params.concat_axis, size, "all_to_all")
    return _of_each_replica(joined, params)


def _own_slice(
    types: Sequence[Type], params: AlongAxis, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type = _one(types, "own_slice")
    if type.layout not in (MIRRORED, None):
        raise TypeRuleError(f"own_slice of {type}: it takes a mirrored value")
    return (_slice_of(type, params.axis, params, "own_slice"),)


def _random_shard(
    types: Sequence[Type], params: RandomBits, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    key = _one(types, "random_shard")
    if not key.dtype.startswith("key<") or key.shape or key.layout not in (MIRRORED, None):
        raise TypeRuleError(f"random_shard of {key}: it takes one key, the same on all replicas")
    bits = Type(f"u{params.bit_width}", params.shape, MIRRORED)
    return (_slice_of(bits, params.axis, params, "random_shard"),)


def _slice_of(type: Type, axis: int, params: OverReplicas, name: str) -> Type:
    group_size = params.group_size
    if not 0 <= axis < len(type.shape) or type.shape[axis] % group_size:
        raise TypeRuleError(
            f"{name} of {type} along dimension {axis} over {group_size} replicas: "
            f"the dimension does not divide"
        )
    return own_slice(type, axis, params.mesh)


def _constant(types: Sequence[Type], params: Holding, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    value = params.value
    return (Type(dtype_name(value.dtype), tuple(value.shape), MIRRORED),)


def _select_replica(
    types: Sequence[Type], params: Selecting, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    return _of_each_replica(_one(types, "select_replica"), params)


def _to_partial(
    types: Sequence[Type], params: Reducing, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type = _one(types, "to_partial")
    _check_reducer(type, params.reducer, "to_partial")
    if params.reducer not in ("sum", "mean"):
        raise TypeRuleError(f"to_partial is by sum or mean, not by {params.reducer!r}")
    if type.layout not in (MIRRORED, PER_REPLICA, None):
        raise TypeRuleError(f"to_partial of {type}: it takes mirrored and per-replica values")
    return (type.with_layout(partial(params.reducer)),)


def _check_partial(type: Type, params: Reducing, name: str) -> None:
    reducer = type.layout.reducer if type.layout else ""
    if reducer not in ("", params.reducer):
        raise TypeRuleError(f"{name} by {params.reducer} of {type}, whose terms are for {reducer}")


def _scale(types: Sequence[Type], params: Scaling, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    return (_one(types, "scale"),)


def _pack(types: Sequence[Type], params: Parameters, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    dtypes = {type.dtype for type in types}
    if len(dtypes) != 1:
        raise TypeRuleError(f"pack takes operands of one dtype, not {sorted(dtypes)}")
    size = sum(type.size for type in types)
    return (Type(types[0].dtype, (size,), join(type.layout for type in types)),)


def _unpack(types: Sequence[Type], params: Unpacking, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type = _one(types, "unpack")
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


def _pack_slices(
    types: Sequence[Type], params: PackingSlices | UnpackingSlices, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    if len(params.axes) != len(types):
        raise TypeRuleError(
            f"pack_slices of {len(types)} operands along {len(params.axes)} dimensions"
        )
    for type, axis in zip(types, params.axes, strict=True):
        _slice_of(type, axis, params, "pack_slices")
    return _pack(types, params, graphs)


def _unpack_slices(
    types: Sequence[Type], params: UnpackingSlices, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    pieces = _pieces(_one(types, "unpack_slices"), params.shapes)
    _pack_slices(pieces, params, graphs)
    return pieces


def _concatenate(
    types: Sequence[Type], params: Joining, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    axis, first = params.axis, types[0]
    rest = {(t.dtype, t.shape[:axis], t.shape[axis + 1 :]) for t in types if axis < len(t.shape)}
    if len(rest) != 1 or axis >= len(first.shape):
        raise TypeRuleError(
            f"concatenate along dimension {axis} of {', '.join(map(str, types))}: "
            f"the other dimensions differ"
        )
    length = sum(type.shape[axis] for type in types)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    layout = join_alike(type.layout for type in types)
    if layout is not None and layout.dimension == axis:
        layout = PER_REPLICA  # shards of several values, one after the other
    return (Type(first.dtype, shape, layout),)


def _reshape(types: Sequence[Type], params: Reshaping, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type = _one(types, "reshape")
    result = type.shaped(params.shape)
    if type.layout is not None and type.layout.dimension is not None:
        to = dimension_after_reshape(type.shape, type.layout.dimension, result.shape)
        result = result.with_layout(PER_REPLICA if to is None else type.layout.along(to))
    if result.size != type.size:
        raise TypeRuleError(f"reshape of {type} to {result}: {type.size} is not {result.size}")
    return (result,)


def _count_step(
    types: Sequence[Type], params: CountingSteps, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type = _one(types, "count_step")
    if (type.dtype, type.shape) != ("i32", ()):
        raise TypeRuleError(f"count_step of {type}: the count is i32[]")
    if params.every < 1:
        raise TypeRuleError(f"count_step of {params.every} steps: at least 1")
    return (type, type)


def _barrier(
    types: Sequence[Type], params: Parameters, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    return tuple(types)


READ = TypedOp("read", parameters=OfVariable, rule=_read)
ASSIGN = TypedOp("assign", parameters=OfVariable, rule=_assign, has_effect=True)
AGGREGATE = TypedOp("aggregate", parameters=Aggregating, rule=_aggregate)
REPLICA_ID = TypedOp("replica_id", parameters=OverReplicas, rule=_replica_id)
TO_REPLICAS = TypedOp("to_replicas", parameters=OverReplicas, rule=_to_replicas)
REDUCE = TypedOp("reduce", parameters=Reducing, rule=_all_reduce, is_collective=True)
GATHER = TypedOp("gather", parameters=AlongAxis, rule=_all_gather, is_collective=True)
ALL_REDUCE = TypedOp("all_reduce", parameters=Reducing, rule=_all_reduce, is_collective=True)
ALL_GATHER = TypedOp("all_gather", parameters=Gathering, rule=_all_gather, is_collective=True)
REDUCE_SCATTER = TypedOp(
    "reduce_scatter", parameters=ReduceScattering, rule=_reduce_scatter, is_collective=True
)
COLLECTIVE_PERMUTE = TypedOp(
    "collective_permute", parameters=Permuting, rule=_collective_permute, is_collective=True
)
ALL_TO_ALL = TypedOp("all_to_all", parameters=Exchanging, rule=_all_to_all, is_collective=True)
OWN_SLICE = TypedOp("own_slice", parameters=AlongAxis, rule=_own_slice)
RANDOM_SHARD = TypedOp("random_shard", parameters=RandomBits, rule=_random_shard)
CONSTANT = TypedOp("constant", parameters=Holding, rule=_constant)
SELECT_REPLICA = TypedOp("select_replica", parameters=Selecting, rule=_select_replica)
TO_PARTIAL = TypedOp("to_partial", parameters=Reducing, rule=_to_partial)
SCALE = TypedOp("scale", parameters=Scaling, rule=_scale)
PACK = TypedOp("pack", parameters=Parameters, rule=_pack)
UNPACK = TypedOp("unpack", parameters=Unpacking, rule=_unpack)
PACK_SLICES = TypedOp("pack_slices", parameters=PackingSlices, rule=_pack_slices)
UNPACK_SLICES = TypedOp("unpack_slices", parameters=UnpackingSlices, rule=_unpack_slices)
CONCATENATE = TypedOp("concatenate", parameters=Joining, rule=_concatenate)
RESHAPE = TypedOp("reshape", parameters=Reshaping, rule=_reshape)
TAKE_STEP = TypedOp("take_step", parameters=Parameters, rule=take_step_rule)
TAKE_PART = TypedOp("take_part", parameters=TakingPart, rule=take_part_rule)
JOIN_PARTS = TypedOp("join_parts", parameters=Joining, rule=join_parts_rule)
COUNT_STEP = TypedOp("count_step", parameters=CountingSteps, rule=_count_step)
BARRIER = TypedOp("barrier", parameters=Parameters, rule=_barrier)
SCAN = TypedOp("scan", parameters=Scanning, rule=scan_rule)
WHILE = TypedOp("while", parameters=Looping, rule=while_rule)
COND = TypedOp("cond", parameters=Branching, rule=cond_rule)

OPS = {
    op.name: op
    for op in (
        READ, ASSIGN, AGGREGATE, REPLICA_ID, TO_REPLICAS, REDUCE, GATHER,
        ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, COLLECTIVE_PERMUTE, ALL_TO_ALL,
        OWN_SLICE, RANDOM_SHARD, CONSTANT, SELECT_REPLICA, TO_PARTIAL, SCALE,
        PACK, UNPACK, PACK_SLICES, UNPACK_SLICES,
        CONCATENATE, RESHAPE, TAKE_STEP, TAKE_PART, JOIN_PARTS, COUNT_STEP,
        BARRIER, SCAN, WHILE, COND,
    )
}  # fmt: skip
"""Every operation of ours by name; JAX's operations are made by `graphdist.tracing.jax_ops`."""


LOGICAL_ONLY: frozenset[Op] = frozenset({READ, ASSIGN, AGGREGATE})
"""Operations on variables, which placed graphs no longer have."""

CROSS_REPLICA: frozenset[Op] = frozenset({REDUCE, GATHER, TO_REPLICAS})
"""Operations of cross-replica context, which SPMD graphs no longer have."""


def variable_named_by(node: Node) -> GraphVariable:
    """Return the variable that a node reads, assigns or aggregates into."""
    return OfVariable.of(node).variable


def reducer_of(node: Node) -> str:
    """Return the reducer of a node that reduces over replicas; "" for any other node."""
    return node.params.reducer if isinstance(node.params, Reducing) else ""


def is_over_all(node: Node) -> bool:
    """Return whether a collective is over all replicas at once, not within each group."""
    return OverReplicas.of(node).num_groups == 1


def of_groups(mesh: MeshShape) -> dict[str, object]:
    """Return the parameters that describe groups of replicas; one group has no `num_groups`.

    >>> of_groups(MeshShape(8, 2)), of_groups(MeshShape(8))
    ({'group_size': 4, 'num_groups': 2}, {'group_size': 8})
    """
    params: dict[str, object] = {"group_size": mesh.group_size}
    return {**params, "num_groups": mesh.num_groups} if mesh.num_groups > 1 else params
