"""Input of several workers: what each iterates, and how they take steps together.

By element (DATA, and AUTO without files for every worker) all workers iterate the same dataset and
each keeps the rows of its own replicas, by the rule of a single process: no row is left out, and no
row comes twice. A shuffle without a seed gets worker 0's seed, since all workers must see the same
order. By file (FILE) each worker reads every n-th file; with OFF each reads everything. With these
policies a worker splits its batches into parts of global batches, with the fixed sizes of
`batch_sizes_for_worker`.

Before every step, or every chunk of steps, the workers exchange the shapes of their parts, or that
they have none left. So all end together, after the longest: a worker without data gives its
replicas no rows. The thread that prepares elements does this while the steps before run.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any  # Any: datasets of all kinds, structures of pytrees, JSON

import jax
import numpy as np

from graphdist.data.chunks import Step, StepInput
from graphdist.data.dataset import Dataset
from graphdist.data.elements import UNKNOWN
from graphdist.data.failures import FailedElement
from graphdist.data.input_options import AutoShardPolicy, Options
from graphdist.data.rebatching import batch_sizes_for_worker, filled_sizes
from graphdist.data.shuffle_orders import ShuffleSeed
from graphdist.data.sources import DatasetNode, Files, nodes_of, rewritten
from graphdist.data.transformations import SHARD_HINT, Shard, Shuffle
from graphdist.errors import ArgumentError, BatchDimensionError, DatasetError
from graphdist.options import member_of
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.tracing.user_lines import here

_log = logging.getLogger("graphdist")


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


def part_of_worker(dataset: Any, workers: ClusterWorkers) -> Any:
    """Return the part of a dataset that this worker iterates; all workers call it together.

    A dataset of another library is returned as it is: `adapters.py` asks it for a part. Raises
    `ArgumentError` for policy FILE with fewer files than workers.
    """
    if not isinstance(dataset, Dataset):
        return dataset
    node = _with_common_order(dataset.node, workers)
    options = Options()
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy is AutoShardPolicy.AUTO:
        policy = _chosen(node, workers)
    if policy in (AutoShardPolicy.FILE, AutoShardPolicy.HINT):
        node = sharded_for_worker(node, len(workers), workers.index, policy)
    options.experimental_distribute.auto_shard_policy = policy
    return Dataset(node, dataset.options().merge(options))


def _chosen(node: DatasetNode, workers: ClusterWorkers) -> AutoShardPolicy:
    """Return the policy that AUTO chooses: FILE if there is a file for each worker, else DATA."""
    readers = [part for part in nodes_of(node) if isinstance(part, Files)]
    if not readers:
        return AutoShardPolicy.DATA
    fewest = min(len(reader.files) for reader in readers)
    enough = fewest >= len(workers)
    if workers.index == 0:
        what = "each reads its own" if enough else "each reads all and keeps its rows"
        say = _log.info if enough else _log.warning
        say("AutoShardPolicy.AUTO: %d files for %d workers: %s", fewest, len(workers), what)
    return AutoShardPolicy.FILE if enough else AutoShardPolicy.DATA


def _with_common_order(node: DatasetNode, workers: ClusterWorkers) -> DatasetNode:
    """Return a dataset whose shuffles without a seed have worker 0's seeds."""
    free = [part for part in nodes_of(node) if isinstance(part, Shuffle) and part.seed.is_random]
    if not free:
        return node
    key = f"seeds {workers.ordinal('seeds')}"
    mine = [secrets.randbelow(2**63) for _ in free]
    seeds = iter(workers.exchange(key, mine, "a shuffled dataset", here())[0])

    def seeded(part: Any) -> DatasetNode:
        if not isinstance(part, Shuffle) or not part.seed.is_random:
            return part
        return replace(part, seed=ShuffleSeed(next(seeds), part.seed.reshuffles))

    return rewritten(node, seeded)


def rows_of_steps(
    rows: int, declared: int | None, workers: ClusterWorkers, num_local: int
) -> Iterator[tuple[int, ...]]:
    """Yield the rows of this worker's replicas, for each of the steps into which a batch is split.

    A full batch is split into as many steps as there are workers.
    """
    full_size = declared if declared is not None and rows <= declared else rows
    sizes = batch_sizes_for_worker(full_size, len(workers), num_local, workers.index)
    for start in range(0, len(sizes), num_local):
        rows_of_replicas = filled_sizes(rows, sizes[start : start + num_local])
        rows -= sum(rows_of_replicas)
        if any(rows_of_replicas):
            yield rows_of_replicas


