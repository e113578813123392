"""Finds the workers of a job: the processes that run one program together.

The workers are named by the first source that exists:

1. the resolver that the user gives;
2. `TF_CONFIG`;
3. a JAX that the program has initialized, as most scripts for JAX do;
4. Ray Train, if Ray Train runs the training function of this process;
5. a launcher known to JAX (Slurm, Open MPI, Kubernetes, Cloud TPU), if the launcher started this
   process as one of several.

Without a source the process is alone. For the sources 3, 4 and 5, worker 0 prints the source on
stderr.
"""

from __future__ import annotations

import sys
from typing import Any  # Any: what users pass as resolver

import jax

from graphdist.cluster import roles
from graphdist.cluster.launcher import launcher
from graphdist.cluster.ray_train import (
    RayTrainWorker,
    from_rank_zero,
    own_address,
    ray_train_worker,
)
from graphdist.cluster.resolver import ClusterResolver, SimpleClusterResolver
from graphdist.cluster.spec import ClusterSpec
from graphdist.cluster.tf_config import TFConfigClusterResolver, is_cluster_described
from graphdist.config import job_identity, worker_bind_address, worker_timeouts
from graphdist.errors import ArgumentError, ContextError, WorkerError
from graphdist.runtime.devices import backends_are_started
from graphdist.runtime.extras import require_package
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.jax_service import LaunchedJaxService
from graphdist.runtime.processes.joining import current_workers, join_cluster, shared_server
from graphdist.runtime.processes.processes_of_jax import is_one_of_several, join_processes_of_jax
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import wrong_type

NAME_DEVICES = 'name its devices, as in devices=["cpu:0"]'


def joined_workers(resolver: Any) -> tuple[ClusterResolver, ClusterWorkers | None]:
    """Return the resolver, and the workers that this process has joined, None if it is alone.

    Raises `ArgumentError` for a resolver of another type, `WorkerError` if the workers do not
    connect.
    """
    if resolver is None and not is_cluster_described():
        workers = _of_jax()
        if workers is not None:
            spec = ClusterSpec({"worker": list(workers.addresses)})
            return SimpleClusterResolver(spec, task_type="worker", task_id=workers.index), workers
    hint = (
        "leave it out: TF_CONFIG, a JAX that is initialized, Ray Train or the launcher then says "
        "who the workers are"
    )
    default = TFConfigClusterResolver() if resolver is None else resolver
    checked = _checked("cluster_resolver", default, hint)
    return checked, _of_resolver(checked)


def require_all_processes(what: str, on_purpose: str) -> None:
    """Raise `ContextError` if `what` would use this process alone, which is one of several.

    The several processes are JAX's, or workers of Ray Train that JAX does not connect. `on_purpose`
    says how a program can use one process although there are several.
    """
    if current_workers() is not None:
        return
    task = ray_train_worker()
    if is_one_of_several():
        others = f"JAX has {jax.process_count()} processes"
    elif task is not None and task.size > 1:
        others = f"Ray Train has {task.size} workers"
    else:
        return
    raise ContextError(
        f"{what} uses this process alone, and {others}: each would compute for itself",
        hint=f"make a gd.MultiWorkerMirroredStrategy() of all of them; on purpose: {on_purpose}",
    )


def _of_jax() -> ClusterWorkers | None:
    workers = current_workers()
    if workers is not None:
        return workers
    timeouts, job, at = worker_timeouts(), job_identity(), here()
    if jax.distributed.is_initialized():
        if jax.process_count() == 1:
            return None
        workers = join_processes_of_jax(timeouts, job, at=at)
        _say(workers, "jax.distributed, which is initialized")
        return workers
    task = ray_train_worker()
    if task is not None:
        return _of_ray_train(task) if task.size > 1 else None
    found = launcher()
    if found is None:
        return None
    _require_unused_devices(f"the processes of {found.name}")
    if module := _MODULES.get(found.method or found.name):
        require_package(module, f"finding the processes of {found.name}", otherwise=_OTHERWISE)
    service = LaunchedJaxService(found.method, _end_with)
    try:
        service.join(timeouts.start)
    except Exception as error:
        raise WorkerError(
            f"{found.name} started this process as one of several, and JAX cannot connect them: "
            f"{str(error).partition(chr(10))[0]}",
            source=at,
            hint=_OTHERWISE,
        ) from error
    if jax.process_count() == 1:
        return None
    workers = join_processes_of_jax(timeouts, job, service, at)
    _say(workers, f"{found.name}, by jax.distributed")
    return workers


