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
These rules are the entire analysis of layouts. `passes/logical/infer_layouts.py` adds only the
layouts of the inputs and the fixpoint of loops. If operands do not fit, a rule raises
`TypeRuleError`.

Each operation has a class of parameters (`op_parameters.py`): `ALL_GATHER.of(node).axis`.
"""

from __future__ import annotations

from collections.abc import Callable

from graphdist.ir.control_flow_rules import (
    cond_rule,
    join_parts_rule,
    scan_rule,
    take_part_rule,
    take_step_rule,
    while_rule,
)
from graphdist.ir.core_rules import (
    add_borders_rule,
    all_gather_over_cores_rule,
    all_reduce_over_cores_rule,
    all_to_all_over_cores_rule,
    core_id_rule,
    exchange_borders_rule,
    join_ahead_rule,
    ordering_rule,
    reduce_scatter_over_cores_rule,
    rotate_over_cores_rule,
    slice_ahead_rule,
    slice_of_core_rule,
    split_over_cores_rule,
)
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graphs, GraphVariable, Node, Op, P, TypedOp, Types
from graphdist.ir.mesh import MeshShape
from graphdist.ir.op_parameters import (
    Aggregating,
    AlongAxis,
    AlongAxisOverCores,
    Branching,
    Copying,
    CountingSteps,
    Exchanging,
    ExchangingBorders,
    ExchangingOverCores,
    Gathering,
    Holding,
    IndexingOnCore,
    IndexingOnReplica,
    Joining,
    KeepingRowsOfCore,
    KeepingRowsOfReplica,
    Looping,
    OfVariable,
    OrderingBlocks,
    OverCores,
    OverReplicas,
    PackingSlices,
    Permuting,
    RandomBits,
    ReduceScattering,
    Reducing,
    ReducingOverCores,
    Reshaping,
    RotatingOverCores,
    Scaling,
    Scanning,
    Selecting,
    SlicingAhead,
    SplittingOverCores,
    TakingAlong,
    TakingPart,
    Unpacking,
    UnpackingSlices,
)
from graphdist.ir.pack_rules import (
    pack_rule,
    pack_slices_rule,
    unpack_rule,
    unpack_slices_rule,
)
from graphdist.ir.parameters import Parameters
from graphdist.ir.row_rules import (
    as_shard_rule,
    index_on_core_rule,
    index_on_replica_rule,
    keep_rows_of_core_rule,
    keep_rows_of_replica_rule,
)
from graphdist.ir.shape_rules import concatenate_rule, part_length, reshape_rule, take_along_rule
from graphdist.ir.types import (
    MIRRORED,
    PER_REPLICA,
    Type,
    dtype_name,
    is_integer,
    own_slice,
    partial,
)

_LINEAR = ("sum", "mean")
REDUCERS = (*_LINEAR, "max", "min")


def _read(types: Types, params: OfVariable, graphs: Graphs) -> Types:
    return (params.variable.type,)


def _assign(type: Type, params: OfVariable) -> Types:
    variable = params.variable
    if (type.dtype, type.shape) != (variable.type.dtype, variable.type.shape):
        raise TypeRuleError(
            f"variable {variable.name!r} is {variable.type}, the value assigned to it is {type}"
        )
    return ()


def _aggregate(type: Type, params: Aggregating) -> Types:
    variable = params.variable
    if type.layout is None:
        return (type,)
    if variable.type.layout is not MIRRORED:
        return (type.with_layout(PER_REPLICA),)
    reduces = params.context == "replica" and variable.aggregation != "none"
    return (type.with_layout(MIRRORED) if reduces else type,)


def _same(type: Type, params: Parameters) -> Types:
    return (type,)


def _of_each_replica(type: Type, params: OverReplicas) -> Types:
    """Return `type` as per replica, or as mirrored if there is only one replica."""
    return (type.with_layout(MIRRORED if params.group_size == 1 else PER_REPLICA),)


def _replica_id(types: Types, params: OverReplicas, graphs: Graphs) -> Types:
    return _of_each_replica(Type("i32", ()), params)


def _check_reducer(
    type: Type, params: Reducing, name: str, reducers: tuple[str, ...] = REDUCERS
) -> None:
    reducer = params.reducer
    if reducer not in reducers:
        raise TypeRuleError(f"{name} is by {' or '.join(reducers)}, not by {reducer!r}")
    orders = reducer in ("max", "min")
    if (type.dtype == "bool" and not orders) or type.dtype.startswith("key"):
        raise TypeRuleError(f"{name} by {reducer} is not defined for {type}")
    if reducer == "mean" and is_integer(type.dtype):
        raise TypeRuleError(
            f"{name} by mean is not defined for {type}: convert it to a float first"
        )
    held = type.layout.reducer if type.layout else ""
    if held not in ("", reducer):
        raise TypeRuleError(f"{name} by {reducer} of {type}, whose terms are for {held}")


def _all_reduce(type: Type, params: Reducing) -> Types:
    _check_reducer(type, params, "all_reduce")
    return (type.with_layout(MIRRORED),)


def _grown(type: Type, axis: int, group_size: int, name: str) -> Type:
    """Return the type with dimension `axis` multiplied by the number of replicas in a group."""
    if not 0 <= axis < len(type.shape):
        raise TypeRuleError(
            f"{name} along dimension {axis} of {type}, which has {len(type.shape)} dimensions"
        )
    return type.resized(axis, type.shape[axis] * group_size).with_layout(MIRRORED)


def _all_gather(type: Type, params: AlongAxis) -> Types:
    axis = params.mesh.axis
    if type.layout is not None and type.sharded_along is not None and type.layout.axis != axis:
        raise TypeRuleError(
            f"all_gather over {axis} of {type}, which is sharded over {type.layout.axis}"
        )
    return (_grown(type, params.axis, params.group_size, "all_gather"),)


def _reduce_scatter(type: Type, params: ReduceScattering) -> Types:
    _check_reducer(type, params, "reduce_scatter", _LINEAR)
    return (_slice_of(type, params.axis, params, "reduce_scatter"),)


def _collective_permute(type: Type, params: Permuting) -> Types:
    group_size, pairs = params.group_size, params.pairs
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


def _all_to_all(type: Type, params: Exchanging) -> Types:
    split, size = params.split_axis, params.group_size
    part = type.resized(split, part_length(type, split, size, "all_to_all", "replicas"))
    joined = _grown(part, params.concat_axis, size, "all_to_all")
    return _of_each_replica(joined, params)


def _own_slice(type: Type, params: AlongAxis) -> Types:
    if type.layout not in (MIRRORED, None):
        raise TypeRuleError(f"own_slice of {type}: it takes a mirrored value")
    return (_slice_of(type, params.axis, params, "own_slice"),)


def _random_shard(key: Type, params: RandomBits) -> Types:
    if not key.dtype.startswith("key<") or key.shape or key.layout not in (MIRRORED, None):
        raise TypeRuleError(f"random_shard of {key}: it takes one key, the same on all replicas")
    bits = Type(f"u{params.bit_width}", params.shape, MIRRORED)
    return (_slice_of(bits, params.axis, params, "random_shard"),)


def _slice_of(type: Type, axis: int, params: OverReplicas, name: str) -> Type:
    part_length(type, axis, params.group_size, name, "replicas")
    return own_slice(type, axis, params.mesh)


def _constant(types: Types, params: Holding, graphs: Graphs) -> Types:
    value = params.value
    return (Type(dtype_name(value.dtype), tuple(value.shape), MIRRORED),)


def _to_partial(type: Type, params: Reducing) -> Types:
    if type.layout not in (MIRRORED, PER_REPLICA, None):
        raise TypeRuleError(f"to_partial of {type}: it takes mirrored and per-replica values")
    _check_reducer(type, params, "to_partial", _LINEAR)
    return (type.with_layout(partial(params.reducer)),)


def _count_step(type: Type, params: CountingSteps) -> Types:
    if (type.dtype, type.shape) != ("i32", ()):
        raise TypeRuleError(f"count_step of {type}: the count is i32[]")
    if params.every < 1:
        raise TypeRuleError(f"count_step of {params.every} steps: at least 1")
    return (type, type)


def _of_one(
    name: str, parameters: type[P], rule: Callable[[Type, P], Types], **traits: bool
) -> TypedOp[P]:
    """Return an operation of one operand."""

    def of_operands(types: Types, params: P, graphs: Graphs) -> Types:
        if len(types) != 1:
            raise TypeRuleError(f"{name} takes 1 operand, not {len(types)}")
        return rule(types[0], params)

    return TypedOp(name, parameters=parameters, rule=of_operands, **traits)


READ = TypedOp("read", parameters=OfVariable, rule=_read)
"""The value of `variable`, with the type that the variable declares."""
ASSIGN = _of_one("assign", OfVariable, _assign, has_effect=True)
"""Sets `variable` to the operand, which has the dtype and shape of the variable. No result."""
AGGREGATE = _of_one("aggregate", Aggregating, _aggregate)
"""The value that a write in `context` puts into `variable`: per_replica if the variable is per
replica; mirrored in replica context if the variable has an aggregation; else as the operand."""
REPLICA_ID = TypedOp("replica_id", parameters=OverReplicas, rule=_replica_id)
"""The replica's id, an i32[]: per_replica; mirrored over one replica."""
TO_REPLICAS = _of_one("to_replicas", OverReplicas, _same)
"""One value that every replica gets: as the operand."""
REDUCE = _of_one("reduce", Reducing, _all_reduce, is_collective=True)
"""One value, the reduction of the replicas' values by `reducer`: mirrored. Otherwise as
`all_reduce`."""
GATHER = _of_one("gather", AlongAxis, _all_gather, is_collective=True)
"""One value, the replicas' values joined along `axis`: mirrored. Otherwise as `all_gather`."""
ALL_REDUCE = _of_one("all_reduce", Reducing, _all_reduce, is_collective=True)
"""On each replica, the reduction of all replicas' values by `reducer` (sum, mean, max, min):
mirrored. Integers have no mean, booleans no sum and no mean, random keys no reduction. With several
groups, each group reduces its own values, and the values are the same in all groups."""
ALL_GATHER = _of_one("all_gather", Gathering, _all_gather, is_collective=True)
"""On each replica, the replicas' values joined along `axis`: mirrored; the dimension `axis` is
`group_size` times as long. Not for scalars. With `stages`, it runs once over each number of
replicas, the last number first. With several groups, each group joins its own shards."""
REDUCE_SCATTER = _of_one("reduce_scatter", ReduceScattering, _reduce_scatter, is_collective=True)
"""On each replica, its shard along `axis` of the reduction of all replicas' values by `reducer`
(sum, mean): sharded(axis). The number `group_size` divides the dimension. With `stages`, it runs
once over each number of replicas. With several groups, the values of all replicas are reduced, and
each group holds all shards: sharded(axis) over member."""
COLLECTIVE_PERMUTE = _of_one(
    "collective_permute", Permuting, _collective_permute, is_collective=True
)
"""The value that another replica sends, by `pairs` of source and target; zeros on a replica that is
no target: per_replica; mirrored over one replica."""
ALL_TO_ALL = _of_one("all_to_all", Exchanging, _all_to_all, is_collective=True)
"""Each replica splits its value into `group_size` parts along `split_axis`, sends part r to replica
r, and joins the received parts along `concat_axis`: per_replica; mirrored over one replica."""
OWN_SLICE = _of_one("own_slice", AlongAxis, _own_slice)
"""On each replica, its own of `group_size` equal shards of a mirrored value along `axis`:
sharded(axis). The number `group_size` divides the dimension. With several groups, each group holds
all shards: sharded(axis) over member."""
RANDOM_SHARD = _of_one("random_shard", RandomBits, _random_shard)
"""On each replica, its own of `group_size` equal shards along `axis` of the random bits that JAX's
`random_bits` makes of a key, with `shape` and `bit_width`: sharded(axis). Groups as for
`own_slice`."""
CORE_ID = TypedOp("core_id", parameters=OverCores, rule=core_id_rule)
"""The index of the core in its replica, an i32[]: mirrored, since the cores of one index in all
replicas have the same."""
SPLIT_OVER_CORES = _of_one("split_over_cores", SplittingOverCores, split_over_cores_rule)
"""The operand, which the cores of each replica hold in shards along `axis`: as the operand. A
request of the user in the graph before the pass `split_over_cores`."""
ALL_REDUCE_OVER_CORES = _of_one(
    "all_reduce_over_cores", ReducingOverCores, all_reduce_over_cores_rule, is_collective=True
)
"""On each core, the reduction of the values of all cores of its replica by `reducer` (sum, max,
min): as the operand."""
ALL_GATHER_OVER_CORES = _of_one(
    "all_gather_over_cores", AlongAxisOverCores, all_gather_over_cores_rule, is_collective=True
)
"""On each core, the values of all cores of its replica joined along `axis`: as the operand."""
REDUCE_SCATTER_OVER_CORES = _of_one(
    "reduce_scatter_over_cores",
    AlongAxisOverCores,
    reduce_scatter_over_cores_rule,
    is_collective=True,
)
"""On each core, its shard along `axis` of the sum of the values of all cores of its replica: as the
operand."""
ALL_TO_ALL_OVER_CORES = _of_one(
    "all_to_all_over_cores", ExchangingOverCores, all_to_all_over_cores_rule, is_collective=True
)
"""On each core, its shard along `split_axis` of the value that the cores of its replica hold in
shards along `concat_axis`: as the operand."""
SLICE_OF_CORE = _of_one("slice_of_core", AlongAxisOverCores, slice_of_core_rule)
"""On each core, its own of `num_cores` equal shards of the operand along `axis`: as the operand."""
ORDER_BY_CORE = _of_one("order_by_core", OrderingBlocks, ordering_rule)
"""The operand, in which `blocks` are one behind the other along `axis`, in the order of the cores:
each block's first shard, then each block's second one, and so on: as the operand."""
ORDER_BY_BLOCK = _of_one("order_by_block", OrderingBlocks, ordering_rule)
"""The value that `order_by_core` put in the order of the cores: as the operand."""
ROTATE_OVER_CORES = _of_one(
    "rotate_over_cores", RotatingOverCores, rotate_over_cores_rule, is_collective=True
)
"""The value of the core that is `ahead` places ahead in the ring of the replica's cores: as the
operand."""
SLICE_AHEAD = _of_one("slice_ahead", SlicingAhead, slice_ahead_rule)
"""Of `num_cores` equal shards of the operand along `axis`, that of the core which is `ahead` places
ahead in the ring of the replica's cores: as the operand."""
JOIN_AHEAD = TypedOp("join_ahead", parameters=AlongAxisOverCores, rule=join_ahead_rule)
"""The full value, joined along `axis` of the shards of this core, of the next one in the ring, and
so on: the join of the operands."""
EXCHANGE_BORDERS = _of_one(
    "exchange_borders", ExchangingBorders, exchange_borders_rule, is_collective=True
)
"""A core's shard along `axis`, between the last `before` elements of the shard in front and the
first `after` elements of that behind; at both ends of the value, what changes nothing in a
reduction by `reducer` (sum, max, min): as the operand."""
ADD_BORDERS = _of_one("add_borders", ExchangingBorders, add_borders_rule, is_collective=True)
"""The sum of what a core and its neighbours have for its shard along `axis`. The operand has the
core's terms for its shard, between those for the last `before` elements of the shard in front and
for the first `after` elements of that behind: as the operand."""
INDEX_ON_CORE = _of_one("index_on_core", IndexingOnCore, index_on_core_rule)
"""Rows of indices in which the index `component`, into a dimension of `size` elements, becomes that
into the core's shard: as the operand. An index of another core becomes the nearest of this one, or
with `drops` one out of range. With `begins_others` the other indices of a row become 0."""
KEEP_ROWS_OF_CORE = TypedOp(
    "keep_rows_of_core", parameters=KeepingRowsOfCore, rule=keep_rows_of_core_rule
)
"""A value that was read at rows of indices, the second operand. It is zero where the index is that
of another core, and `fill` on core 0 where the index is out of range: the join of the operands."""
INDEX_ON_REPLICA = _of_one("index_on_replica", IndexingOnReplica, index_on_replica_rule)
"""As `index_on_core`, with the replica's shard in place of the core's: per_replica."""
KEEP_ROWS_OF_REPLICA = TypedOp(
    "keep_rows_of_replica", parameters=KeepingRowsOfReplica, rule=keep_rows_of_replica_rule
)
"""As `keep_rows_of_core`, with the replica's shard in place of the core's, and replica 0 of a group
in place of core 0: per_replica, a term of each replica."""
AS_SHARD = _of_one("as_shard", AlongAxis, as_shard_rule)
"""What each replica has computed by itself, and is its shard along `axis` of a full value:
sharded(axis). With several groups, each group holds all shards: sharded(axis) over member."""
CONSTANT = TypedOp("constant", parameters=Holding, rule=_constant)
"""The array `value`: mirrored."""
SELECT_REPLICA = _of_one("select_replica", Selecting, _of_each_replica)
"""The operand on replica `replica`, zeros on all others: per_replica; mirrored over one replica."""
TO_PARTIAL = _of_one("to_partial", Reducing, _to_partial)
"""The replica's term for a later reduction by `reducer` (sum, mean): partial(reducer). The terms of
a per-replica value are the replicas' values. For a sum, the terms of a mirrored value are the value
on replica 0, and zeros on all other replicas. For a mean, they are the value on each replica."""
SCALE = _of_one("scale", Scaling, _same)
"""The operand times the scalar `factor`: as the operand."""
PACK = TypedOp("pack", parameters=Parameters, rule=pack_rule)
"""Operands of one dtype, flattened and joined: one dimension, the join of the operands."""
UNPACK = _of_one("unpack", Unpacking, unpack_rule)
"""The pieces of a packed operand, with the shapes `shapes`: as the operand; with `axes`, each piece
is a shard along one of them. With `starts_at_run_time`, XLA compiles one kernel for all pieces of
one size, on CPU."""
PACK_SLICES = TypedOp("pack_slices", parameters=PackingSlices, rule=pack_slices_rule)
"""Operands of one dtype, each split into `group_size` shards along one of `axes`, flattened and
joined, all first shards before all second shards: one dimension, the join of the operands."""
UNPACK_SLICES = _of_one("unpack_slices", UnpackingSlices, unpack_slices_rule)
"""The full values, with the shapes `shapes`, that `pack_slices` packed into the operand: as the
operand. `starts_at_run_time` as for `unpack`."""
CONCATENATE = TypedOp("concatenate", parameters=Joining, rule=concatenate_rule)
"""The operands joined along `axis`: the join of the operands."""
RESHAPE = _of_one("reshape", Reshaping, reshape_rule)
"""The operand with the shape `shape`, which has as many elements: as the operand."""
TAKE_ALONG = TypedOp("take_along", parameters=TakingAlong, rule=take_along_rule)
"""The elements of a value at indices along `axis`; if it has several shards of `shard` elements,
each plus `added` for every shard in front of its own: the join of the operands."""
TAKE_STEP = TypedOp("take_step", parameters=Parameters, rule=take_step_rule)
"""Slice i of a stack along dimension 0, for iteration i of a loop; an index out of range is
clamped: as the stack, with one dimension less."""
TAKE_PART = TypedOp("take_part", parameters=TakingPart, rule=take_part_rule)
"""Part i of `count` equal parts of a value along `axis`; an index out of range is clamped: as the
value; per_replica if the value is sharded along `axis`."""
JOIN_PARTS = TypedOp("join_parts", parameters=Joining, rule=join_parts_rule)
"""The slices of a stack along dimension 0, joined along dimension `axis` of a slice: as the stack,
with one dimension less; per_replica if the slices are sharded along `axis`."""
COUNT_STEP = _of_one("count_step", CountingSteps, _count_step)
"""The count of steps after one more step, which goes from 0 to `every` - 1; and 1 if the count is 0
again, else 0: both i32[], as the operand."""
COPY_TO = _of_one("copy_to", Copying, _same)
"""A copy of the operand in the memory of the device or of its host: as the operand."""
BARRIER = TypedOp("barrier", parameters=Parameters, rule=lambda types, params, graphs: types)
"""The operands, after all of them are computed. The compiler merges no operation before the barrier
with an operation behind it: as the operands."""
SCAN = TypedOp("scan", parameters=Scanning, rule=scan_rule)
"""The body runs `length` times, each time on the next slices of some operands along dimension 0.
Results are the last carries and the stacks of the other outputs: as the body returns them; in a
stack, a sharded dimension is one further."""
WHILE = TypedOp("while", parameters=Looping, rule=while_rule)
"""The body runs as long as the condition holds. Results are the last carries: as the body takes
them; per_replica if the condition differs between replicas."""
COND = TypedOp("cond", parameters=Branching, rule=cond_rule)
"""The results of one of several branches, chosen by an i32[] index: the join of the branches;
sharded if some branches return shards and the others mirrored values; per_replica if the index
differs between replicas. With `every`, the last branch runs only in every `every`-th step."""

