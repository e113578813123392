"""`Strategy.run`: what goes in, what comes out, which contexts, which errors."""

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.conformance.encode import class_name, device_name, first_device
from tests.conformance.environment import (
    EMPTY,
    Environment,
    Program,
    array,
    context,
    from_table,
    in_scope,
    replica_id,
    without,
)

Pair = namedtuple("Pair", "a b")


class Doubler:
    """An object whose bound method is a replica function."""

    def method(self, x: Any) -> Any:
        """Return one more."""
        return x + 1.0


def generator() -> Iterator[Any]:
    """Yield one array."""
    yield array(1.0)


def ones_and_twos(env: Environment) -> Any:
    """Return the per-replica 1.0 and 2.0."""
    return env.per_replica([1.0, 2.0])


def with_scope(strategy: Any) -> Any:
    """Return an array made in a strategy's scope."""
    return in_scope(strategy, lambda: array(1.0))


def _one_device() -> Any:
    return gd.OneDeviceStrategy("cpu:0")


def _of_number(first: Any, others: Any) -> Program:
    """Return the program whose replica 0 returns one thing and whose other replicas another."""
    return lambda env: env.run(lambda: first() if int(replica_id()) == 0 else others())


def _closing_over(make: Callable[[Environment], Any], fn: Callable[[Any], Any]) -> Program:
    """Return the program whose replica function closes over a value made before."""

    def program(env: Environment) -> Any:
        value = make(env)
        return env.run(lambda: fn(value))

    return program


def _of(make: Callable[[], Any], kind: Callable[[Environment, Any], Any]) -> Program:
    """Return the program that makes a value first."""
    return lambda env: kind(env, make())


ARGUMENTS: dict[str, Program] = {
    "identity_of_plain_tensor": lambda env: env.run(lambda x: x, array(3.0)),
    "op_on_plain_tensor": lambda env: env.run(lambda x: x * 2.0, array(3.0)),
    "perreplica_arg": lambda env: env.run(lambda x: x * 2.0, ones_and_twos(env)),
    "nested_list_arg": lambda env: env.run(
        lambda x: x[0] + x[1]["k"], [ones_and_twos(env), {"k": env.per_replica([10.0, 20.0])}]
    ),
    "kwargs": lambda env: env.run(
        lambda x, y: x + y, ones_and_twos(env), y=env.per_replica([10.0, 20.0])
    ),
    "kwargs_default": lambda env: env.run(lambda x, y=5.0: x + y, ones_and_twos(env)),
    "args_as_list": lambda env: env.strategy.run(lambda x: x * 1.0, args=[ones_and_twos(env)]),
    "args_not_tuple": lambda env: env.strategy.run(lambda x: x, args=ones_and_twos(env)),
    "args_dict": lambda env: env.strategy.run(lambda x: x, args={"x": 1}),
    "args_none": lambda env: env.strategy.run(lambda: array(1.0), args=None),
    "kwargs_as_args_conflict": lambda env: env.strategy.run(
        lambda x: x, args=(1,), kwargs={"x": 2}
    ),
    "py_int_arg_returned": lambda env: env.run(lambda x: x, 7),
    "py_int_computed": lambda env: env.run(lambda x: x + 100000, 7),
    "py_small_int_computed": lambda env: env.run(lambda x: x + 1, 7),
    "py_float_computed": lambda env: env.run(lambda: float("1.5") * 2),
    "py_string_arg": lambda env: env.run(lambda text: text, "abc"),
    "py_object_arg": _of(object, lambda env, made: env.run(lambda given: given is made, made)),
    "py_callable_arg": lambda env: env.run(lambda f: array(f(2.0)), lambda z: z * 3),
    "numpy_arg": lambda env: env.run(lambda x: x * 2, np.array([1.0, 2.0])),
    "arg_is_variable": lambda env: env.run(lambda v: v + 1.0, env.variable(4.0)),
    "arg_is_dict_with_none": lambda env: env.run(lambda d: d["a"] is None, {"a": None}),
    "prefetched_perreplica_wrong_count": lambda env: env.run(
        lambda x: x, gd.PerReplica([array(1.0), array(2.0), array(3.0)])
    ),
    "perreplica_too_few": lambda env: env.run(lambda x: x * 1.0, gd.PerReplica([array(1.0)])),
}

RETURNS: dict[str, Program] = {
    "returns_none": lambda env: env.run(lambda: None),
    "returns_tuple": lambda env: env.run(lambda: (replica_id(), None, "a")),
    "returns_list": lambda env: env.run(lambda: [replica_id(), replica_id() * 2]),
    "returns_dict": lambda env: env.run(lambda: {"a": replica_id()}),
    "returns_ordereddict": lambda env: env.run(
        lambda: OrderedDict([("b", replica_id()), ("a", 1)])
    ),
    "returns_namedtuple": lambda env: env.run(lambda: Pair(replica_id(), array(1.0))),
    "returns_nested": lambda env: env.run(lambda: {"x": [(replica_id(),)]}),
    "returns_set": lambda env: env.run(lambda: {1, 2}),
    "returns_empty": lambda env: env.run(lambda: ([], {}, ())),
    "returns_bool_py": lambda env: env.run(lambda: True),
    "returns_ragged": without("RaggedTensor"),
    "returns_sparse": without("SparseTensor"),
    "returns_mixed_none": _of_number(lambda: array(1.0), lambda: None),
    "returns_mixed_struct_list_tuple": _of_number(lambda: [1], lambda: (1,)),
    "returns_mixed_lengths": lambda env: env.run(lambda: [1] * (int(replica_id()) + 1)),
    "returns_mixed_dict_keys": lambda env: env.run(lambda: {str(int(replica_id())): 1}),
    "returns_mixed_dtype": _of_number(lambda: array(1, "i32"), lambda: array(2.0)),
    "returns_mixed_tensor_then_list": _of_number(lambda: array(1.0), lambda: [array(1.0)]),
    "returns_shapes_differ": lambda env: env.run(lambda: jnp.arange(int(replica_id()) + 1)),
    "returns_captured_tensor": _closing_over(lambda env: array(9.0), lambda value: value),
    "returns_mirrored_variable": _closing_over(lambda env: env.variable(4.0), lambda v: v),
    "returns_variable_assign": _closing_over(
        lambda env: env.variable(4.0, "AUTO", "SUM"), lambda v: v.assign_add(1.0)
    ),
    "returns_outside_variable": _closing_over(lambda env: gd.Variable(array(4.0)), lambda v: v),
}


