"""A worker: a process of JAX's that runs scheduled functions, one after the other.

Functions run on one thread, not the main thread; another one sends beats (`ray_cluster.py`).

A worker keeps the functions and per-worker values that it was sent. After a restart it has none.
When a closure needs a function or value, the worker reports it as missing, and receives it again.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeAlias  # Any: objects of users, and Ray's handles
from weakref import WeakValueDictionary

import jax
import numpy as np

from graphdist.config import set_logical_cpu_devices
from graphdist.context import Scope
from graphdist.errors import ContextError, RuntimeFailure
from graphdist.ir.graph import GraphVariable
from graphdist.options import VariableSynchronization
from graphdist.parameter_server import messages as ms
from graphdist.parameter_server.connections import ServerIsLost
from graphdist.parameter_server.input import WorkerIterator, made_value
from graphdist.parameter_server.messages import Key
from graphdist.parameter_server.ray_cluster import BeatingProcess, ray
from graphdist.parameter_server.servers import Servers
from graphdist.parameter_server.storage import ServerStorage
from graphdist.parameter_server.strategy import VariablesApart, WorkerStrategy
from graphdist.runtime.devices import Devices, working_devices
from graphdist.runtime.processes.workers import WorkerTimeouts
from graphdist.state.variable import Variable
from graphdist.tracing.user_lines import where_raised
from graphdist.values.distributed import PerReplica

imported_by_workers: list[str] = []
"""Names of modules; higher packages whose objects are sent to workers add theirs."""


Outcome: TypeAlias = ms.Done | ms.ClosureFailed | ms.NotSentYet | VariablesApart | ServerIsLost


@dataclass(frozen=True)
class Settings:
    """The settings with which all workers start."""

    num_devices: int
    enable_x64: bool
    servers: list[str]
    """The names of the servers' actors."""
    key: bytes
    timeouts: WorkerTimeouts
    """The time limits for servers to answer."""
    refuses_lost_updates: bool
    """Whether there are other workers, whose updates must not be lost."""
    path: list[str]
    """The folders in which the coordinator's program finds modules."""
    modules: tuple[str, ...]
    """The modules that the worker imports before it receives functions."""


class ClosureWorker(BeatingProcess):
    """The actor; see the module."""

    def __init__(self, index: int, settings: Settings) -> None:
        """Make the strategy on this process's devices."""
        global _worker
        sys.path += [folder for folder in settings.path if folder not in sys.path]
        jax.config.update("jax_enable_x64", settings.enable_x64)
        set_logical_cpu_devices(settings.num_devices)
        self.index = index
        for module in settings.modules:
            import_module(module)
        found = working_devices().devices
        if len(found) < settings.num_devices:
            found = tuple(jax.devices("cpu"))
        actors = [ray().get_actor(name) for name in settings.servers]
        # Servers have already started when a function uses their variables.
        timeouts = replace(settings.timeouts, start=settings.timeouts.silence)
        servers = Servers(actors, settings.key, timeouts)
        devices = Devices(found[: settings.num_devices])
        self.strategy = WorkerStrategy(servers, devices, settings.refuses_lost_updates)
        self.objects: dict[int, Any] = {}
        """The functions and per-worker values by their ids."""
        self.variables: WeakValueDictionary[Key, Variable] = WeakValueDictionary()
        _worker = self

    def add(self, number: int, data: bytes, make: Callable[[Any], Any]) -> ms.ClosureFailed | None:
        """Make a function or per-worker value of a pickled object; return the error if it fails."""
        try:
            with Scope(self.strategy):
                self.objects[number] = make(pickle.loads(data))
        except BaseException as error:
            return failed(error)
        return None

    def run(
        self,
        origin: ms.Origin,
        function: int,
        arguments: bytes,
        moved: Mapping[Key, int],
        forgotten: Sequence[int],
    ) -> tuple[Outcome, Any]:
        """Run a function with its pickled arguments; return the outcome, and the result.

        `moved` has the servers of variables that were moved, `forgotten` the ids of functions and
        values that the coordinator no longer has.
        """
        servers = self.strategy.servers
        servers.moved.update(moved)
        for number in forgotten:
            self.objects.pop(number, None)
        servers.origin = origin
        servers.done = ms.Done()
        try:
            run = object_here(function)
            args, kwargs = pickle.loads(arguments)
            with Scope(self.strategy):
                result = run(args, kwargs)
            result = jax.tree.map(_on_host, result, is_leaf=lambda x: isinstance(x, PerReplica))
        except (ms.NotSentYet, VariablesApart, ServerIsLost) as outcome:
            return outcome, None
        except BaseException as error:  # Ray would raise one that is no Exception as its own
            return failed(error), None
        finally:
            servers.origin = None
        return servers.done, _kept_if_large(result)


