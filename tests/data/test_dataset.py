"""`gd.data.Dataset`: each transformation, alone and on top of others."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.data import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Dataset

SPEC = gd.ArraySpec


def lists(dataset: Any) -> list[Any]:
    """Return the elements with lists in place of arrays."""
    return [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), element) for element in dataset]


def numbers(*limits: int) -> Dataset:
    return Dataset.range(*limits)


def generated(*values: Any) -> Dataset:
    return Dataset.from_generator(lambda: iter(values))


@pytest.mark.parametrize(
    ("dataset", "expected", "cardinality"),
    [
        (numbers(3), [0, 1, 2], 3),
        (numbers(1, 10, 4), [1, 5, 9], 3),
        (numbers(0), [], 0),
        (Dataset.from_tensors({"x": [1, 2]}), [{"x": [1, 2]}], 1),
        (Dataset.from_tensor_slices(([1, 2], [[3], [4]])), [(1, [3]), (2, [4])], 2),
        (generated(1, [2, 3]), [1, [2, 3]], UNKNOWN_CARDINALITY),
        (numbers(3).map(lambda x: x * x), [0, 1, 4], 3),
        (numbers(3).map(lambda x: (x, [x, x])), [(0, [0, 0]), (1, [1, 1]), (2, [2, 2])], 3),
        (numbers(6).filter(lambda x: x % 2), [1, 3, 5], UNKNOWN_CARDINALITY),
        (numbers(6).take(2), [0, 1], 2),
        (numbers(2).take(5), [0, 1], 2),
        (numbers(2).take(-1), [0, 1], 2),
        (numbers(6).skip(4), [4, 5], 2),
        (numbers(2).skip(5), [], 0),
        (numbers(2).skip(-1), [], 0),
        (numbers(7).shard(3, 0), [0, 3, 6], 3),
        (numbers(7).shard(3, 2), [2, 5], 2),
        (numbers(1).shard(3, 2), [], 0),
        (numbers(2).repeat(2), [0, 1, 0, 1], 4),
        (numbers(2).repeat(0), [], 0),
        (numbers(0).repeat(), [], 0),
        (numbers(2).repeat().take(3), [0, 1, 0], 3),
        (numbers(2).repeat().skip(1).take(2), [1, 0], 2),
        (numbers(2).repeat().batch(3).take(2), [[0, 1, 0], [1, 0, 1]], 2),
        (numbers(2).enumerate(5), [(5, 0), (6, 1)], 2),
        (numbers(3).prefetch(2), [0, 1, 2], 3),
        (numbers(3).prefetch(gd.data.AUTOTUNE), [0, 1, 2], 3),
        (numbers(5).batch(2), [[0, 1], [2, 3], [4]], 3),
        (numbers(5).batch(2, drop_remainder=True), [[0, 1], [2, 3]], 2),
        (numbers(5).map(lambda x: x).batch(2), [[0, 1], [2, 3], [4]], 3),
        (numbers(8).batch(2).batch(2), [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], 2),
        (numbers(4).batch(3).unbatch(), [0, 1, 2, 3], UNKNOWN_CARDINALITY),
        (Dataset.zip(numbers(3), numbers(5, 9)), [(0, 5), (1, 6), (2, 7)], 3),
        (Dataset.zip((numbers(1), {"x": numbers(2)})), [(0, {"x": 0})], 1),
        (Dataset.zip(numbers(2), numbers(3).repeat()), [(0, 0), (1, 1)], 2),
        (numbers(2).concatenate(numbers(5, 7)), [0, 1, 5, 6], 4),
    ],
)
def test_elements_and_cardinality(dataset: Dataset, expected: list[Any], cardinality: int) -> None:
    assert lists(dataset) == lists(dataset) == expected
    assert dataset.cardinality() == cardinality
    if cardinality >= 0:
        assert len(dataset) == cardinality


def test_an_infinite_dataset_says_so() -> None:
    endless = numbers(2).repeat()
    assert endless.cardinality() == INFINITE_CARDINALITY
    assert endless.concatenate(numbers(1)).cardinality() == INFINITE_CARDINALITY
    assert Dataset.zip(endless, endless).cardinality() == INFINITE_CARDINALITY
    assert bool(endless)


@pytest.mark.parametrize(
    ("dataset", "spec"),
    [
        (numbers(3), SPEC((), np.int64)),
        (numbers(3).batch(2), SPEC((None,), np.int64)),
        (numbers(3).batch(2, drop_remainder=True), SPEC((2,), np.int64)),
        (numbers(3).batch(2).unbatch(), SPEC((), np.int64)),
        (numbers(3).enumerate(), (SPEC((), np.int64), SPEC((), np.int64))),
        (
            Dataset.zip((numbers(3), {"x": numbers(3)})),
            (SPEC((), np.int64), {"x": SPEC((), np.int64)}),
        ),
        (numbers(3).concatenate(numbers(2)), SPEC((), np.int64)),
        (
            numbers(4).batch(4, drop_remainder=True).concatenate(numbers(6).batch(6, True)),
            SPEC((None,), np.int64),
        ),
        (Dataset.from_tensor_slices(np.ones((4, 3), np.float16)), SPEC((3,), np.float16)),
        (Dataset.from_tensors([[1.0, 2.0]]), SPEC((1, 2), np.float64)),
        (numbers(3).map(lambda x: x / 2), SPEC((), np.float64)),
        (
            numbers(8).batch(4).map(lambda x: (x, x.sum())),
            (SPEC((None,), np.int64), SPEC((), np.int64)),
        ),
        (numbers(1, 4).map(lambda size: np.ones(size)), SPEC((None,), np.float64)),
        (
            numbers(1, 4).map(lambda size: np.ones(size)).padded_batch(2),
            SPEC((None, None), np.float64),
        ),
        (
            Dataset.from_tensor_slices(np.ones((4, 3))).padded_batch(2, [5], drop_remainder=True),
            SPEC((2, 5), np.float64),
        ),
        (generated([1, 2], [3, 4]), SPEC((None,), np.int64)),
    ],
)
def test_element_spec(dataset: Dataset, spec: Any) -> None:
    assert dataset.element_spec == spec


def test_asking_for_the_spec_draws_no_order() -> None:
    def shuffled() -> Dataset:
        return numbers(6).shuffle(6, seed=1).map(lambda x: x)

    asked = shuffled()
    assert asked.element_spec == SPEC((), np.int64)
    assert lists(asked) == lists(shuffled()) == [4, 5, 1, 2, 3, 0]


class Pair(NamedTuple):
    image: Any
    label: Any


def test_structures_and_dtypes_are_kept() -> None:
    pairs = Pair(np.ones((3, 2), np.float16), {"one": np.arange(3, dtype=np.uint8)})
    (batch,) = Dataset.from_tensor_slices(pairs).map(lambda pair: pair).batch(3)
    assert isinstance(batch, Pair)
    assert (batch.image.shape, batch.image.dtype) == ((3, 2), np.float16)
    assert (batch.label["one"].tolist(), batch.label["one"].dtype) == ([0, 1, 2], np.uint8)


def test_components_become_arguments() -> None:
    pairs = Dataset.zip(numbers(3), numbers(10, 13))
    assert lists(pairs.map(lambda x, y: x + y)) == [10, 12, 14]
    assert lists(pairs.filter(lambda x, y: x + y > 10)) == [(1, 11), (2, 12)]
    as_one = Dataset.from_tensor_slices(Pair([1, 2], [3, 4]))
    assert lists(as_one.map(lambda pair: pair.image * pair.label)) == [3, 8]


def test_slices_are_views_that_cannot_be_written() -> None:
    data = np.arange(6)
    (batch,) = Dataset.from_tensor_slices(data).batch(6)
    assert np.shares_memory(batch, data)
    with pytest.raises(ValueError, match="read-only"):
        batch[0] = 7
    data[0] = 7
    assert batch[0] == 7


def test_nothing_happens_before_iteration() -> None:
    calls: list[int] = []

    def note(x: Any) -> Any:
        calls.append(int(x))
        return x

    iterator = iter(numbers(5).map(note).filter(lambda x: True).batch(2).skip(1))
    assert calls == []
    next(iterator)
    assert calls == [0, 1, 2, 3]


def test_a_generator_is_called_anew_with_its_arguments() -> None:
    def generate(first: int, last: int) -> Iterator[int]:
        yield from range(first, last)

    dataset = Dataset.from_generator(generate, args=(2, 4))
    assert lists(dataset) == lists(dataset) == [2, 3]


def test_a_signature_gives_numbers_their_dtype() -> None:
    signature = {"x": SPEC((), np.float32), "y": SPEC((None,), np.int8)}
    dataset = Dataset.from_generator(lambda: iter([{"x": 1, "y": [2, 3]}]), signature)
    (element,) = dataset
    assert {name: str(leaf.dtype) for name, leaf in element.items()} == {
        "x": "float32",
        "y": "int8",
    }
    assert dataset.element_spec == signature


def test_padding_rounds_nothing_and_mixes_nothing() -> None:
    def padded(*elements: Any, **options: Any) -> list[Any]:
        return list(Dataset.from_generator(lambda: iter(elements)).padded_batch(2, **options))

    (batch,) = padded(np.array([1, 2]), np.array([1.5]))
    np.testing.assert_array_equal(batch, [[1, 2], [1.5, 0]])
    (batch,) = padded(np.array([1], np.uint8), np.array([300, -1]))
    np.testing.assert_array_equal(batch, [[1, 0], [300, -1]])
    with pytest.raises(gd.ArgumentError, match="which it cannot hold"):
        padded(np.array([1, 2]), np.array([3]), padding_values=0.5)
    with pytest.raises(gd.ArgumentError, match="elements of one batch differ"):
        padded({"a": np.ones(2), "b": np.ones(1)}, {"a": np.ones(2), "c": np.ones(1)})
    with pytest.raises(gd.ArgumentError, match=r"their shapes are \(2, 2\), \(2,\)"):
        padded(np.ones(2), np.ones((2, 2)))


def test_padding() -> None:
    rows = numbers(1, 4).map(lambda size: {"x": np.full(size, 7), "y": np.ones(size)})
    assert lists(rows.padded_batch(2)) == [
        {"x": [[7, 0], [7, 7]], "y": [[1, 0], [1, 1]]},
        {"x": [[7, 7, 7]], "y": [[1, 1, 1]]},
    ]
    shapes, values = {"x": [4], "y": [None]}, {"x": -1, "y": 9}
    assert lists(rows.padded_batch(2, shapes, values, drop_remainder=True)) == [
        {"x": [[7, -1, -1, -1], [7, 7, -1, -1]], "y": [[1, 9], [1, 1]]}
    ]
    same = numbers(1, 3).map(lambda size: np.ones((size, 2)))
    assert lists(same.padded_batch(2, [-1, 3], 5)) == [
        [[[1, 1, 5], [5, 5, 5]], [[1, 1, 5], [1, 1, 5]]]
    ]


def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.txt" for number in range(2)]
    for number, path in enumerate(paths):
        path.write_text(f"{number}_0\n{number}_1\n")
    assert lists(Dataset.from_files(paths)) == ["0_0", "0_1", "1_0", "1_1"]
    sizes = Dataset.from_files(paths, read=lambda path: [len(Path(path).read_text())])
    assert lists(sizes) == [8, 8]


def test_options_are_kept_and_merged() -> None:
    off = gd.data.Options()
    off.experimental_distribute.auto_shard_policy = gd.data.AutoShardPolicy.OFF
    dataset = numbers(4).with_options(off).batch(2).with_options(gd.data.Options())
    assert (
        dataset.options().experimental_distribute.auto_shard_policy is gd.data.AutoShardPolicy.OFF
    )
    off.experimental_distribute.auto_shard_policy = gd.data.AutoShardPolicy.DATA
    assert (
        dataset.options().experimental_distribute.auto_shard_policy is gd.data.AutoShardPolicy.OFF
    )
    zipped = Dataset.zip(numbers(2), dataset).concatenate(Dataset.zip(numbers(2), dataset))
    assert zipped.options().experimental_distribute.auto_shard_policy is gd.data.AutoShardPolicy.OFF


def test_iterators_are_those_of_tf_data() -> None:
    iterator = iter(numbers(2))
    assert iterator.element_spec == SPEC((), np.int64)
    assert iterator.get_next() == 0
    assert iterator.get_next_as_optional().get_value() == 1
    assert not iterator.get_next_as_optional().has_value()
    with pytest.raises(gd.OutOfRangeError):
        iterator.get_next()
    assert lists(numbers(2).as_numpy_iterator()) == [0, 1]


def test_prefetch_uses_another_thread() -> None:
    threads: set[threading.Thread] = set()

    def note(x: Any) -> Any:
        threads.add(threading.current_thread())
        return x

    assert lists(numbers(3).map(note).prefetch(1)) == [0, 1, 2]
    assert threading.current_thread() not in threads


# A pipeline against the same in Python.

STEPS: dict[str, tuple[Callable[[Dataset], Dataset], Callable[[list[int]], list[int]]]] = {
    "map": (lambda d: d.map(lambda x: x * 3), lambda x: [3 * i for i in x]),
    "filter": (lambda d: d.filter(lambda x: x % 2 == 0), lambda x: [i for i in x if i % 2 == 0]),
    "take": (lambda d: d.take(5), lambda x: x[:5]),
    "skip": (lambda d: d.skip(2), lambda x: x[2:]),
    "shard": (lambda d: d.shard(2, 1), lambda x: x[1::2]),
    "repeat": (lambda d: d.repeat(2), lambda x: x * 2),
    "rebatch": (lambda d: d.batch(3).unbatch(), lambda x: x),
    "drop": (lambda d: d.batch(3, True).unbatch(), lambda x: x[: len(x) - len(x) % 3]),
    "prefetch": (lambda d: d.prefetch(1), lambda x: x),
    "concatenate": (lambda d: d.concatenate(d), lambda x: x + x),
}


@given(st.integers(0, 12), st.lists(st.sampled_from(sorted(STEPS)), max_size=5))
def test_a_pipeline_is_that_of_python(size: int, names: list[str]) -> None:
    dataset, expected = Dataset.range(size), list(range(size))
    for name in names:
        ours, pythons = STEPS[name]
        dataset, expected = ours(dataset), pythons(expected)
    assert lists(dataset) == expected
    assert dataset.cardinality() in (len(expected), UNKNOWN_CARDINALITY)
    assert lists(dataset.batch(4)) == [expected[i : i + 4] for i in range(0, len(expected), 4)]
