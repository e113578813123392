"""Global batches over replicas: order, split, structure, specs, and the way through a dataset."""

import gc
import itertools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.data import Dataset

Strategy = gd.Strategy


def replicas(count: int) -> Strategy:
    if count == 1:
        return gd.OneDeviceStrategy("cpu:0")
    return gd.MirroredStrategy([f"cpu:{index}" for index in range(count)])


def distribute(source: Any, count: int = 2, **options: Any) -> gd.DistributedDataset:
    given = gd.InputOptions(**options)
    return replicas(count).experimental_distribute_dataset(source, given)


def rows(value: Any) -> list[Any]:
    """Return what each replica holds."""
    parts = value.values if isinstance(value, gd.PerReplica) else (value,)
    return [np.asarray(part).tolist() for part in parts]


def batches(count: int, size: int = 4) -> list[np.ndarray[Any, Any]]:
    return list(np.arange(count * size).reshape(count, size))


# The split.


@pytest.mark.parametrize(
    ("total", "batch", "count", "expected"),
    [
        (6, 4, 2, [[[0, 1], [2, 3]], [[4], [5]]]),
        (5, 4, 2, [[[0, 1], [2, 3]], [[4], []]]),
        (7, 4, 2, [[[0, 1], [2, 3]], [[4, 5], [6]]]),
        (10, 5, 2, [[[0, 1, 2], [3, 4]], [[5, 6, 7], [8, 9]]]),
        (10, 5, 4, [[[0, 1], [2, 3], [4], []], [[5, 6], [7, 8], [9], []]]),
        (5, 4, 4, [[[0], [1], [2], [3]], [[4], [], [], []]]),
        (2, 1, 2, [[[0], []], [[1], []]]),
        (0, 4, 2, []),
        (6, 4, 1, [[[0, 1, 2, 3]], [[4, 5]]]),
    ],
)
def test_rows_go_to_replicas_in_order(
    total: int, batch: int, count: int, expected: list[Any]
) -> None:
    dataset = distribute(Dataset.range(total).batch(batch), count)
    assert [rows(element) for element in dataset] == expected


def test_the_remainder_can_be_dropped() -> None:
    dataset = distribute(Dataset.range(11).batch(5, drop_remainder=True))
    assert [rows(element) for element in dataset] == [
        [[0, 1, 2], [3, 4]],
        [[5, 6, 7], [8, 9]],
    ]


def test_a_short_batch_in_the_middle_is_split_like_the_last() -> None:
    found = [rows(element) for element in distribute(Dataset.range(5).batch(4).repeat(2))]
    assert found == [[[0, 1], [2, 3]], [[4], []]] * 2


@pytest.mark.parametrize("policy", ["OFF", "FILE", "HINT"])
def test_fixed_parts_where_input_is_not_shared_out_by_element(policy: str) -> None:
    options = gd.data.Options()
    options.experimental_distribute.auto_shard_policy = gd.data.AutoShardPolicy[policy]
    batched = Dataset.range(6).batch(4).with_options(options)
    assert [rows(element) for element in distribute(batched)] == [
        [[0, 1], [2, 3]],
        [[4, 5], []],
    ]
    assert rows(next(iter(distribute(Dataset.range(2).batch(4).with_options(options))))) == [
        [0, 1],
        [],
    ]


def test_a_shard_hint_is_resolved() -> None:
    hint = gd.data.SHARD_HINT
    options = gd.data.Options()
    options.experimental_distribute.auto_shard_policy = gd.data.AutoShardPolicy.HINT
    dataset = Dataset.range(4).shard(hint, hint).batch(2).with_options(options)
    assert [rows(element) for element in distribute(dataset)] == [[[0], [1]], [[2], [3]]]


def test_one_replica_needs_no_batch_dimension() -> None:
    source = [{"x": np.arange(4), "rate": 0.5}, {"x": np.arange(3), "rate": 0.25}]
    found = [
        jax.tree.map(np.ndarray.tolist, jax.tree.map(np.asarray, e)) for e in distribute(source, 1)
    ]
    assert found == [{"x": [0, 1, 2, 3], "rate": 0.5}, {"x": [0, 1, 2], "rate": 0.25}]


