"""Datasets of grain, Hugging Face and torchdata continue where they were: what they read."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import graphdist as gd
from graphdist.data.adapters import other_dataset, source_of_worker
from graphdist.data.dataset_parts import DatasetParts
from graphdist.data.input_options import AutoShardPolicy
from graphdist.runtime.devices import Devices
from tests.data.test_adapters import library

ROWS, SIZE = 4, 24
read: list[int] = []
NOTHING_AHEAD = gd.InputOptions(experimental_per_replica_buffer_size=0)


def counted(row: Any) -> Any:
    read.append(int(row["x"] if isinstance(row, dict) else row))
    return row


class Rows:
    """Rows by index, for grain and torch."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return counted(index)

    def __repr__(self) -> str:
        return "Rows"  # grain compares it with the saved one


def of_grain() -> Any:
    return library("grain").MapDataset.source(Rows()).shuffle(seed=3)


def grain_map() -> Any:
    return of_grain().batch(ROWS)


def grain_iter() -> Any:
    grain = library("grain")
    rows = of_grain().to_iter_dataset(grain.ReadOptions(num_threads=0))
    return rows.filter(lambda row: row % 6 != 1).batch(ROWS)


def grain_loader() -> Any:
    grain = library("grain")
    sampler = grain.samplers.IndexSampler(
        num_records=SIZE,
        shard_options=grain.sharding.NoSharding(),
        num_epochs=1,
        shuffle=True,
        seed=1,
    )
    batch = [grain.transforms.Batch(ROWS)]
    return grain.DataLoader(
        data_source=Rows(),
        sampler=sampler,
        operations=batch,
        worker_count=0,
        read_options=grain.ReadOptions(num_threads=0),
    )


def stream(num_shards: int = 4) -> Any:
    datasets = library("datasets")

    def rows(shards: list[int]) -> Iterator[Any]:
        each = SIZE // num_shards
        for shard in shards:
            yield from ({"x": row} for row in range(shard * each, (shard + 1) * each))

    shards = list(range(num_shards))
    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": shards}).map(counted)


def hugging_face() -> Any:
    return stream().batch(ROWS)


def torchdata_loader(**options: Any) -> Any:
    loaders = library("torchdata.stateful_dataloader")
    generator = library("torch").Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it calls of torch
        options = {"generator": generator, **options}
        return loaders.StatefulDataLoader(Rows(), batch_size=ROWS, shuffle=True, **options)


def iterate(dataset: Any) -> Any:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    return iter(strategy.experimental_distribute_dataset(dataset, NOTHING_AHEAD))


def values(step: Any) -> list[int]:
    (leaf,) = jax.tree.leaves(step, is_leaf=lambda node: isinstance(node, gd.PerReplica))
    return [int(row) for part in leaf.values for row in np.asarray(part).ravel()]


MAKERS = [
    grain_map,
    grain_iter,
    grain_loader,
    hugging_face,
    pytest.param(torchdata_loader, marks=pytest.mark.needs("torchdata")),
]
READS_AGAIN = {hugging_face: ROWS}
"""Hugging Face itself reads the batch before the state again."""


@pytest.mark.parametrize("make", MAKERS)
def test_every_position(make: Callable[[], Any]) -> None:
    iterator = iterate(make())
    states, whole = [iterator.get_state()], []
    for step in iterator:
        whole.append(values(step))
        states.append(iterator.get_state())
    for taken, state in enumerate(json.loads(json.dumps(states))):
        iterator = iterate(make())
        iterator.set_state(state)
        read.clear()
        rest = [values(step) for step in iterator]
        assert rest == whole[taken:]
        again = READS_AGAIN.get(make, 0) if taken else 0
        if make is grain_iter:
            continue  # rows that the filter leaves out are read as well
        if make is not grain_map:  # it reads on threads of its own, from `set_state` on
            assert len(read) == len(list(chain(*rest))) + again


