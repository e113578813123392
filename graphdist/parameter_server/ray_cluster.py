"""The cluster of Ray, in whose processes servers and workers run; no other module imports Ray.

Without an address, a cluster is started on this machine, in its own folder, and ended when no
strategy uses it any more or the program ends. Ray also ends it when this process is killed. A
cluster at an address, or of a program that called `ray.init` itself, is kept.

If Ray is used without a cluster, Ray starts a cluster that accepts any connection. So only `ask`,
`kill`, `comes` and `value_of` use processes, and these functions do not call Ray if there is no
cluster. When the program ends, strategies are closed before Ray ends its cluster, since the threads
of strategies use the cluster.

Anyone who can connect to a process of Ray's and has the cluster's token, or needs no token, can run
code there. So a cluster that is started here listens on loopback alone. Ray listens on loopback on
platforms where it supports a single machine only, such as macOS, and is made to treat this machine
as such a platform. Ray's folders are readable for all users, and therefore are made in a private
folder. Ray would make the file of its token readable for all users, so the file is made private
before. Any cluster without authentication causes a warning.

Ray shows what workers print in the coordinator's output, unless `RAY_LOG_TO_DRIVER` is 0.

Heartbeats show whether a process is alive, dead or silent. Ray knows when a process was killed. A
process that is stopped, or whose machine cannot be reached, is only silent. So a process whose
answer takes long is asked for a beat, which is the name of the process and its host. An idle thread
sends the beat: in a server Ray's main thread, since requests have threads of their own; in a worker
a thread beside the thread that runs functions. XLA computes without Python's lock, so a computing
process sends the beat at once. A process is silent if no beat arrives within `silence_seconds` of
`gd.config.set_worker_timeouts`, as for workers that train together.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import tempfile
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex
from threading import RLock
from typing import Any  # Any: Ray's module, handles and references

from graphdist.config import names_ray_token, ray_authenticates
from graphdist.errors import RuntimeFailure
from graphdist.runtime.extras import require_package
from graphdist.tracing.user_lines import here
from graphdist.user_warnings import warn_user

_STORE_BYTES = 512 << 20
"""The size of the shared memory for values in transit, which is allocated as it is used."""
_SECONDS_OF_LAST_PRINTS = 0.5
"""How long Ray may take to bring the last lines that workers have printed, as at its own exit."""
_FOLDER = "gd-ray-"
_SHORT = Path("/tmp")
_LONGEST = 17
"""The largest length, in bytes, of the path of the folder for Ray's: Ray appends 86 bytes for a
socket if process ids have five digits, 90 if seven. Names of sockets have at most 103 bytes on
macOS, 107 on Linux."""
_lock = RLock()
_closing: list[weakref.finalize[Any, Any]] = []
"""The finalizer of each open strategy."""
_log = logging.getLogger("graphdist")


def ray() -> Any:
    """Return Ray's module; raise `MissingExtraError` if it is not installed."""
    require_package("ray", "ParameterServerStrategy")
    return import_module("ray")


class ProcessIsSilent(Exception):
    """A process does not answer; the text of the error has the time or the reason."""


def require_running() -> None:
    """Raise `ProcessIsSilent` if the cluster has ended."""
    if not ray().is_initialized():
        raise ProcessIsSilent("is gone, with the cluster")


def ask(method: Any, *arguments: Any) -> Any:
    """Run a method in a process of Ray's, and return Ray's reference to the result.

    If `method` is a class, make an actor. Raises `ProcessIsSilent` if there is no cluster.
    """
    require_running()
    return method.remote(*arguments)


def value_of(reference: Any) -> Any:
    """Wait for the value of one of Ray's references, and return it.

    Raises `ProcessIsSilent` if there is no cluster, and Ray's errors for a process that has died.
    """
    require_running()
    return ray().get(reference)


def kill(actor: Any, *, restarts: bool = False) -> None:
    """End the process of an actor, if there is a cluster; Ray starts it again if `restarts`."""
    module = ray()
    if module.is_initialized():
        module.kill(actor, no_restart=not restarts)


class Cluster:
    """The use of Ray's cluster by one strategy."""

    _num_users = 0
    _folder: Path | None = None
    """The folder of a cluster that was started here."""

    def __init__(self, num_processes: int, address: str | None) -> None:
        """Join the cluster at an address, or start one for `num_processes` processes."""
        with _lock:
            module = ray()
            _end_before_ray()
            if not module.is_initialized():
                if address is None:
                    _start(module, num_processes)
                else:
                    module.init(address=address, logging_level=logging.ERROR)
            Cluster._num_users += 1
        if not ray_authenticates():
            warn_user(
                "this cluster of Ray has no authentication: everyone who can connect to one of "
                "its processes runs code there. Start it with RAY_AUTH_MODE=token in the "
                "environment"
            )

    @property
    def is_started_here(self) -> bool:
        """Return whether graphdist has started the cluster, on this machine's loopback."""
        return Cluster._folder is not None

    def close(self) -> None:
        """End the cluster if it was started here, and no strategy uses it any more; call once."""
        with _lock:
            Cluster._num_users -= 1
            if Cluster._num_users == 0:
                end()


def close_at_exit(close: weakref.finalize[Any, Any]) -> None:
    """Close a strategy when the program ends, if it was not closed before."""
    with _lock:
        _closing[:] = [*(other for other in _closing if other.alive), close]


