"""Options of input and what a dataset function is told."""

from typing import Any

import pytest

import graphdist as gd


def test_the_defaults_are_those_of_tf_distribute() -> None:
    assert gd.InputOptions()._asdict() == {
        "experimental_fetch_to_device": True,
        "experimental_replication_mode": gd.InputReplicationMode.PER_WORKER,
        "experimental_place_dataset_on_device": False,
        "experimental_per_replica_buffer_size": 1,
    }
    assert gd.InputOptions(experimental_fetch_to_device=None).experimental_fetch_to_device is True
    assert isinstance(gd.InputOptions(), tuple)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"experimental_per_replica_buffer_size": 1.5}, TypeError),
        ({"experimental_per_replica_buffer_size": True}, TypeError),
        ({"experimental_per_replica_buffer_size": -2}, ValueError),
        ({"experimental_replication_mode": 3}, ValueError),
        ({"experimental_place_dataset_on_device": 0}, TypeError),
        ({"experimental_fetch_to_device": 1}, TypeError),
    ],
)
def test_what_options_refuse(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        gd.InputOptions(**options)
    assert isinstance(caught.value, gd.GraphdistError)
    assert next(iter(options)) in str(caught.value)


def test_the_default_context_is_of_one_replica() -> None:
    context = gd.InputContext()
    assert str(context) == "InputContext(input pipeline id 0, total: 1)"
    assert context.get_per_replica_batch_size(7) == 7


@pytest.mark.parametrize(("size", "expected"), [(8, 2), (0, 0), (-4, -1), (8.0, 2.0)])
def test_per_replica_batch_size(size: Any, expected: Any) -> None:
    assert gd.InputContext(2, 1, 4).get_per_replica_batch_size(size) == expected


@pytest.mark.parametrize("size", [6, 2.5])
def test_a_batch_size_that_does_not_divide(size: Any) -> None:
    with pytest.raises(ValueError, match=f"global batch size {size} does not divide by 4"):
        gd.InputContext(2, 1, 4).get_per_replica_batch_size(size)
