"""A step whose numbers are checked, as `jax_debug_nans` and `jax_debug_infs` ask for.

The step donates nothing, so that the variables get their old buffers back if a number is refused.
The numbers are checked after the lock of the stores is released: the check waits for the devices,
and nobody may do that under the lock. Meanwhile another thread's step may have replaced the new
buffers; the buffers of that step stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from graphdist.runtime.bound_step import BoundStep, StateBuffers
from graphdist.runtime.buffers import BorrowedBuffers, BufferStore
from graphdist.runtime.executable import Step
from graphdist.state.layout import Layout


class CheckedStep(BoundStep):
    """A step that is undone if its outputs hold nan or infinities that JAX is set to refuse."""

    def __init__(self, step: Step, state: StateBuffers, layout: Layout) -> None:
        """Bind a step that has a check."""
        super().__init__(step, state)
        assert step.check is not None
        self._check, self._assigned, self._holders = step.check, layout.assigned, layout.holders
        # Such a step runs on copies: the store holds neither its inputs nor its outputs.
        self._moves = step.devices.parameter_device is not None or isinstance(
            state.store, BorrowedBuffers
        )

    def run(self, inputs: Sequence[jax.Array]) -> list[jax.Array] | None:
        """Run the step; raises `InvalidNumberError` with the variables as they were before."""
        before = [holder.held for holder in self._assigned]
        outputs = super().run(inputs)
        if outputs is None:
            return None
        arrays, results = self._check.last_step()
        error = self._check.error(arrays, results)
        if error is None:
            return outputs
        with BufferStore.lock:
            for holder, buffer, given in zip(self._assigned, before, results, strict=False):
                buffers, taken = holder.strategy.buffers.buffers, self._holders.index(holder)
                if buffers[holder.place] is given:
                    buffers[holder.place] = arrays[taken]
                elif self._moves:
                    buffers[holder.place] = buffer
        raise error
