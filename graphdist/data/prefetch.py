"""The next elements of an iterator, made on a background thread.

Each `Prefetched` has a thread of its own, which asks the iterator for elements while a step runs.
The thread and its caller communicate through two queues. An entry in `permits` lets the thread make
one element: `ahead` permits are there from the start, and every `next` adds one, so that no more
than `ahead` elements wait beside the requested one. `results` carries elements, the iterator's
exceptions, and the end mark, which is put back for the next call. Each result comes with the number
of orders that the source's shuffles had taken when the element was made.

The thread never refers to the `Prefetched`, so a `Prefetched` without other references is
collected, and its finalizer stops the thread. A finalizer may run at any point of any thread, also
inside a queue operation. Hence `SimpleQueue`, whose `put` is reentrant, and a plain flag: `Queue`
and `Event` could deadlock. Threads are daemons, so a source that blocks for ever does not keep the
process alive. At exit they get a moment to finish, because a daemon thread that is inside JAX when
the interpreter shuts down crashes the process.
"""

from __future__ import annotations

import atexit
import contextvars
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeAlias  # Any: elements of the user's making, and what becomes of them

from graphdist.data.shuffle_orders import ShuffleOrders
from graphdist.errors import GraphdistError
from graphdist.tracing.user_lines import here

OrdersAhead: TypeAlias = Sequence[tuple[ShuffleOrders, ShuffleOrders]]
"""For each shuffle: the orders that the thread takes, and the orders that the caller has seen."""

AUTOTUNE = -1
"""Lets graphdist choose how much to prefetch, or to do in parallel."""
_CHOSEN_DEPTH = 2
_SECONDS_TO_STOP_AT_EXIT = 2.0
_END = object()


def prefetch_depth(size: int) -> int:
    """Return how many elements are prefetched for a buffer of `size`, which may be `AUTOTUNE`.

    >>> prefetch_depth(AUTOTUNE), prefetch_depth(5)
    (2, 5)
    """
    return _CHOSEN_DEPTH if size == AUTOTUNE else size


class Prefetched:
    """The elements of an iterator in order, each made by a thread before the caller needs it.

    Up to `ahead` elements wait beside the one in use. The iterator runs on the thread, with the
    context variables of the caller. If it raises an exception for an element, the `next` that would
    have returned this element raises the exception, with the traceback into the iterator; the
    `next` after that returns the element that follows. After a `KeyboardInterrupt` or another
    exception that is no `Exception` the `Prefetched` is at its end. Any thread may call `next`.
    `orders` are the orders of the source's shuffles. `next` sets the number of orders that the
    caller has seen to the number that were taken for the element it returns.

    >>> list(Prefetched(map(abs, [1, -2, 3]), ahead=2))
    [1, 2, 3]
    """

    def __init__(self, elements: Iterator[Any], ahead: int, orders: OrdersAhead = ()) -> None:
        self._feed = _Feed(tuple(of_thread for of_thread, _ in orders))
        self._seen = [seen for _, seen in orders]
        for _ in range(ahead):
            self._feed.permits.put(None)
        # The source sees the caller's context variables, as it would without a thread.
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run,
            args=(_produce, elements, self._feed),
            name="graphdist-prefetch",
            daemon=True,
        )
        weakref.finalize(self, self._feed.stop).atexit = False
        self._thread = thread
        thread.start()
        _feeds[thread] = self._feed

    def __iter__(self) -> Prefetched:
        return self

    def stop(self) -> None:
        """Stop the thread; returns once it no longer uses the source."""
        self._feed.stop()
        self._thread.join()

    def __next__(self) -> Any:
        self._feed.permits.put(None)
        result, error, taken = self._feed.results.get()
        for orders, count in zip(self._seen, taken, strict=True):
            orders.taken = count
        if result is _END:
            self._feed.put(_END)
            raise StopIteration
        if error is not None:
            if isinstance(error, GraphdistError) and error.source is None:
                error.source = here()  # the thread has no line of the user's
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return result


@dataclass(eq=False)
class _Feed:
    """The state shared by an iterator and its thread; see the module's docstring."""

    orders: tuple[ShuffleOrders, ...]
    permits: SimpleQueue[None] = field(default_factory=SimpleQueue)
    results: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    stopped: bool = False

    def put(self, result: Any, error: BaseException | None = None) -> None:
        """Give the caller a result, or an error, with the number of orders taken by then."""
        self.results.put((result, error, [orders.taken for orders in self.orders]))

    def stop(self) -> None:
        """Make the thread leave before its next element; safe in a finalizer."""
        self.stopped = True
        self.permits.put(None)


_feeds: weakref.WeakKeyDictionary[threading.Thread, _Feed] = weakref.WeakKeyDictionary()


def _produce(elements: Iterator[Any], feed: _Feed) -> None:
    """Make one element for every permit; the body of the thread of a `Prefetched`."""
    try:
        while True:
            feed.permits.get()
            if feed.stopped:
                return
            try:
                # No variable keeps the element, which may be large, until the next permit.
                feed.put(next(elements))
            except StopIteration:
                break
            except Exception as error:
                feed.put(None, error)
    except BaseException as error:  # also SystemExit: the caller would wait for ever
        feed.put(None, error)
    feed.put(_END)


@atexit.register
def _stop_all() -> None:
    threads = dict(_feeds)
    for feed in threads.values():
        feed.stop()
    deadline = time.monotonic() + _SECONDS_TO_STOP_AT_EXIT
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
