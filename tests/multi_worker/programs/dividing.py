"""Workers that read a dataset together from a saved position on, and save where they stop.

Arguments: a folder, the kind of dataset, and the step after which to stop, or `end`. Each says its
rows of each step, and what it has read of the dataset.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import graphdist as gd
from tests.data.datasets_in_parts import ROWS, Indexed, Sharded

SIZE = 10
read: list[int] = []


def counted(row: Any) -> Any:
    """Count a row that a library reads."""
    read.append(int(row["x"] if isinstance(row, dict) else row))
    return row


def of_grain() -> Any:
    """Return a pipeline that shuffles."""
    import grain

    rows = grain.MapDataset.range(SIZE * ROWS).shuffle(seed=3).map(counted)
    return rows.map(lambda row: {"x": row}).batch(ROWS)


def of_hugging_face() -> Any:
    """Return a stream of four shards."""
    import datasets

    def rows(shards: list[int]) -> Any:
        for shard in shards:
            yield from ({"x": row} for row in range(shard * SIZE, (shard + 1) * SIZE))

    stream = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(range(4))})
    return stream.map(counted).batch(ROWS)


def of_torchdata() -> Any:
    """Return a loader that shuffles, which every worker reads."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Rows:
        def __len__(self) -> int:
            return SIZE * ROWS

        def __getitem__(self, row: int) -> Any:
            return counted({"x": row})

    generator = torch.Generator().manual_seed(0)
    return StatefulDataLoader(Rows(), batch_size=ROWS, shuffle=True, generator=generator)


KINDS = {
    "indexed": lambda: Indexed(SIZE, read),
    "sharded": lambda: Sharded(SIZE, read),
    "grain": of_grain,
    "datasets": of_hugging_face,
    "torchdata": of_torchdata,
}


def main(folder: Path, kind: str, stop: str) -> None:
    """Read from the last position on."""
    strategy = gd.MultiWorkerMirroredStrategy()
    nothing_ahead = gd.InputOptions(experimental_per_replica_buffer_size=0)
    dataset = strategy.experimental_distribute_dataset(KINDS[kind](), nothing_ahead)
    iterator = iter(dataset)
    manager = gd.train.CheckpointManager(gd.train.Checkpoint(iterator=iterator), folder, 1)
    manager.restore_or_initialize()
    rows = []
    for step in islice(iterator, None if stop == "end" else int(stop)):
        parts = strategy.experimental_local_results(step["x"])
        rows.append([int(row) for part in parts for row in np.asarray(part)])
    if stop != "end":
        manager.save()
    print("SAYS", json.dumps({"rows": rows, "read": read}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
