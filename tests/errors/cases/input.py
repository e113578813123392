"""Input options, dataset functions, and the way through a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.errors.programs import pair
from tests.errors.refusal import Refused

PER_REPLICA = gd.InputReplicationMode.PER_REPLICA


def _batches(*sizes: int) -> list[Any]:
    """Return batches of these numbers of rows."""
    return [np.ones((size, 3), np.float32) for size in sizes]


# Elements.


def element_of_objects(refused: Refused) -> None:
    dataset = pair().experimental_distribute_dataset([{"image": object()}])
    with refused(TypeError):
        next(iter(dataset))


def element_declared_without_batch_dimension(refused: Refused) -> None:
    with refused(IndexError):
        pair().experimental_distribute_dataset(gd.data.Dataset.range(6))


def element_of_another_structure(refused: Refused) -> None:
    iterator = iter(pair().experimental_distribute_dataset([{"x": np.ones(2)}, {"y": np.ones(2)}]))
    next(iterator)
    with refused(ValueError):
        next(iterator)


def element_of_another_dtype(refused: Refused) -> None:
    elements = [{"x": np.ones(2, np.float32)}, {"x": np.ones(2, np.int32)}]
    iterator = iter(pair().experimental_distribute_dataset(elements))
    next(iterator)
    with refused(ValueError):
        next(iterator)


def element_of_another_inner_shape(refused: Refused) -> None:
    iterator = iter(pair().experimental_distribute_dataset([np.ones((4, 3)), np.ones((4, 2))]))
    next(iterator)
    with refused(ValueError):
        next(iterator)


def element_of_another_signature(refused: Refused) -> None:
    def generate() -> Iterator[Any]:
        yield np.ones((2, 3), np.float32)
        yield np.ones((2, 4), np.float32)

    signature = gd.ArraySpec((None, 3), np.float32)
    dataset = gd.data.Dataset.from_generator(generate, signature)
    iterator = iter(pair().experimental_distribute_dataset(dataset))
    next(iterator)
    with refused(ValueError):
        next(iterator)


def elements_of_one_batch_differ(refused: Refused) -> None:
    dataset = gd.data.Dataset.range(1, 4).map(lambda size: np.ones(size)).batch(3)
    with refused(ValueError):
        list(dataset)


def scalars_run_out(refused: Refused) -> None:
    dataset = pair().distribute_datasets_from_function(lambda context: [1.0, 2.0, 3.0])
    iterator = iter(dataset)
    next(iterator)
    with refused(ValueError):
        next(iterator)


# The way through a dataset.


def get_next_past_the_end(refused: Refused) -> None:
    iterator = iter(pair().experimental_distribute_dataset(_batches(4)))
    iterator.get_next()
    with refused(IndexError):
        iterator.get_next()


def get_value_of_no_element(refused: Refused) -> None:
    optional = iter(pair().experimental_distribute_dataset([])).get_next_as_optional()
    with refused(ValueError):
        optional.get_value()


def next_in_a_replica_function(refused: Refused) -> None:
    strategy = pair()
    iterator = iter(strategy.experimental_distribute_dataset(_batches(4, 4)))
    with refused(ValueError):
        strategy.run(lambda: jnp.sum(next(iterator)))
    assert strategy.reduce("SUM", next(iterator), axis=None).shape == (2, 3)


def dataset_mapped_after_distribution(refused: Refused) -> None:
    dataset: Any = pair().experimental_distribute_dataset(_batches(4))
    with refused(AttributeError):
        dataset.map(lambda batch: batch)


def spec_with_an_unknown_dimension(refused: Refused) -> None:
    spec = gd.PerReplicaSpec((None, 3), np.float32)
    with refused(TypeError):
        gd.function(lambda x: x).trace(spec)


# Dataset functions.


def dataset_function_returns_nothing(refused: Refused) -> None:
    def dataset_fn(context: gd.InputContext) -> None:
        gd.data.Dataset.range(4).batch(context.get_per_replica_batch_size(4))

    with refused(AttributeError):
        pair().distribute_datasets_from_function(dataset_fn)


def dataset_function_returns_a_number(refused: Refused) -> None:
    with refused(TypeError):
        pair().distribute_datasets_from_function(lambda context: 3)


def dataset_function_is_a_dataset(refused: Refused) -> None:
    dataset: Any = gd.data.Dataset.range(4).batch(2)
    with refused(TypeError):
        pair().distribute_datasets_from_function(dataset)


def batch_size_that_does_not_divide(refused: Refused) -> None:
    context = gd.InputContext(num_replicas_in_sync=4)
    with refused(ValueError):
        context.get_per_replica_batch_size(30)


# Options.


def input_options_of_another_kind(refused: Refused) -> None:
    options: Any = {"experimental_per_replica_buffer_size": 2}
    with refused(TypeError):
        pair().experimental_distribute_dataset(_batches(4), options)


def replication_mode_unknown(refused: Refused) -> None:
    mode: Any = "per_replica"
    with refused(ValueError):
        gd.InputOptions(experimental_replication_mode=mode)


def buffer_size_negative(refused: Refused) -> None:
    with refused(ValueError):
        gd.InputOptions(experimental_per_replica_buffer_size=-2)


def fetch_to_device_no_bool(refused: Refused) -> None:
    fetch: Any = "yes"
    with refused(TypeError):
        gd.InputOptions(experimental_fetch_to_device=fetch)


def one_dataset_per_replica(refused: Refused) -> None:
    options = gd.InputOptions(experimental_replication_mode=PER_REPLICA)
    with refused(NotImplementedError):
        pair().experimental_distribute_dataset(_batches(4), options)


def input_per_replica_on_one_device(refused: Refused) -> None:
    options = gd.InputOptions(experimental_replication_mode=PER_REPLICA)
    strategy = gd.OneDeviceStrategy("cpu:0")
    with refused(NotImplementedError):
        strategy.distribute_datasets_from_function(lambda context: _batches(4), options)


def dataset_placed_on_device_per_worker(refused: Refused) -> None:
    options = gd.InputOptions(experimental_place_dataset_on_device=True)
    with refused(ValueError):
        pair().distribute_datasets_from_function(lambda context: _batches(4), options)


def auto_shard_policy_unknown(refused: Refused) -> None:
    options = gd.data.Options()
    policy: Any = "SOME"
    with refused(ValueError):
        options.experimental_distribute.auto_shard_policy = policy


# Sharing out among workers.


def shard_hint_without_a_strategy(refused: Refused) -> None:
    hint = gd.data.SHARD_HINT
    with refused(ValueError):
        list(gd.data.Dataset.range(4).shard(hint, hint))


def files_of_a_dataset_without_any(refused: Refused) -> None:
    with refused(ValueError):
        gd.data.auto_shard(gd.data.Dataset.range(4), 2, 0, gd.data.AutoShardPolicy.FILE)


def fewer_files_than_workers(refused: Refused) -> None:
    dataset = gd.data.Dataset.from_files(["part-0.txt"])
    with refused(ValueError):
        gd.data.auto_shard(dataset, 2, 1)


# Datasets.


def batch_size_of_a_dataset_zero(refused: Refused) -> None:
    with refused(ValueError):
        gd.data.Dataset.range(4).batch(0)


def slices_of_different_lengths(refused: Refused) -> None:
    with refused(ValueError):
        gd.data.Dataset.from_tensor_slices({"x": np.ones(3), "y": np.ones(4)})


def concatenated_with_another_dtype(refused: Refused) -> None:
    numbers = gd.data.Dataset.range(4)
    with refused(ValueError):
        numbers.concatenate(gd.data.Dataset.from_tensor_slices(np.ones(4, np.float32)))


def padded_to_less(refused: Refused) -> None:
    rows = gd.data.Dataset.range(1, 4).map(lambda size: np.ones(size))
    with refused(ValueError):
        list(rows.padded_batch(3, padded_shapes=[2]))


def length_of_an_infinite_dataset(refused: Refused) -> None:
    with refused(TypeError):
        len(gd.data.Dataset.range(4).repeat())


def zip_of_no_dataset(refused: Refused) -> None:
    with refused(TypeError):
        gd.data.Dataset.zip(gd.data.Dataset.range(2), np.arange(2))


def generator_instead_of_a_function(refused: Refused) -> None:
    generator: Any = (number for number in range(3))
    with refused(TypeError):
        gd.data.Dataset.from_generator(generator)
