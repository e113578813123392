"""How often a row is copied on its way to a device."""

from typing import Any

import numpy as np
import pytest

import graphdist as gd
from graphdist.values import components

COLUMNS = 48
"""Of no other test's elements."""


@pytest.mark.parametrize("rows", [8, 5])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_on_cpu_a_device_has_the_one_copy_that_is_made(
    monkeypatch: pytest.MonkeyPatch, rows: int, count: int
) -> None:
    copies: list[Any] = []
    padded = components._padded

    def recorded(*args: Any) -> Any:
        copy = padded(*args)
        if copy.shape[-1:] == (COLUMNS,):  # not of a thread that reads ahead for an earlier test
            copies.append(copy)
        return copy

    monkeypatch.setattr(components, "_padded", recorded)
    strategy = gd.MirroredStrategy([f"cpu:{index}" for index in range(count)])
    (element,) = strategy.experimental_distribute_dataset([np.ones((rows, COLUMNS), np.float32)])
    array: Any = getattr(element, "array", element)  # of one replica it is the value
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    addresses = [np.asarray(shard.data).ctypes.data for shard in shards]
    assert addresses == [copy.ctypes.data for copy in copies]
    assert len(copies) == count


def test_elsewhere_only_what_is_padded_is_copied() -> None:
    batch = np.arange(10, dtype=np.float32).reshape(5, 2)
    full, short = batch[:3], batch[3:]
    assert components._padded(full, (3, 2), full.dtype, "gpu") is full
    copy = components._padded(short, (3, 2), short.dtype, "gpu")
    assert copy.tolist() == [[6, 7], [8, 9], [0, 0]]
    assert not np.shares_memory(copy, batch)


def test_parts_of_a_batch_are_views() -> None:
    batch = np.arange(5)
    seen: list[Any] = []
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    list(gd.DistributedDataset([batch], strategy, seen.extend, ahead=1))
    assert [part.tolist() for part in seen] == [[0, 1, 2], [3, 4]]
    assert all(np.shares_memory(part, batch) for part in seen)


@pytest.mark.parametrize("shape", [(3,), (3, 2), (1, 1, 5)])
def test_padding_is_zeros(shape: tuple[int, ...]) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    for _ in range(20):  # memory that was used before is not zero
        (element,) = strategy.experimental_distribute_dataset([np.full(shape, 7, np.int32)])
        rows = -(-shape[0] // 2)
        whole = np.asarray(element.array)
        assert whole.shape == (2 * rows, *shape[1:])
        assert (whole[shape[0] :] == 0).all()
        assert (whole[: shape[0]] == 7).all()
