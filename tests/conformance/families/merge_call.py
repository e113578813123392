"""`ReplicaContext.merge_call`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: the values of any program

import jax

import graphdist as gd
from tests.conformance.encode import class_name
from tests.conformance.environment import (
    EMPTY,
    Environment,
    NoProgramError,
    Program,
    array,
    context,
    replica_id,
)

Body = Callable[[Any], Any]


def _merge(merge_fn: Any, *args: Any, **kwargs: Any) -> Any:
    return context().merge_call(merge_fn, args=args, kwargs=kwargs)


def _is_first() -> bool:
    return int(replica_id()) == 0


def _is_last() -> bool:
    return int(replica_id()) == context().num_replicas_in_sync - 1


def _called_once() -> Body:
    calls: list[int] = []

    def body(x: Any) -> int:
        _merge(lambda strategy: calls.append(1))
        return len(calls)

    return body


def _same_strategy(env: Environment) -> Body:
    return lambda x: _merge(lambda strategy: strategy is env.strategy)


BODIES: dict[str, Body] = {
    "args_are_perreplica": lambda x: _merge(lambda s, v: class_name(v), x),
    "returns_perreplica_unpacked": lambda x: _merge(lambda s, v: v, x),
    "returns_reduced": lambda x: _merge(lambda s, v: s.reduce("SUM", v, axis=None), x),
    "returns_extended_reduce_to": lambda x: _merge(
        lambda s, v: s.extended.reduce_to("SUM", v, v), x
    ),
    "returns_none": lambda x: _merge(lambda s, v: None, x),
    "returns_tuple": lambda x: _merge(lambda s, v: (v, s.reduce("SUM", v, None), "k"), x),
    "kwargs": lambda x: _merge(lambda s, a, b=None: s.reduce("SUM", b, axis=None), x, b=x * 10.0),
    "context_inside": lambda x: _merge(
        lambda s: [
            gd.in_cross_replica_context(),
            gd.get_replica_context() is None,
            gd.get_strategy() is s,
        ]
    ),
    "py_value_same": lambda x: _merge(lambda s, v: v, 7),
    "py_value_differs": lambda x: _merge(
        lambda s, v: class_name(v) + str(getattr(v, "values", v)), int(replica_id())
    ),
    "raises": lambda x: _merge(lambda s: EMPTY["k"]),
    "run_inside_merge": lambda x: _merge(lambda s, v: s.run(lambda y: y * 2.0, args=(v,)), x),
    "only_one_replica": lambda x: _merge(lambda s: 1) if _is_first() else 2,
    "last_replica_only": lambda x: _merge(lambda s: 1) if _is_last() else 2,
    "merge_fn_of_first_replica_used": lambda x: _merge(
        (lambda s: "first") if _is_first() else (lambda s: "other")
    ),
    "nested_merge_call": lambda x: _merge(lambda s: context().merge_call(lambda s2: 1)),
    "args_not_tuple": lambda x: context().merge_call(lambda s, v: 1, args=x),
    "structure_mismatch": lambda x: _merge(lambda s, v: 1, [1] if _is_first() else (1,)),
    "create_variable_inside": lambda x: _merge(lambda s: class_name(gd.Variable(1.0))),
}


def _in_cond(env: Environment) -> Any:
    def replica_fn(x: Any) -> Any:
        def merged() -> Any:
            return _merge(lambda s, v: s.extended.reduce_to("SUM", v, v), x)

        return jax.lax.cond(x > 0.0, merged, lambda: x)

    step = gd.function(lambda x: env.strategy.run(replica_fn, args=(x,)))
    return step(env.per_replica([1.0, 2.0]))


OTHERS: dict[str, Program] = {
    "called_once": lambda env: env.run(_called_once(), env.per_replica(env.input["values"])),
    "strategy_arg_is": lambda env: env.run(
        _same_strategy(env), env.per_replica(env.input["values"])
    ),
    "no_strategy": lambda env: context().merge_call(
        lambda s, v: [gd.in_cross_replica_context(), v], args=(5,)
    ),
    "in_tf_function_nested": lambda env: env.run(
        lambda: gd.function(lambda: _merge(lambda s: array(1.0)))()
    ),
    "in_tf_cond_graph": _in_cond,
}


def merge_call(env: Environment) -> Any:
    """Run a case of the family `merge_call`."""
    if env.label in OTHERS:
        return OTHERS[env.label](env)
    if env.label not in BODIES:
        raise NoProgramError("no program for this label")
    return env.run(BODIES[env.label], env.per_replica(env.input["values"]))