# Elements.


class Batch(NamedTuple):
    image: Any  # an array, then a PerReplica
    rest: dict[str, Any]


def test_structures_are_kept() -> None:
    batch = Batch(np.zeros((4, 2)), {"label": np.arange(4), "none": None, "pair": (np.ones(4),)})
    (element,) = distribute([batch])
    assert isinstance(element, Batch)
    assert [part.shape for part in element.image.values] == [(2, 2), (2, 2)]
    assert rows(element.rest["label"]) == [[0, 1], [2, 3]]
    assert element.rest["none"] is None
    assert rows(element.rest["pair"][0]) == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "int32", "float16", "bfloat16", "float32", "complex64"]
)
def test_dtypes_are_kept(dtype: str) -> None:
    (element,) = distribute([np.ones(3, jnp.dtype(dtype))])
    assert [part.dtype for part in element.values] == [dtype, dtype]
    assert [np.asarray(part).astype(complex).tolist() for part in element.values] == [[1, 1], [1]]


def test_64_bits_become_32_as_in_jax() -> None:
    (element,) = distribute([(np.arange(3), np.arange(3.0))])
    assert [str(part.dtype) for value in element for part in value.values] == [
        "int32",
        "int32",
        "float32",
        "float32",
    ]


def test_jax_arrays_are_taken() -> None:
    (element,) = distribute([jnp.arange(4)])
    assert rows(element) == [[0, 1], [2, 3]]


def test_parts_lie_on_the_devices_of_their_replicas() -> None:
    strategy = replicas(2)
    for batch in strategy.experimental_distribute_dataset([np.arange(4), np.arange(3)]):
        devices = [device for part in batch.values for device in part.devices()]
        assert devices == list(strategy.devices.devices)


