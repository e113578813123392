"""Input of several workers: what each iterates, and how they take steps together.

By element (DATA, and AUTO without files for every worker) all workers iterate the same dataset and
each keeps the rows of its own replicas, by the rule of a single process: no row is left out, and no
row comes twice. A shuffle without a seed gets worker 0's seed, since all workers must see the same
order. By file (FILE) each worker reads every n-th file; with OFF each reads everything. With these
policies a worker splits its batches into parts of global batches, with the fixed sizes of
`batch_sizes_for_worker`. If a replica has devices of several workers, these read the same part of
the input, its *pipeline*: the input then has as many parts as there are pipelines.

Before every step, or every chunk of steps, the workers exchange the shapes of their parts, or that
they have none left. So all end together, after the longest: a worker without data gives its
replicas no rows. The thread that prepares elements does this while the steps before run.
"""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, count, islice, zip_longest
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
from graphdist.data.transformations import Shard, Shuffle
from graphdist.errors import ArgumentError, BatchDimensionError, DatasetError
from graphdist.options import member_of
from graphdist.runtime.devices import Devices
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.value_agreement import checksums_of_input, require_equal_input
from graphdist.tracing.user_lines import here

_log = logging.getLogger("graphdist")


def auto_shard(
    dataset: Dataset, num_workers: int, index: int, policy: AutoShardPolicy | None = None
) -> Dataset:
    """Return the part of a dataset that worker `index` iterates.

    `policy` is by default the one in the dataset's options. Raises `ArgumentError` for FILE on a
    dataset that reads no files, or fewer files than there are workers, since some would have no
    input.

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
    """Return the part of a dataset that worker `index` of `num_workers` iterates.

    Raises `ArgumentError` for FILE without a file for each worker.
    """
    reads_files = any(isinstance(part, Files) for part in nodes_of(node))
    if policy is AutoShardPolicy.AUTO:
        policy = AutoShardPolicy.FILE if reads_files else AutoShardPolicy.DATA
    if policy is AutoShardPolicy.DATA:
        return Shard(node, num_workers, index)
    if policy is AutoShardPolicy.FILE and not reads_files:
        raise ArgumentError(
            "a dataset that reads no files cannot be sharded by file",
            hint="make it with gd.data.Dataset.from_files, or set AutoShardPolicy.DATA",
        )

    def part(inner: Any) -> DatasetNode:
        if policy is AutoShardPolicy.HINT and isinstance(inner, Shard):
            return replace(inner, count=num_workers, index=index) if inner.is_hint else inner
        if policy is not AutoShardPolicy.FILE or not isinstance(inner, Files):
            return inner
        if len(inner.files) < num_workers:
            raise ArgumentError(
                f"{num_workers} workers share {len(inner.files)} "
                f"{'file' if len(inner.files) == 1 else 'files'}: some would have no input",
                hint="split the files, or set AutoShardPolicy.DATA",
            )
        return replace(inner, files=inner.files[index::num_workers])

    return rewritten(node, part)


def part_of_worker(dataset: Any, devices: Devices) -> Any:
    """Return the part of a dataset that this worker iterates; all workers call it together.

    A dataset of another library is returned as it is, since `adapters.py` asks it for a part. Only
    the shuffle of a loader of torch gets the order of worker 0. Raises `ArgumentError` for policy
    FILE with fewer files than pipelines.
    """
    workers = devices.workers
    assert workers is not None
    if not isinstance(dataset, Dataset):
        _give_common_order(dataset, workers)
        return dataset
    node = _with_common_order(dataset.node, workers)
    options = Options()
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy is AutoShardPolicy.AUTO:
        policy = _chosen(node, devices)
    if policy in (AutoShardPolicy.FILE, AutoShardPolicy.HINT):
        node = sharded_for_worker(node, devices.num_pipelines, devices.pipeline, policy)
    options.experimental_distribute.auto_shard_policy = policy
    return Dataset(node, dataset.options().merge(options))


def _chosen(node: DatasetNode, devices: Devices) -> AutoShardPolicy:
    """Return the policy that AUTO chooses: FILE if there is a file for each pipeline, else DATA."""
    readers = [part for part in nodes_of(node) if isinstance(part, Files)]
    if not readers:
        return AutoShardPolicy.DATA
    fewest = min(len(reader.files) for reader in readers)
    is_by_file = has_part_for_each(fewest, f"AutoShardPolicy.AUTO: {fewest} files", devices)
    return AutoShardPolicy.FILE if is_by_file else AutoShardPolicy.DATA


def has_part_for_each(count: int, parts: str, devices: Devices) -> bool:
    """Return whether a dataset of `count` parts has one for each pipeline.

    The first worker logs whether each pipeline reads parts of its own; `parts` is the text that
    names the parts.
    """
    is_enough = count >= devices.num_pipelines
    if devices.workers is not None and devices.workers.index == 0:
        what = "each reads its own" if is_enough else "each reads all and keeps its rows"
        say = _log.info if is_enough else _log.warning
        readers = "workers" if devices.workers_per_replica == 1 else "replicas"
        say("%s for %d %s: %s", parts, devices.num_pipelines, readers, what)
    return is_enough


def _with_common_order(node: DatasetNode, workers: ClusterWorkers) -> DatasetNode:
    """Return a dataset whose shuffles without a seed have the seeds of worker 0."""
    free = [part for part in nodes_of(node) if isinstance(part, Shuffle) and part.seed.is_random]
    if not free:
        return node
    seeds = iter(_seeds_of_worker_0([secrets.randbelow(2**63) for _ in free], workers))

    def seeded(part: Any) -> DatasetNode:
        if not isinstance(part, Shuffle) or not part.seed.is_random:
            return part
        return replace(part, seed=ShuffleSeed(next(seeds), part.seed.reshuffles))

    return rewritten(node, seeded)


def _seeds_of_worker_0(mine: list[int], workers: ClusterWorkers) -> list[int]:
    key = f"seeds {workers.ordinal('seeds')}"
    seeds: list[int] = workers.exchange(key, mine, "a shuffled dataset", here())[0]
    return seeds


def _give_common_order(loader: Any, workers: ClusterWorkers) -> None:
    """Seed the sampler of a loader of torch as that of worker 0 is seeded.

    A `DataLoader(.., shuffle=True)` without a generator draws its seed in each process. All workers
    read the loader, and each keeps its rows: with different orders they would lose some rows and
    repeat others.
    """
    torch = sys.modules.get("torch")
    sampler = getattr(getattr(loader, "batch_sampler", None) or loader, "sampler", None)
    if torch is None or not isinstance(sampler, torch.utils.data.Sampler):
        return
    generator = getattr(sampler, "generator", loader)
    if generator is None:
        # The program's own seed of torch then decides, as it does where a sampler draws the number.
        mine = int(torch.empty((), dtype=torch.int64).random_().item())
        sampler.generator = torch.Generator().manual_seed(*_seeds_of_worker_0([mine], workers))
    elif isinstance(generator, torch.Generator):
        (seed,) = _seeds_of_worker_0([generator.initial_seed()], workers)
        if seed != generator.initial_seed():
            generator.manual_seed(seed)


def rows_of_steps(rows: int, declared: int | None, devices: Devices) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of rows of this worker's replicas, for each step of a batch.

    A batch of `declared` rows, or of any number if that is None, is split into as many steps as
    there are pipelines.
    """
    full_size = declared if declared is not None and rows <= declared else rows
    num_local = len(devices.local_replicas)
    sizes = batch_sizes_for_worker(full_size, devices.num_pipelines, num_local, devices.pipeline)
    for start in range(0, len(sizes), num_local):
        rows_of_replicas = filled_sizes(rows, sizes[start : start + num_local])
        rows -= sum(rows_of_replicas)
        if any(rows_of_replicas):
            yield rows_of_replicas


