"""`Strategy.reduce` and `Strategy.gather`."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from typing import Any  # Any: the values of any program

import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.conformance.encode import attempt, device_name, first_device
from tests.conformance.environment import (
    Environment,
    NoProgramError,
    Program,
    array,
    context,
    replica_id,
)

ROWS = {"even": [[[1.0, 2.0]], [[3.0, 4.0]]], "other": [[[1.0]], [[2.0, 3.0]]]}


def operation(env: Environment) -> str:
    """Return the reduce op of a case: of its input, or the first part of its label."""
    named: str = env.input.get("op") or env.parts[0]
    return named


def axis_of(env: Environment) -> Any:
    """Return the axis of a case: as its label writes it, or as its input has it."""
    for part in env.parts:
        if part.startswith("axis="):
            return literal_eval(part.removeprefix("axis="))
    axis = env.input.get("axis")
    return tuple(axis["tuple"]) if isinstance(axis, dict) else axis


def reduce(env: Environment) -> Any:
    """Run a case of the family `reduce`."""
    if env.label in REDUCE:
        return REDUCE[env.label](env)
    if env.parts[-1] in OF_OPERATION:
        return OF_OPERATION[env.parts[-1]](env)
    if "non_distributed" in env.parts:
        return _reduce_plain(env)
    if env.label.startswith("op_string=") or "values" in env.input:
        return _reduce_values(env)
    raise NoProgramError("no program for this label")


def _reduce_values(env: Environment) -> Any:
    is_string = env.label.startswith("op_string=")
    op = literal_eval(env.label.removeprefix("op_string=")) if is_string else operation(env)
    axis = axis_of(env)
    values = env.per_replica(env.input["values"], env.input.get("dtype", "f32"))
    if env.parts[-1] == "in_function":
        return gd.function(lambda x: env.strategy.reduce(op, x, axis=axis))(values)
    return env.call(lambda x: env.strategy.reduce(op, x, axis=axis), values)


def _reduce_plain(env: Environment) -> Any:
    label = env.parts[-1]
    if label not in PLAIN:
        raise NoProgramError("no program for this label")
    return env.strategy.reduce(operation(env), PLAIN[label](env), axis=None)


PLAIN: dict[str, Program] = {
    "tensor_nonzero": lambda env: array(3.0),
    "tensor_zero": lambda env: array(0.0),
    "py_zero": lambda env: 0,
    "py_float": lambda env: 3.0,
    "np_zero": lambda env: np.float32(0),
    "np_nonzero": lambda env: np.float32(3),
    "np_zero_vec": lambda env: np.zeros(2, np.float32),
    "py_list_of_perreplica": lambda env: [
        env.per_replica([1.0, 2.0]),
        env.per_replica([3.0, 4.0]),
    ],
    "dict_of_perreplica": lambda env: {
        "a": env.per_replica([1.0, 2.0]),
        "b": env.per_replica([3.0, 4.0]),
    },
    "none": lambda env: None,
}


def _mixed_dtypes(env: Environment) -> Any:
    kinds = [value.split() for value in env.input["values"]]
    parts = [array(float(number), dtype) for number, dtype in kinds]
    value = env.strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )
    return env.strategy.reduce(operation(env), value, axis=None)


def _nest_list(env: Environment) -> Any:
    value = [env.per_replica([[1.0], [2.0]]), env.per_replica([[3.0], [4.0]])]
    return env.strategy.reduce(operation(env), value, axis=0)


def _slices(values: Any, indices: Any, shape: Any) -> Any:
    return gd.IndexedSlices(array(values), array(indices, "i32"), array(shape, "i32"))


def _indexed_slices(env: Environment) -> Any:
    parts = [env.input[name] for name in ("r0", "r1")]

    def replica_fn() -> Any:
        part = parts[int(replica_id())]
        return _slices(part["values"], part["indices"], part["shape"])

    return env.strategy.reduce(operation(env), env.strategy.run(replica_fn), axis=None)


def _slice() -> Any:
    return _slices([[1.0]], [0], [2, 1])


OF_OPERATION: dict[str, Program] = {
    "mixed_dtypes": _mixed_dtypes,
    "indexed_slices": _indexed_slices,
    "plain_tensor": lambda env: env.strategy.reduce(
        operation(env), array(env.input["value"]), axis=env.input["axis"]
    ),
    "nest_list": _nest_list,
}


def _op(op: Any, **options: Any) -> Program:
    values = [[1.0], [2.0]] if options.get("axis") == 0 else [1.0, 2.0]
    return lambda env: env.strategy.reduce(op, env.per_replica(values), **options)


def _inside_other_scope(env: Environment) -> Any:
    gd.OneDeviceStrategy("cpu:0").scope().__enter__()
    return env.strategy.reduce("SUM", env.per_replica([1.0, 2.0]), axis=None)


def _result_device(env: Environment) -> Any:
    total = env.strategy.reduce("SUM", env.per_replica([1.0, 2.0]), axis=None)
    return device_name(first_device(total))


REDUCE: dict[str, Program] = {
    "op_enum": lambda env: env.strategy.reduce(
        gd.ReduceOp.SUM, env.per_replica(env.input["values"]), axis=None
    ),
    "op_is_none": _op(None, axis=None),
    "op_is_none_axis0": _op(None, axis=0),
    "op_variable_aggregation": _op(gd.VariableAggregation.SUM, axis=None),
    "axis_missing": _op("SUM"),
    "result_device": _result_device,
    "inside_replica_fn": lambda env: env.strategy.run(
        lambda: env.strategy.reduce("SUM", array(1.0), axis=None)
    ),
    "inside_other_scope": _inside_other_scope,
    "string_tensor_concat": lambda env: env.strategy.reduce(
        "SUM", env.per_replica(env.input["values"], "str"), axis=None
    ),
    "MEAN/int32/truncation": lambda env: env.strategy.reduce(
        "MEAN", env.per_replica(env.input["values"], env.input["dtype"]), axis=None
    ),
}


def gather(env: Environment) -> Any:
    """Run a case of the family `gather`."""
    if env.label in GATHER:
        return GATHER[env.label](env)
    if "values" not in env.input:
        raise NoProgramError("no program for this label")
    values = env.per_replica(env.input["values"], env.input.get("dtype", "f32"))
    return env.call(lambda x: env.strategy.gather(x, env.input["axis"]), values)


def _poisons(env: Environment) -> Any:
    strategy = env.strategy
    scalars = env.per_replica([1.0, 2.0])

    def again(fn: Callable[[], Any]) -> Any:
        return attempt(fn)

    return [
        again(lambda: strategy.gather(env.per_replica(ROWS["other"]), 0)),
        again(lambda: strategy.gather(env.per_replica(ROWS["even"]), 0)),
        again(lambda: strategy.run(lambda x: context().all_reduce("SUM", x), args=(scalars,))),
        again(lambda: strategy.reduce("SUM", scalars, axis=None)),
        again(lambda: strategy.gather(env.per_replica([[1], [2]], "i32"), 0)),
    ]


def _rows(env: Environment) -> Any:
    return env.per_replica([[1.0], [2.0]])


GATHER: dict[str, Program] = {
    "plain_tensor": lambda env: env.strategy.gather(array(env.input["value"]), 0),
    "python_list": lambda env: env.strategy.gather(list(env.input["value"]), 0),
    "scalar_plain": lambda env: env.strategy.gather(array(env.input["value"]), 0),
    "dict_of_perreplica": lambda env: env.strategy.gather({"a": _rows(env)}, 0),
    "indexed_slices": lambda env: env.strategy.gather(_slice(), 0),
    "perreplica_of_indexed_slices": lambda env: env.strategy.gather(env.strategy.run(_slice), 0),
    "inside_replica_fn": lambda env: env.strategy.run(
        lambda: env.strategy.gather(jnp.array([1.0]), 0)
    ),
    "mirrored_variable": lambda env: env.strategy.gather(env.variable(env.input["var"]), 0),
    "sync_on_read_variable": lambda env: env.strategy.gather(
        env.variable(env.input["var"], "ON_READ", "SUM"), 0
    ),
    "poisons_later_collectives": _poisons,
    "axis_missing": lambda env: env.strategy.gather(_rows(env)),
    "axis_none": lambda env: env.strategy.gather(_rows(env), None),
}
