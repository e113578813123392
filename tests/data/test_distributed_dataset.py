"""Order, re-iteration, errors, and the life of the thread behind an iterator."""

import contextvars
import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.signature import PerReplicaSpec

SECONDS_AT_MOST = 30.0  # for what happens at once on an idle machine


class PerReplica(NamedTuple):
    """What the strategy's `place` would make of a leaf; NumPy arrays, to look at."""

    parts: list[np.ndarray]


def distribute(source: Any, num_replicas: int = 2, prefetch: int = 2) -> DistributedDataset:
    return DistributedDataset(
        source, num_replicas, lambda leaf: PerReplica(np.split(leaf, num_replicas)), prefetch
    )


def rows(element: PerReplica) -> list[list[int]]:
    return [part.tolist() for part in element.parts]


def batches(count: int, size: int = 4) -> list[np.ndarray]:
    return list(np.arange(count * size).reshape(count, size))


@pytest.mark.parametrize("prefetch", [0, 1, 2, 7])
def test_elements_come_in_order_and_split_in_replica_order(prefetch: int) -> None:
    found = [rows(element) for element in distribute(batches(3), prefetch=prefetch)]
    assert found == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]


@pytest.mark.parametrize("num_replicas", [1, 4])
def test_number_of_replicas(num_replicas: int) -> None:
    (element,) = distribute(batches(1), num_replicas)
    assert len(element.parts) == num_replicas
    assert np.concatenate(element.parts).tolist() == [0, 1, 2, 3]


def test_a_list_is_iterable_again_and_again() -> None:
    dataset = distribute(batches(3))
    epochs = [[rows(element) for element in dataset] for _ in range(3)]
    assert len(epochs[0]) == 3
    assert epochs[0] == epochs[1] == epochs[2]


def test_iterators_are_independent() -> None:
    dataset = distribute(batches(2))
    first, second = iter(dataset), iter(dataset)
    assert rows(next(first)) == rows(next(second)) == [[0, 1], [2, 3]]
    assert rows(first.get_next()) == rows(second.get_next()) == [[4, 5], [6, 7]]


def test_the_end_is_the_end_for_good() -> None:
    iterator = iter(distribute(batches(1)))
    assert iter(iterator) is iterator
    iterator.get_next()
    with pytest.raises(StopIteration):
        iterator.get_next()
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_empty_source_has_no_elements() -> None:
    assert list(distribute([])) == []


class Batch(NamedTuple):
    image: Any  # an array, then a PerReplica
    rest: dict[str, Any]


def test_structures_are_kept() -> None:
    batch = Batch(np.zeros((4, 2)), {"label": np.arange(4), "none": None, "pair": (np.ones(4),)})
    (element,) = distribute([batch])
    assert isinstance(element, Batch)
    assert [part.shape for part in element.image.parts] == [(2, 2), (2, 2)]
    assert rows(element.rest["label"]) == [[0, 1], [2, 3]]
    assert element.rest["none"] is None
    assert rows(element.rest["pair"][0]) == [[1, 1], [1, 1]]


def test_jax_arrays_are_taken() -> None:
    (element,) = distribute([jnp.arange(4)])
    assert rows(element) == [[0, 1], [2, 3]]


def test_an_infinite_source_is_read_a_bounded_way_ahead() -> None:
    eighth, ninth = threading.Event(), threading.Event()

    def count() -> Iterator[np.ndarray]:
        for number in itertools.count(1):
            if number >= 8:
                (eighth if number == 8 else ninth).set()
            yield np.full(2, number)

    iterator = iter(distribute(count(), prefetch=3))
    found = [rows(element) for element in itertools.islice(iterator, 5)]
    assert found == [[[number], [number]] for number in range(1, 6)]
    assert eighth.wait(SECONDS_AT_MOST)
    assert not ninth.wait(0.2)  # it never comes; a wait too short would only miss a fault


def test_a_source_may_reuse_its_buffer() -> None:
    def one_buffer() -> Iterator[np.ndarray]:
        buffer = np.zeros(2, np.int32)
        for number in range(5):
            buffer[:] = number
            yield buffer

    dataset = DistributedDataset(one_buffer(), 2, lambda leaf: leaf, prefetch=4)
    assert [leaf.tolist() for leaf in dataset] == [[number, number] for number in range(5)]


