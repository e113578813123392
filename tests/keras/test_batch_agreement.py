"""Processes that train a model compare the first batch of an epoch, and ever fewer after it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import graphdist as gd
from graphdist.keras.batch_agreement import BatchAgreement
from graphdist.runtime.devices import Devices


class Both:
    """Two workers, of which the other says what `others` has for each comparison, if anything."""

    index = 0

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.others: dict[int, Any] = {}

    def __len__(self) -> int:
        return 2

    def name(self, worker: int) -> str:
        return f"worker {worker}"

    def ordinal(self, kind: str) -> int:
        return len(self.said)

    def exchange(self, key: str, value: Any, what: str, at: Any) -> list[Any]:
        self.said.append(value)
        return [value, self.others.get(len(self.said), value)]


def batches(count: int) -> list[dict[str, np.ndarray[Any, Any]]]:
    return [{"x": np.full((2, 3), index, np.float32)} for index in range(count)]


def test_some_batches_of_each_epoch_are_compared() -> None:
    workers: Any = Both()
    agreement = BatchAgreement(Devices(jax.devices()[:2], workers=workers))
    for epoch in (iter(batches(9)), iter(batches(3))):
        while next(agreement.compared(epoch), None) is not None:  # Keras asks step by step
            pass
    assert len(workers.said) == 4 + 2  # batches 1, 2, 4 and 8; 1 and 2
    assert len({str(checksums) for checksums in workers.said}) == 4


def test_another_batch_is_refused() -> None:
    workers: Any = Both()
    workers.others = {2: [0]}
    epoch = BatchAgreement(Devices(jax.devices()[:2], workers=workers)).compared(iter(batches(2)))
    next(epoch)
    with pytest.raises(gd.WorkerError, match="worker 0 and worker 1 pass different batches"):
        next(epoch)


def test_a_single_process_compares_nothing() -> None:
    epoch = iter(batches(2))
    assert BatchAgreement(Devices(jax.devices()[:2])).compared(epoch) is epoch