@pytest.mark.parametrize("make", MAKERS)
def test_a_backed_up_loop(make: Callable[[], Any], tmp_path: Path) -> None:
    def train(dataset: Any, folder: Path, most: int) -> Iterator[list[int]]:
        backup = gd.train.BackupAndRestore(gd.train.Checkpoint(), folder, save_freq=1)
        for _ in backup.epochs(2):
            for batch in backup.steps(dataset):
                if most == 0:
                    return
                most -= 1
                (leaf,) = batch.values() if isinstance(batch, dict) else [batch]
                yield np.asarray(leaf).tolist()

    whole = list(train(make(), tmp_path / "whole", -1))
    assert len(whole) > 8
    for stop in (2, len(whole) // 2, len(whole) // 2 + 1):
        folder = tmp_path / str(stop)
        seen = list(train(make(), folder, stop))
        seen += train(make(), folder, -1)
        # torchdata orders the epochs after a resumed one otherwise, also by itself.
        each = len(whole) // 2 if make is torchdata_loader and stop <= len(whole) // 2 else None
        assert seen[:each] == whole[:each]
        assert sorted(chain(*seen)) == sorted(chain(*whole))


class TwoWorkers:
    """What `source_of_worker` asks of two workers; `first` is what worker 0 sends, if not the same.

    Nothing is sent: the test is worker 1.
    """

    index = 1

    def __init__(self, first: Any = None) -> None:
        self._first = first

    def __len__(self) -> int:
        return 2

    def ordinal(self, kind: str) -> int:
        return 0

    def exchange(self, key: str, value: Any, what: str, at: Any) -> list[Any]:
        return [value if self._first is None else self._first, value]


def own(dataset: Any, first: Any = None) -> Any:
    workers: Any = TwoWorkers(first)
    return source_of_worker(dataset, Devices(jax.devices()[:2], workers=workers))


def test_who_is_read_in_parts() -> None:
    datasets = library("datasets")
    in_files = datasets.Dataset.from_dict({"x": list(range(SIZE))}).batch(ROWS)
    for dataset in (grain_map(), hugging_face(), in_files):
        assert isinstance(own(dataset).node, DatasetParts)
    for dataset in (grain_iter(), grain_loader(), stream(num_shards=1).batch(ROWS), [1], iter([1])):
        source = own(dataset)
        assert not isinstance(source.node, DatasetParts)
        assert source.policy is AutoShardPolicy.AUTO


def test_a_filter_of_indices_cannot_start_anywhere() -> None:
    grain = library("grain")
    whole, some = (grain.MapDataset.range(9), grain.MapDataset.range(9).filter(lambda x: x > 3))
    for dataset, expected in ((whole, True), (some.map(lambda x: x), False)):
        parts = other_dataset(dataset).parts
        assert parts is not None
        assert parts.starts_anywhere is expected


def test_who_has_divided_a_dataset() -> None:
    split = library("datasets.distributed").split_dataset_by_node
    source = own(split(stream(), rank=1, world_size=2).batch(ROWS))
    assert source.policy is AutoShardPolicy.OFF
    assert not isinstance(source.node, DatasetParts)


@pytest.mark.needs("torch")
def test_a_loader_with_a_distributed_sampler_is_divided() -> None:
    data = library("torch").utils.data
    for rank, expected in ((1, AutoShardPolicy.OFF), (0, AutoShardPolicy.AUTO)):
        sampler = data.DistributedSampler(Rows(), num_replicas=2, rank=rank)
        assert own(data.DataLoader(Rows(), sampler=sampler)).policy is expected


def shuffled_loaders() -> dict[str, Callable[[], Any]]:
    data, torch = library("torch").utils.data, library("torch")
    seeded = torch.Generator().manual_seed
    return {
        "shuffle": lambda: data.DataLoader(Rows(), ROWS, shuffle=True),
        "batch sampler": lambda: data.DataLoader(
            Rows(), batch_sampler=data.BatchSampler(data.RandomSampler(Rows()), ROWS, False)
        ),
        "weights": lambda: data.DataLoader(
            Rows(), ROWS, sampler=data.WeightedRandomSampler([1.0] * SIZE, SIZE)
        ),
        "seeded otherwise": lambda: data.DataLoader(
            Rows(), ROWS, sampler=data.RandomSampler(Rows(), generator=seeded(3))
        ),
        "torchdata": lambda: torchdata_loader(generator=None),
    }


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "kind",
    [
        "shuffle",
        "batch sampler",
        "weights",
        "seeded otherwise",
        pytest.param("torchdata", marks=pytest.mark.needs("torchdata")),
    ],
)
def test_loaders_that_shuffle_have_the_order_of_worker_0(kind: str) -> None:
    make = shuffled_loaders()[kind]
    orders = []
    for _ in range(2):
        source = own(make(), first=[7])
        orders.append([[batch.tolist() for batch in source.node] for _ in range(2)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]  # each epoch has an order of its own


@pytest.mark.needs("torch")
def test_a_loader_keeps_a_common_seed_and_that_of_the_program() -> None:
    torch = library("torch")
    data = torch.utils.data
    generator = torch.Generator().manual_seed(3)
    given = data.DataLoader(Rows(), ROWS, shuffle=True, generator=generator)
    expected = [batch.tolist() for batch in given]
    generator.manual_seed(3)
    assert [batch.tolist() for batch in own(given).node] == expected
    orders = []
    for _ in range(2):
        torch.manual_seed(5)
        loader = data.DataLoader(Rows(), ROWS, shuffle=True)
        orders.append([batch.tolist() for batch in own(loader).node])
    assert orders[0] == orders[1]
    in_order = own(data.DataLoader(Rows(), SIZE), first=[7])
    assert [batch.tolist() for batch in in_order.node] == [list(range(SIZE))]


@pytest.mark.parametrize("num_parts", [2, 3, 4])
def test_parts_of_a_stream_and_its_epochs(num_parts: int) -> None:
    shuffled = stream().shuffle(seed=1, buffer_size=8).batch(ROWS)
    parts = other_dataset(shuffled).parts
    assert parts is not None
    orders = []
    for epoch in range(2):
        shuffled.set_epoch(epoch)
        rows = [
            [int(x) for batch in parts.of(num_parts, index, 0).stream() for x in batch["x"]]
            for index in range(num_parts)
        ]
        assert sorted(chain(*rows)) == list(range(SIZE))
        orders.append(rows)
    assert orders[0] != orders[1]


def test_rows_in_a_buffer_are_read_again() -> None:
    def make() -> Any:
        return stream().shuffle(seed=1, buffer_size=8).batch(ROWS)

    whole = [values(step) for step in iterate(make())]
    iterator = iterate(make())
    for _ in range(3):
        next(iterator)
    state = iterator.get_state()
    assert "sources" not in state, "Hugging Face's would leave the rows of the buffer out"
    iterator = iterate(make())
    iterator.set_state(state)
    assert [values(step) for step in iterator] == whole[3:]


def test_the_epoch_of_a_stream_is_that_of_its_state() -> None:
    def make() -> Any:
        return stream().shuffle(seed=1, buffer_size=1).batch(ROWS)

    dataset = make()
    dataset.set_epoch(3)
    iterator = iterate(dataset)
    next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    assert state["sources"][1][0]["epoch"] == 3
    rest = [values(step) for step in iterator]
    iterator = iterate(make())
    iterator.set_state(state)
    assert [values(step) for step in iterator] == rest
