"""Values between a worker and a parameter server: by our sockets, and by Ray's own objects.

    python -m graphdist.tools.bench parameter_server --sending

A step reads a variable from the server, computes a gradient of as many bytes from a small batch,
and sends it to the server, which subtracts it. `sent alone` leaves the gradient's computation out.
Server and worker are processes, and both ways use the same ones:

* sockets: the requests of `graphdist/parameter_server/connections.py`;
* objects: arguments and results of calls of Ray's. Ray puts arrays into its object store, memory
  that the processes of a machine share, from which they are read without a copy.

The ways take turns. The ratio is the median of those of two turns one after the other, as a machine
may be busier for a while. On one node of Ray both processes have one store. Two
nodes, which run on this machine here, have a store each: Ray sends a value from one to the other,
as it does between two machines.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from secrets import token_bytes
from typing import Any  # Any: Ray's handles and references

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from graphdist.config import worker_timeouts
from graphdist.parameter_server.messages import Change, Read
from graphdist.parameter_server.ray_cluster import Cluster, ask, ray, value_of
from graphdist.parameter_server.server import ParameterServer
from graphdist.parameter_server.servers import Servers
from graphdist.runtime.processes.workers import WorkerTimeouts

MEGABYTES = (1, 10, 100)
WAYS = ("sockets", "objects")
VARIABLE, _UPDATE = 0, "descent"
_SECONDS_OF_A_TURN = 0.2
_STORE_BYTES = 1 << 30


class Sender:
    """The actor of the worker."""

    def __init__(self, server: Any, key: bytes, timeouts: WorkerTimeouts) -> None:
        """Use a server, by its handle and by its socket."""
        jax.config.update("jax_platforms", "cpu")
        self._server, self._servers = server, Servers([server], key, timeouts)
        self._gradient = np.empty(0, np.float32)
        self._changes = [Change((VARIABLE,), (0,), _UPDATE)]
        self._compute = jax.jit(jax.grad(lambda w, x: jnp.mean((x @ w) ** 2)))

    def prepare(self, megabytes: float) -> None:
        """Store a variable of so many megabytes on the server."""
        side = math.isqrt(int(megabytes * 1e6 / 4))
        self._gradient = np.full((side, side), 1e-3, np.float32)
        self._batch = np.ones((8, side), np.float32)
        self._servers.create(VARIABLE, np.ones((side, side), np.float32))

    def seconds(self, way: str, computes: bool, steps: int) -> float:
        """Return the seconds of a step, of so many."""
        read, apply = {
            "sockets": (self._read_by_socket, self._apply_by_socket),
            "objects": (self._read_object, self._apply_object),
        }[way]
        start = time.perf_counter()
        for _ in range(steps):
            value = read()
            gradient = np.asarray(self._compute(value, self._batch)) if computes else self._gradient
            apply(gradient)
        return (time.perf_counter() - start) / steps

    def _read_by_socket(self) -> Any:
        return self._servers.read([Read(VARIABLE)])[0]

    def _apply_by_socket(self, gradient: Any) -> None:
        self._servers.apply(self._changes, [gradient])

    def _read_object(self) -> Any:
        return value_of(ask(self._server.read, [Read(VARIABLE)]))[0]

    def _apply_object(self, gradient: Any) -> None:
        value_of(ask(self._server.apply, self._changes, [gradient], None))


@contextmanager
def one_node() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Start a cluster as graphdist does; yield Ray's options of the server and of the worker."""
    cluster = Cluster(2, None)
    try:
        yield {"num_cpus": 0}, {"num_cpus": 0}
    finally:
        cluster.close()


@contextmanager
def two_nodes() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Start two nodes of Ray on this machine; yield options that place each process on one."""
    cluster = import_module("ray.cluster_utils").Cluster()
    try:
        with warnings.catch_warnings():  # Ray forks after JAX has started threads, for programs
            warnings.simplefilter("ignore")
            for name in ("server", "worker"):
                cluster.add_node(resources={name: 1}, object_store_memory=_STORE_BYTES)
        ray().init(address=cluster.address, logging_level="ERROR")
        yield {"resources": {"server": 1}}, {"resources": {"worker": 1}}
    finally:
        ray().shutdown()
        cluster.shutdown()


def start(options: tuple[dict[str, Any], dict[str, Any]], is_local: bool) -> tuple[Any, Any]:
    """Start a server and a worker, and return their handles."""
    key = token_bytes(32)
    server = ask(ray().remote(**options[0])(ParameterServer), False, key, is_local)
    value_of(ask(server.add_updates, {_UPDATE: _descent()}))
    return server, ask(ray().remote(**options[1])(Sender), server, key, worker_timeouts())


def _descent() -> bytes:
    """Return the module of the update, for parameters of any number of rows and columns."""
    matrix = jax.ShapeDtypeStruct(export.symbolic_shape("n, n"), jnp.float32)
    update = jax.jit(lambda value, gradient: (value - 0.1 * gradient,))
    return bytes(export.export(update, platforms=["cpu"])(matrix, matrix).serialize())


def turns(worker: Any, megabytes: float, computes: bool, rounds: int) -> dict[str, Any]:
    """Return the milliseconds of a step in each turn of each way, as arrays."""
    value_of(ask(worker.prepare, megabytes))
    for way in WAYS:  # compiles, opens the connection, and makes the store's memory
        value_of(ask(worker.seconds, way, computes, 3))
    steps = max(1, int(_SECONDS_OF_A_TURN / value_of(ask(worker.seconds, WAYS[0], computes, 3))))
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(rounds):
        for way in WAYS if turn % 2 else WAYS[::-1]:
            found[way].append(1e3 * value_of(ask(worker.seconds, way, computes, steps)))
    return {way: np.array(milliseconds) for way, milliseconds in found.items()}


def measure_sending(rounds: int, sizes: Sequence[float] = MEGABYTES) -> None:
    """Print the medians of both ways, on one node of Ray and on two."""
    print(f"milliseconds of a step, with as many bytes each way; medians of {rounds} turns")
    print(f"{'':24}{'MB':>6}{'sockets':>10}{'objects':>10}{'objects / sockets':>20}")
    clusters: dict[str, Callable[[], Any]] = {"one node": one_node, "two nodes": two_nodes}
    for name, cluster in clusters.items():
        with cluster() as options:
            _, worker = start(options, is_local=cluster is one_node)
            for computes in (False, True):
                for size in sizes:
                    sockets, objects = turns(worker, size, computes, rounds).values()
                    ratio = np.median(objects / sockets)
                    what = f"{name}, {'step' if computes else 'sent alone'}"
                    print(
                        f"{what:24}{size:6g}{np.median(sockets):10.2f}{np.median(objects):10.2f}"
                        f"{ratio:20.2f}",
                        flush=True,
                    )
