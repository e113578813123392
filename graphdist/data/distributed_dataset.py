"""Datasets of per-replica values, made by splitting global batches.

A source is any dataset that `adapters.py` recognizes; an element is any pytree of arrays. Rules:

* Elements come out in the order of the source, each once. Rows of a global batch go to the replicas
  in order, by the rule in `rebatching.py`; a replica may get no rows.
* All elements have the structure, dtypes and inner shapes of the first, unless the source declares
  that shapes vary. A function that is called with an element of another number of rows is compiled
  again.
* With a single replica nothing is split, and elements need no batch dimension.
* A thread prepares elements while a step runs, and puts them on the devices: see `prefetch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias  # Any: states, specs

import jax

from graphdist.data.adapters import DatasetSource, dataset_source, source_of_worker
from graphdist.data.chunks import Chunk, ChunkSize, Step, StepInput, by_one_worker, grouped, placed
from graphdist.data.dataset_parts import DatasetParts, resumed_parts
from graphdist.data.dataset_reduction import reduction_by
from graphdist.data.elements import (
    UNKNOWN,
    Element,
    ElementKind,
    Flat,
    batch_size,
    flattened,
    without_batch_dimension,
)
from graphdist.data.failures import FailedElement, attempted, element_or_raise
from graphdist.data.input_options import AutoShardPolicy
from graphdist.data.iterators import DistributedIterator, refuse_inside_a_function
from graphdist.data.positions import Position, check_division
from graphdist.data.prefetch import OrdersAhead, Prefetched
from graphdist.data.rebatching import batch_sizes_for_worker, even_sizes, filled_sizes, parts_of
from graphdist.data.sources import (
    Batching,
    DatasetNode,
    Description,
    ElementStream,
    Files,
    nodes_of,
)
from graphdist.data.transformations import for_a_thread, observed_spec
from graphdist.data.worker_input import Agreement, rows_of_steps
from graphdist.errors import ArgumentError, DatasetError
from graphdist.values.distributed import Shapes
from graphdist.values.specs import ArraySpec, Dimensions, PerReplicaSpec
from graphdist.values.type_variables import Element_co

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase


PlaceParts: TypeAlias = Callable[..., Any]
"""A strategy's function that makes a per-replica value of the replicas' parts.