_LARGEST_SENT = 64 << 10
"""The largest size in bytes of a result that is sent to the coordinator at once."""
_worker: ClosureWorker | None = None


def _here() -> ClosureWorker:
    assert _worker is not None, "this process is no worker"
    return _worker


def strategy_here() -> WorkerStrategy:
    """Return the strategy of this worker."""
    return _here().strategy


def variable_here(key: Key, declared: GraphVariable, synchronization: str) -> Variable:
    """Return this worker's variable for a value on a server."""
    worker = _here()
    found = worker.variables.get(key)
    if found is None:
        storage = ServerStorage(declared.name, key, worker.strategy)
        found = Variable.stored_elsewhere(worker.strategy, storage, declared)
        found.synchronization = VariableSynchronization[synchronization]
        worker.variables[key] = found
    return found


def object_here(number: int) -> Any:
    """Return this worker's function or per-worker value with an id; may raise `NotSentYet`."""
    try:
        return _here().objects[number]
    except KeyError:
        raise ms.NotSentYet(number) from None


def value_made_here(value: Any) -> Any:
    """Return this worker's per-worker value."""
    return made_value(value, strategy_here())


def iterator_made_here(dataset: Any) -> WorkerIterator:
    """Return an iterator over this worker's dataset."""
    return WorkerIterator(value_made_here(dataset))


def current_worker_index() -> int:
    """Return the index of the worker that runs the scheduled function.

    Raises `ContextError` outside scheduled functions.
    """
    if _worker is None or _worker.strategy.servers.origin is None:
        raise ContextError(
            "experimental_get_current_worker_index outside of a scheduled function",
            hint="call it in a function that is given to ClusterCoordinator.schedule",
        )
    return _worker.index


def failed(error: BaseException) -> ms.ClosureFailed:
    """Return an error in a form that can be pickled, a `RuntimeFailure` if necessary.

    `SystemExit` and other errors that are no `Exception` become a `RuntimeFailure`, too, since
    raising these errors would end the program.
    """
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError):
        error = _without_module(error)
    if not isinstance(error, Exception):
        source = where_raised(error)
        refused = RuntimeFailure(f"a worker's function has raised {said}", source=source)
        refused.__cause__, error = error, refused
    text = "".join(traceback.format_exception(error))  # includes the source lines
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ms.ClosureFailed(RuntimeFailure(said), text)
    return ms.ClosureFailed(error, text)


def _without_module(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error with a hint, since the module may be on the coordinator's machine alone."""
    worker = _here()
    text = (
        f"{error}: worker {worker.index}, {worker.place()}, cannot import it\n  hint: send your "
        'modules to the workers: ray.init(runtime_env={"working_dir": "."}) before the strategy is '
        "made; or install them on the workers' machines"
    )
    explained = ModuleNotFoundError(text, name=error.name, path=error.path)
    return explained.with_traceback(error.__traceback__)


def _kept_if_large(result: Any) -> Any:
    """Return a result or, if it is large, a reference to it."""
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(result) if isinstance(leaf, np.ndarray))
    return ms.LargeResult(ray().put(result)) if size > _LARGEST_SENT else result


def _on_host(leaf: Any) -> Any:
    """Return a leaf of a result in the memory of the host."""
    if isinstance(leaf, PerReplica):
        return PerReplica([np.asarray(part) for part in leaf.values])
    if isinstance(leaf, Variable):
        return np.asarray(leaf)
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


__all__ = ["ClosureWorker", "Settings", "current_worker_index"]
