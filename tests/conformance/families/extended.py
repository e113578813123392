"""`StrategyExtended` and cross-device operations."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any  # Any: the values of any program

import jax.numpy as jnp

import graphdist as gd
from tests.conformance.encode import class_name, device_name, first_device
from tests.conformance.environment import (
    Environment,
    NoProgramError,
    Program,
    array,
    components,
    context,
    from_table,
    in_scope,
    replica_id,
)


def _pair(env: Environment) -> Any:
    return env.per_replica([1.0, 2.0])


def _to(op: str, destination: Any) -> Program:
    """Return the program that reduces 1.0 and 2.0 to a destination."""
    return lambda env: env.strategy.extended.reduce_to(op, _pair(env), destination)


def _mirrored(env: Environment) -> Any:
    zeros = env.per_replica([0.0, 0.0])
    return env.strategy.extended.reduce_to("SUM", _pair(env), zeros)


def _device(value: Any) -> Any:
    return device_name(first_device(value))


def _to_device(env: Environment) -> Any:
    total = _to("SUM", "cpu:1")(env)
    return [total, _device(total)]


def _to_variable(env: Environment) -> Any:
    variable = env.variable()
    total = env.strategy.extended.reduce_to("SUM", _pair(env), variable)
    return [total, components(variable)]


def _mean_of_mirrored(env: Environment) -> Any:
    mirrored = _mirrored(env)
    return env.strategy.extended.reduce_to("MEAN", mirrored, "cpu:0") is mirrored


def _arithmetic(env: Environment) -> Any:
    mirrored = _mirrored(env)
    return [
        mirrored + 1.0,
        2.0 * mirrored,
        -mirrored,
        mirrored > 2.0,
        jnp.asarray(mirrored),
        jnp.asarray(mirrored),
    ]


REDUCING: dict[str, Program] = {
    "reduce_to_device_string": _to_device,
    "reduce_to_perreplica": lambda env: env.strategy.extended.reduce_to(
        "MEAN", _pair(env), env.per_replica([0.0, 0.0])
    ),
    "reduce_to_variable": _to_variable,
    "reduce_to_list_destination": _to("SUM", ["cpu:0", "cpu:1"]),
    "reduce_to_empty_string": _to("SUM", ""),
    "reduce_to_bad_destination": _to("SUM", 5),
    "reduce_to_invalid_op": _to("MAX", "cpu:0"),
    "reduce_to_in_replica": lambda env: env.strategy.run(
        lambda: env.strategy.extended.reduce_to("SUM", array(1.0), "cpu:0")
    ),
    "reduce_to_mirrored_mean_identity": _mean_of_mirrored,
    "reduce_to_mirrored_sum": lambda env: env.strategy.extended.reduce_to(
        "SUM", _mirrored(env), "cpu:0"
    ),
    "batch_reduce_to": lambda env: env.strategy.extended.batch_reduce_to(
        "SUM", [(_pair(env), "cpu:0"), (env.per_replica([3.0, 4.0]), "cpu:0")]
    ),
    "batch_reduce_to_allreduce": lambda env: env.strategy.extended.batch_reduce_to(
        "MEAN", [(one, one) for one in (_pair(env), env.per_replica([[3.0], [4.0]]))]
    ),
    "batch_reduce_to_empty": lambda env: env.strategy.extended.batch_reduce_to("SUM", []),
    "batch_reduce_to_not_pairs": lambda env: env.strategy.extended.batch_reduce_to(
        "SUM", [_pair(env)]
    ),
    "broadcast_to_none": lambda env: env.strategy.extended.broadcast_to(array(3.0), None),
    "broadcast_to_device": lambda env: env.strategy.extended.broadcast_to(array(3.0), "cpu:1"),
    "broadcast_to_py": lambda env: env.strategy.extended.broadcast_to(3.0, None),
    "mirrored_arith": _arithmetic,
    "local_results_of_mirrored": lambda env: env.local(_mirrored(env)),
}


def _non_slot_devices(env: Environment) -> Any:
    devices = env.strategy.extended.non_slot_devices([env.variable()])
    return list(devices) if env.kind != "central" else type(devices).__name__


def _update_non_slot(env: Environment) -> Any:
    extended = env.strategy.extended
    if env.kind != "mirrored":
        return None
    return in_scope(
        env.strategy,
        lambda: extended.update_non_slot(extended.non_slot_devices([]), lambda: array(1.0)),
    )


def _config(env: Environment) -> Any:
    config = SimpleNamespace(isolate_session_state=False)
    changed = env.strategy.update_config_proto(config)
    return [changed is config, changed.isolate_session_state, config.isolate_session_state]


OTHERS: dict[str, Program] = {
    "call_for_each_replica": lambda env: env.strategy.extended.call_for_each_replica(replica_id),
    "call_for_each_replica_in_scope": lambda env: in_scope(
        env.strategy,
        lambda: env.strategy.extended.call_for_each_replica(lambda x: x * 2.0, args=(_pair(env),)),
    ),
    "non_slot_devices": _non_slot_devices,
    "update_non_slot": _update_non_slot,
    "read_var": lambda env: [
        env.strategy.extended.read_var(env.variable(3.0)),
        env.strategy.extended.read_var(env.variable(3.0, "ON_READ", "SUM")),
    ],
    "group": lambda env: class_name(env.strategy.group(_pair(env))),
    "unwrap": lambda env: env.strategy.unwrap(_pair(env)),
    "configure_noop": lambda env: env.strategy.configure(),
    "update_config_proto": _config,
}
extended = from_table(REDUCING | OTHERS)


def _largest(values: Any) -> Any:
    return jnp.max(jnp.stack(values), axis=0)


OPERATIONS: dict[str, Callable[[], Any]] = {
    "ReductionToOneDevice": lambda: gd.ReductionToOneDevice(),
    "HierarchicalCopyAllReduce": lambda: gd.HierarchicalCopyAllReduce(),
    "NcclAllReduce": lambda: gd.NcclAllReduce(),
    "ReductionToOneDevice_accum_max": lambda: gd.ReductionToOneDevice(accumulation_fn=_largest),
    "ReductionToOneDevice_to_CPU1": lambda: gd.ReductionToOneDevice(reduce_to_device="cpu:1"),
}


def _all_reduce(op: str, value_of: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda strategy, pair: strategy.run(
        lambda x: context().all_reduce(op, value_of(x)), args=(pair,)
    )


USES: dict[str, Callable[[Any, Any], Any]] = {
    "reduce": lambda strategy, pair: strategy.reduce("SUM", pair, None),
    "all_reduce": _all_reduce("SUM", lambda x: x),
    "all_reduce_list": _all_reduce("MEAN", lambda x: [x, x * 2.0]),
    "gather": lambda strategy, pair: strategy.gather(
        strategy.run(lambda x: x.reshape([1]), args=(pair,)), 0
    ),
    "reduce_to": lambda strategy, pair: strategy.extended.reduce_to("SUM", pair, pair),
}


def cross_device_ops(env: Environment) -> Any:
    """Run a case of the family `cross_device_ops`, on a strategy with those operations."""
    name, use = env.parts
    if name not in OPERATIONS or use not in USES:
        raise NoProgramError("no program for this label")
    devices = [f"cpu:{i}" for i in range(env.replicas)]
    strategy = gd.MirroredStrategy(devices, cross_device_ops=OPERATIONS[name]())
    pair = strategy.experimental_distribute_values_from_function(
        lambda context: array(env.input["values"][context.replica_id_in_sync_group])
    )
    return USES[use](strategy, pair)
