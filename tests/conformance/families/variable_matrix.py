"""Variables: synchronization x aggregation, one fresh variable for every write and read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: the values of any program

import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.conformance.encode import Encoded, attempt, class_name
from tests.conformance.environment import (
    Environment,
    array,
    components,
    in_scope,
    replica_id,
)

Probe = Callable[[Environment, Any], Any]
SCATTERS = ("add", "sub", "mul", "div", "min", "max", "update")


def _number(variable: Any, value: float) -> Any:
    """Return a Python number of the variable's kind, a new object every time."""
    is_integer = np.issubdtype(variable.dtype, np.integer)
    return int(value) if is_integer else float(str(value))


def _next(variable: Any) -> Any:
    """Return what replica r writes: r + 1."""
    return jnp.asarray(replica_id() + 1).astype(variable.dtype)


def _four(env: Environment, variable: Any) -> Any:
    dtype = "i32" if np.issubdtype(variable.dtype, np.integer) else "f32"
    return env.per_replica([10, 20, 30, 40][: max(env.replicas, 1)], dtype)


def _after(variable: Any) -> tuple[Any, Any]:
    return (components(variable), variable.read_value())


def _cross(method: str) -> Probe:
    """Return the probe of a write of 3 in cross-replica context."""

    def probe(env: Environment, variable: Any) -> Any:
        getattr(variable, method)(_number(variable, 3))
        return _after(variable)

    return probe


def _replica(method: str, value_of: Callable[[Any], Any]) -> Probe:
    """Return the probe of a write in replica context."""

    def probe(env: Environment, variable: Any) -> Any:
        env.strategy.run(lambda: getattr(variable, method)(value_of(variable)))
        return _after(variable)

    return probe


def _literal(value: int) -> Callable[[Any], Any]:
    """Return the maker of one Python number, the same object for all replicas."""
    whole, real = value, float(value)
    return lambda variable: whole if np.issubdtype(variable.dtype, np.integer) else real


def _fresh(value: int) -> Callable[[Any], Any]:
    return lambda variable: _number(variable, value)


def _assign_tensor(env: Environment, variable: Any) -> Any:
    variable.assign(jnp.asarray(3, variable.dtype))
    return _after(variable)


def _assign_in_scope(env: Environment, variable: Any) -> Any:
    return in_scope(env.strategy, lambda: _cross("assign")(env, variable))


def _same_tensor(env: Environment, variable: Any) -> Any:
    five = jnp.asarray(5, variable.dtype)
    return _replica("assign_add", lambda variable: five)(env, variable)


def _assign_per_replica(env: Environment, variable: Any) -> Any:
    in_scope(env.strategy, lambda: variable.assign(_four(env, variable)))
    return (components(variable),)


def _update(value_of: Callable[[Environment, Any], Any]) -> Probe:
    def probe(env: Environment, variable: Any) -> Any:
        def update() -> None:
            value = value_of(env, variable)
            env.strategy.extended.update(variable, lambda v, a: v.assign(a), args=(value,))

        in_scope(env.strategy, update)
        return (components(variable),)

    return probe


def _describe(env: Environment, variable: Any) -> Any:
    aggregation = f"VariableAggregationV2.{variable.aggregation.name}"
    synchronization = str(variable.synchronization)
    return [class_name(variable), synchronization, aggregation, variable.trainable]


