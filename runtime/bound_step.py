"""A step bound to the buffers of its variables.

A call, in order: wait until there is room for another step, take the lock of the stores, check that
the variables are still stored in the form that the step was compiled for, read their buffers,
dispatch, write the new buffers back. The lock is held from the read to the write, because the step
may donate the buffers: another thread must find either the old buffers or the new ones, never
donated ones.

This code runs at every step, with cold caches: each call of a Python function costs a microsecond
or two (see the dispatch benchmark). So `run` is a single function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

import jax

from graphdist.ir.errors import RuntimeFailure
from graphdist.runtime.buffers import (
    HOLDS_BUFFERS,
    BorrowedBuffers,
    BufferStore,
    is_donated_or_failed,
    moving_in,
    moving_out,
    reader,
    writer,
)
from graphdist.runtime.executable import Executable, Step
from graphdist.runtime.interrupts import interrupts_held_back


@dataclass(frozen=True, slots=True)
class StateBuffers:
    """The buffers of a step's variables in a store.

    `places` are the indices of all variables' buffers, `assigned` the indices of the assigned ones.
    `version` is the store's count of moves when the step was bound: if the count has changed, the
    step must not run, since a variable may be stored in another form.
    """

    store: BufferStore | BorrowedBuffers
    places: Sequence[int]
    assigned: Sequence[int]
    version: int


class BoundStep:
    """A step with the buffers that it reads and replaces."""

    def __init__(self, step: Step, state: StateBuffers) -> None:
        """Bind the step; nothing runs yet."""
        self._store, self._version = state.store, state.version
        self._lock = state.store.lock
        self._read, self._write = reader(state.places), writer(state.assigned)
        devices = step.devices
        if devices.parameter_device is not None:
            self._read = moving_in(self._read, step.state)
            self._write = moving_out(self._write, len(state.assigned), devices.home(None))
        self._function, self._token = step.function, step.token
        self._backpressure, self._take_interrupted = step.backpressure, step.take_interrupted
        self._is_new = isinstance(step, Executable) and devices.workers is None
        self._failures: list[Exception] = []
        """Errors of earlier steps of this program, appended by the thread that waited for them."""

    def run(self, inputs: Sequence[jax.Array]) -> list[jax.Array] | None:
        """Run the step and return all its outputs; None if variables have moved since the binding.

        Raises the errors of the step, and the error of an earlier step that lost its variables.
        """
        store, steps, token = self._store, self._backpressure, self._token
        buffers = store.buffers
        while True:
            if len(steps.tokens) >= steps.bound:
                steps.wait()
            with self._lock:
                if store.version != self._version:
                    return None
                if len(steps.tokens) >= steps.bound:  # another thread has dispatched first
                    continue
                results: list[list[jax.Array]] = []
                try:
                    if self._failures:
                        self._raise_if_lost()
                    # `extend` stores the outputs in one call of C. Between a Python call and an
                    # assignment Ctrl-C could lose them, and they are the only buffers left.
                    if self._is_new:
                        with interrupts_held_back():
                            results.extend(
                                starmap(self._function, ((*self._read(buffers), *inputs),))
                            )
                        self._is_new = False
                    else:
                        results.extend(starmap(self._function, ((*self._read(buffers), *inputs),)))
                    (outputs,) = results
                    if token is not None:
                        if not HOLDS_BUFFERS[type(outputs[token])]:
                            raise called_while_traced()
                        steps.dispatched(outputs[token], self._failures)
                    self._write(buffers, outputs)
                except BaseException as error:
                    given = results[0] if results else self._take_interrupted()
                    if given is not None and not isinstance(error, RuntimeFailure):
                        self._write(buffers, given)  # Ctrl-C came before the write
                    raise
                return outputs

    def _raise_if_lost(self) -> None:
        """Raise the error of an earlier step, unless all its variables have values again."""
        failure = self._failures.pop()
        self._failures.clear()
        if any(map(is_donated_or_failed, self._read(self._store.buffers))):
            raise failure


def called_while_traced() -> RuntimeFailure:
    """Return the error for a step that is called inside a function that JAX traces."""
    return RuntimeFailure(
        "a step is called inside a function that JAX is tracing, whose program would keep the "
        "variables' current values for ever",
        hint="take jax.jit, jax.grad or jax.vmap inside a gd.function instead of around one",
    )
