"""`MultiWorkerMirroredStrategy` without a cluster: one local worker."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

import graphdist as gd
from graphdist.compat import v1

older_name = pytest.mark.filterwarnings("ignore:experimental.MultiWorkerMirroredStrategy")


def test_is_one_replica_on_one_cpu_device() -> None:
    strategy = gd.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 1
    assert strategy.extended.worker_devices == ("cpu:0",)
    assert strategy.extended.experimental_between_graph
    assert strategy.run(lambda x: x + 1, args=(2.0,)) == 3.0


def test_on_several_devices_is_mirrored() -> None:
    strategy = gd.MultiWorkerMirroredStrategy(devices=["cpu:1", "cpu:2"])
    with strategy.scope():
        v = gd.Variable(1.0, aggregation=gd.VariableAggregation.SUM)
    strategy.run(lambda: v.assign(1.0 * (1 + gd.get_replica_context().replica_id_in_sync_group)))
    assert [float(value) for value in v.values] == [3, 3]


def test_resolver_of_no_cluster() -> None:
    resolver: Any = gd.MultiWorkerMirroredStrategy().cluster_resolver
    assert type(resolver).__name__ == "TFConfigClusterResolver"
    assert (resolver.task_type, resolver.task_id, resolver.cluster_spec()) == (None, None, {})


def test_resolver_of_a_cluster_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"cluster": {"worker": ["localhost:1"]}, "task": {"type": "worker", "index": "0"}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    resolver: Any = gd.MultiWorkerMirroredStrategy().cluster_resolver
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    assert resolver.cluster_spec() == {"worker": ["localhost:1"]}


def test_options_are_kept() -> None:
    options = gd.CommunicationOptions(bytes_per_pack=8)
    assert gd.MultiWorkerMirroredStrategy(None, options).communication_options is options
    default = gd.MultiWorkerMirroredStrategy().communication_options
    assert default == gd.CommunicationOptions()


@older_name
def test_older_form_has_the_same_instances() -> None:
    older = gd.experimental.MultiWorkerMirroredStrategy
    made = older(gd.CommunicationImplementation.RING)
    assert made.communication_options.implementation is gd.CommunicationImplementation.RING
    assert isinstance(made, gd.MultiWorkerMirroredStrategy)
    assert isinstance(gd.MultiWorkerMirroredStrategy(), older)
    assert not isinstance(gd.MirroredStrategy(["cpu:0"]), older)
    assert older(devices=["cpu:0", "cpu:1"]).num_replicas_in_sync == 2


def test_name_of_compat_is_a_class_of_its_own() -> None:
    strategy = v1.MultiWorkerMirroredStrategy("NCCL", devices=["cpu:0", "cpu:1"])
    assert strategy.communication_options.implementation is gd.CommunicationImplementation.NCCL
    assert not isinstance(strategy, gd.MultiWorkerMirroredStrategy)
    assert isinstance(strategy, v1.Strategy)
    twos = strategy.experimental_local_results(strategy.run(lambda: np.float32(2)))
    assert [float(value) for value in twos] == [2, 2]


def test_deep_copy_is_independent() -> None:
    strategy = gd.MultiWorkerMirroredStrategy(devices=["cpu:0", "cpu:1"])
    twin = copy.deepcopy(strategy)
    assert twin.num_replicas_in_sync == 2
    assert twin.extended.experimental_between_graph
    assert twin.communication_options == strategy.communication_options