@pytest.mark.parametrize("size", [4, 5, 64, 4096])
@pytest.mark.parametrize("count", [1, 2])
def test_a_source_may_reuse_its_buffer(size: int, count: int) -> None:
    memory = np.zeros(4 * size + 64, np.uint8)
    start = -memory.ctypes.data % 64  # JAX takes over what is aligned so
    buffer = memory[start : start + 4 * size].view(np.int32)

    def one_buffer() -> Iterator[Any]:
        for number in range(5):
            buffer[:] = number
            yield buffer

    dataset = distribute(one_buffer(), count, experimental_per_replica_buffer_size=4)
    found = [rows(element) for element in list(dataset)]
    assert found == [
        [[number] * part for part in ((size,) if count == 1 else (-(-size // 2), size // 2))]
        for number in range(5)
    ]


def test_elements_can_stay_on_the_host() -> None:
    (element,) = distribute([np.arange(5)], experimental_fetch_to_device=False)
    assert isinstance(element, gd.PerReplica)
    assert [type(part) for part in element.values] == [np.ndarray, np.ndarray]
    assert rows(element) == [[0, 1, 2], [3, 4]]
    strategy = replicas(2)
    assert strategy.reduce("SUM", strategy.run(jnp.sum, args=(element,)), axis=None) == 10
    (alone,) = distribute([np.arange(2)], 1, experimental_fetch_to_device=False)
    assert isinstance(alone, np.ndarray)


@pytest.mark.parametrize("size", [-1, 0, 1, 5])
def test_any_number_of_elements_may_be_prepared_ahead(size: int) -> None:
    dataset = distribute(batches(3), experimental_per_replica_buffer_size=size)
    assert [rows(element)[0] for element in dataset] == [[0, 1], [4, 5], [8, 9]]


def test_inner_shapes_may_vary_where_that_is_declared() -> None:
    padded = Dataset.range(1, 6).map(lambda size: np.full(size, size)).padded_batch(4)
    assert [[len(part[0]) if part else 0 for part in rows(e)] for e in distribute(padded)] == [
        [4, 4],
        [5, 0],
    ]

    def generate() -> Iterator[Any]:
        yield np.ones((2, 3), np.float32)
        yield np.ones((2, 7), np.float32)

    signature = gd.ArraySpec((None, None), np.float32)
    declared = distribute(Dataset.from_generator(generate, signature))
    assert [element.type.shape for element in declared] == [(1, 3), (1, 7)]


# The way through.


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


def test_every_epoch_is_shuffled_anew() -> None:
    dataset = distribute(Dataset.range(6).shuffle(6, seed=1).batch(4))
    assert [rows(element) for element in dataset] == [[[4, 5], [1, 2]], [[3], [0]]]
    assert [rows(element) for element in dataset] == [[[4, 3], [1, 5]], [[0], [2]]]


def test_the_end() -> None:
    iterator = iter(distribute(batches(1)))
    iterator.get_next()
    for _ in range(2):
        with pytest.raises(gd.OutOfRangeError):
            iterator.get_next()
        with pytest.raises(StopIteration):
            next(iterator)


def test_optional_elements() -> None:
    iterator = iter(distribute(batches(1)))
    optional = iterator.get_next_as_optional()
    assert optional.has_value()
    assert rows(optional.get_value()) == [[0, 1], [2, 3]]
    assert not iterator.get_next_as_optional().has_value()


def test_reduce_is_a_loop() -> None:
    strategy = replicas(2)
    dataset = strategy.experimental_distribute_dataset(Dataset.range(6).batch(4))
    total = dataset.reduce(0, lambda total, batch: total + strategy.reduce("SUM", batch, axis=0))
    assert total == 15


def test_a_distributed_dataset_is_no_collection() -> None:
    dataset = distribute([])
    assert bool(dataset)
    assert not any(hasattr(dataset, name) for name in ("map", "batch", "take", "shuffle"))
    with pytest.raises(TypeError):
        len(dataset)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (batches(3), 3),
        (Dataset.range(7).batch(3), 3),
        (Dataset.range(7).batch(3, drop_remainder=True), 2),
        (Dataset.range(3).repeat().batch(2), gd.data.INFINITE_CARDINALITY),
        (Dataset.range(3).filter(bool).batch(2), gd.data.UNKNOWN_CARDINALITY),
        (iter(batches(2)), gd.data.UNKNOWN_CARDINALITY),
    ],
)
def test_cardinality(source: Any, expected: int) -> None:
    assert distribute(source).cardinality == expected


def test_an_infinite_dataset() -> None:
    dataset = distribute(Dataset.range(3).repeat().batch(4))
    found = [rows(element) for element in itertools.islice(dataset, 3)]
    assert found == [[[0, 1], [2, 0]], [[1, 2], [0, 1]], [[2, 0], [1, 2]]]


def test_a_dropped_iterator_stops_its_thread() -> None:
    is_closed = threading.Event()

    def endless() -> Iterator[Any]:
        try:
            while True:
                yield np.zeros(2)
        finally:
            is_closed.set()

    iterator = iter(distribute(endless()))
    next(iterator)
    del iterator
    gc.collect()
    assert is_closed.wait(30)


def test_after_an_error_the_dataset_can_be_iterated_again() -> None:
    class Flaky:
        fails = True

        def __iter__(self) -> Iterator[Any]:
            yield np.arange(2)
            if self.fails:
                raise OSError("disk on fire")

    source = Flaky()
    dataset = distribute(source)
    with pytest.raises(OSError, match="disk on fire"):
        list(dataset)
    source.fails = False
    assert [rows(element) for element in dataset] == [[[0], [1]]]


# The default strategy.


def test_outside_every_scope_the_dataset_is_its_own() -> None:
    batched = Dataset.range(4).batch(2)
    strategy = gd.get_strategy()
    assert strategy.experimental_distribute_dataset(batched) is batched  # type: ignore[comparison-overlap]
    made: Any = strategy.distribute_datasets_from_function(
        lambda context: [context.num_replicas_in_sync]
    )
    assert made == [1]