def _types_of_ids(env: Environment) -> Any:
    ids = env.local(env.run(replica_id))
    dtypes = [f"<dtype: '{one.dtype}'>" if hasattr(one, "dtype") else "" for one in ids]
    return [f"{class_name(one)}:{dtype}" for one, dtype in zip(ids, dtypes, strict=True)]


def _contexts_inside(env: Environment) -> Any:
    return env.run(
        lambda: [
            gd.in_cross_replica_context(),
            gd.has_strategy(),
            gd.get_strategy() is env.strategy,
            class_name(context()),
        ]
    )


CONTEXTS: dict[str, Program] = {
    "replica_id_value_type": _types_of_ids,
    "num_replicas": lambda env: env.run(lambda: context().num_replicas_in_sync),
    "ctx_strategy_is": lambda env: env.run(lambda: context().strategy is env.strategy),
    "ctx_devices": lambda env: env.run(lambda: context().devices),
    "op_device": lambda env: [
        device_name(first_device(part)) for part in env.local(env.run(lambda: array(1.0) + 0.0))
    ],
    "contexts_inside": _contexts_inside,
    "nested_run_same": lambda env: env.run(lambda: env.strategy.run(lambda: array(1.0))),
    "nested_run_other_strategy": _of(
        _one_device, lambda env, other: env.run(lambda: other.run(lambda: array(1.0)))
    ),
    "scope_inside_replica": lambda env: env.run(lambda: with_scope(env.strategy)),
    "other_scope_inside_replica": _of(
        _one_device, lambda env, other: env.run(lambda: with_scope(other))
    ),
    "inside_other_scope": lambda env: in_scope(
        _one_device(), lambda: env.strategy.run(lambda: array(1.0))
    ),
    "inside_own_scope": lambda env: in_scope(env.strategy, lambda: env.run(replica_id)),
}

ERRORS: dict[str, Program] = {
    "raises_on_all": lambda env: env.run(lambda: EMPTY["missing"]),
    "raises_on_one": lambda env: env.run(
        lambda: 1 // (0 if int(replica_id()) == env.replicas - 1 else 1)
    ),
    "raises_stop_iteration": lambda env: env.run(lambda: next(iter([]))),
    "options_given": lambda env: env.strategy.run(replica_id, options=gd.RunOptions()),
    "options_garbage": lambda env: env.strategy.run(replica_id, options="garbage"),
    "fn_not_callable": lambda env: env.strategy.run(5),
}


def _named(fn: Callable[[Any], Any]) -> Program:
    return lambda env: env.run(fn, ones_and_twos(env))


FUNCTIONS: dict[str, Program] = {
    "fn_is_tf_function": lambda env: env.run(gd.function(lambda x: x * 3.0), ones_and_twos(env)),
    "fn_is_tf_function_plain_identity": lambda env: env.run(gd.function(lambda x: x), array(3.0)),
    "fn_is_jit_tf_function": lambda env: env.run(
        jax.jit(lambda x: x * 3.0 + 1.0), ones_and_twos(env)
    ),
    "fn_is_partial": _named(functools.partial(lambda k, x: k * x, 2.0)),
    "fn_is_bound_method": _named(Doubler().method),
    "fn_is_generator": lambda env: env.run(generator),
}


def _calls(env: Environment) -> Any:
    calls: list[int] = []
    env.strategy.run(lambda: calls.append(1))
    return len(calls)


def _traces(env: Environment) -> Any:
    calls: list[int] = []

    def replica_fn() -> Any:
        calls.append(1)
        return array(1.0)

    step = gd.function(lambda: env.strategy.run(replica_fn))
    step()
    step()
    return len(calls)


def _order(env: Environment) -> Any:
    order: list[int] = []
    env.strategy.run(lambda: order.append(int(replica_id())))
    return order


def _interleaving(env: Environment) -> Any:
    seen: list[tuple[str, int]] = []

    def replica_fn() -> None:
        seen.append(("before", int(replica_id())))
        context().all_reduce("SUM", array(1.0))
        seen.append(("after", int(replica_id())))

    env.strategy.run(replica_fn)
    return seen


SIDE_EFFECTS: dict[str, Program] = {
    "number_of_calls_eager": _calls,
    "number_of_traces_function": _traces,
    "execution_order_eager": _order,
    "python_side_effect_shared_list": _interleaving,
}

_by_label = from_table(
    ARGUMENTS | RETURNS | CONTEXTS | ERRORS | FUNCTIONS | SIDE_EFFECTS,
)


def run(env: Environment) -> Any:
    """Run a case of the family `run`."""
    if env.parts[-1] == "tf_function_around":
        env.label, env.mode = env.label.removesuffix("/tf_function_around"), "function"
    return _by_label(env)
