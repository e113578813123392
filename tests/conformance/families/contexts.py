"""Scopes, the current strategy, what a strategy object is; and how strategies are made."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any  # Any: the values of any program

import graphdist as gd
from tests.conformance.encode import attempt, class_name
from tests.conformance.environment import (
    EMPTY,
    Environment,
    Program,
    array,
    context,
    from_table,
    in_scope,
)

LEGACY_NAMES = (
    "experimental_run_v2",
    "experimental_run",
    "make_dataset_iterator",
    "make_input_fn_iterator",
    "experimental_make_numpy_dataset",
    "update_config_proto",
    "unwrap",
    "group",
    "configure",
    "colocate_vars_with",
    "distribute_datasets_from_function",
    "experimental_distribute_datasets_from_function",
    "gather",
    "experimental_distribute_values_from_function",
)
NOT_ASKED_OF_OLD_ONES = (
    "colocate_vars_with",
    "experimental_distribute_datasets_from_function",
)


def _other() -> Any:
    return gd.OneDeviceStrategy("cpu:0")


def _default_state(env: Environment) -> Any:
    return [
        gd.has_strategy(),
        gd.in_cross_replica_context(),
        class_name(gd.get_strategy()),
        class_name(context()),
        attempt(lambda: context().replica_id_in_sync_group),
        attempt(lambda: context().num_replicas_in_sync),
        gd.get_strategy().num_replicas_in_sync,
    ]


def _where(strategy: Any) -> list[Any]:
    return [gd.has_strategy(), gd.in_cross_replica_context(), gd.get_strategy() is strategy]


def _enter_and_leave(scope: Any, strategy: Any) -> bool:
    is_it: bool = scope.__enter__() is strategy
    scope.__exit__(None, None, None)
    return is_it


def _used_again(env: Environment) -> Any:
    scope = env.strategy.scope()
    return [attempt(lambda: _enter_and_leave(scope, env.strategy)) for _ in range(2)]


def _default_inside(env: Environment) -> Any:
    default = gd.get_strategy()
    return in_scope(env.strategy, lambda: in_scope(default, lambda: 1))


SCOPES: dict[str, Program] = {
    "default_state": _default_state,
    "in_scope": lambda env: in_scope(env.strategy, lambda: [*_where(env.strategy), context()]),
    "scope_returns_strategy": lambda env: _enter_and_leave(env.strategy.scope(), env.strategy),
    "nest_same_ok": lambda env: in_scope(
        env.strategy, lambda: in_scope(env.strategy, lambda: gd.get_strategy() is env.strategy)
    ),
    "nest_other_error": lambda env: in_scope(env.strategy, lambda: in_scope(_other(), lambda: 1)),
    "nest_default_in_scope_error": _default_inside,
    "default_scope_ok": lambda env: in_scope(
        gd.get_strategy(), lambda: [gd.has_strategy(), gd.in_cross_replica_context()]
    ),
    "default_scope_then_other": lambda env: in_scope(
        gd.get_strategy(),
        lambda: in_scope(env.strategy, lambda: gd.get_strategy() is env.strategy),
    ),
    "exit_restores": lambda env: [in_scope(env.strategy, lambda: 0), gd.has_strategy()][1],
    "exit_on_exception_restores": lambda env: [
        attempt(lambda: in_scope(env.strategy, lambda: EMPTY["x"])),
        gd.has_strategy(),
    ][1],
    "reuse_context_manager_object": _used_again,
    "get_replica_context_none_in_scope": lambda env: in_scope(env.strategy, context),
}


def _set(strategy: Any) -> None:
    gd.experimental_set_strategy(strategy)


def _set_and_clear(env: Environment) -> Any:
    _set(env.strategy)
    inside = [gd.get_strategy() is env.strategy, gd.in_cross_replica_context()]
    _set(None)
    return (inside, gd.has_strategy())


def _after_setting(*others: Callable[[], Any], then: Program) -> Program:
    """Return the program that sets the case's strategy, then these, and then asks."""

    def program(env: Environment) -> Any:
        _set(env.strategy)
        for make in others:
            _set(make())
        return then(env)

    return program


