"""`ReplicaContext.all_reduce` and `all_gather`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.conformance.encode import attempt
from tests.conformance.environment import (
    Environment,
    NoProgramError,
    Program,
    array,
    context,
    gradient,
    in_scope,
    replica_id,
    without,
)

Body = Callable[[Any], Any]


def _sum(value: Any, **options: Any) -> Any:
    return context().all_reduce("SUM", value, **options)


def _of_operation(op: str) -> dict[str, Body]:
    """Return the replica functions of the labels `{op}/...`."""

    def reduced(value: Any) -> Any:
        return context().all_reduce(op, value)

    return {
        "scalar": reduced,
        "int32": reduced,
        "list2": lambda x: reduced([x, jnp.stack([x, x * 10.0])]),
        "nested_dict": lambda x: reduced({"a": x, "b": (x * 2.0, [x * 3.0])}),
        "grad": lambda x: gradient(lambda y: reduced(y) ** 2, x),
        "grad_of_local_times_reduced": lambda x: gradient(lambda y: y * reduced(y), x),
    }


def all_reduce(env: Environment) -> Any:
    """Run a case of the family `all_reduce`."""
    if env.label in ALL_REDUCE:
        return ALL_REDUCE[env.label](env)
    first, last = env.parts[0], env.parts[-1]
    bodies = MISC if first == "misc" else _of_operation(env.input.get("op", first))
    if last not in bodies:
        raise NoProgramError("no program for this label")
    body = bodies[last]
    values = env.per_replica(env.input["values"], env.input.get("dtype", "f32"))
    return env.run(body, values)


def _options(**fields: Any) -> Any:
    return gd.CommunicationOptions(**fields)


def _is_first() -> bool:
    return int(replica_id()) == 0


def _without(what: str) -> Body:
    return lambda x: without(what)(x)


def _slices(x: Any) -> Any:
    return gd.IndexedSlices(x.reshape([1, -1]), array([1], "i32"), array([3, 1], "i32"))


MISC: dict[str, Body] = {
    "second_order_grad": lambda x: gradient(lambda z: gradient(lambda y: _sum(y) ** 3, z), x),
    "op_lowercase": lambda x: context().all_reduce("sum", x),
    "op_enum": lambda x: context().all_reduce(gd.ReduceOp.MEAN, x),
    "op_invalid": lambda x: context().all_reduce("MAX", x),
    "py_float": lambda x: _sum(3.0),
    "py_int": lambda x: _sum(3),
    "np_array": lambda x: _sum(np.array([1.0, 2.0], np.float32)),
    "same_constant_tensor": lambda x: _sum(array(5.0)),
    "none": lambda x: _sum(None),
    "empty_list": lambda x: _sum([]),
    "list_with_none": lambda x: _sum([x, None]),
    "mixed_dtype_float_int": lambda x: _sum([x, x.astype(jnp.int32)]),
    "mixed_dtype_f32_f64": lambda x: _sum([x, array(1.0, "f64") * x]),
    "two_int32": lambda x: _sum([x.astype(jnp.int32), x.astype(jnp.int32)]),
    "two_int64": lambda x: _sum([x.astype(int), x.astype(int)]),
    "bool": lambda x: _sum(x > 1.0),
    "string": lambda x: _sum("1"),
    "float16": lambda x: _sum(x.astype(jnp.float16)),
    "bfloat16": lambda x: _sum(x.astype(jnp.bfloat16)),
    "complex64": lambda x: _sum(x.astype(jnp.complex64)),
    "shapes_differ": lambda x: _sum(jnp.ones([int(replica_id()) + 1])),
    "rank2": lambda x: context().all_reduce("MEAN", jnp.full([2, 2], x)),
    "empty_tensor": lambda x: _sum(jnp.zeros([0])),
    "indexed_slices": lambda x: _sum(_slices(x)),
    "indexed_slices_mean": lambda x: context().all_reduce("MEAN", _slices(x)),
    "indexed_slices_and_dense": lambda x: _sum([x, _slices(x)]),
    "only_one_replica_calls": lambda x: _sum(x) if _is_first() else x,
    "different_count": lambda x: [_sum(x) for _ in range(int(replica_id()) + 1)],
    "twice_in_sequence": lambda x: [_sum(x), context().all_reduce("MEAN", x * 10.0)],
    "chained": lambda x: context().all_reduce("MEAN", _sum(x) * x),
    "different_op_per_replica": lambda x: context().all_reduce("SUM" if _is_first() else "MEAN", x),
    "different_structure_per_replica": lambda x: _sum([x] if _is_first() else [x, x]),
    "options_bytes_per_pack": lambda x: _sum(
        [x, x * 2.0, x * 3.0], options=_options(bytes_per_pack=4)
    ),
    "options_timeout": lambda x: _sum(x, options=_options(timeout_seconds=5.0)),
    "options_nccl_on_cpu": lambda x: _sum(x, options=_options(implementation="NCCL")),
    "legacy_experimental_hints_kw": lambda x: _sum(x, experimental_hints=gd.CollectiveHints(5)),
    "nested_tf_function": lambda x: gd.function(_sum)(x),
    "output_is_same_on_all": lambda x: _sum(x + 0.1),
    "broadcast_via_mask": lambda x: _sum(x * jnp.float32(replica_id() == 1)),
    "grad_wrt_one_of_list": lambda x: gradient(lambda y: _sum([y, y * 2.0])[1], x),
    "grad_unused_output": lambda x: gradient(lambda y: _sum([y, y * 2.0])[0], x),
    "grad_through_int": lambda x: gradient(
        lambda y: _sum(y.astype(jnp.int32)).astype(jnp.float32), x
    ),
    "stop_gradient": lambda x: gradient(lambda y: _sum(jax.lax.stop_gradient(y)) * y, x),
    "ragged": _without("RaggedTensor"),
}


def _captured(op: str) -> Program:
    def program(env: Environment) -> Any:
        value = array(5.0)
        return env.run(lambda: context().all_reduce(op, value))

    return program


def _of_variable(*options: str) -> Program:
    def program(env: Environment) -> Any:
        variable = env.variable(3.0, *options)
        return env.strategy.run(lambda: _sum(variable))

    return program


def _outside_run(env: Environment) -> Any:
    contexts: list[Any] = []

    def after_the_run() -> Any:
        env.strategy.run(lambda: contexts.append(context()))
        return contexts[0].all_reduce("SUM", array(1.0))

    return [
        attempt(after_the_run),
        attempt(lambda: in_scope(env.strategy, lambda: _sum(array(1.0)))),
    ]


def _of_another_replica(env: Environment) -> Any:
    contexts: list[Any] = []

    def replica_fn() -> Any:
        contexts.append(context())
        if int(replica_id()) == 1:
            return contexts[0].all_reduce("SUM", array(1.0))
        return _sum(array(1.0))

    return env.strategy.run(replica_fn)


def _sgd_step(env: Environment) -> Any:
    variable = env.variable(env.input["w"])
    rate, size = env.input["lr"], env.input["global_batch"]

    def replica_fn(x: Any, y: Any) -> None:
        slope = jax.grad(lambda w: jnp.sum((w * x - y) ** 2) / size)(variable.read_value())
        variable.assign_sub(rate * _sum(slope))

    env.strategy.run(
        replica_fn, args=(env.per_replica(env.input["x"]), env.per_replica(env.input["y"]))
    )
    return variable


ALL_REDUCE: dict[str, Program] = {
    "misc/captured_tensor_same_object": _captured("SUM"),
    "misc/captured_tensor_same_object_mean": _captured("MEAN"),
    "misc/mirrored_variable_arg": _of_variable(),
    "misc/sync_on_read_variable_arg": _of_variable("ON_READ", "SUM"),
    "cross_replica_context": _outside_run,
    "default_context_no_strategy": lambda env: [
        attempt(lambda: _sum(array(3.0))),
        attempt(lambda: context().all_reduce("MEAN", [array(3.0), 4])),
        attempt(lambda: context().all_reduce("bad", array(3.0))),
    ],
    "wrong_thread_context": _of_another_replica,
    "dp_sgd_step": _sgd_step,
}


def _gather(value: Any, axis: Any = 0, **options: Any) -> Any:
    return context().all_gather(value, axis, **options)


def all_gather(env: Environment) -> Any:
    """Run a case of the family `all_gather`."""
    if env.label == "misc/same_object_constant":
        value = array([1.0, 2.0])
        return env.run(lambda: _gather(value))
    body = _gather_body(env)
    return env.run(body, env.per_replica(env.input["values"]))


def _gather_body(env: Environment) -> Body:
    first, last = env.parts[0], env.parts[-1]
    if last.startswith("axis="):
        axis = env.input["axis"]
        return lambda x: _gather(x, axis)
    bodies = GATHERS if first == "misc" else _gradients(env.replicas)
    if last not in bodies:
        raise NoProgramError("no program for this label")
    return bodies[last]


def _gradients(replicas: int) -> dict[str, Body]:
    weights = jnp.arange(1.0, 2.0 * replicas + 1.0)
    return {
        "even": lambda x: gradient(lambda y: _gather(y) * weights, x),
        "uneven": lambda x: gradient(lambda y: _gather(y) ** 2, x),
        "replica_weighted": lambda x: gradient(
            lambda y: jnp.float32(replica_id() + 1) * _gather(y) ** 2, x
        ),
    }


GATHERS: dict[str, Body] = {
    "nested": lambda x: _gather({"a": x, "b": [x * 2.0]}),
    "int32": lambda x: _gather(x.astype(jnp.int32)),
    "int64": lambda x: _gather(x.astype(int)),
    "bool": lambda x: _gather(x > 1.0),
    "string": lambda x: _gather("1"),
    "bfloat16": lambda x: _gather(x.astype(jnp.bfloat16)),
    "scalar": lambda x: _gather(x[0]),
    "py_list": lambda x: _gather([1.0, 2.0]),
    "axis_too_big": lambda x: _gather(x, 3),
    "axis_tensor": lambda x: _gather(x, jnp.int32(0)),
    "axis_none": lambda x: _gather(x, None),
    "axis_missing": lambda x: context().all_gather(x),
    "indexed_slices": lambda x: _gather(_slices(x)),
    "other_dim_mismatch": lambda x: _gather(jnp.ones([1, int(replica_id()) + 1])),
    "rank_mismatch": lambda x: _gather(x if _is_first() else x[None]),
    "empty_list": lambda x: _gather([]),
    "only_one_replica": lambda x: _gather(x) if _is_first() else x,
    "options": lambda x: _gather(x, options=_options(timeout_seconds=3.0)),
    "zero_rows_on_one": lambda x: _gather(x[: 1 - int(replica_id())]),
}
