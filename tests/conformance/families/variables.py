"""Variables: where they may be made, read and assigned, and what they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.conformance.encode import attempt, class_name, device_name, first_device
from tests.conformance.environment import (
    Environment,
    Program,
    array,
    components,
    from_table,
    in_scope,
    replica_id,
    without,
)


def _other() -> Any:
    return gd.OneDeviceStrategy("cpu:0")


def _number() -> Any:
    return jnp.float32(replica_id())


def _run(env: Environment, fn: Callable[[], Any]) -> Any:
    return env.strategy.run(fn)


def _with(*options: Any, then: Callable[[Environment, Any], Any]) -> Program:
    """Return the program that makes a variable with these options, and then does this."""
    return lambda env: then(env, env.variable(*options))


def _made_in_replica(env: Environment) -> Any:
    made: list[Any] = []
    _run(env, lambda: made.append(gd.Variable(float(replica_id()))))
    return [class_name(made[0]), made[0] is made[-1], components(made[0])]


def _two_in_replica(env: Environment) -> Any:
    made: list[Any] = []
    _run(env, lambda: made.append((gd.Variable(1.0), gd.Variable(2.0))))
    first, last = made[0], made[-1]
    return [first[0] is last[0], first[1] is last[1], first[0] is first[1]]


def _in_one_replica(env: Environment) -> Any:
    made: list[Any] = []

    def replica_fn() -> None:
        if int(replica_id()) == 0:
            made.append(gd.Variable(1.0))

    _run(env, replica_fn)
    return class_name(made[0])


def _initializer_calls(env: Environment) -> Any:
    calls: list[int] = []

    def initial() -> Any:
        calls.append(1)
        return array(1.0)

    in_scope(env.strategy, lambda: gd.Variable(initial))
    return len(calls)


def _equal_copies(env: Environment) -> Any:
    with env.strategy.scope():
        variable = gd.Variable(lambda: jax.random.uniform(jax.random.key(0), ()))
    first, *others = components(variable)
    return all(first == other for other in others)


def _in_scope(**options: Any) -> Program:
    """Return the program that makes a variable of 1.0 in the strategy's scope."""
    return lambda env: in_scope(env.strategy, lambda: gd.Variable(array(1.0), **options))


MAKING: dict[str, Program] = {
    "created_in_replica_ctx": _made_in_replica,
    "created_in_run_two_vars": _two_in_replica,
    "created_in_only_one_replica": _in_one_replica,
    "initializer_called_times": _initializer_calls,
    "random_initializer_equal": _equal_copies,
    "initial_value_required": lambda env: in_scope(env.strategy, lambda: gd.Variable()),
    "sync_invalid_string": _in_scope(synchronization="banana"),
    "agg_invalid_string": _in_scope(aggregation="banana"),
    "trainable_with_on_read": _in_scope(
        trainable=True, synchronization=gd.VariableSynchronization.ON_READ
    ),
    "trainable_default_on_read": _with(1.0, "ON_READ", "SUM", then=lambda env, v: v.trainable),
    "int_mean_create": _with(1, "AUTO", "MEAN", "i32", then=lambda env, v: v),
    "bool_sum_create": _with(True, "AUTO", "SUM", "bool", then=lambda env, v: v),
    "constraint_kept": lambda env: in_scope(
        env.strategy,
        lambda: gd.Variable(array(1.0), constraint=jax.nn.relu).constraint is jax.nn.relu,
    ),
}


def _named(env: Environment) -> Any:
    return env.variable(1.0, name="w")


def _device(part: Any) -> str:
    return device_name(first_device(part))


def _description(env: Environment) -> Any:
    variable = _named(env)
    devices = [_device(part) for part in variable.values]
    shape, dtype = list(variable.shape), np.dtype(variable.dtype)
    return [variable.name, *devices, shape, dtype, variable.trainable]


def _as_a_value(env: Environment) -> Any:
    def vector() -> Any:
        return env.variable([1.0, 2.0])

    return [
        attempt(lambda: len(vector())),
        attempt(lambda: list(vector())),
        attempt(lambda: vector()[0]),
        attempt(lambda: float(env.variable(2.0))),
        attempt(lambda: bool(env.variable(2.0) > 1.0)),
        attempt(lambda: np.asarray(env.variable(2.0)).item()),
    ]


def _equality(env: Environment) -> Any:
    variable = env.variable(1.0)
    return [
        variable.ref() == variable.ref(),
        attempt(lambda: hash(variable)),
        attempt(lambda: variable == variable),
    ]


def _slot_devices(env: Environment) -> Any:
    variable = env.variable()

    def slot() -> Any:
        with env.strategy.extended.colocate_vars_with(variable):
            return gd.Variable(array(0.0))

    return [_device(part) for part in in_scope(env.strategy, slot).values]


BEING: dict[str, Program] = {
    "names": lambda env: [part.name for part in _named(env).values],
    "name_and_device": _description,
    "handle_cross": without("resource handles"),
    "handle_replica": without("resource handles"),
    "deepcopy_outside": _with(4.0, then=lambda env, v: components(copy.deepcopy(v))),
    "mirrored_is_lazy_iterable": _as_a_value,
    "repr": lambda env: repr(_named(env)),
    "eager_numpy_on_read_sum": _with(2.0, "ON_READ", "SUM", then=lambda env, v: np.asarray(v)),
    "tf_module_collects": without("tf.Module"),
    "hash_eq": _equality,
    "optimizer_like_slot_colocated": _slot_devices,
}
_SCOPED: dict[str, Callable[[Any], Any]] = {
    "deepcopy_other_scope": lambda v: components(copy.deepcopy(v)),
    "read_in_other_scope": lambda v: float(v.read_value()),
    "assign_in_other_scope": lambda v: v.assign(1.0),
}