READS: dict[str, Probe] = {
    "read_cross": lambda env, v: float(v.read_value()),
    "value_cross": lambda env, v: v.value(),
    "convert_cross": lambda env, v: float(jnp.asarray(v)),
    "add_cross": lambda env, v: float(v + _number(v, 1)),
    "read_replica": lambda env, v: env.strategy.run(lambda: v.read_value()),
    "convert_replica": lambda env, v: env.strategy.run(lambda: v * _number(v, 1)),
}
WRITES: dict[str, Probe] = {
    "assign_cross_py": _cross("assign"),
    "assign_cross_tensor": _assign_tensor,
    "assign_cross_in_scope": _assign_in_scope,
    "assign_add_cross": _cross("assign_add"),
    "assign_sub_cross": _cross("assign_sub"),
    "assign_replica_tensor": _replica("assign", _next),
    "assign_add_replica_tensor": _replica("assign_add", _next),
    "assign_sub_replica_tensor": _replica("assign_sub", _next),
    "assign_replica_py_literal": _replica("assign", _literal(5)),
    "assign_add_replica_py_literal": _replica("assign_add", _literal(5)),
    "assign_replica_py_literal_zero": _replica("assign", _literal(0)),
    "assign_replica_py_fresh_object": _replica("assign", _fresh(5)),
    "assign_add_replica_py_fresh_object": _replica("assign_add", _fresh(5)),
    "assign_replica_py_fresh_zero": _replica("assign", _fresh(0)),
    "assign_add_replica_same_tensor_object": _same_tensor,
    "assign_cross_perreplica": _assign_per_replica,
    "extended_update_assign": _update(lambda env, v: _number(v, 7)),
    "extended_update_perreplica": _update(_four),
}
RESULTS: dict[str, Probe] = {
    "run_return_of_assign": lambda env, v: env.strategy.run(lambda: v.assign(_next(v))),
    "assign_return_type_cross": lambda env, v: class_name(v.assign(_number(v, 3))),
    "assign_read_value_false": lambda env, v: class_name(v.assign(_number(v, 3), read_value=False)),
    "type": _describe,
}


def _options(env: Environment) -> tuple[str, str]:
    """Return synchronization and aggregation of a case: of its input, or of its label."""
    sync = env.input.get("synchronization", env.parts[0])
    return sync, env.input.get("aggregation", env.parts[1])


def _fresh_variable(env: Environment, initial: Any = 1.0) -> Any:
    dtype = env.input.get("dtype", "f32")
    return env.variable(env.input.get("initial", initial), *_options(env), dtype)


def variable_matrix(env: Environment) -> Any:
    """Run a case of the family `variable_matrix`."""
    return Encoded(
        (name, attempt(lambda probe: probe(env, _fresh_variable(env)), probe))
        for name, probe in (READS | WRITES | RESULTS).items()
    )


UPDATES: dict[str, Callable[[Any], Any]] = {
    "assign": lambda v: v.assign(_next(v)),
    "assign_add": lambda v: v.assign_add(_next(v)),
    "assign_add_py": lambda v: v.assign_add(5.0),
    "read": lambda v: v.read_value(),
}
CROSS_UPDATES: dict[str, Callable[[Any], Any]] = {
    "cross_assign": lambda v: v.assign(3.0),
    "cross_assign_add": lambda v: v.assign_add(3.0),
}


def variable_matrix_function(env: Environment) -> Any:
    """Run a case of the family `variable_matrix_function`: the updates inside a function."""

    def in_replica(update: Callable[[Any], Any]) -> Any:
        variable = _fresh_variable(env)
        result = gd.function(lambda: env.strategy.run(lambda: update(variable)))()
        return [result, *_after(variable)]

    def in_cross(update: Callable[[Any], Any]) -> Any:
        variable = _fresh_variable(env)
        step = gd.function(lambda: update(variable))
        in_scope(env.strategy, step)
        return [*_after(variable)]

    probes = [(in_replica, UPDATES), (in_cross, CROSS_UPDATES)]
    return Encoded(
        (name, attempt(do, update)) for do, updates in probes for name, update in updates.items()
    )


def variable_scatter(env: Environment) -> Any:
    """Run a case of the family `variable_scatter`: 10 times the replica's number at index 1."""
    return Encoded(
        (
            f"scatter_{kind}/{where}",
            attempt(_scatter, env, f"scatter_{kind}", where),
        )
        for kind in SCATTERS
        for where in ("cross", "replica")
    )


def _scatter(env: Environment, method: str, where: str) -> Any:
    variable = _fresh_variable(env, [1.0, 2.0, 3.0])

    def update() -> None:
        factor = 1.0 if where == "cross" else jnp.float32(replica_id() + 1)
        slices = gd.IndexedSlices(array([10.0]) * factor, array([1], "i32"), array([3], "i32"))
        getattr(variable, method)(slices)

    if where == "cross":
        update()
    else:
        env.strategy.run(update)
    return components(variable)