def _switch(env: Environment) -> Any:
    other = _other()
    return _after_setting(lambda: other, then=lambda env: gd.get_strategy() is other)(env)


def _in_thread(env: Environment) -> Any:
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(gd.has_strategy()))
    thread.start()
    thread.join()
    return seen


SETTING: dict[str, Program] = {
    "set_strategy": _set_and_clear,
    "set_strategy_switch": _switch,
    "set_strategy_inside_scope": lambda env: in_scope(env.strategy, lambda: _set(env.strategy)),
    "set_none_inside_scope": lambda env: in_scope(env.strategy, lambda: _set(None)),
    "set_then_scope_same": _after_setting(then=lambda env: in_scope(env.strategy, lambda: 5)),
    "set_then_scope_other": _after_setting(then=lambda env: in_scope(_other(), lambda: 5)),
    "set_strategy_twice_same": lambda env: _after_setting(
        lambda: env.strategy, then=lambda env: gd.get_strategy() is env.strategy
    )(env),
    "set_garbage": lambda env: gd.experimental_set_strategy("x"),  # type: ignore[arg-type]
    "thread_isolation": lambda env: in_scope(env.strategy, lambda: _in_thread(env)),
}


def _deep_copy(env: Environment) -> Any:
    twin = copy.deepcopy(env.strategy)
    is_its_own = in_scope(twin, lambda: gd.get_strategy() is twin)
    return [twin is not env.strategy, twin.num_replicas_in_sync, is_its_own]


def _value_container(env: Environment) -> Any:
    variable, extended = env.variable(), env.strategy.extended
    return [
        extended.value_container(variable.values[0]) is variable,
        extended.value_container(variable) is variable,
        extended.value_container(array(1.0)),
    ]


def _created_in_scope(env: Environment) -> Any:
    return [
        env.strategy.extended.variable_created_in_scope(env.variable()),
        env.strategy.extended.variable_created_in_scope(gd.Variable(array(1.0))),
        gd.get_strategy().extended.variable_created_in_scope(gd.Variable(array(1.0))),
    ]


def _colocate(env: Environment, variable: Any) -> Any:
    return env.strategy.extended.colocate_vars_with(variable).__enter__()


def _colocate_foreign(env: Environment) -> Any:
    variable = gd.Variable(array(1.0))
    return in_scope(env.strategy, lambda: _colocate(env, variable))


def _set_replicas(env: Environment) -> None:
    env.strategy.num_replicas_in_sync = 3


def _old_names(env: Environment) -> Any:
    from graphdist.compat import v1

    old = v1.OneDeviceStrategy("cpu:0")
    return {name: hasattr(old, name) for name in LEGACY_NAMES if name not in NOT_ASKED_OF_OLD_ONES}


OBJECTS: dict[str, Program] = {
    "copy_copy": lambda env: copy.copy(env.strategy),
    "deepcopy": _deep_copy,
    "deepcopy_default": lambda env: copy.deepcopy(gd.get_strategy()),
    "construct_default_again": lambda env: type(gd.get_strategy())(),
    "cluster_resolver_single_worker": lambda env: env.strategy.cluster_resolver,
    "worker_devices": lambda env: [
        list(env.strategy.extended.worker_devices),
        list(env.strategy.extended.parameter_devices),
    ],
    "default_worker_devices": lambda env: [
        attempt(lambda: gd.get_strategy().extended.worker_devices),
        attempt(lambda: gd.get_strategy().extended.parameter_devices),
    ],
    "require_static_shapes": lambda env: env.strategy.extended.experimental_require_static_shapes,
    "num_replicas_readonly": _set_replicas,
    "value_container": _value_container,
    "variable_created_in_scope": _created_in_scope,
    "colocate_vars_with_outside_scope": lambda env: _colocate(env, env.variable()),
    "colocate_vars_with_foreign": _colocate_foreign,
    "str_is_weakly_unique": lambda env: type(env.strategy).__name__,
    "legacy_attrs_tf2": lambda env: {n: hasattr(env.strategy, n) for n in LEGACY_NAMES},
    "legacy_attrs_v1": _old_names,
}

context_family = from_table(SCOPES | SETTING | OBJECTS)
