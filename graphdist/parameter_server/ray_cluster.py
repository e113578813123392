"""Ray: the processes that servers and workers run in. The only module that imports it.

Where no cluster is given, one is started on this machine, in a folder of its own, and ended when no
strategy uses it any more or the program ends. Ray ends it too when this process is killed. A
program that has called `ray.init` itself keeps its cluster, as does one that gives an address.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any  # Any: Ray's module, handles and references

from graphdist.errors import MissingExtraError
from graphdist.tracing.user_lines import here

_STORE_BYTES = 512 << 20
"""The shared memory for values under way; it is taken as it is used."""
_FOLDER = "gd-ray-"
_lock = RLock()


def ray() -> Any:
    """Return Ray's module; raises `MissingExtraError` where it is not installed."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            "parameter servers run on Ray, which is not installed",
            source=here(),
            hint="pip install 'graphdist[ps]'",
        ) from error


class Cluster:
    """A use of Ray's cluster by one strategy."""

    _num_users = 0
    _folder: Path | None = None
    """The folder of a cluster that was started here."""

    def __init__(self, num_processes: int, address: str | None) -> None:
        """Join the cluster at an address, or start one for so many processes."""
        self._is_open = True
        with _lock:
            module = ray()
            if not module.is_initialized():
                if address is None:
                    _start(module, num_processes)
                else:
                    module.init(address=address, logging_level=logging.ERROR)
            Cluster._num_users += 1

    def close(self) -> None:
        """End the cluster if it was started here, and this was its last use."""
        with _lock:
            if not self._is_open:
                return
            self._is_open = False
            Cluster._num_users -= 1
            if Cluster._num_users == 0:
                end()


def _start(module: Any, num_processes: int) -> None:
    _remove_left_folders()
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
    Cluster._folder = folder
    with warnings.catch_warnings():
        # Ray forks after JAX has started threads; the child does nothing but start a program.
        warnings.simplefilter("ignore")
        _init(module, num_processes, folder)


def _init(module: Any, num_processes: int, folder: Path) -> None:
    module.init(
        # Actors take no share of the machine: they run wherever there is a process for them.
        num_cpus=num_processes,
        include_dashboard=False,
        object_store_memory=_STORE_BYTES,
        logging_level=logging.ERROR,
        log_to_driver=False,
        _temp_dir=str(folder),
    )


@atexit.register
def end() -> None:
    """End the cluster that was started here, and remove its folder."""
    with _lock:
        folder, Cluster._folder = Cluster._folder, None
        if folder is None:
            return
        ray().shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_folders() -> None:
    """Remove the folders of clusters whose program was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*-*"):
        number = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if number.isdigit() and not _is_alive(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
