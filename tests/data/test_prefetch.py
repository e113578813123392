"""Order, bounds and errors of prefetching, and the life of the thread behind an iterator."""

import contextvars
import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from graphdist.data.prefetch import Prefetched

SECONDS_AT_MOST = 30.0  # for what happens at once on an idle machine


def prefetched(source: Iterable[Any], ahead: int = 2) -> Prefetched:
    return Prefetched(iter(source), ahead)


@pytest.mark.parametrize("ahead", [0, 1, 2, 7])
def test_elements_come_in_order(ahead: int) -> None:
    assert list(prefetched(range(5), ahead)) == [0, 1, 2, 3, 4]


def test_elements_are_prepared_on_one_other_thread() -> None:
    threads = set(Prefetched((threading.current_thread() for _ in range(9)), ahead=2))
    assert len(threads) == 1
    assert threading.current_thread() not in threads


def test_the_end_is_the_end_for_good() -> None:
    iterator = prefetched([1])
    assert iter(iterator) is iterator
    assert next(iterator) == 1
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_an_infinite_source_is_read_a_bounded_way_ahead() -> None:
    eighth, ninth = threading.Event(), threading.Event()

    def count() -> Iterator[int]:
        for number in itertools.count(1):
            if number >= 8:
                (eighth if number == 8 else ninth).set()
            yield number

    iterator = prefetched(count(), ahead=3)
    assert list(itertools.islice(iterator, 5)) == [1, 2, 3, 4, 5]
    assert eighth.wait(SECONDS_AT_MOST)
    assert not ninth.wait(0.2)  # it never comes; a wait too short would only miss a fault


def test_the_source_sees_the_context_variables_of_its_caller() -> None:
    scope: contextvars.ContextVar[str] = contextvars.ContextVar("scope", default="outside")

    def names() -> Iterator[str]:
        yield scope.get()

    scope.set("in scope")
    assert list(prefetched(names())) == ["in scope"]


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception_of_the_source_arrives_in_its_place(kind: type[BaseException]) -> None:
    def broken_source() -> Iterator[int]:
        yield 1
        raise kind("disk on fire")

    iterator = prefetched(broken_source())
    next(iterator)
    with pytest.raises(kind, match="disk on fire") as error:
        next(iterator)
    assert "broken_source" in [frame.name for frame in traceback.extract_tb(error.tb)]
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_exception_of_the_preparation_arrives() -> None:
    def prepare(element: object) -> object:
        raise MemoryError

    with pytest.raises(MemoryError):
        next(Prefetched(map(prepare, [1]), ahead=1))


class Watched:
    """An infinite source that tells which threads pulled from it, and whether it was closed."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()
        self.is_closed = threading.Event()

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        try:
            while True:
                self.threads.add(threading.current_thread())
                yield np.zeros(2)
        finally:
            self.is_closed.set()


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_dropped_iterator_stops_its_thread(ahead: int) -> None:
    source = Watched()
    iterator = prefetched(source, ahead)
    next(iterator)
    (thread,) = source.threads
    assert thread.is_alive()
    del iterator
    gc.collect()
    thread.join(SECONDS_AT_MOST)
    assert not thread.is_alive()
    assert source.is_closed.is_set()


def test_a_loop_left_early_stops_its_thread() -> None:
    source = Watched()
    for _ in prefetched(source):
        break
    gc.collect()
    assert source.is_closed.wait(SECONDS_AT_MOST)


def test_a_finished_iterator_has_no_thread() -> None:
    source = Watched()
    assert len(list(prefetched(itertools.islice(source, 3)))) == 3
    (thread,) = source.threads
    thread.join(SECONDS_AT_MOST)
    assert not thread.is_alive()


def test_several_threads_may_share_an_iterator() -> None:
    iterator = prefetched(range(100))
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.extend(iterator)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_AT_MOST)
    assert sorted(found) == list(range(100))


@pytest.mark.long
def test_the_interpreter_exits_with_iterators_at_work() -> None:
    script = """
        import itertools, threading
        import numpy as np
        import graphdist as gd

        def blocked():
            yield np.zeros(2)
            threading.Event().wait()

        strategy = gd.OneDeviceStrategy("cpu:0")
        options = gd.InputOptions(experimental_per_replica_buffer_size=10_000)
        endless = itertools.repeat(np.zeros(2))
        busy = iter(strategy.experimental_distribute_dataset(endless, options))
        stuck = iter(strategy.experimental_distribute_dataset(blocked()))
        next(busy), next(stuck)
        print("done")
        """
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "done\n", "")
