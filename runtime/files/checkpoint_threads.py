"""Work on the files of a checkpoint, several at a time.

A pool of `concurrent.futures` takes no work once the main thread has ended, and newer Pythons start
no thread then. A checkpoint may still be saved or restored: by a thread that Python waits for, or
by a function that is called at exit. So the threads are started here, and if none can be started,
the calling thread does the work.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def on_threads(act: Callable[[_T], _R], items: Iterable[_T], most: int) -> Iterator[_R]:
    """Yield what a function returns for each item, in order; at most so many threads call it.

    Raises what the function raises. No call is in progress when it raises or ends.

    >>> list(on_threads(abs, [3, -2, -1], most=2))
    [3, 2, 1]
    """
    waiting = deque((item, Future[_R]()) for item in items)
    results = deque(future for _, future in waiting)
    threads: list[threading.Thread] = []
    try:
        for _ in range(min(most, len(results))):
            thread = threading.Thread(target=_work, args=(act, waiting), name="graphdist-files")
            thread.start()
            threads.append(thread)
    except RuntimeError:  # Python is ending, or the system has no more threads
        pass
    if not threads:
        _work(act, waiting)
    try:
        while results:
            yield results.popleft().result()  # popped, so that the caller alone holds it
    finally:
        waiting.clear()
        for thread in threads:
            thread.join()


def _work(act: Callable[[_T], _R], waiting: deque[tuple[_T, Future[_R]]]) -> None:
    while waiting:
        try:
            item, future = waiting.popleft()
        except IndexError:  # another thread took the last
            return
        try:
            future.set_result(act(item))
        except BaseException as error:
            waiting.clear()  # nobody asks for the results after this one
            future.set_exception(error)
        del item, future  # a result may be large
