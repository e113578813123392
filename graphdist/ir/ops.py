"""The operations of a graph, each with its type rule.

Three kinds:

* the strategy's words, in LOGICAL graphs: `read`, `assign`, `aggregate`, `replica_id`,
  `to_replicas`, `reduce`, `gather`, and the collectives, which a replica function may call itself;
* what lowering makes of them: the collectives and a few local operations (`select_replica`,
  `own_slice`, `scale`, `pack`, `unpack`, `pack_slices`, `unpack_slices`, `concatenate`, `reshape`,
  `count_step`), and the traffic with parameter servers (`pull`, `push`);
* operations imported from JAX, named `jax.<primitive>`. They keep their primitive and parameters as
  they are; no rule here knows them, so whoever builds the node states dtype and shape.

A type rule maps operand types, parameters and nested graphs to result types, distribution included;
that transfer of distributions *is* the replication analysis (`passes/infer_distribution.py` only
supplies what enters the graph and the fixpoint of loops). A rule raises `TypeRuleError`.

Collectives name the number of replicas they span as `group_size`. Where slices are shared out over
groups of replicas, `group_size` is the size of one group and `num_copies` counts the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from graphdist.ir.control_flow_rules import cond_rule, scan_rule, while_rule
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.factor_rules import dimension_after_reshape
from graphdist.ir.graph import Graph, GraphVariable, Node, Op, Params
from graphdist.ir.server_rules import pull_rule, push_rule
from graphdist.ir.stack_rules import join_parts_rule, take_part_rule, take_step_rule
from graphdist.ir.types import (
    MIRRORED,
    PER_REPLICA,
    Type,
    dtype_name,
    join,
    join_alike,
    own_slice,
    sharded,
)

REDUCERS = ("sum", "mean", "max", "min")


def _one(types: Sequence[Type], name: str) -> Type:
    if len(types) != 1:
        raise TypeRuleError(f"{name} takes 1 operand, not {len(types)}")
    return types[0]


def _variable(params: Params) -> GraphVariable:
    return cast(GraphVariable, params["variable"])


def _read(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    return (_variable(params).type,)


def _assign(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type, variable = _one(types, "assign"), _variable(params)
    if (type.dtype, type.shape) != (variable.type.dtype, variable.type.shape):
        raise TypeRuleError(
            f"variable {variable.name!r} is {variable.type}, the value assigned to it is {type}"
        )
    return ()


def _aggregate(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type, variable = _one(types, "aggregate"), _variable(params)
    if type.distribution is None:
        return (type,)
    if variable.type.distribution is not MIRRORED:
        return (type.distributed(PER_REPLICA),)
    reduces = params["context"] == "replica" and variable.aggregation != "none"
    return (type.distributed(MIRRORED) if reduces else type,)


def _replica_id(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    return (Type("i32", (), MIRRORED if params["group_size"] == 1 else PER_REPLICA),)


def _to_replicas(
    types: Sequence[Type], params: Params, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    return (_one(types, "to_replicas"),)


def _check_reducer(type: Type, params: Params, name: str) -> None:
    reducer = params["reducer"]
    if reducer not in REDUCERS:
        raise TypeRuleError(f"{name} reduces by one of {', '.join(REDUCERS)}, not {reducer!r}")
    orders = reducer in ("max", "min")
    if (type.dtype == "bool" and not orders) or type.dtype.startswith("key"):
        raise TypeRuleError(f"{name} by {reducer} is not defined for {type}")
    if reducer == "mean" and type.dtype[0] in "iu":
        raise TypeRuleError(
            f"{name} by mean is not defined for {type}: convert it to a float first"
        )


def _all_reduce(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type = _one(types, "all_reduce")
    _check_reducer(type, params, "all_reduce")
    return (type.distributed(MIRRORED),)


def _grown(type: Type, params: Params, name: str) -> Type:
    """Return the type with the dimension `axis` as long as for all replicas together."""
    axis, group_size = cast(int, params["axis"]), cast(int, params["group_size"])
    if not 0 <= axis < len(type.shape):
        raise TypeRuleError(
            f"{name} along dimension {axis} of {type}, which has {len(type.shape)} dimensions"
        )
    shape = (*type.shape[:axis], type.shape[axis] * group_size, *type.shape[axis + 1 :])
    return Type(type.dtype, shape, MIRRORED)


def _all_gather(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type, copies = _one(types, "all_gather"), num_copies_of(params)
    held = type.distribution
    if held is not None and held.dimension is not None and held.num_copies != copies:
        raise TypeRuleError(f"all_gather of {type} in {copies} groups, which hold other slices")
    return (_grown(type, params, "all_gather"),)


def _reduce_scatter(
    types: Sequence[Type], params: Params, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type = _one(types, "reduce_scatter")
    if params["reducer"] not in ("sum", "mean"):
        raise TypeRuleError(f"reduce_scatter is by sum or mean, not by {params['reducer']!r}")
    _check_reducer(type, params, "reduce_scatter")
    return (_slice_of(type, params, "reduce_scatter"),)


def _exchanged(type: Type, group_size: int) -> Type:
    """Return the type with each replica holding a value of its own, unless there is one replica."""
    return type.distributed(MIRRORED if group_size == 1 else PER_REPLICA)


def _collective_permute(
    types: Sequence[Type], params: Params, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type, group_size = _one(types, "collective_permute"), cast(int, params["group_size"])
    pairs = cast("tuple[tuple[int, int], ...]", params["pairs"])
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
    return (_exchanged(type, group_size),)


def _all_to_all(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type, group_size = _one(types, "all_to_all"), cast(int, params["group_size"])
    split, concat = cast(int, params["split_axis"]), cast(int, params["concat_axis"])
    _slice_of(type, {"axis": split, "group_size": group_size}, "all_to_all")
    part = (*type.shape[:split], type.shape[split] // group_size, *type.shape[split + 1 :])
    joined = _grown(type.shaped(part), {"axis": concat, "group_size": group_size}, "all_to_all")
    return (_exchanged(joined, group_size),)


def _own_slice(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type = _one(types, "own_slice")
    if type.distribution not in (MIRRORED, None):
        raise TypeRuleError(f"own_slice of {type}: a slice of what others hold too is wanted")
    return (_slice_of(type, params, "own_slice"),)


def _slice_of(type: Type, params: Params, name: str) -> Type:
    axis, group_size = cast(int, params["axis"]), cast(int, params["group_size"])
    if not 0 <= axis < len(type.shape) or type.shape[axis] % group_size:
        raise TypeRuleError(
            f"{name} of {type} along dimension {axis} over {group_size} replicas: "
            f"the dimension does not divide"
        )
    return own_slice(type, axis, group_size, num_copies_of(params))


def num_copies_of(params: Params) -> int:
    """Return how many groups of replicas hold all slices of a value that a node cuts or gathers."""
    return cast(int, params.get("num_copies", 1))


def is_over_all(node: Node) -> bool:
    """Return whether a collective is over all replicas at once, not within each group."""
    return num_copies_of(node.params) == 1


def of_groups(group_size: int, num_copies: int) -> dict[str, object]:
    """Return the parameters of a node that is about groups of replicas, maybe one of all.

    >>> of_groups(4, 2), of_groups(8, 1)
    ({'group_size': 4, 'num_copies': 2}, {'group_size': 8})
    """
    params: dict[str, object] = {"group_size": group_size}
    return {**params, "num_copies": num_copies} if num_copies > 1 else params


def _constant(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    value = cast("np.ndarray[tuple[int, ...], np.dtype[np.generic]]", params["value"])
    return (Type(dtype_name(value.dtype), tuple(value.shape), MIRRORED),)


def _select_replica(
    types: Sequence[Type], params: Params, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    type = _one(types, "select_replica")
    return (type.distributed(MIRRORED if params["group_size"] == 1 else PER_REPLICA),)


def _scale(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    return (_one(types, "scale"),)


def _pack(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    dtypes = {type.dtype for type in types}
    if len(dtypes) != 1:
        raise TypeRuleError(f"pack takes operands of one dtype, not {sorted(dtypes)}")
    size = sum(type.size for type in types)
    return (Type(types[0].dtype, (size,), join(type.distribution for type in types)),)


def _unpack(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type = _one(types, "unpack")
    shapes = cast("tuple[tuple[int, ...], ...]", params["shapes"])
    pieces = tuple(type.shaped(tuple(shape)) for shape in shapes)
    axes = cast("tuple[int, ...]", params.get("axes", ()))
    if axes:
        slices = [sharded(axis, num_copies_of(params)) for axis in axes]
        pieces = tuple(map(Type.distributed, pieces, slices))
    if len(type.shape) != 1 or sum(piece.size for piece in pieces) != type.size:
        raise TypeRuleError(
            f"unpack of {type} into {sum(piece.size for piece in pieces)} elements: {shapes}"
        )
    return pieces


def _pack_slices(
    types: Sequence[Type], params: Params, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    axes = cast("tuple[int, ...]", params["axes"])
    if len(axes) != len(types):
        raise TypeRuleError(f"pack_slices of {len(types)} operands along {len(axes)} dimensions")
    for type, axis in zip(types, axes, strict=True):
        _slice_of(type, {**params, "axis": axis}, "pack_slices")
    return _pack(types, params, graphs)


def _unpack_slices(
    types: Sequence[Type], params: Params, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    pieces = _unpack(types, {"shapes": params["shapes"]}, graphs)
    _pack_slices(pieces, params, graphs)
    return pieces


def _concatenate(
    types: Sequence[Type], params: Params, graphs: Sequence[Graph]
) -> tuple[Type, ...]:
    axis = cast(int, params["axis"])
    first = types[0]
    rest = {(t.dtype, t.shape[:axis], t.shape[axis + 1 :]) for t in types if axis < len(t.shape)}
    if len(rest) != 1 or axis >= len(first.shape):
        raise TypeRuleError(
            f"concatenate along dimension {axis} of {', '.join(map(str, types))}: "
            f"the other dimensions differ"
        )
    length = sum(type.shape[axis] for type in types)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    distribution = join_alike(type.distribution for type in types)
    if distribution is not None and distribution.dimension == axis:
        distribution = PER_REPLICA  # shards of several values, one behind the other
    return (Type(first.dtype, shape, distribution),)


def _reshape(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type = _one(types, "reshape")
    result = type.shaped(tuple(cast("tuple[int, ...]", params["shape"])))
    if type.distribution is not None and type.distribution.dimension is not None:
        to = dimension_after_reshape(type.shape, type.distribution.dimension, result.shape)
        result = result.distributed(PER_REPLICA if to is None else type.distribution.along(to))
    if result.size != type.size:
        raise TypeRuleError(f"reshape of {type} to {result}: {type.size} is not {result.size}")
    return (result,)


def _count_step(types: Sequence[Type], params: Params, graphs: Sequence[Graph]) -> tuple[Type, ...]:
    type, every = _one(types, "count_step"), params["every"]
    if (type.dtype, type.shape) != ("i32", ()):
        raise TypeRuleError(f"count_step of {type}: the count is i32[]")
    if not isinstance(every, int) or every < 1:
        raise TypeRuleError(f"count_step of {every!r} steps: at least 1")
    return (type, type)


EVERY = "every"
"""The parameter of a `cond` whose last branch only every so-many-th step takes."""

STARTS_AT_RUN_TIME = "starts_at_run_time"
"""The parameter of `unpack` and `unpack_slices` that keeps from XLA where the pieces start."""

READ = Op("read", _read)
ASSIGN = Op("assign", _assign, has_effect=True)
AGGREGATE = Op("aggregate", _aggregate)
REPLICA_ID = Op("replica_id", _replica_id)
TO_REPLICAS = Op("to_replicas", _to_replicas)
REDUCE = Op("reduce", _all_reduce, is_collective=True)
GATHER = Op("gather", _all_gather, is_collective=True)
ALL_REDUCE = Op("all_reduce", _all_reduce, is_collective=True)
ALL_GATHER = Op("all_gather", _all_gather, is_collective=True)
REDUCE_SCATTER = Op("reduce_scatter", _reduce_scatter, is_collective=True)
COLLECTIVE_PERMUTE = Op("collective_permute", _collective_permute, is_collective=True)
ALL_TO_ALL = Op("all_to_all", _all_to_all, is_collective=True)
OWN_SLICE = Op("own_slice", _own_slice)
CONSTANT = Op("constant", _constant)
SELECT_REPLICA = Op("select_replica", _select_replica)
SCALE = Op("scale", _scale)
PACK = Op("pack", _pack)
UNPACK = Op("unpack", _unpack)
PACK_SLICES = Op("pack_slices", _pack_slices)
UNPACK_SLICES = Op("unpack_slices", _unpack_slices)
CONCATENATE = Op("concatenate", _concatenate)
RESHAPE = Op("reshape", _reshape)
TAKE_STEP = Op("take_step", take_step_rule)
TAKE_PART = Op("take_part", take_part_rule)
JOIN_PARTS = Op("join_parts", join_parts_rule)
COUNT_STEP = Op("count_step", _count_step)
BARRIER = Op("barrier", lambda types, params, graphs: tuple(types))
PULL = Op("pull", pull_rule)
PUSH = Op("push", push_rule)
SCAN = Op("scan", scan_rule)
WHILE = Op("while", while_rule)
COND = Op("cond", cond_rule)

OPS = {
    op.name: op
    for op in (
        READ, ASSIGN, AGGREGATE, REPLICA_ID, TO_REPLICAS, REDUCE, GATHER,
        ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, COLLECTIVE_PERMUTE, ALL_TO_ALL,
        OWN_SLICE, CONSTANT, SELECT_REPLICA, SCALE, PACK, UNPACK, PACK_SLICES, UNPACK_SLICES,
        CONCATENATE, RESHAPE, TAKE_STEP, TAKE_PART, JOIN_PARTS, COUNT_STEP,
        BARRIER, PULL, PUSH, SCAN, WHILE, COND,
    )
}  # fmt: skip
"""Every operation of ours by name; JAX's operations are made by `graphdist.tracing.jax_ops`."""


LOGICAL_ONLY = frozenset({READ, ASSIGN, AGGREGATE})
"""Operations on variables: gone once variables are placed."""

CROSS_REPLICA = frozenset({REDUCE, GATHER, TO_REPLICAS})
"""Operations of cross-replica context: gone once the graph is SPMD."""
