"""Clusters, and workers that do not find each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import jax
import pytest

import graphdist as gd
from graphdist.runtime.devices import Devices
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.runtime.processes.workers import WorkerTimeouts
from graphdist.runtime.program_agreement import agree_on_operations
from graphdist.runtime.resharding import agree_to_gather
from graphdist.tracing.user_lines import here
from tests.errors.refusal import Refused
from tests.free_port import free_port


def _cluster(*addresses: str, **task: Any) -> gd.cluster.SimpleClusterResolver:
    return gd.cluster.SimpleClusterResolver(
        gd.cluster.ClusterSpec({"worker": list(addresses)}), **task
    )


@contextmanager
def _before_first_use() -> Iterator[None]:
    """Make a strategy as if nothing had run on a device, and with little timeouts."""
    place = "graphdist.strategies.workers_of_job.backends_are_started"
    seconds = {"GRAPHDIST_WORKER_START_SECONDS": "0.2"}
    with mock.patch(place, return_value=False), mock.patch.dict("os.environ", seconds):
        yield


def cluster_that_is_a_list(refused: Refused) -> None:
    jobs: Any = ["localhost:1"]
    with refused(TypeError):
        gd.cluster.ClusterSpec(jobs)


def tasks_that_are_one_address(refused: Refused) -> None:
    with refused(TypeError):
        gd.cluster.ClusterSpec({"worker": "localhost:1"})


def task_that_is_not_there(refused: Refused) -> None:
    with refused(ValueError):
        gd.cluster.ClusterSpec({"worker": ["localhost:1"]}).task_address("worker", 1)


def task_of_two_resolvers(refused: Refused) -> None:
    spec = gd.cluster.ClusterSpec({"worker": {0: "a:1", 2: "b:1"}})
    first, second = (gd.cluster.SimpleClusterResolver(spec) for _ in range(2))
    with refused(KeyError):
        gd.cluster.UnionResolver(first, second).cluster_spec()


def pods_without_the_client(refused: Refused) -> None:
    with mock.patch.dict("sys.modules", kubernetes=None), refused(ImportError):
        gd.cluster.KubernetesClusterResolver()


def slurm_outside_a_step(refused: Refused) -> None:
    with mock.patch.dict("os.environ"), refused(RuntimeError):
        gd.cluster.SlurmClusterResolver()


def worker_that_is_not_said(refused: Refused) -> None:
    with refused(ValueError):
        gd.MultiWorkerMirroredStrategy(_cluster("127.0.0.1:1", "127.0.0.1:2"))


def workers_after_first_use(refused: Refused) -> None:
    resolver = _cluster("127.0.0.1:1", "127.0.0.1:2", task_type="worker", task_id=1)
    assert float(gd.MirroredStrategy(["cpu:0"]).run(lambda: 1.0)) == 1
    with refused(RuntimeError):
        gd.MultiWorkerMirroredStrategy(resolver)


def _meet_nobody(workers: ClusterWorkers) -> None:
    with pytest.raises(gd.WorkerError):
        workers.rendezvous()


def worker_without_a_port(refused: Refused) -> None:
    resolver = _cluster("localhost", "localhost:2", task_type="worker", task_id=1)
    with _before_first_use(), refused(RuntimeError):
        gd.MultiWorkerMirroredStrategy(resolver)


def worker_with_a_port_too_large(refused: Refused) -> None:
    resolver = _cluster("127.0.0.1:99999", "127.0.0.1:2", task_type="worker", task_id=1)
    with _before_first_use(), refused(RuntimeError):
        gd.MultiWorkerMirroredStrategy(resolver)


def worker_at_ipv6_without_brackets(refused: Refused) -> None:
    resolver = _cluster("fd00::1:2222", "fd00::2:2222", task_type="worker", task_id=1)
    with _before_first_use(), refused(RuntimeError):
        gd.MultiWorkerMirroredStrategy(resolver)


def worker_0_on_another_machine(refused: Refused) -> None:
    resolver = _cluster("192.0.2.1:2222", "192.0.2.2:2222", task_type="worker", task_id=0)
    with _before_first_use(), refused(RuntimeError):
        gd.MultiWorkerMirroredStrategy(resolver)


def worker_with_another_token(refused: Refused) -> None:
    addresses = [f"127.0.0.1:{free_port('127.0.0.1')}", "127.0.0.1:2"]
    first = ClusterWorkers(addresses, 0, WorkerTimeouts(start=3.0), JobIdentity("job", token="one"))
    alone = threading.Thread(target=_meet_nobody, args=[first])
    alone.start()
    resolver = _cluster(*addresses, task_type="worker", task_id=1)
    other = {"GRAPHDIST_JOB_ID": "job", "GRAPHDIST_JOB_TOKEN": "two"}
    with _before_first_use(), mock.patch.dict("os.environ", other), refused(RuntimeError):
        gd.MultiWorkerMirroredStrategy(resolver)
    alone.join()


def seconds_that_are_none(refused: Refused) -> None:
    resolver = _cluster("127.0.0.1:1", "127.0.0.1:2", task_type="worker", task_id=1)
    seconds = {"GRAPHDIST_WORKER_STEP_SECONDS": "half an hour"}
    with _before_first_use(), mock.patch.dict("os.environ", seconds), refused(ValueError):
        gd.MultiWorkerMirroredStrategy(resolver)


def worker_0_that_is_not_there(refused: Refused) -> None:
    resolver = _cluster("127.0.0.1:1", "127.0.0.1:2", task_type="worker", task_id=1)
    with _before_first_use(), refused(RuntimeError):
        gd.MultiWorkerMirroredStrategy(resolver)


@contextmanager
def _two_workers() -> Iterator[list[ClusterWorkers]]:
    """Make two workers that have found each other, and then wait for a short time only."""
    addresses = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2)]
    workers = [ClusterWorkers(addresses, index, WorkerTimeouts(start=5.0)) for index in range(2)]
    other = threading.Thread(target=workers[1].rendezvous)
    other.start()
    workers[0].rendezvous()
    other.join()
    for worker in workers:
        worker.timeouts = WorkerTimeouts(start=0.2)
    yield workers
    for worker in reversed(workers):
        worker.leave()


def worker_that_does_not_come(refused: Refused) -> None:
    with _two_workers() as (first, _), refused(TimeoutError):
        first.exchange("key", 1, "the first run of 'step'", here(), seconds=0.2)


def slices_that_one_worker_reads(refused: Refused) -> None:
    with _two_workers() as (first, _), refused(TimeoutError):
        devices = Devices(jax.local_devices()[:2], workers=first)
        agree_to_gather("reading variable 'm', which is in slices,", devices, here())


def slices_of_two_variables(refused: Refused) -> None:
    with _two_workers() as (first, second):
        of_second = Devices(jax.local_devices()[:2], workers=second)
        call = partial(agree_to_gather, "reading variable 'v'", of_second)
        other = threading.Thread(target=_refused_elsewhere, args=[call])
        other.start()
        devices = Devices(jax.local_devices()[:2], workers=first)
        with refused(RuntimeError):
            agree_to_gather("reading variable 'm'", devices, here())
        other.join()


def initial_value_of_other_operations(refused: Refused) -> None:
    what = "the initial value of variable 'w'"
    with _two_workers() as (first, second):
        of_second = Devices(jax.local_devices()[:2], workers=second)
        call = partial(agree_on_operations, "random_seed 1", what, of_second)
        other = threading.Thread(target=_refused_elsewhere, args=[call])
        other.start()
        devices = Devices(jax.local_devices()[:2], workers=first)
        with refused(RuntimeError):
            agree_on_operations("random_seed 0", what, devices, here())
        other.join()


def _refused_elsewhere(call: Callable[[], None]) -> None:
    with pytest.raises(gd.WorkerError):
        call()
