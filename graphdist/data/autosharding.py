"""One dataset, divided among several workers, each of which iterates a part.

By file: each worker reads every n-th file of the dataset, so that no file is read twice. By
element: each worker iterates the entire dataset and keeps every n-th element, which is a batch
where elements are batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any  # Any: a policy before it is checked

from graphdist.data.dataset import Dataset
from graphdist.data.input_options import AutoShardPolicy
from graphdist.data.sources import DatasetNode, Files, nodes_of, rewritten
from graphdist.data.transformations import SHARD_HINT, Shard
from graphdist.errors import ArgumentError
from graphdist.options import member_of


def auto_shard(
    dataset: Dataset, num_workers: int, index: int, policy: AutoShardPolicy | None = None
) -> Dataset:
    """Return the part of a dataset that worker `index` iterates.

    `policy` is by default the one in the dataset's options. Raises `ArgumentError` for FILE on a
    dataset that reads no files, or fewer than there are workers: some would have no input.

    >>> batches = Dataset.range(8).batch(2)
    >>> [batch.tolist() for batch in auto_shard(batches, 2, 0)]
    [[0, 1], [4, 5]]
    """
    if not 0 <= index < num_workers:
        raise ArgumentError(f"worker {index} of {num_workers}: the first is worker 0")
    own = dataset.options().experimental_distribute.auto_shard_policy
    chosen = member_of(AutoShardPolicy, own if policy is None else policy, "policy")
    return Dataset(sharded_for_worker(dataset.node, num_workers, index, chosen), dataset.options())


def sharded_for_worker(
    node: DatasetNode, num_workers: int, index: int, policy: AutoShardPolicy
) -> DatasetNode:
    """Return the part of a dataset that a worker iterates."""
    reads_files = any(isinstance(part, Files) for part in nodes_of(node))
    if policy is AutoShardPolicy.FILE or (policy is AutoShardPolicy.AUTO and reads_files):
        return _by_file(node, num_workers, index, reads_files=reads_files)
    if policy is AutoShardPolicy.HINT:
        return rewritten(node, lambda inner: _as_hinted(inner, num_workers, index))
    if policy is AutoShardPolicy.OFF:
        return node
    return Shard(node, num_workers, index)


def _as_hinted(node: Any, num_workers: int, index: int) -> DatasetNode:
    if isinstance(node, Shard) and node.count == SHARD_HINT:
        return Shard(node.source, num_workers, index)
    return node


def _by_file(node: DatasetNode, num_workers: int, index: int, *, reads_files: bool) -> DatasetNode:
    if not reads_files:
        raise ArgumentError(
            "a dataset that reads no files cannot be sharded by file",
            hint="make it with gd.data.Dataset.from_files, or set AutoShardPolicy.DATA",
        )

    def part(inner: Any) -> DatasetNode:
        if not isinstance(inner, Files):
            return inner
        if len(inner.files) < num_workers:
            raise ArgumentError(
                f"{num_workers} workers share {len(inner.files)} "
                f"{'file' if len(inner.files) == 1 else 'files'}: some would have no input",
                hint="split the files, or set AutoShardPolicy.DATA",
            )
        return replace(inner, files=inner.files[index::num_workers])

    return rewritten(node, part)
