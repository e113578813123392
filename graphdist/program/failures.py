"""What a failed call means to the user: the line that made it, and the values that are lost.

A step takes over the buffers of the variables that it assigns. If it fails on the devices, their
values are lost, and the user must get the error at once, not when the next step reads them.
"""

from __future__ import annotations

from typing import NoReturn

import jax
import jax.numpy as jnp

from graphdist.errors import GraphdistError, RuntimeFailure
from graphdist.program.jax_settings import OtherSettings
from graphdist.runtime.bound_step import called_while_traced
from graphdist.runtime.buffers import HOLDS_BUFFERS, BufferStore, is_lost
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.state.layout import Layout
from graphdist.state.storage import StorageOnDevices
from graphdist.tracing.user_lines import here


def raise_explained(error: BaseException, name: str, layout: Layout) -> NoReturn:
    """Raise the error of a call of the step `name`, or an error that says more.

    Raises `RuntimeFailure` if values of variables are lost with the step, if a variable has no
    value, and if the step was called in a function that JAX traces.
    """
    if isinstance(error, OtherSettings):
        raise error
    if isinstance(error, ValueError) and not HOLDS_BUFFERS[type(jnp.zeros(()))]:
        # A traced call of a function with compiler options is a ValueError of JAX: it takes them at
        # the outermost level alone.
        error = called_while_traced()
    for storage in layout.storages:
        if isinstance(storage.held, jax.ShapeDtypeStruct):
            storage.require_value()
    if isinstance(error, GraphdistError) and error.source is None:
        error.source = here()
    if isinstance(error, Exception) and not isinstance(error, WorkerError):
        _raise_if_lost(error, name, layout)
    raise error


def _raise_if_lost(error: Exception, name: str, layout: Layout) -> None:
    lost = [storage.name for storage in _lost(layout)]
    if lost:
        raise RuntimeFailure(
            f"step {name!r} failed after the buffers of {', '.join(map(repr, lost))} were given "
            f"to it: their values are lost",
            source=here(),
            hint="restore them from a checkpoint, or assign them again",
        ) from error


def _lost(layout: Layout) -> list[StorageOnDevices]:
    """Return the variables whose buffers the step took and that no other step has written since."""
    assigned = set(layout.assigned)
    taken = [storage for storage in layout.storages if storage.holder in assigned]
    held = {storage.holder: storage.holder.held for storage in taken}
    # Not under the lock, since `is_lost` waits for the devices. Meanwhile another thread's step may
    # have replaced a buffer; then its variable is not lost.
    gone = {holder for holder, array in held.items() if is_lost(array)}
    with BufferStore.lock:
        gone = {holder for holder in gone if holder.held is held[holder]}
    return [storage for storage in taken if storage.holder in gone]