def _of_ray_train(task: RayTrainWorker) -> ClusterWorkers:
    _require_unused_devices(f"the {task.size} workers of Ray Train")
    server, job = shared_server(job_identity(), own_address(), task.rank, from_rank_zero)
    names = [f"rank {rank} of Ray Train" for rank in range(task.size)]
    described = ClusterWorkers(names, task.rank, worker_timeouts(), job, server=server)
    workers = join_cluster(described, here())
    _say(workers, "Ray Train")
    return workers


def _end_with(why: str) -> None:
    """Report that the relay to JAX's service failed."""
    workers = current_workers()
    if workers is not None:
        workers.thread_failed(why)


_OTHERWISE = "give the strategy a cluster_resolver, or set TF_CONFIG"
_MODULES = {"mpi4py": "mpi4py", "Kubernetes": "kubernetes"}
"""The module that JAX needs, by its method of finding the other processes or by the launcher."""


def _say(workers: ClusterWorkers, found_by: str) -> None:
    if workers.index == 0:
        names = "; ".join(workers.addresses[:4]) + ("; .." if len(workers) > 4 else "")
        # Not by `print`, of which Ray Train makes a line of the log besides.
        sys.stderr.write(f"graphdist: {len(workers)} workers of {found_by}: {names}\n")


def _of_resolver(resolver: ClusterResolver) -> ClusterWorkers | None:
    spec = ClusterSpec(resolver.cluster_spec() or {})
    addresses = roles.worker_addresses(spec)
    kind, task_id = resolver.task_type, resolver.task_id
    if len(addresses) < 2 or kind == "evaluator":
        return None
    if kind is None or task_id is None:
        raise ArgumentError(
            f"the cluster has {len(addresses)} workers, and does not say which one this process is",
            hint='give the resolver task_type and task_id, or TF_CONFIG a "task"',
        )
    index = roles.id_in_cluster(spec, kind, task_id)
    if not jax.distributed.is_initialized():
        _require_unused_devices(f"{len(addresses)} workers: {spec}")
    timeouts, job, bind = worker_timeouts(), job_identity(), worker_bind_address()
    return join_cluster(ClusterWorkers(addresses, index, timeouts, job, bind), here())


def _require_unused_devices(workers: str) -> None:
    if current_workers() is None and backends_are_started():
        raise ContextError(
            f"devices are in use already, and can no longer become the devices of {workers}",
            hint="make the strategy first: move code that makes arrays, lists jax.devices() or "
            "runs functions below this line",
        )


def _checked(name: str, resolver: Any, hint: str) -> ClusterResolver:
    if not isinstance(resolver, ClusterResolver):
        raise wrong_type(name, resolver, "a ClusterResolver", hint, ArgumentError)
    return resolver


def single_worker(resolver: Any) -> ClusterResolver:
    """Return a resolver that names one worker; raises `ContextError` if it names several.

    Raises `ArgumentError` for a value that is not a resolver.
    """
    hint = "leave it out to use the TPUs of this host"
    checked = _checked("tpu_cluster_resolver", resolver, hint)
    count = len(roles.worker_addresses(checked.cluster_spec() or {}))
    if count > 1:
        raise ContextError(
            f"the cluster has {count} workers, and the strategy takes 1",
            hint="use gd.MultiWorkerMirroredStrategy(resolver), on TPUs too",
        )
    return checked
