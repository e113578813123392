"""How strategies, options and their enums are made."""

from __future__ import annotations

from typing import Any  # Any: the values of any program

import graphdist as gd
from tests.conformance.encode import attempt
from tests.conformance.environment import Environment, Program, array, from_table

ANY: Any = gd
"""graphdist without its annotations, for wrong arguments and for names that come later."""

SPELLINGS = ("cpu:0", "/cpu:1", "/device:CPU:2", "/job:localhost/replica:0/task:0/device:CPU:3")
SERVERS = ("/job:worker/task:0/CPU:0", "/job:worker/task:1/CPU:0")


def _workers(strategy: Any) -> list[str]:
    return list(strategy.extended.worker_devices)


def _central_defaults(env: Environment) -> Any:
    strategy = gd.CentralStorageStrategy()
    parameters = list(strategy.extended.parameter_devices)
    return [strategy.num_replicas_in_sync, _workers(strategy), parameters]


def _local_worker(env: Environment) -> Any:
    strategy = gd.MultiWorkerMirroredStrategy()
    resolver = type(strategy.cluster_resolver).__name__
    return [strategy.num_replicas_in_sync, _workers(strategy), resolver]


def _after_first_use(env: Environment) -> Any:
    assert float(array(1.0) + 1.0) == 2.0
    return gd.MultiWorkerMirroredStrategy().num_replicas_in_sync


def _servers(**jobs: list[str]) -> Program:
    """Return the program that makes a parameter server strategy for a cluster of these jobs."""

    def program(env: Environment) -> Any:
        resolver = gd.cluster.SimpleClusterResolver(gd.cluster.ClusterSpec(jobs))
        return gd.ParameterServerStrategy(resolver)

    return program


MIRRORED: dict[str, Program] = {
    "mirrored_empty_devices": lambda env: gd.MirroredStrategy([]),
    "mirrored_duplicate_devices": lambda env: gd.MirroredStrategy(["cpu:0", "cpu:0"]),
    "mirrored_missing_device": lambda env: [gd.MirroredStrategy(["gpu:0"]).num_replicas_in_sync],
    "mirrored_none": lambda env: _workers(gd.MirroredStrategy()),
    "mirrored_device_spelling": lambda env: [
        _workers(gd.MirroredStrategy([name]))[0] for name in SPELLINGS
    ],
    "mirrored_str_instead_of_list": lambda env: _workers(gd.MirroredStrategy("cpu:0")),
    "mirrored_remote_device": lambda env: gd.MirroredStrategy(SERVERS),
    "cross_device_ops_bad_type": lambda env: (
        ANY.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops="nccl").num_replicas_in_sync
    ),
    "nccl_negative_packs": lambda env: gd.NcclAllReduce(num_packs=-1),
    "hier_negative_packs": lambda env: gd.HierarchicalCopyAllReduce(num_packs=-2),
    "nccl_zero_packs": lambda env: type(gd.NcclAllReduce(num_packs=0)).__name__,
}
OTHERS: dict[str, Program] = {
    "onedevice_none": lambda env: gd.OneDeviceStrategy(None),
    "onedevice_bad": lambda env: gd.OneDeviceStrategy("banana"),
    "onedevice_list": lambda env: ANY.OneDeviceStrategy(["cpu:0"]),
    "central_defaults": _central_defaults,
    "central_two_default_param": lambda env: list(
        gd.CentralStorageStrategy(["cpu:0", "cpu:1"]).extended.parameter_devices
    ),
    "tpu_without_tpu": lambda env: ANY.TPUStrategy(),
    "mwms_defaults": _local_worker,
    "mwms_bad_options": lambda env: ANY.MultiWorkerMirroredStrategy(communication_options=3),
    "mwms_bad_resolver": lambda env: gd.MultiWorkerMirroredStrategy(cluster_resolver=3),
    "mwms_experimental_isinstance": lambda env: isinstance(
        gd.MultiWorkerMirroredStrategy(), gd.experimental.MultiWorkerMirroredStrategy
    ),
    "mwms_after_context_init": _after_first_use,
    "ps_no_cluster": _servers(),
    "ps_no_ps": _servers(worker=["localhost:1"]),
    "ps_no_worker": _servers(ps=["localhost:1"]),
    "ps_bad_job": _servers(ps=["localhost:1"], worker=["localhost:2"], master=["localhost:3"]),
    "base_strategy_without_extended": lambda env: ANY.Strategy(),
}
construct = from_table(MIRRORED | OTHERS)


def _input_context(env: Environment) -> Any:
    context = gd.InputContext()
    return [
        context.num_input_pipelines,
        context.input_pipeline_id,
        context.num_replicas_in_sync,
        str(context),
        context.get_per_replica_batch_size(7),
    ]


def _batch_sizes(env: Environment) -> Any:
    context = gd.InputContext(2, 1, env.input["num_replicas"])
    return [attempt(context.get_per_replica_batch_size, size) for size in env.input["sizes"]]


input_context = from_table({"defaults": _input_context, "batch_size": _batch_sizes})
run_options = from_table({"defaults": lambda env: gd.RunOptions()})


def _validation(env: Environment) -> Any:
    def fields(given: dict[str, Any]) -> list[Any]:
        options = gd.CommunicationOptions(**given)
        return [options.bytes_per_pack, options.timeout_seconds, options.implementation]

    return [attempt(fields, given) for given in env.input["args"]]


def _text(options: Any) -> str:
    """Return options as TensorFlow writes them."""
    return (
        f"Options(bytes_per_pack={options.bytes_per_pack},"
        f"timeout_seconds={options.timeout_seconds}, implementation={options.implementation})"
    )


def _merge(env: Environment) -> Any:
    kind = ANY.CommunicationOptions
    options = kind(100, 1.0, "RING")
    later = kind(5, 0.0, "NCCL")
    return [_text(options.merge(one)) for one in (kind(), later, None)]


communication_options = from_table({"validation": _validation, "merge": _merge})


def _alias(env: Environment) -> Any:
    hints = gd.CollectiveHints(3, 2.0)
    from graphdist.compat.v1 import CollectiveCommunication

    is_same = CollectiveCommunication is gd.CommunicationImplementation
    name = "Options" if isinstance(hints, gd.CommunicationOptions) else type(hints).__name__
    return [name, hints.bytes_per_pack, hints.timeout_seconds, is_same]


collective_hints = from_table({"alias": _alias})

reduce_op = from_table(
    {
        "members": lambda env: [
            [member.name for member in gd.ReduceOp],
            *(
                attempt(gd.ReduceOp.from_variable_aggregation, one)
                for one in gd.VariableAggregation
            ),
        ],
        "construct": lambda env: [attempt(gd.ReduceOp, one) for one in ("SUM", "sum", 0)],
    }
)
