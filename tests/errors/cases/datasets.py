"""What is no dataset of batches, and batches that cannot be split over the replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

import graphdist as gd
from tests.errors.programs import pair
from tests.errors.refusal import Refused


def batch_sizes_differ(refused: Refused) -> None:
    batches = [{"image": np.ones((4, 3)), "label": np.ones(2)}]
    with refused(ValueError):
        for _ in pair().experimental_distribute_dataset(batches):
            pass


def batch_of_scalars(refused: Refused) -> None:
    with refused(ValueError):
        list(pair().experimental_distribute_dataset([np.float32(1), np.float32(2)]))


def batch_of_strings(refused: Refused) -> None:
    dataset = pair().experimental_distribute_dataset([{"name": np.array(["a", "b"])}])
    with refused(TypeError):
        print(dataset.element_spec)


def batch_of_ragged_rows(refused: Refused) -> None:
    rows = np.array([[1, 2], [3]], dtype=object)
    with refused(TypeError):
        next(iter(pair().experimental_distribute_dataset([{"words": rows}])))


def batch_of_sparse_rows(refused: Refused) -> None:
    rows = sparse.BCOO.fromdense(jnp.eye(4))
    with refused(TypeError):
        next(iter(pair().experimental_distribute_dataset([{"x": rows}])))


def dataset_is_one_batch(refused: Refused) -> None:
    with refused(TypeError):
        pair().experimental_distribute_dataset(np.ones((8, 3)))


def dataset_no_iterable(refused: Refused) -> None:
    with refused(TypeError):
        pair().experimental_distribute_dataset(8)


def dataset_distributed_twice(refused: Refused) -> None:
    strategy = pair()
    dataset = strategy.experimental_distribute_dataset([np.ones(4)])
    with refused(TypeError):
        strategy.experimental_distribute_dataset(dataset)


def dataset_in_a_trace_by_closure(refused: Refused) -> None:
    dataset = pair().experimental_distribute_dataset([np.ones(4)])

    @gd.function
    def count() -> Any:
        number = 0
        for _ in dataset:
            number += 1
        return number

    with refused(NotImplementedError):
        count.trace()


def dataset_iterator_in_a_trace(refused: Refused) -> None:
    @gd.function
    def first(batches: Any) -> Any:
        return next(iter(batches))

    with refused(NotImplementedError):
        first.trace(pair().experimental_distribute_dataset([np.ones(4)]))


def steps_per_execution_below_one(refused: Refused) -> None:
    with refused(ValueError):
        gd.function(lambda batches: None, steps_per_execution=0)


def dataset_used_up(refused: Refused) -> None:
    def batches() -> Iterator[Any]:
        yield np.ones(4)

    dataset = pair().experimental_distribute_dataset(batches())
    assert len(list(dataset)) == 1
    with refused(ValueError):
        list(dataset)


def dataset_empty_spec(refused: Refused) -> None:
    with refused(ValueError):
        print(pair().experimental_distribute_dataset([]).element_spec)


def dataset_inside_a_function(refused: Refused) -> None:
    strategy = pair()
    dataset = strategy.experimental_distribute_dataset([np.ones(4, np.float32)])

    @gd.function
    def first() -> Any:
        for batch in dataset:
            return batch

    with refused(NotImplementedError):
        first()


def list_in_a_loop_over_a_dataset(refused: Refused) -> None:
    strategy = pair()
    dataset = strategy.experimental_distribute_dataset([np.ones(4, np.float32)])
    losses: list[Any] = []

    @gd.function
    def epoch() -> None:
        for batch in dataset:
            losses.append(strategy.reduce("SUM", batch, axis=0))

    with refused(ValueError):
        epoch()


def dataset_of_a_list(refused: Refused) -> None:
    batches: Any = [np.ones(4)]
    with refused(TypeError):
        gd.data.Dataset(batches)


def iterator_in_a_loop_of_jax(refused: Refused) -> None:
    iterator = iter(pair().experimental_distribute_dataset([np.ones((4, 2), np.float32)] * 3))

    @gd.function
    def total(iterator: Any) -> Any:
        return jax.lax.scan(lambda sum, _: (sum, next(iterator)), 0.0, None, length=3)

    with refused(ValueError):
        total(iterator)
    assert iterator.get_next_as_optional().has_value()


def iterator_past_the_end_in_a_function(refused: Refused) -> None:
    iterator = iter(pair().experimental_distribute_dataset([np.ones((4, 2), np.float32)]))

    @gd.function
    def second(iterator: Any) -> Any:
        next(iterator)
        return next(iterator)

    with refused(IndexError):
        second(iterator)