OPS = {op.name: op for op in tuple(globals().values()) if isinstance(op, TypedOp)}
"""Every operation of ours by name; JAX's operations are made by `graphdist.tracing.jax_ops`."""


LOGICAL_ONLY: frozenset[Op] = frozenset({READ, ASSIGN, AGGREGATE})
"""Operations on variables, which placed graphs no longer have."""

CROSS_REPLICA: frozenset[Op] = frozenset({REDUCE, GATHER, TO_REPLICAS})
"""Operations of cross-replica context, which SPMD graphs no longer have."""


def variable_named_by(node: Node) -> GraphVariable:
    """Return the variable that a node reads, assigns or aggregates into."""
    return OfVariable.of(node).variable


def reducer_of(node: Node) -> str:
    """Return the reducer of a node that reduces over replicas or cores; "" for any other node."""
    return node.params.reducer if isinstance(node.params, Reducing | ReducingOverCores) else ""


def is_over_all(node: Node) -> bool:
    """Return whether a collective is over all replicas at once, not within each group."""
    return OverReplicas.of(node).num_groups == 1


def of_groups(mesh: MeshShape) -> dict[str, object]:
    """Return the parameters that describe groups of replicas, without a `num_groups` of 1.

    >>> of_groups(MeshShape(8, 2)), of_groups(MeshShape(8))
    ({'group_size': 4, 'num_groups': 2}, {'group_size': 8})
    """
    params: dict[str, object] = {"group_size": mesh.group_size}
    return {**params, "num_groups": mesh.num_groups} if mesh.num_groups > 1 else params
