"""Global batches in, per-replica batches out: `Strategy.experimental_distribute_dataset`.

A source is any iterable of elements, an element any pytree of arrays, one global batch. Every
leaf is split along dimension 0 into one equal part a replica, in replica order. Rules:

* Elements come out in the order of the source, each once.
* A source is asked for a new iterator at every `iter`. A generator has only one, so it can be
  iterated once; a second attempt is an error and not an empty epoch.
* The arrays of an element are copied before they are placed: sources may reuse their buffers, and
  on CPU a JAX array would go on showing them.

Theory of operation. Each iterator has a thread of its own, which pulls elements from the source
and places them on the devices while a step runs. The two sides talk through two queues. A number
in `permits` lets the thread prepare one element: `prefetch` of them are there from the start, and
every `next` adds one, so that no more than `prefetch` elements wait beside the one being asked
for. `results` carries elements, the source's exception, and the end mark, which is put back for
whoever asks again.

The thread never refers to the iterator, so an iterator that nobody holds is collected; its
finalizer then stops the thread. A finalizer may run at any point of any thread, also inside a
queue operation: hence `SimpleQueue`, whose `put` is reentrant, and a plain flag. `Queue` and
`Event` could deadlock. Threads are daemons: a source that blocks for ever does not keep the
process alive. At exit they are given a moment to finish, because a daemon caught inside JAX when
the interpreter goes takes it down.
"""

from __future__ import annotations

import atexit
import contextvars
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from graphdist.errors import ArgumentError, ArgumentTypeError, GraphdistError
from graphdist.signature import PerReplicaSpec
from graphdist.tracing.sources import here

Element = Any  # a pytree of the user's making: what it holds is checked at run time
Place = Callable[[np.ndarray], object]

_SECONDS_TO_STOP_AT_EXIT = 2.0
_END = object()