Each of several workers passes the parts of its own replicas, and the shapes on all replicas.
"""

_EVEN_POLICIES = (AutoShardPolicy.AUTO, AutoShardPolicy.DATA)


@dataclass
class Begun:
    """An iteration that has begun: its position, its sources, and the orders of its shuffles."""

    position: Position
    sources: list[ElementStream]
    orders: OrdersAhead
    num_steps: int
    """How many steps come before the element that is drawn next."""

    def keep_states(self) -> None:
        """Keep the states that the sources have after `num_steps` steps, if all have states."""
        if self.position.sources.is_asked_for:
            states = [source.state() for source in self.sources]
            if None not in states:
                self.position.sources.add(self.num_steps, states, self.position.taken)


class DistributedDataset(Generic[Element_co]):
    """Global batches, split over the replicas.

    Made by `Strategy.experimental_distribute_dataset`. It can be iterated as often as the dataset
    it was made of, and it has no transformations: map, batch and shuffle before. Loop over it
    outside functions, and call a function for each element; or loop over it inside a function,
    where the loop is compiled.

    >>> import graphdist as gd
    >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    >>> batches = gd.data.Dataset.range(5).batch(4)
    >>> for batch in strategy.experimental_distribute_dataset(batches):
    ...     print([part.tolist() for part in batch.values])
    [[0, 1], [2, 3]]
    [[4], []]
    """

    def __init__(self, dataset: Any, strategy: StrategyBase, place: PlaceParts, ahead: int) -> None:
        """Distribute a dataset over the replicas of a strategy.

        `place` puts the parts of an element on the devices. `ahead` elements are prepared beside
        the one in use.

        Raises `DatasetError` for an object that is no dataset, `BatchDimensionError` for a dataset
        of scalars.
        """
        refuse_distributed(dataset)
        self.strategy = strategy  # the first attribute: it says why nothing here can be pickled
        self.workers = strategy.devices.workers
        self._source = self._source_of(dataset)
        self._num_replicas = strategy.num_replicas_in_sync
        self._local = strategy.devices.local_replicas
        self._place = place
        self._ahead = ahead
        self._kind: ElementKind | None = None
        self._spec: Any = UNKNOWN
        self._begun: Begun | None = None  # by element_spec, for the next iteration
        self._check_declared()

    def __iter__(self) -> DistributedIterator[Element_co]:
        """Return an iterator that starts at the first element.

        Raises `UnsupportedError` inside a function, `ArgumentError` inside a replica function and
        for a second iteration of a generator.
        """
        refuse_inside_a_function("a distributed dataset is iterated")
        begun = self._next_begun()
        return DistributedIterator(self, self._prefetched(begun), begun.position)

    def __repr__(self) -> str:
        spec = self._declared.element_spec if self._spec is UNKNOWN else self._spec
        elements = "elements not known yet" if spec is UNKNOWN else spec
        return f"<{type(self).__name__} of {elements} on {self.strategy.devices}>"

    def resumed(self, state: Any, elements: Prefetched) -> tuple[Prefetched, Position]:
        """Return the elements from a saved position on, and the position.

        `elements`, which were prepared for the iterator's position until now, are dropped.
        """
        elements.stop()  # its thread would still take elements from the source, for nobody
        position = Position.of_state(state, self._datasets())
        check_division(position, self._divided_by)
        self._divide(position)
        self._begun = None
        return self._prefetched(self._begin(position)), position

    def _divide(self, position: Position) -> None:
        """Read the dataset in the parts in which it was read when `position` was saved."""
        (node,) = position.datasets
        place = self.strategy.devices.num_pipelines, self.strategy.devices.pipeline
        resumed = resumed_parts(node, position.sources, position.taken, *place)
        if resumed.node is not node:
            self._source = self._source._replace(node=resumed.node)
            position.datasets, position.sources = [resumed.node], resumed.sources

    @property
    def _divided_by(self) -> int | None:
        """Return the number of pipelines if it decides which elements each reads, else None.

        It does not where each worker reads all elements, or a part whose state is in the position.
        """
        reads_files = any(isinstance(node, Files) for node in nodes_of(self._source.node))
        is_divided = self._source.policy not in _EVEN_POLICIES if self.workers else reads_files
        return self.strategy.devices.num_pipelines if is_divided else None

    def _prefetched(self, begun: Begun) -> Prefetched:
        """Return the steps of an iteration, each a chunk of its own."""
        return self.chunks_of(self._steps(begun), begun.orders, ChunkSize(), self._ahead)

    def _datasets(self) -> list[DatasetNode]:
        """Return the datasets that are iterated."""
        return [self._source.node]

    def reduce(
        self,
        initial_state: Any,
        reduce_func: Callable[[Any, Any], Any],
        *,
        steps_per_execution: int | None = None,
    ) -> Any:
        """Return the last of the states `state = reduce_func(state, element)`.

        The function is compiled. One program runs `steps_per_execution` steps; by default this
        number is chosen by the time that the first steps take. The state is a pytree of arrays and
        numbers.

        Raises `ArgumentError` for a state that changes its structure, shapes or dtypes, and
        `UnsupportedError` inside a function.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> dataset = strategy.experimental_distribute_dataset(gd.data.Dataset.range(6).batch(4))
        >>> dataset.reduce(0, lambda total, batch: total + strategy.reduce("SUM", batch, axis=0))
        Array(15, dtype=int32)
        """
        refuse_inside_a_function("a distributed dataset is reduced", is_loop=False)
        reduction = reduction_by(reduce_func, self.strategy, steps_per_execution)
        return reduction.run(initial_state, self.chunks(reduction.size))

    def chunks(self, size: ChunkSize, most: int | None = None) -> Iterator[Chunk]:
        """Return the elements, `most` of them at most, stacked to chunks by a thread."""
        steps, orders = self.begin_steps()
        return self.chunks_of(islice(steps, most), orders, size)

    def begin_steps(self) -> tuple[Iterator[Step], OrdersAhead]:
        """Return this worker's steps from the first, and the orders of the dataset's shuffles."""
        begun = self._next_begun()
        begun.position.sources.is_asked_for = False
        return self._steps(begun), begun.orders

    def chunks_of(
        self, steps: Iterator[Step], orders: OrdersAhead, size: ChunkSize, ahead: int = 1
    ) -> Prefetched:
        """Return steps stacked to chunks by a thread, on the devices of the dataset.

        Several workers first agree on each chunk.
        """
        agreed = self.workers and Agreement(
            self.strategy.devices, lambda: self._declared.element_spec
        )
        groups = grouped(steps, size, agreed or by_one_worker)
        return Prefetched(map(partial(placed, place=self._place), groups), ahead, orders)

    @property
    def cardinality(self) -> int:
        """Return the number of elements of the source.

        `gd.data.INFINITE_CARDINALITY` and `gd.data.UNKNOWN_CARDINALITY` are negative.
        """
        return self._declared.cardinality

    @property
    def element_spec(self) -> Any:
        """Return the shapes and dtypes of a replica's part of an element.

        A pytree of `PerReplicaSpec`, or of `ArraySpec` when there is one replica. The number of
        rows is None unless the source promises that all batches have one size (`drop_remainder`)
        and this size divides by the number of replicas. A function can be traced with a spec whose
        number of rows is None, since the spec has the shapes of the first element, too. This
        element is read from the source once, and kept for the next iteration. Raises
        `ArgumentError` for an empty dataset whose source declares nothing.
        """
        if self._spec is UNKNOWN:
            self._describe(self._first())
        return self._spec

    @property
    def has_spec(self) -> bool:
        """Return whether `element_spec` is known without reading the first element."""
        return self._spec is not UNKNOWN

    # The source, element by element.

    def _next_begun(self) -> Begun:
        """Return an iteration from the first element: the one that `element_spec` began, if any."""
        begun, self._begun = self._begun or self._begin_at_start(), None
        return begun

    def _begin_at_start(self) -> Begun:
        return self._begin(Position.at_start(self._datasets()))

    def _begin(self, position: Position) -> Begun:
        """Open the sources at a position."""
        position.divided_by = self._divided_by
        num_steps, states = position.sources.before(position.taken)
        start = 0
        if states is None and self.workers is None:
            num_steps, start = position.taken, self._start(position.taken)
        nodes, orders = zip(*map(for_a_thread, position.datasets), strict=True)
        sources = [node.stream(start, states and states[index]) for index, node in enumerate(nodes)]
        begun = Begun(position, sources, list(chain(*orders)), num_steps)
        if states is None:
            begun.keep_states()
        return begun

    def _first(self) -> Flat | None:
        """Return the first element, None for an empty dataset; the next iteration has it, too."""
        begun = self._begun = self._begun or self._begin_at_start()
        source = begun.sources[0]
        first = list(islice(source, 1))
        source.elements = chain(first, source.elements)
        return flattened(element_or_raise(first[0])) if first else None

    def _checked(self, element: Element) -> Flat:
        """Return an element as arrays.

        Raises `ArgumentError` if the element is of another kind than the first. A failed element
        raises its own error.
        """
        flat = flattened(element_or_raise(element))
        if self._kind is None:
            self._describe(flat)
        assert self._kind is not None
        self._kind.check(flat)
        return flat

    def _describe(self, first: Flat | None) -> None:
        """Set the spec of a distributed element, and the kind that all elements must have.

        `first` is the first element, None if the dataset is empty.
        """
        specs, _, batching = self._declared
        if specs is not UNKNOWN and first is not None:
            kind = ElementKind.of_spec(specs, "in the dataset's element_spec")
            kind.check(first)
            self._kind = kind
        elif first is not None:
            element = jax.tree.unflatten(first.structure, first.arrays)
            specs = observed_spec([element], batching or Batching())
            self._kind = ElementKind.of_first(first, shapes_vary=self._source.declares)
        elif specs is UNKNOWN:
            raise ArgumentError(
                "an empty dataset has no element_spec: it is taken from the first element",
                hint="distribute a gd.data.Dataset, which declares what its elements are",
            )
        leaves, structure = jax.tree.flatten(specs)
        shapes: Sequence[Shapes | None] = [None] * len(leaves)
        if first is not None:
            shapes = self._shapes(first)
        self._spec = jax.tree.unflatten(structure, map(self._spec_of, leaves, shapes))

    def _spec_of(self, spec: ArraySpec, shapes: Shapes | None) -> ArraySpec | PerReplicaSpec:
        """Return the spec of one replica's part of a leaf, whose spec in the source is `spec`.

        `shapes` are the shapes of the replicas' parts in the first element; None if the dataset is
        empty.
        """
        dtype = jax.dtypes.canonicalize_dtype(spec.dtype)
        if self._num_replicas == 1:
            return ArraySpec(spec.shape, dtype, None if shapes is None else shapes[0])
        return PerReplicaSpec(self._dimensions(spec.shape), dtype, shapes, self.strategy)

    # Global batches are split among the replicas; a subclass divides its elements differently.

    def _steps(self, begun: Begun) -> Iterator[Step]:
        """Return this worker's steps from the position on, or the failures to make them.

        The steps between the state of the sources and the position are made and dropped. Without a
        state, one of several workers drops all steps before the position, since each worker splits
        an element into steps of its own.
        """
        return islice(self._steps_of_all(begun), begun.position.taken - begun.num_steps, None)

    def _steps_of_all(self, begun: Begun) -> Iterator[Step]:
        for steps in map(partial(attempted, self._steps_of), self._inputs(begun)):
            left = [steps] if isinstance(steps, FailedElement) else steps
            begun.num_steps += len(left)
            begun.keep_states()
            while left:  # nothing here keeps the arrays of a step that is in use
                yield left.pop(0)

    def _inputs(self, begun: Begun) -> Iterator[Any]:
        """Return the inputs of `_steps_of`, one after the other."""
        return begun.sources[0]

    def _start(self, taken: int) -> int:
        """Return how many elements of a source the first `taken` steps use."""
        return taken

    def _check_declared(self) -> None:
        """Raise `BatchDimensionError` for a dataset whose declared elements cannot be split."""
        spec = self._declared.element_spec
        if spec is not UNKNOWN and self._num_replicas > 1:
            for index, leaf in enumerate(jax.tree.leaves(spec)):
                if not leaf.shape:
                    raise without_batch_dimension(spec, index)

    def _source_of(self, dataset: Any) -> DatasetSource:
        """Return the part of a dataset that this worker iterates."""
        if self.workers is None:
            return dataset_source(dataset)
        return source_of_worker(dataset, self.strategy.devices)

    def _steps_of(self, element: Any) -> list[Step]:
        """Return this worker's steps of an element, with the parts of its own replicas."""
        flat = self._checked(element)
        if self._num_replicas == 1:
            return [StepInput(flat.structure, [[array] for array in flat.arrays])]
        rows, start, mine = batch_size(flat), 0, self._local
        sizes_of_steps: Iterable[tuple[int, ...]]
        if self._has_own_rows:
            sizes_of_steps = [even_sizes(rows, len(mine))]
        elif self.workers is None or self._source.policy in _EVEN_POLICIES:
            sizes_of_all = self._sizes(rows)
            sizes_of_steps = [sizes_of_all[mine.start : mine.stop]]
            start = sum(sizes_of_all[: mine.start])
        else:
            sizes_of_steps = rows_of_steps(rows, self._declared_rows, self.strategy.devices)
        steps: list[Step] = []
        for sizes in sizes_of_steps:
            parts = [parts_of(array[start:], sizes) for array in flat.arrays]
            steps.append(StepInput(flat.structure, parts))
            start += sum(sizes)
        return steps

    @property
    def _has_own_rows(self) -> bool:
        """Return whether an element of the source has only the rows of this worker."""
        return self.workers is not None and isinstance(self._source.node, DatasetParts)

    def _dimensions(self, dimensions: Dimensions) -> Dimensions:
        """Return the dimensions of a replica's part of an array with the given dimensions."""
        rows = dimensions[0]
        if rows is not None:
            rows = None if rows % self._num_replicas else rows // self._num_replicas
        return (rows, *dimensions[1:])

    def _shapes(self, first: Flat) -> Sequence[Shapes]:
        """Return for each leaf of the first element the shapes of the replicas' parts."""
        if self._num_replicas == 1:
            return [(array.shape,) for array in first.arrays]
        rows = batch_size(first)
        if self._has_own_rows:
            rows *= self.strategy.devices.num_pipelines
        sizes = self._sizes(rows)
        self.strategy.global_batch_sizes.add(sum(sizes))
        return [tuple(part.shape for part in parts_of(array, sizes)) for array in first.arrays]

    def _sizes(self, rows: int) -> tuple[int, ...]:
        """Return the number of rows of each replica, of the rows of a global batch."""
        declared = self._declared_rows
        if self._source.policy in _EVEN_POLICIES or declared is None or rows > declared:
            return even_sizes(rows, self._num_replicas)
        return filled_sizes(rows, batch_sizes_for_worker(declared, 1, self._num_replicas, 0))

    @property
    def _declared(self) -> Description:
        """Return what the source declares of its elements."""
        return self._source.node.description

    @property
    def _declared_rows(self) -> int | None:
        """Return the size of the batches that the source declares, None if there is none."""
        return (self._declared.batching or Batching()).size


def refuse_distributed(dataset: Any) -> None:
    """Raise `DatasetError` for a dataset that is distributed already."""
    if isinstance(dataset, DistributedDataset | DistributedIterator):
        raise DatasetError(
            "this dataset is distributed already",
            hint="iterate it as it is, or distribute the dataset it was made from",
        )


_TRANSFORMATIONS = """batch cache concatenate enumerate filter map padded_batch prefetch repeat
shard shuffle skip take unbatch with_options zip"""


def _refused(name: str) -> property:
    def refuse(dataset: object) -> NoReturn:
        raise DatasetError(
            f"a {type(dataset).__name__} has no {name!r}: it cannot be transformed any more",
            hint="transform the dataset before it is distributed, and iterate it as it is",
        )

    return property(refuse)


for _name in _TRANSFORMATIONS.split():
    setattr(DistributedDataset, _name, _refused(_name))