@cache
def _end_before_ray() -> None:
    """Register the closing of strategies at exit, which runs before Ray's own exit handlers."""
    atexit.register(_close_all)


def _close_all() -> None:
    try:
        for close in tuple(_closing):
            close()
    finally:  # an interrupt too
        end()


def _start(module: Any, num_processes: int) -> None:
    _remove_left_folders()
    _make_token_private()
    # `mkdtemp` makes it accessible for this user alone.
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=_place()))
    Cluster._folder = folder
    with warnings.catch_warnings(), _on_loopback():
        # Ray forks after JAX has started threads; the child does nothing but start a program.
        warnings.simplefilter("ignore")
        module.init(
            # Actors reserve no cores: each runs wherever there is a process for it.
            num_cpus=num_processes,
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            logging_level=logging.ERROR,
            _temp_dir=str(folder / "r"),  # the names of sockets in the folder must be short
        )
    address = module.util.get_node_ip_address()
    if not ip_address(address).is_loopback:
        end()
        raise RuntimeFailure(
            f"Ray {module.__version__} listens at {address}, not on loopback",
            source=here(),
            hint="start a cluster with `ray start`, and give its address",
        )


def _place() -> Path:
    """Return the folder of temporary files, or a folder with a short path for Ray's sockets."""
    found = Path(tempfile.gettempdir())
    return found if len(os.fsencode(found)) <= _LONGEST else _SHORT


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Make Ray treat this machine as a platform without clusters of several machines."""
    constants: Any = import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _make_token_private() -> None:
    """Make the file of Ray's token, if it is missing, readable for this user alone.

    Ray would make the file with the permissions of any new file.
    """
    if names_ray_token():
        return
    file = Path.home() / ".ray" / "auth_token"
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(number, "w") as made:
                made.write(token_hex(32))
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
    except OSError as error:
        _log.warning("Ray's token in %s may be read by other users: %s", file, error)


def end() -> None:
    """End the cluster that was started here, and remove its folder."""
    with _lock:
        folder, Cluster._folder = Cluster._folder, None
        if folder is None:
            return
        try:
            if ray().is_initialized():
                time.sleep(_SECONDS_OF_LAST_PRINTS)
            ray().shutdown()
        finally:  # an interrupt too
            shutil.rmtree(folder, ignore_errors=True)


def _remove_left_folders() -> None:
    """Remove the folders of clusters whose program was killed."""
    for folder in _place().glob(f"{_FOLDER}*-*"):
        number = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if number.isdigit() and not _is_alive(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process: int) -> bool:
    with suppress(PermissionError):  # of a process of another user
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True


GROUP = "beats"
"""Ray's name for the thread of a worker that sends beats."""
_SECONDS_BETWEEN_BEATS = 1.0
_PARTS = 4


class BeatingProcess:
    """The base of actors, with the methods that identify an actor's process."""

    def process(self) -> int:
        """Return the id of the process."""
        return os.getpid()

    def place(self) -> str:
        """Return the process and its host, which the process sends as a beat."""
        return f"process {os.getpid()} on {socket.gethostname()}"


def beat_of_worker(worker: Any) -> Any:
    """Ask a worker for a beat, and return Ray's reference to the beat."""
    return ask(worker.place.options(concurrency_group=GROUP))


def answer(reference: Any, worker: Any, silence_seconds: float) -> Any:
    """Return the value that a worker computes; wait as long as the worker sends beats.

    Raises `ProcessIsSilent`, and Ray's errors for a process that has died.
    """
    while not comes([reference], _SECONDS_BETWEEN_BEATS):
        wait_for([reference, beat_of_worker(worker)], silence_seconds)
    return value_of(reference)


def wait_for(references: Sequence[Any], seconds: float) -> None:
    """Wait until one of the values is there; raise `ProcessIsSilent` after `seconds`."""
    # In parts: while this process itself is stopped, time passes though no other process is silent.
    if not any(comes(references, seconds / _PARTS) for _ in range(_PARTS)):
        raise ProcessIsSilent(f"has not answered for {seconds:g} s")


def answer_within(method: Any, seconds: float) -> Any:
    """Run a method in a process of Ray's, and return the result.

    Raises `ProcessIsSilent` after `seconds`, and Ray's errors for a process that has died.
    """
    reference = ask(method)
    wait_for([reference], seconds)
    return value_of(reference)


def address_of_server(server: Any, start_seconds: float) -> tuple[str, int]:
    """Return the address of a server; raise `OSError` if it is dead or does not start."""
    try:
        return answer_within(server.address, start_seconds)
    except (ProcessIsSilent, ray().exceptions.RayError) as error:
        raise ConnectionError(f"the server {error}") from error


def problem_of_server(server: Any, silence_seconds: float) -> str:
    """Return why a server cannot answer; "" if it is alive."""
    try:
        answer_within(server.place, silence_seconds)
    except ProcessIsSilent as error:
        return str(error)
    except ray().exceptions.RayError:
        return "has died"
    return ""


def comes(references: Sequence[Any], seconds: float) -> bool:
    """Return whether one of the values is there within `seconds`."""
    require_running()
    return bool(ray().wait(list(references), timeout=seconds)[0])
