"""A step bound to the buffers of its variables.

A call waits until there is room for another step, acquires the lock of the stores, and checks that
the variables are still stored in the form that the step was compiled for. After that, the call
reads the variables' buffers, dispatches the step, and writes the new buffers back. The step may
donate the buffers, so the lock is held from the read to the write: another thread must read either
the old buffers or the new buffers, never donated buffers.

This code runs at every step, with cold caches: each call of a Python function costs a microsecond
or two (see the dispatch benchmark). So `run` is a single function.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap

import jax

from graphdist.ir.errors import RuntimeFailure
from graphdist.runtime.buffers import (
    HOLDS_BUFFERS,
    BufferStore,
    StateElsewhere,
    StateInPlace,
    is_donated_or_failed,
)
from graphdist.runtime.executable import Executable, Step
from graphdist.runtime.interrupts import interrupts_held_back


class BoundStep:
    """A step, and the buffers that the step reads and replaces."""

    def __init__(self, step: Step, state: StateInPlace | StateElsewhere, version: int) -> None:
        """Bind a step to `state`, the buffers of the step's variables, without running the step.

        `version` is the value of `BufferStore.version` for which `state` was made. If
        `BufferStore.version` has changed, the step must not run, because a variable may be stored
        in another form.
        """
        self._version, self._lock = version, BufferStore.lock
        self._read, self._write = state.read, state.write
        self._function, self._token = step.function, step.token
        self._backpressure, self._take_interrupted = step.backpressure, step.take_interrupted
        self._is_new = isinstance(step, Executable) and step.devices.workers is None
        self._failures: list[Exception] = []
        """Errors of earlier steps of this program, appended by the thread that waited for them."""

    def run(self, inputs: Sequence[jax.Array]) -> list[jax.Array] | None:
        """Run the step and return all outputs. Return None if a variable's storage has changed.

        Raise the errors of the step, and the error of an earlier step that has failed and lost the
        values of the variables.
        """
        steps, token = self._backpressure, self._token
        while True:
            if len(steps.tokens) >= steps.bound:
                steps.wait()
            with self._lock:
                if BufferStore.version != self._version:
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
                            results.extend(starmap(self._function, ((*self._read(), *inputs),)))
                        self._is_new = False
                    else:
                        results.extend(starmap(self._function, ((*self._read(), *inputs),)))
                    (outputs,) = results
                    if token is not None:
                        if not HOLDS_BUFFERS[type(outputs[token])]:
                            raise called_while_traced()
                        steps.dispatched(outputs[token], self._failures)
                    self._write(outputs)
                except BaseException as error:
                    given = results[0] if results else self._take_interrupted()
                    if given is not None and not isinstance(error, RuntimeFailure):
                        self._write(given)  # Ctrl-C came before the write
                    raise
                return outputs

    def _raise_if_lost(self) -> None:
        """Raise the error of an earlier step, unless all its variables have values again."""
        failure = self._failures.pop()
        self._failures.clear()
        if any(map(is_donated_or_failed, self._read())):
            raise failure


def called_while_traced() -> RuntimeFailure:
    """Return the error for a step that is called inside a function that JAX traces."""
    return RuntimeFailure(
        "a step is called inside a function that JAX is tracing, whose program would keep the "
        "variables' current values for ever",
        hint="take jax.jit, jax.grad or jax.vmap inside a gd.function instead of around one",
    )