class Agreement:
    """The workers' agreement on their next steps.

    All workers call it equally often, for the same dataset.
    """

    def __init__(self, devices: Devices, spec: Callable[[], Any]) -> None:
        """Begin for the dataset that the workers of these devices iterate next.

        `spec()` returns the specs that the dataset declares.
        """
        assert devices.workers is not None
        self._devices, self._workers, self._spec = devices, devices.workers, spec
        self._ordinal, self._exchanges = self._workers.ordinal("dataset"), count()
        self._last: StepInput | None = None

    def __call__(self, mine: list[Step], wanted: int) -> tuple[list[Step], int]:
        """Return the next steps of all workers, with all replicas' shapes, and the size of a group.

        `mine` are the next steps of this worker: `wanted` of them, or fewer at its end. The size is
        the smallest `wanted` of all workers. No steps are returned once no worker has any. A step
        that failed on one worker fails on all.

        Raises `DatasetError` where this worker has had no element, the dataset declares nothing,
        and other workers have elements; `WorkerError` if the workers of a replica have other rows.
        """
        message = [wanted, [self._description(step) for step in mine]]
        key = f"dataset {self._ordinal} {next(self._exchanges)}"
        limit = self._workers.timeouts.step  # the others may still be in a step
        messages = self._workers.exchange(key, message, "the next step's input", seconds=limit)
        size = min(wanted for wanted, _ in messages)
        columns = zip_longest(mine, *(steps for _, steps in messages))
        return [self._agreed(step, list(of_all)) for step, *of_all in islice(columns, size)], size

    def _description(self, step: Step) -> Any:
        """Return the shapes and checksums of this worker's parts of a step.

        Of a failed step return the text of its error.
        """
        if isinstance(step, FailedElement):
            return f"{type(step.error).__name__}: {step.error}"
        shapes = [[list(part.shape) for part in parts] for parts in step.parts]
        return [shapes, checksums_of_input(chain(*step.parts), self._devices)]

    def _agreed(self, mine: Step | None, descriptions: list[Any]) -> Step:
        """Return a step with the shapes on all replicas.

        `mine` is this worker's part of the step, None past its end; `descriptions` are those of all
        workers.
        """
        if isinstance(mine, FailedElement):
            return mine
        for worker, error in enumerate(descriptions):
            if isinstance(error, str):
                failure = DatasetError(
                    f"worker {worker} could not make its part of an element: {error}",
                    hint="the step is left out on all workers: go on with the next, or mend the "
                    "dataset",
                )
                return FailedElement(failure)
        require_equal_input([each and each[1] for each in descriptions], self._devices)
        of_pipelines = descriptions[:: self._devices.workers_per_replica]
        like = next(each[0] for each in of_pipelines if each)
        of_all = [each[0] if each else _without_rows(like) for each in of_pipelines]
        if mine is None:
            mine = _empty_step(self._last, of_all[self._devices.pipeline], self._spec)
        self._last = mine
        shapes = [
            tuple(tuple(shape) for of_worker in of_all for shape in of_worker[leaf])
            for leaf in range(len(like))
        ]
        return StepInput(mine.structure, mine.parts, shapes)


def _without_rows(like: list[list[list[int]]]) -> list[list[list[int]]]:
    """Return the shapes of a worker's parts without rows; `like` are those of another worker.

    Raises `BatchDimensionError` if a part is a scalar.
    """
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
    """Return a step without rows for a worker that has no more elements.

    `shapes` are the shapes of its parts for each leaf. The rest is that of its `last` step, or of
    `spec()`, the specs that the dataset declares.
    """
    if last is not None:
        like, structure = [parts[0] for parts in last.parts], last.structure
    elif (declared := spec()) is not UNKNOWN:
        like, structure = jax.tree.flatten(declared)
    else:
        raise DatasetError(
            "this worker has no element and others have some: the shapes of its elements are "
            "not known",
            hint="distribute a gd.data.Dataset, which declares what its elements are",
        )
    parts = [
        [np.zeros(shape, leaf.dtype) for shape in of_leaf]
        for of_leaf, leaf in zip(shapes, like, strict=True)
    ]
    return StepInput(structure, parts)
