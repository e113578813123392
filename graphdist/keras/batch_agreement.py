"""Checks that the processes of a model are given the same batches.

Each process reads all batches and places the rows of its own replicas. If it shuffles by another
seed than the others, some rows are left out and others come twice, and no step fails. So the
processes compare checksums of the first batch of an epoch, and of ever fewer after it: the second,
the fourth, the eighth, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any  # Any: batches

from graphdist.data.elements import flattened
from graphdist.errors import WorkerError
from graphdist.runtime.devices import Devices
from graphdist.runtime.processes.workers import first_different
from graphdist.runtime.value_agreement import checksum_of_memory
from graphdist.tracing.user_lines import here


class BatchAgreement:
    """Compares the batches of one kind of steps on all workers of the devices."""

    def __init__(self, devices: Devices) -> None:
        """Begin before the first epoch."""
        self._workers = devices.workers
        self._epoch: Iterator[Any] | None = None
        self._count = 0

    def compared(self, epoch: Iterator[Any]) -> Iterator[Any]:
        """Return the batches; drawing one raises `WorkerError` if other workers have another."""
        if self._workers is None:
            return epoch
        if epoch is not self._epoch:
            self._epoch, self._count = epoch, 0
        return map(self._compared, epoch)

    def _compared(self, batch: Any) -> Any:
        self._count += 1
        if self._workers is None or self._count & (self._count - 1):
            return batch
        mine = [checksum_of_memory(array) for array in flattened(batch).arrays]
        key, what = f"batch {self._workers.ordinal('batch')}", "the comparison of a batch"
        other = first_different(self._workers.exchange(key, mine, what, here()))
        if other is not None:
            raise WorkerError(
                f"{self._workers.name(0)} and {self._workers.name(other)} pass different batches",
                source=here(),
                hint="set the same seed in all processes before fit shuffles: "
                "keras.utils.set_random_seed(0)",
            )
        return batch