def _elsewhere(use: Callable[[Any], Any]) -> Program:
    """Return the program that uses a variable inside another strategy's scope."""
    return _with(4.0, then=lambda env, v: in_scope(_other(), lambda: use(v)))


def _plain(then: Callable[[Environment, Any], Any]) -> Program:
    """Return the program on a variable made outside every scope."""
    return lambda env: then(env, gd.Variable(array(0.0)))


def _added_in_run(env: Environment, variable: Any) -> Any:
    _run(env, lambda: variable.assign_add(1.0))
    return np.asarray(variable)


STRATEGIES: dict[str, Program] = {
    **{label: _elsewhere(use) for label, use in _SCOPED.items()},
    "read_other_strategy_replica": _with(4.0, then=lambda env, v: _other().run(lambda: v + 1.0)),
    "plain_var_in_run_assign_add": _plain(_added_in_run),
    "plain_var_in_run_returned": _plain(lambda env, v: _run(env, lambda: v.assign_add(1.0))),
}


def _slope(env: Environment, variable: Any) -> Any:
    factor = jnp.float32(replica_id() + 1)
    return jax.grad(lambda value: value * value * factor)(variable.read_value())


def _assigned_per_replica(env: Environment, variable: Any) -> Any:
    pair = env.per_replica([1.0, 2.0])
    return _run(env, lambda: variable.assign(pair))


def _assigned_number(env: Environment, variable: Any) -> Any:
    _run(env, lambda: variable.assign(_number() * 10))
    mean = env.strategy.reduce("MEAN", variable, None)
    return [
        components(variable),
        float(variable.read_value()),
        float(mean.read_value() if isinstance(mean, gd.Variable) else mean),
        _run(env, lambda: variable * 1.0),
    ]


READING: dict[str, Program] = {
    "tape_watch_mirrored": _with(3.0, then=lambda env, v: _run(env, lambda: _slope(env, v))),
    "tape_cross_replica": _with(
        3.0, then=lambda env, v: jax.grad(lambda value: value * value)(v.read_value())
    ),
    "tape_on_read_replica": without("gradient tapes"),
    "sync_on_read_context_sum": without("variable_sync_on_read_context"),
    "sync_on_read_context_mean": without("variable_sync_on_read_context"),
    "sync_on_read_context_first": without("variable_sync_on_read_context"),
    "sync_on_read_context_none": without("variable_sync_on_read_context"),
    "sync_on_read_context_read_value": without("variable_sync_on_read_context"),
    "perreplica_inside_assign_replica": _with(1.0, "AUTO", "SUM", then=_assigned_per_replica),
    "assign_wrong_shape_cross": _with([1.0, 2.0], then=lambda env, v: v.assign([1.0, 2.0, 3.0])),
    "assign_wrong_shape_replica": _with(
        [1.0, 2.0], "AUTO", "MEAN", then=lambda env, v: _run(env, lambda: v.assign(jnp.ones(3)))
    ),
    "assign_wrong_dtype": _with(1.0, then=lambda env, v: v.assign(array(1, "i32"))),
    "batch_scatter_desync_then_read": _with(1.0, then=_assigned_number),
    "run_returns_read": _with(2.0, then=lambda env, v: _run(env, lambda: v.read_value())),
}


def _reduced(op: str, *options: Any, axis: Any = None) -> Program:
    return _with(*options, then=lambda env, v: env.strategy.reduce(op, v, axis=axis))


def _updated(fn: Callable[..., Any], *args: Any, **options: Any) -> Program:
    return _with(1.0, then=lambda env, v: env.strategy.extended.update(v, fn, args=args, **options))


def _update_in_replica(env: Environment, variable: Any) -> Any:
    return _run(
        env,
        lambda: env.strategy.extended.update(
            variable, lambda v, a: v.assign_add(a), args=(jnp.float32(replica_id() + 1),)
        ),
    )


def _update_devices(env: Environment) -> Any:
    devices: list[str] = []
    variable = env.variable(1.0)
    env.strategy.extended.update(variable, lambda v: devices.append(v.device))
    return devices


REDUCING: dict[str, Program] = {
    "reduce_mirrored_sum": _reduced("SUM", 3.0),
    "reduce_mirrored_mean": _reduced("MEAN", 3.0),
    "reduce_mirrored_sum_axis0": _reduced("SUM", [1.0, 2.0], axis=0),
    "reduce_on_read_sum": _reduced("SUM", 3.0, "ON_READ", "SUM"),
    "reduce_on_read_none_agg": _reduced("MEAN", 3.0, "ON_READ", "NONE"),
    "update_non_mirrored": lambda env: env.strategy.extended.update(
        gd.Variable(array(1.0)), lambda v: v.assign(2.0)
    ),
    "update_group_false": _updated(lambda v, a: v.assign(a), 2.0, group=False),
    "update_returns": _updated(lambda v: v + 1.0),
    "update_in_replica": _with(1.0, then=_update_in_replica),
    "update_ctx_replica_ids": _update_devices,
}
variable = from_table(MAKING | BEING | STRATEGIES | READING | REDUCING)
