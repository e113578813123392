"""`Dataset`: a small part of `tf.data.Dataset`, on NumPy arrays.

All work is done when a dataset is iterated, in one thread, and again at each iteration. Elements
are pytrees of arrays or NumPy scalars that keep their dtypes. A list is an array. A tuple is
several components, which become several arguments of a function given to `map` or `filter`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import islice
from typing import Any  # Any: elements and functions of the user's

import jax

from graphdist.data.batching import Batch, PaddedBatch, Unbatch
from graphdist.data.elements import UNKNOWN, as_element
from graphdist.data.failures import element_or_raise
from graphdist.data.input_options import Options
from graphdist.data.iterators import DatasetIterator
from graphdist.data.prefetch import prefetch_depth
from graphdist.data.shuffle_orders import ShuffleSeed
from graphdist.data.sources import (
    INFINITE_CARDINALITY,
    DatasetNode,
    Files,
    Generated,
    Range,
    Slices,
    Tensors,
    read_lines,
    rewritten,
    sliceable,
)
from graphdist.data.transformations import (
    SHARD_HINT,
    Concatenate,
    Enumerate,
    Filter,
    Map,
    Prefetch,
    Repeat,
    Shard,
    Shuffle,
    Skip,
    Take,
    Zip,
    observed_spec,
)
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.values.distributed import type_name, wrong_type


class Dataset:
    """A collection of elements that are made while it is iterated, any number of times.

    Made by its `from_...` methods and `range`; every other method returns a new dataset. Methods
    raise `ArgumentError` or `ArgumentTypeError` for arguments that cannot be used.

    >>> dataset = Dataset.range(5).map(lambda x: x * 10).batch(2)
    >>> [batch.tolist() for batch in dataset]
    [[0, 10], [20, 30], [40]]
    """

    def __init__(self, node: DatasetNode, options: Options | None = None) -> None:
        """Make a dataset whose last transformation is `node`."""
        if not isinstance(node, DatasetNode):
            raise ArgumentTypeError(
                f"gd.data.Dataset is made of {type_name(node)}",
                hint="write gd.data.Dataset.from_tensor_slices(arrays) or from_generator(..)",
            )
        self.node = node
        self._options = options or Options()

    # Sources.

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """Return the dataset of the rows of arrays: one element for each index in dimension 0.

        The arrays are not copied. Raises `ArgumentError` when they have different numbers of rows.

        >>> for element in Dataset.from_tensor_slices({"x": [1, 2], "y": [[3.0], [4.0]]}):
        ...     print(element["x"], element["y"])
        1 [3.]
        2 [4.]
        """
        return Dataset(Slices(sliceable(tensors)))

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """Return the dataset of one element."""
        return Dataset(Tensors(as_element(tensors)))

    @staticmethod
    def from_generator(
        generator: Callable[..., Iterable[Any]],
        output_signature: Any = None,
        args: Sequence[Any] = (),
    ) -> Dataset:
        """Return the dataset of the elements of `generator(*args)`, called for each iteration.

        `output_signature` is the `ArraySpec` of elements, or a pytree of specs, with None for a
        size that varies. An element that does not fit the signature raises `ArgumentError`.

        >>> list(Dataset.from_generator(lambda: (10 * i for i in range(3))))
        [array(0), array(10), array(20)]
        """
        if not callable(generator):
            hint = "give the function itself: each iteration calls it again"
            raise wrong_type("generator", generator, "a function that returns one", hint)
        signature = UNKNOWN if output_signature is None else output_signature
        return Dataset(Generated(generator, signature, tuple(args)))

    @staticmethod
    def from_files(
        files: Sequence[str | os.PathLike[str]], read: Callable[[str], Iterable[Any]] = read_lines
    ) -> Dataset:
        """Return the dataset of the elements of `read(file)` for each file, by default its lines.

        Several workers can divide the files among them: see `AutoShardPolicy`.
        """
        if isinstance(files, str):
            raise ArgumentTypeError("files is a str, not a list of names")
        return Dataset(Files(tuple(os.fspath(file) for file in files), read))

    @staticmethod
    def range(*args: int) -> Dataset:
        """Return the dataset of the integers of `range(*args)`, of 64 bits."""
        return Dataset(Range(range(*args)))

    @staticmethod
    def zip(*datasets: Any) -> Dataset:
        """Return the dataset of tuples of the datasets' elements, or of pytrees like the argument.

        The new dataset ends with the shortest of the datasets.

        >>> list(Dataset.zip({"a": Dataset.range(2), "b": Dataset.range(5, 9)}))
        [{'a': np.int64(0), 'b': np.int64(5)}, {'a': np.int64(1), 'b': np.int64(6)}]
        """
        tree = datasets[0] if len(datasets) == 1 else datasets
        parts: list[Any]
        parts, structure = jax.tree.flatten(tree)
        for part in parts:
            _check_dataset(part, "zip")
        options = reduce(Options.merge, (part.options() for part in parts), Options())
        return Dataset(Zip(tuple(part.node for part in parts), structure), options)

    # Elements one by one.

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Return the dataset of a function's results for each element.

        The function gets NumPy arrays. The other arguments change nothing: there is one thread.
        """
        return self._then(Map(self.node, _checked_function(map_func, "map")))

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """Return the dataset of the elements for which a function returns true."""
        return self._then(Filter(self.node, _checked_function(predicate, "filter")))

    def take(self, count: int) -> Dataset:
        """Return the dataset of the first `count` elements; -1 is all."""
        count = _size("take", "count", count, least=-1)
        return self if count == -1 else self._then(Take(self.node, count))

    def skip(self, count: int) -> Dataset:
        """Return the dataset without its first `count` elements; -1 is all."""
        count = _size("skip", "count", count, least=-1)
        return self._then(Take(self.node, 0) if count == -1 else Skip(self.node, count))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Return the dataset of every `num_shards`-th element, from element `index` on.

        With `SHARD_HINT` for both, the strategy that distributes the dataset sets them.
        """
        if (num_shards, index) == (SHARD_HINT, SHARD_HINT):
            return self._then(Shard(self.node, SHARD_HINT, SHARD_HINT))
        num_shards = _size("shard", "num_shards", num_shards, least=1)
        index = _size("shard", "index", index, least=0)
        if index >= num_shards:
            raise ArgumentError(f"shard {index} of {num_shards}: the first is shard 0")
        return self._then(Shard(self.node, num_shards, index))

    def repeat(self, count: int | None = None) -> Dataset:
        """Return the dataset `count` times over; None or -1 is for ever."""
        times = None if count in (None, -1) else _size("repeat", "count", count, least=0)
        return self._then(Repeat(self.node, times))

    def concatenate(self, dataset: Dataset) -> Dataset:
        """Return the dataset of this dataset's elements, followed by those of another dataset.

        Raises `ArgumentError` when structure, dtypes or ranks of the elements are known to differ.
        """
        _check_dataset(dataset, "concatenate")
        node = Concatenate((self.node, dataset.node))
        _ = node.description
        return Dataset(node, self._options.merge(dataset.options()))

    def enumerate(self, start: int = 0) -> Dataset:
        """Return the dataset of pairs: a count, which begins at `start`, and an element."""
        return self._then(Enumerate(self.node, start))

    def prefetch(self, buffer_size: int) -> Dataset:
        """Return the dataset with up to `buffer_size` elements made ahead of use, on a thread.

        A distributed dataset prefetches without this method.
        """
        size = _size("prefetch", "buffer_size", buffer_size, least=-1)
        return self._then(Prefetch(self.node, prefetch_depth(size)))

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
    ) -> Dataset:
        """Return the dataset in random order, drawn from a buffer of `buffer_size` elements.

        A seed gives the order that tf.data gives for it. Every iteration has another order unless
        `reshuffle_each_iteration` is false, regardless of other iterators in progress. A new
        dataset with the same seed starts with the same first order.

        >>> [int(x) for x in Dataset.range(6).shuffle(6, seed=1)]
        [4, 5, 1, 2, 3, 0]
        """
        size = _size("shuffle", "buffer_size", buffer_size, least=1)
        return self._then(Shuffle(self.node, size, ShuffleSeed(seed, reshuffle_each_iteration)))

    # Batches.

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Return the dataset of batches of `batch_size` elements, with fewer in the last.

        `drop_remainder` leaves a smaller last batch out. The other arguments change nothing.
        """
        size = _size("batch", "batch_size", batch_size, least=1)
        return self._then(Batch(self.node, size, bool(drop_remainder)))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Return the dataset of `batch_size` elements padded to one shape and stacked.

        `padded_shapes` has a shape for each component, in which None is the largest size of each
        batch; by default every size is None. `padding_values` are zeros by default.

        >>> rows = Dataset.range(1, 4).map(lambda size: [7] * int(size))
        >>> list(rows.padded_batch(2))
        [array([[7, 0],
               [7, 7]]), array([[7, 7, 7]])]
        """
        size = _size("padded_batch", "batch_size", batch_size, least=1)
        drops = bool(drop_remainder)
        return self._then(PaddedBatch(self.node, size, drops, padded_shapes, padding_values))

    def unbatch(self) -> Dataset:
        """Return the dataset of the rows of each element."""
        return self._then(Unbatch(self.node))

    # Properties.

    def with_options(self, options: Options) -> Dataset:
        """Return the dataset with options set in addition to its own."""
        if not isinstance(options, Options):
            raise wrong_type("options", options, "gd.data.Options")
        return Dataset(self.node, self._options.merge(options))

    def options(self) -> Options:
        """Return a copy of the dataset's options."""
        return self._options.merge(Options())

    def cardinality(self) -> int:
        """Return the number of elements, `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`."""
        return self.node.description.cardinality

    @property
    def element_spec(self) -> Any:
        """Return the `ArraySpec` of elements, or a pytree of specs, with None for sizes that vary.

        The spec of a mapped dataset is taken from its first two elements, which are made for that.
        The number of rows of batches is known only if all batches have one size. Raises
        `ArgumentError` if the spec must be taken from elements and the dataset is empty.
        """
        described = self.node.description
        if described.element_spec is not UNKNOWN:
            return described.element_spec
        # No order may be taken to look at elements.
        unshuffled = rewritten(
            self.node, lambda node: node.source if isinstance(node, Shuffle) else node
        )
        return observed_spec(
            [element_or_raise(element) for element in islice(unshuffled, 2)], described.batching
        )

    def as_numpy_iterator(self) -> DatasetIterator:
        """Return an iterator over the elements, which are NumPy arrays in any case."""
        return iter(self)

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self)

    def __len__(self) -> int:
        cardinality = self.cardinality()
        if cardinality < 0:
            is_infinite = cardinality == INFINITE_CARDINALITY
            raise ArgumentTypeError(
                f"the length of this dataset is {'infinite' if is_infinite else 'not known'}",
                hint="ask for its cardinality(), which says so",
            )
        return cardinality

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        spec = self.node.description.element_spec
        return f"<Dataset of {'elements not known yet' if spec is UNKNOWN else spec}>"

    def _then(self, node: DatasetNode) -> Dataset:
        return Dataset(node, self._options)


def _size(method: str, name: str, value: Any, least: int) -> int:
    """Return a count as an int.

    Raises `ArgumentTypeError` if `value` is no integer, `ArgumentError` if it is less than `least`.
    """
    try:
        size = operator.index(value)
    except TypeError:
        raise wrong_type(f"{name} of {method}", value, "int") from None
    if size < least:
        raise ArgumentError(f"{name} of {method} is {size}: it must be at least {least}")
    return size


def _checked_function(function: Any, method: str) -> Callable[..., Any]:
    if not callable(function):
        raise ArgumentTypeError(f"{method} takes a function, not a {type_name(function)}")
    return function


def _check_dataset(dataset: Any, method: str) -> None:
    if not isinstance(dataset, Dataset):
        raise ArgumentTypeError(
            f"{method} takes a gd.data.Dataset, not a {type_name(dataset)}",
            hint="make one with gd.data.Dataset.from_generator(lambda: iterable)",
        )
