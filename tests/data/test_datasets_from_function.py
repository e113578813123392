"""Each replica's own batches, made by a function."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphdist as gd
from graphdist.data import Dataset

PER_REPLICA = gd.InputReplicationMode.PER_REPLICA


def replicas(count: int) -> gd.Strategy:
    return gd.MirroredStrategy([f"cpu:{index}" for index in range(count)])


def made_by(
    dataset_fn: Callable[[gd.InputContext], Any], count: int = 2, **options: Any
) -> gd.data.DistributedDatasetsFromFunction:
    given = gd.InputOptions(**options)
    return replicas(count).distribute_datasets_from_function(dataset_fn, given)


def steps(dataset: Any, limit: int = 8) -> list[list[Any]]:
    """Return what each replica holds at each step."""
    return [
        [np.asarray(part).tolist() for part in element.values]
        for element in itertools.islice(dataset, limit)
    ]


@pytest.mark.parametrize(
    ("source", "count", "expected"),
    [
        (Dataset.range(8).batch(2), 2, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
        (Dataset.range(6).batch(2), 2, [[[0, 1], [2, 3]], [[4, 5], []]]),
        (Dataset.range(5).batch(2), 4, [[[0, 1], [2, 3], [4], []]]),
        (Dataset.range(0).batch(2), 2, []),
        (Dataset.range(4), 2, [[0, 1], [2, 3]]),
        ([np.arange(2), np.arange(3), np.arange(1)], 2, [[[0, 1], [0, 1, 2]], [[0], []]]),
    ],
)
def test_elements_go_round_the_replicas(source: Any, count: int, expected: list[Any]) -> None:
    assert steps(made_by(lambda context: source, count)) == expected


@pytest.mark.parametrize(
    "source",
    [
        Dataset.range(6).batch(2, drop_remainder=True),
        Dataset.range(6).batch(2, drop_remainder=True).map(lambda x: x),
    ],
)
def test_an_incomplete_step_of_full_shapes_is_left_out(source: Dataset) -> None:
    assert steps(made_by(lambda context: source)) == [[[0, 1], [2, 3]]]
    assert steps(made_by(lambda context: source, 4)) == []


def test_scalars_that_declare_their_shape_are_left_out_too() -> None:
    assert steps(made_by(lambda context: Dataset.range(3))) == [[0, 1]]


def test_empty_parts_keep_dtype_and_inner_shape() -> None:
    source = [{"x": np.ones((2, 3), np.float16), "y": np.ones(2, np.int8)}]
    (element,) = made_by(lambda context: source)
    assert [(part.shape, str(part.dtype)) for part in element["x"].values] == [
        ((2, 3), "float16"),
        ((0, 3), "float16"),
    ]
    assert [(part.shape, str(part.dtype)) for part in element["y"].values] == [
        ((2,), "int8"),
        ((0,), "int8"),
    ]


def test_the_function_is_called_once_with_all_replicas() -> None:
    seen: list[gd.InputContext] = []

    def dataset_fn(context: gd.InputContext) -> Any:
        seen.append(context)
        return Dataset.range(8).batch(context.get_per_replica_batch_size(8))

    dataset = made_by(dataset_fn, 4)
    assert steps(dataset) == steps(dataset) == [[[0, 1], [2, 3], [4, 5], [6, 7]]]
    assert seen == [gd.InputContext(1, 0, 4)]


def test_each_replica_can_have_a_dataset_of_its_own() -> None:
    seen: list[gd.InputContext] = []

    def dataset_fn(context: gd.InputContext) -> Any:
        seen.append(context)
        return Dataset.range(
            10 * context.input_pipeline_id, 10 * context.input_pipeline_id + 3
        ).batch(2)

    dataset = made_by(dataset_fn, experimental_replication_mode=PER_REPLICA)
    assert steps(dataset) == steps(dataset) == [[[0, 1], [10, 11]], [[2], [12]]]
    assert seen == [gd.InputContext(2, 0, 2), gd.InputContext(2, 1, 2)]


def test_a_dataset_that_ends_early_gives_no_rows() -> None:
    def dataset_fn(context: gd.InputContext) -> Any:
        return Dataset.range(2 + 2 * context.input_pipeline_id).batch(2)

    dataset = made_by(dataset_fn, experimental_replication_mode=PER_REPLICA)
    assert steps(dataset) == [[[0, 1], [0, 1]], [[], [2, 3]]]


def test_a_mode_is_that_of_one_call() -> None:
    strategy = replicas(2)

    def dataset_fn(context: gd.InputContext) -> Any:
        return Dataset.range(4).batch(2)

    options = gd.InputOptions(experimental_replication_mode=PER_REPLICA)
    without = steps(strategy.distribute_datasets_from_function(dataset_fn))
    assert steps(strategy.distribute_datasets_from_function(dataset_fn, options)) != without
    assert steps(strategy.distribute_datasets_from_function(dataset_fn)) == without


def test_elements_can_stay_on_the_host() -> None:
    options: dict[str, Any] = {
        "experimental_replication_mode": PER_REPLICA,
        "experimental_place_dataset_on_device": True,
        "experimental_fetch_to_device": False,
    }
    (element,) = made_by(lambda context: [np.arange(2)], **options)
    assert [type(part) for part in element.values] == [np.ndarray, np.ndarray]


def test_an_infinite_dataset() -> None:
    dataset = made_by(lambda context: Dataset.range(3).repeat().batch(2))
    assert steps(dataset, 2) == [[[0, 1], [2, 0]], [[1, 2], [0, 1]]]
    assert dataset.cardinality == gd.data.INFINITE_CARDINALITY


def test_spec_and_cardinality_are_those_of_the_functions_dataset() -> None:
    dataset = made_by(lambda context: Dataset.range(6).batch(2), 4)
    assert dataset.element_spec == gd.PerReplicaSpec((None,), np.int32)
    assert dataset.cardinality == 3
    whole = made_by(lambda context: Dataset.range(6).batch(2, drop_remainder=True))
    assert whole.element_spec == gd.PerReplicaSpec((2,), np.int32)


def test_a_function_can_be_traced_with_the_spec() -> None:
    strategy = replicas(2)
    total = gd.function(lambda batch: strategy.reduce("SUM", batch, axis=0))
    dataset = strategy.distribute_datasets_from_function(lambda context: Dataset.range(6).batch(2))
    assert total.trace(dataset.element_spec).graph.inputs[0].type.shape == (2,)
    assert [int(total(batch)) for batch in dataset] == [6, 9]


def test_the_older_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        dataset = replicas(2).experimental_distribute_datasets_from_function(
            lambda context: Dataset.range(4).batch(2)
        )
    assert steps(dataset) == [[[0, 1], [2, 3]]]


def test_an_exception_of_the_function_passes() -> None:
    with pytest.raises(ZeroDivisionError):
        made_by(lambda context: 1 // 0)
    without_argument: Any = lambda: Dataset.range(4)  # noqa: E731 - as a user would write it
    with pytest.raises(TypeError):
        made_by(without_argument)
