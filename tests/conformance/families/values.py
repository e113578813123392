"""Values a replica: made by a function, taken apart, used as what they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.conformance.encode import attempt
from tests.conformance.environment import EMPTY, Environment, Program, array, from_table

SHARED = np.array([1.0, 2.0])


def _number(context: Any) -> int:
    number: int = context.replica_id_in_sync_group
    return number


def _made_by(value_fn: Callable[[Any], Any]) -> Program:
    return lambda env: env.strategy.experimental_distribute_values_from_function(value_fn)


def _same_object(env: Environment) -> Any:
    value = array(7.0)
    return env.strategy.experimental_distribute_values_from_function(lambda context: value)


def _context_fields(env: Environment) -> Any:
    seen: list[Any] = []

    def value_fn(context: Any) -> int:
        number = _number(context)
        kinds = (type(number).__name__, type(context).__name__)
        seen.append((number, context.num_replicas_in_sync, *kinds))
        return 0

    env.strategy.experimental_distribute_values_from_function(value_fn)
    return seen


values_from_function = from_table(
    {
        "constant": _made_by(lambda context: array(1.0)),
        "same_object": _same_object,
        "pyint": _made_by(lambda context: context.num_replicas_in_sync),
        "pyfloat_by_id": _made_by(lambda context: [3.0, 2.0, 1.0, 0.0][_number(context)]),
        "none": _made_by(lambda context: None),
        "string": _made_by(lambda context: "abc"),
        "tuple": _made_by(lambda context: (array(1, "i32"), array(2, "i32"))),
        "dict": _made_by(lambda context: {"a": _number(context), "b": [array(2.0)]}),
        "nparray": _made_by(lambda context: SHARED),
        "obj": _made_by(lambda context: object()),
        "mixed_struct": _made_by(lambda context: [1] if _number(context) == 0 else (1,)),
        "list_len": _made_by(lambda context: [1] * (_number(context) + 1)),
        "dict_keys": _made_by(lambda context: {str(_number(context)): 1}),
        "empty_list": _made_by(lambda context: []),
        "inside_replica_fn": lambda env: env.strategy.run(
            lambda: _made_by(lambda context: array(1.0))(env)
        ),
        "value_fn_raises": _made_by(lambda context: EMPTY["x"]),
        "context_fields": _context_fields,
    }
)


def _value_context(env: Environment) -> Any:
    context = gd.ValueContext()
    return [context.replica_id_in_sync_group, context.num_replicas_in_sync, str(context)]


value_context = from_table({"defaults": _value_context})


def _local(make: Program) -> Program:
    return lambda env: env.strategy.experimental_local_results(make(env))


local_results = from_table(
    {
        "tensor": _local(lambda env: array(1.0)),
        "pyint": _local(lambda env: 5),
        "none": _local(lambda env: None),
        "pylist": _local(lambda env: [1, 2]),
        "perreplica": _local(lambda env: env.per_replica([1.0, 2.0])),
        "list_of_perreplica": _local(
            lambda env: [env.per_replica([1.0, 2.0]), env.per_replica([3.0, 4.0])]
        ),
        "dict_of_perreplica": _local(lambda env: {"a": env.per_replica([1.0, 2.0])}),
        "mirrored_variable": _local(lambda env: env.variable()),
        "sync_on_read_variable": _local(lambda env: env.variable(1.0, "ON_READ", "SUM")),
        "outside_variable": _local(lambda env: gd.Variable(array(1.0))),
        "run_same_object": _local(lambda env: env.strategy.run(lambda x: x, args=(array(1.0),))),
        "reduced": _local(
            lambda env: env.strategy.reduce("MEAN", env.per_replica([1.0, 2.0]), None)
        ),
    }
)


def _pair(env: Environment) -> Any:
    return env.per_replica(env.input.get("values", [1.0, 2.0]))


def _convert_outside(env: Environment) -> Any:
    def in_scope() -> Any:
        env.strategy.scope().__enter__()
        return jnp.asarray(_pair(env))

    return [attempt(lambda: jnp.asarray(_pair(env))), attempt(in_scope)]


def _closure(env: Environment) -> Any:
    pair = _pair(env)
    return env.strategy.run(lambda: jnp.asarray(pair) * 10.0)


def _as_an_array(env: Environment) -> Any:
    pair = _pair(env)
    return [
        attempt(lambda: pair.numpy()),
        attempt(lambda: len(pair)),
        attempt(lambda: list(pair)),
        attempt(lambda: pair[0]),
        attempt(lambda: pair.values),
        attempt(lambda: float(pair)),
        attempt(lambda: np.asarray(pair).dtype.kind),
        attempt(lambda: pair.dtype),
        attempt(lambda: pair.shape),
    ]


def _types(env: Environment) -> Any:
    pair, variable = _pair(env), env.variable()
    return [
        isinstance(pair, gd.DistributedValues),
        isinstance(pair, jax.Array),
        isinstance(variable, gd.DistributedValues),
        isinstance(variable, gd.Variable),
        isinstance(pair, jax.Array | np.ndarray),
    ]


def _function_in_replica(env: Environment) -> Any:
    pair = _pair(env)
    return env.strategy.run(lambda: gd.function(lambda value: value)(pair))


def _leaves(env: Environment) -> Any:
    pair = _pair(env)
    return [len(jax.tree.leaves(pair)), len(env.local(pair))]


perreplica = from_table(
    {
        "arithmetic_cross_replica": lambda env: _pair(env) + 1,
        "convert_outside": _convert_outside,
        "closure_capture": _closure,
        "numpy_len_iter": _as_an_array,
        "public_type": _types,
        "through_tf_function_arg": lambda env: gd.function(
            lambda value: env.strategy.run(lambda x: x * 2, args=(value,))
        )(_pair(env)),
        "tf_function_in_replica_ctx_arg": _function_in_replica,
        "nest_flatten_composites": _leaves,
        "repr": lambda env: repr(_pair(env)),
    }
)
