"""Heartbeats: whether a process of Ray's is alive, dead or silent.

Ray knows when a process was killed. A process that is stopped, or whose machine cannot be reached,
is only silent: so it is asked for a beat, the name of its process and host, whenever an answer
takes long. An idle thread sends the beat: Ray's main thread in a server, whose requests have
threads of their own, and in a worker a thread beside the one that runs functions. XLA computes
without Python's lock, so a computing process sends it at once. A process is silent if no beat
arrives within `silence_seconds` of `gd.config.set_worker_timeouts`, as for workers that train
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any  # Any: Ray's handles, references and values

from graphdist.parameter_server.ray_cluster import (
    ProcessIsSilent,
    ask,
    ray,
    require_running,
    value_of,
)

GROUP = "beats"
"""Ray's name for the thread of a worker that sends beats."""
_SECONDS_BETWEEN_BEATS = 1.0
_PARTS = 4


def beat_of_worker(worker: Any) -> Any:
    """Ask a worker for a beat, and return Ray's reference to it."""
    return ask(worker.place.options(concurrency_group=GROUP))


def answer(reference: Any, beat: Callable[[], Any], silence_seconds: float) -> Any:
    """Return the value of a reference; wait as long as the process that computes it sends beats.

    Raises `ProcessIsSilent`, and Ray's errors for a process that has died.
    """
    while not comes([reference], _SECONDS_BETWEEN_BEATS):
        wait_for([reference, beat()], silence_seconds)
    return value_of(reference)


def wait_for(references: Sequence[Any], seconds: float) -> None:
    """Wait until one of the values is there; raise `ProcessIsSilent` if none is in time."""
    # In parts: if this process itself is stopped, time passes although no other one is silent.
    if not any(comes(references, seconds / _PARTS) for _ in range(_PARTS)):
        raise ProcessIsSilent(f"has not answered for {seconds:g} s")


def address_of_server(server: Any, start_seconds: float) -> tuple[str, int]:
    """Return the address of a server; raise `OSError` if it is dead or does not start."""
    module = ray()
    try:
        address = ask(server.address)
        wait_for([address], start_seconds)
        found: tuple[str, int] = value_of(address)
    except (ProcessIsSilent, module.exceptions.RayError) as error:
        raise ConnectionError(f"the server {error}") from error
    return found


def problem_of_server(server: Any, silence_seconds: float) -> str:
    """Return why a server cannot answer; "" if it is alive."""
    module = ray()
    try:
        beat = ask(server.place)
        wait_for([beat], silence_seconds)
        value_of(beat)
    except ProcessIsSilent as error:
        return str(error)
    except module.exceptions.RayError:
        return "has died"
    return ""


def comes(references: Sequence[Any], seconds: float) -> bool:
    """Return whether one of the values is there within `seconds`."""
    require_running()
    return bool(ray().wait(list(references), timeout=seconds)[0])