class DistributedDataset:
    """Global batches, split over the replicas; iterable as often as its source is.

    `source` is an iterable of pytrees of arrays. Every leaf of an element has the same batch size
    in dimension 0, a multiple of `num_replicas`. `place` is the strategy's: it puts one leaf, a
    NumPy array of its own, on the devices and returns the per-replica value. Up to `prefetch`
    elements are prepared ahead of use on a background thread, where the source runs with the
    context variables of the caller.

    Raises `ArgumentTypeError` for a source that is no iterable of batches, here or at the first
    element that is none, and `ArgumentError` for batch sizes that do not agree or cannot be
    split.

    >>> batches = [{"image": np.zeros((4, 28, 28), np.float32)}]
    >>> halves = DistributedDataset(batches, num_replicas=2, place=lambda leaf: np.split(leaf, 2))
    >>> [len(batch["image"]) for batch in halves]
    [2]
    >>> halves.element_spec
    {'image': PerReplicaSpec(shape=(2, 28, 28), dtype=float32)}
    """

    def __init__(
        self, source: Iterable[Element], num_replicas: int, place: Place, prefetch: int = 2
    ) -> None:
        if prefetch < 0:
            raise ArgumentError(f"prefetch {prefetch} is negative", source=here())
        _check_source(source)
        self._source = source
        self._num_replicas = num_replicas
        self._place = place
        self._prefetch = prefetch
        self._opened: Iterator[Element] | None = None  # by element_spec, for the next iteration
        self._is_used_up = False
        self._element_spec: Element = _END

    def __iter__(self) -> DistributedIterator:
        """Return an iterator that starts at the first element.

        Raises `ArgumentError` when the source is a generator that was handed out before.
        """
        return DistributedIterator(self._open(), self._distribute, self._prefetch)

    @property
    def element_spec(self) -> Element:
        """Return the shapes and dtypes of one replica's part of the first element.

        A pytree of `PerReplicaSpec`, or of `jax.ShapeDtypeStruct` when there is one replica: what a
        function can be traced with in place of an element. Later elements may have other batch
        sizes. The first element is read from the source for it, once, and kept for the next
        iteration. Raises `ArgumentError` when there is no first element.
        """
        if self._element_spec is _END:
            elements = self._open()
            first = list(islice(elements, 1))
            self._opened = chain(first, elements)
            if not first:
                raise ArgumentError(
                    "an empty dataset has no element_spec: it is taken from the first element",
                    source=here(),
                )
            try:
                checked = _checked(first[0], self._num_replicas)
            except GraphdistError as error:
                error.source = here()
                raise
            self._element_spec = jax.tree.map(self._spec, checked)
        return self._element_spec

    def _open(self) -> Iterator[Element]:
        """Return an iterator over the source; refuse to share the one iterator of a generator."""
        if self._opened is not None:
            elements, self._opened = self._opened, None
            return elements
        if self._is_used_up:
            raise ArgumentError(
                f"a {type(self._source).__name__} can be iterated once, and this one was",
                source=here(),
                hint="distribute a list, or an object whose __iter__ starts again",
            )
        elements = iter(self._source)
        self._is_used_up = elements is self._source
        return elements

    def _distribute(self, element: Element) -> Element:
        return jax.tree.map(self._place, _checked(element, self._num_replicas))

    def _spec(self, leaf: np.ndarray) -> PerReplicaSpec | jax.ShapeDtypeStruct:
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        if self._num_replicas == 1:
            return jax.ShapeDtypeStruct(leaf.shape, dtype)
        return PerReplicaSpec((len(leaf) // self._num_replicas, *leaf.shape[1:]), dtype)


class DistributedIterator:
    """The elements of a `DistributedDataset` in order, prepared ahead on a background thread.

    An exception of the source is raised by the `next` that would have returned the element, with
    the traceback that leads into the source; after it, and after the last element, the iterator
    is at its end. Any thread may call `next`.
    """

    def __init__(
        self, elements: Iterator[Element], distribute: Callable[[Element], Element], prefetch: int
    ) -> None:
        self._feed = _Feed()
        for _ in range(prefetch):
            self._feed.permits.put(None)
        # The source sees the caller's context variables, as it would without a thread.
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run,
            args=(_produce, elements, distribute, self._feed),
            name="graphdist-prefetch",
            daemon=True,
        )
        weakref.finalize(self, self._feed.stop).atexit = False
        thread.start()
        _feeds[thread] = self._feed

    def __iter__(self) -> DistributedIterator:
        return self

    def __next__(self) -> Element:
        self._feed.permits.put(None)
        result = self._feed.results.get()
        if result is _END:
            self._feed.results.put(_END)
            raise StopIteration
        if isinstance(result, _Failure):
            if isinstance(result.error, GraphdistError) and result.error.source is None:
                result.error.source = here()  # the thread has no line of the user's
            try:
                raise result.error
            finally:
                del result  # the error's traceback holds this frame
        return result

    def get_next(self) -> Element:
        """Return the next element, as `next` does; raise `StopIteration` past the last."""
        return next(self)


@dataclass(eq=False, frozen=True)
class _Failure:
    """An exception on its way from the thread to the caller."""

    error: BaseException


@dataclass(eq=False)
class _Feed:
    """What an iterator and its thread share; see the head of the module."""

    permits: SimpleQueue[None] = field(default_factory=SimpleQueue)
    results: SimpleQueue[Element] = field(default_factory=SimpleQueue)
    stopped: bool = False

    def stop(self) -> None:
        """Make the thread leave before its next element; safe in a finalizer."""
        self.stopped = True
        self.permits.put(None)


_feeds: weakref.WeakKeyDictionary[threading.Thread, _Feed] = weakref.WeakKeyDictionary()


def _produce(
    elements: Iterator[Element], distribute: Callable[[Element], Element], feed: _Feed
) -> None:
    """Prepare one element for every permit; the body of an iterator's thread."""
    try:
        while True:
            feed.permits.get()
            if feed.stopped:
                return
            try:
                element = next(elements)
            except StopIteration:
                break
            feed.results.put(distribute(element))
            del element  # not while waiting for the next permit: it may be large
    except BaseException as error:  # also SystemExit: the caller would wait for ever
        feed.results.put(_Failure(error))
    feed.results.put(_END)


@atexit.register
def _stop_all() -> None:
    threads = dict(_feeds)
    for feed in threads.values():
        feed.stop()
    deadline = time.monotonic() + _SECONDS_TO_STOP_AT_EXIT
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _check_source(source: object) -> None:
    kind = type(source).__name__
    if isinstance(source, DistributedDataset):
        raise ArgumentTypeError(
            "this dataset is distributed already",
            source=here(),
            hint="iterate it as it is, or distribute the dataset it was made from",
        )
    if isinstance(source, Mapping | str | bytes | np.ndarray | jax.Array):
        raise ArgumentTypeError(
            f"a dataset is an iterable of batches, and this {kind} would be a single one",
            source=here(),
            hint="distribute a list of batches, [batch] if there is one",
        )
    if not isinstance(source, Iterable):
        raise ArgumentTypeError(
            f"a dataset is an iterable of batches, and {kind} has no __iter__",
            source=here(),
            hint="distribute a list of batches, or an object whose __iter__ gives them",
        )


def _checked(element: Element, num_replicas: int) -> Element:
    """Return the element with leaves that are NumPy arrays of its own and can be split."""
    paths_and_leaves, structure = tree_flatten_with_path(element)
    names = ["element" + keystr(path) for path, _ in paths_and_leaves]
    leaves = [_array(name, leaf) for name, (_, leaf) in zip(names, paths_and_leaves, strict=True)]
    for name, leaf in zip(names, leaves, strict=True):
        if len(leaf) != len(leaves[0]):
            raise ArgumentError(
                f"{names[0]} has batch size {len(leaves[0])}, {name} has {len(leaf)}",
                hint="one element is one batch: give its leaves the same size in dimension 0",
            )
    size = len(leaves[0]) if leaves else 0
    if size % num_replicas:
        less = size - size % num_replicas
        raise ArgumentError(
            f"{names[0]} has batch size {size}, which does not divide by {num_replicas} replicas",
            hint=f"give every batch a multiple of {num_replicas} rows, the last one too: "
            f"here {f'{less} or ' if less else ''}{less + num_replicas}",
        )
    return jax.tree.unflatten(structure, leaves)


def _array(name: str, leaf: object) -> np.ndarray:
    array = np.array(leaf)
    if array.dtype.kind in "OSUMm" or array.dtype.fields:
        raise ArgumentTypeError(
            f"{name} is no array of numbers: {type(leaf).__name__} of dtype {array.dtype}",
            hint="encode it as numbers, or leave it out of the batches",
        )
    if array.ndim == 0:
        raise ArgumentError(
            f"{name} is a scalar: there is no batch dimension to split",
            hint="stack several examples into one batch, or repeat the value for each row",
        )
    return array