def test_the_source_sees_the_context_variables_of_its_caller() -> None:
    scope: contextvars.ContextVar[str] = contextvars.ContextVar("scope", default="outside")

    def names() -> Iterator[np.ndarray]:
        yield np.full(2, len(scope.get()))

    scope.set("in scope")
    (element,) = distribute(names())
    assert rows(element) == [[8], [8]]


# element_spec


def test_element_spec_is_that_of_one_replica() -> None:
    dataset = distribute([(np.zeros((4, 3), np.float32), {"label": np.zeros(4, np.int64)})])
    label = jax.dtypes.canonicalize_dtype(np.int64)
    assert dataset.element_spec == (
        PerReplicaSpec((2, 3), np.float32),
        {"label": PerReplicaSpec((2,), label)},
    )


def test_one_replica_has_plain_specs() -> None:
    assert distribute(batches(1), num_replicas=1).element_spec.shape == (4,)


@pytest.mark.parametrize("make", [list, iter])
def test_element_spec_loses_no_element(make: Callable[[list[np.ndarray]], Any]) -> None:
    dataset = distribute(make(batches(3)))
    assert dataset.element_spec == dataset.element_spec
    assert len(list(dataset)) == 3
    assert dataset.element_spec.shape == (2,)


def test_nothing_is_read_before_it_is_asked_for() -> None:
    def fail() -> Iterator[np.ndarray]:
        raise AssertionError
        yield

    distribute(fail())


@pytest.mark.parametrize("make", [list, iter])
def test_an_empty_dataset_has_no_element_spec(make: Callable[[list[np.ndarray]], Any]) -> None:
    dataset = distribute(make([]))
    for _ in range(2):
        with pytest.raises(ArgumentError, match="an empty dataset has no element_spec"):
            _ = dataset.element_spec
    assert list(dataset) == []


# errors


def message(error: pytest.ExceptionInfo[Exception]) -> list[str]:
    """Return the lines of the message, the user's file and line and its text left out."""
    lines = str(error.value).splitlines()
    return [line for line in lines if "test_distributed" not in line and line[:4] != "    "]


def test_a_batch_that_does_not_divide() -> None:
    iterator = iter(distribute([{"image": np.zeros((10, 3))}], num_replicas=4))
    with pytest.raises(ArgumentError) as error:
        next(iterator)
    assert message(error) == [
        "element['image'] has batch size 10, which does not divide by 4 replicas",
        "  hint: give every batch a multiple of 4 rows, the last one too: here 8 or 12",
    ]


def test_a_batch_smaller_than_the_number_of_replicas() -> None:
    iterator = iter(distribute([np.zeros(3)], num_replicas=4))
    with pytest.raises(ArgumentError, match=r"the last one too: here 4$"):
        next(iterator)


def test_leaves_of_different_batch_sizes() -> None:
    iterator = iter(distribute([(np.zeros(4), Batch(np.zeros(4), {"label": np.zeros(6)}))]))
    with pytest.raises(ArgumentError) as error:
        next(iterator)
    assert message(error) == [
        "element[0] has batch size 4, element[1].rest['label'] has 6",
        "  hint: one element is one batch: give its leaves the same size in dimension 0",
    ]


def test_a_scalar() -> None:
    iterator = iter(distribute([{"image": np.zeros(4), "rate": 0.1}]))
    with pytest.raises(ArgumentError) as error:
        next(iterator)
    assert message(error) == [
        "element['rate'] is a scalar: there is no batch dimension to split",
        "  hint: stack several examples into one batch, or repeat the value for each row",
    ]


def test_no_numbers() -> None:
    iterator = iter(distribute([{"name": np.array(["a", "b"])}]))
    with pytest.raises(ArgumentTypeError) as error:
        next(iterator)
    assert message(error) == [
        "element['name'] is no array of numbers: ndarray of dtype <U1",
        "  hint: encode it as numbers, or leave it out of the batches",
    ]