class Agreement:
    """The workers' agreement on their next steps: all call it as often, for the same dataset."""

    def __init__(self, workers: ClusterWorkers, spec: Callable[[], Any]) -> None:
        """Begin for the dataset that these workers iterate next.

        `spec()` returns the specs that the dataset declares.
        """
        self._workers, self._spec = workers, spec
        self._ordinal, self._exchanges = workers.ordinal("dataset"), count()
        self._last: StepInput | None = None

    def __call__(self, mine: list[Step], wanted: int) -> tuple[list[Step], int]:
        """Return the next steps of all workers, with the shapes on all replicas, and their size.

        `mine` are the steps that this worker has ahead: `wanted` of them, or fewer at its end. The
        size is the least that a worker wants. No steps are returned once no worker has any. A step
        that failed on one worker fails on all.

        Raises `DatasetError` where this worker has no element at all, nothing is declared, and
        others have some.
        """
        message = [wanted, [_description(step) for step in mine]]
        key = f"dataset {self._ordinal} {next(self._exchanges)}"
        limit = self._workers.timeouts.step  # the others may still be in a step
        messages = self._workers.exchange(key, message, "the next step's input", seconds=limit)
        size = min(wanted for wanted, _ in messages)
        steps = [steps for _, steps in messages]
        most = min(size, max(map(len, steps)))
        return [
            self._agreed(
                mine[index] if index < len(mine) else None,
                [its[index] if index < len(its) else None for its in steps],
            )
            for index in range(most)
        ], size

    def _agreed(self, mine: Step | None, descriptions: list[Any]) -> Step:
        failed = [worker for worker, text in enumerate(descriptions) if isinstance(text, str)]
        if failed:
            if isinstance(mine, FailedElement):
                return mine
            return _failed_on(failed[0], descriptions[failed[0]])
        assert not isinstance(mine, FailedElement)
        like = next(shapes for shapes in descriptions if shapes)
        of_all = [shapes or _without_rows(like) for shapes in descriptions]
        if mine is None:
            mine = _empty_step(self._last, of_all[self._workers.index], self._spec)
        self._last = mine
        shapes = [
            tuple(tuple(shape) for of_worker in of_all for shape in of_worker[leaf])
            for leaf in range(len(like))
        ]
        return StepInput(mine.structure, mine.parts, shapes)


def _description(step: Step) -> Any:
    """Return the shapes of this worker's parts of a step, or the text of the error."""
    if isinstance(step, FailedElement):
        return f"{type(step.error).__name__}: {step.error}"
    return [[list(part.shape) for part in parts] for parts in step.parts]


def _failed_on(worker: int, error: str) -> FailedElement:
    return FailedElement(
        DatasetError(
            f"worker {worker} could not make its part of an element: {error}",
            hint="the step is left out on all workers: go on with the next, or mend the dataset",
        )
    )


def _without_rows(like: list[list[list[int]]]) -> list[list[list[int]]]:
    """Return the shapes of another worker's parts, with no rows."""
    for parts in like:
        if not parts[0]:
            raise BatchDimensionError(
                "a worker has no element for a step that others have one for, and a scalar cannot "
                "have zero rows",
                hint="give all workers as many elements, or batches",
            )
    return [[[0, *shape[1:]] for shape in parts] for parts in like]


def _empty_step(
    last: StepInput | None, shapes: list[list[list[int]]], spec: Callable[[], Any]
) -> StepInput:
    if last is not None:
        structure, dtypes = last.structure, [parts[0].dtype for parts in last.parts]
    else:
        declared = spec()
        if declared is UNKNOWN:
            raise DatasetError(
                "this worker has no element and others have some: the shapes of its elements are "
                "not known",
                hint="distribute a gd.data.Dataset, which declares what its elements are",
            )
        leaves, structure = jax.tree.flatten(declared)
        dtypes = [np.dtype(leaf.dtype) for leaf in leaves]
    parts = [
        [np.zeros(shape, dtype) for shape in of_leaf]
        for of_leaf, dtype in zip(shapes, dtypes, strict=True)
    ]
    return StepInput(structure, parts)