def test_element_spec_checks_as_well() -> None:
    dataset = distribute([np.zeros(5)])
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"^element has batch size 5, which"):
            _ = dataset.element_spec


@pytest.mark.parametrize(
    ("source", "kind"),
    [({"image": np.zeros(4)}, "dict"), (np.zeros((4, 4)), "ndarray"), ("text", "str")],
)
def test_a_single_batch_is_no_source(source: object, kind: str) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        distribute(source)
    first, second, *_, hint = str(error.value).splitlines()
    assert first == f"a dataset is an iterable of batches, and this {kind} would be a single one"
    assert "test_distributed_dataset.py" in second
    assert hint == "  hint: distribute a list of batches, [batch] if there is one"


def test_sources_that_are_none() -> None:
    with pytest.raises(ArgumentTypeError, match="and int has no __iter__"):
        distribute(3)
    with pytest.raises(ArgumentTypeError, match="this dataset is distributed already"):
        distribute(distribute([]))
    with pytest.raises(ArgumentError, match="prefetch -1 is negative"):
        distribute([], prefetch=-1)


def test_a_generator_is_iterable_once() -> None:
    dataset = distribute(batch for batch in batches(2))
    assert len(list(dataset)) == 2
    with pytest.raises(ArgumentError) as error:
        iter(dataset)
    assert message(error)[0] == "a generator can be iterated once, and this one was"
    assert (
        message(error)[-1] == "  hint: distribute a list, or an object whose __iter__ starts again"
    )


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception_of_the_source_arrives_in_its_place(kind: type[BaseException]) -> None:
    def broken_source() -> Iterator[np.ndarray]:
        yield np.zeros(2)
        raise kind("disk on fire")

    iterator = iter(distribute(broken_source()))
    next(iterator)
    with pytest.raises(kind, match="disk on fire") as error:
        next(iterator)
    assert "broken_source" in [frame.name for frame in traceback.extract_tb(error.tb)]
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_exception_of_place_arrives() -> None:
    def place(leaf: np.ndarray) -> object:
        raise MemoryError

    with pytest.raises(MemoryError):
        next(iter(DistributedDataset(batches(1), 2, place)))


# the thread


class Watched:
    """An infinite source that tells which threads pulled from it, and whether it was closed."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()
        self.is_closed = threading.Event()

    def __iter__(self) -> Iterator[np.ndarray]:
        try:
            while True:
                self.threads.add(threading.current_thread())
                yield np.zeros(2)
        finally:
            self.is_closed.set()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_dropped_iterator_stops_its_thread(prefetch: int) -> None:
    source = Watched()
    iterator = iter(distribute(source, prefetch=prefetch))
    next(iterator)
    (thread,) = source.threads
    assert thread.is_alive()
    assert thread is not threading.current_thread()
    del iterator
    gc.collect()
    thread.join(SECONDS_AT_MOST)
    assert not thread.is_alive()
    assert source.is_closed.is_set()


def test_a_loop_left_early_stops_its_thread() -> None:
    source = Watched()
    for _ in distribute(source):
        break
    gc.collect()
    assert source.is_closed.wait(SECONDS_AT_MOST)


def test_a_finished_iterator_has_no_thread() -> None:
    source = Watched()
    iterator = iter(distribute(itertools.islice(source, 3)))
    assert len(list(iterator)) == 3
    (thread,) = source.threads
    thread.join(SECONDS_AT_MOST)
    assert not thread.is_alive()


def test_several_threads_may_share_an_iterator() -> None:
    iterator = iter(distribute([np.full(2, number) for number in range(100)]))
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.extend(rows(element)[0][0] for element in iterator))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_AT_MOST)
    assert sorted(found) == list(range(100))


@pytest.mark.slow
def test_the_interpreter_exits_with_iterators_at_work() -> None:
    script = """
        import itertools, threading
        import jax, numpy as np
        from graphdist.data.distributed_dataset import DistributedDataset

        def blocked():
            yield np.zeros(2)
            threading.Event().wait()

        busy = iter(DistributedDataset(itertools.repeat(np.zeros(2)), 2, jax.device_put, 10_000))
        stuck = iter(DistributedDataset(blocked(), 2, jax.device_put))
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
