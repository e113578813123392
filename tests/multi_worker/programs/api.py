"""Says what the methods of the strategy give on each worker."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

import graphdist as gd

logging.basicConfig(level=logging.INFO, format="LOG %(message)s", stream=sys.stdout)
strategy = gd.MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id


def plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return np.asarray(value).tolist()


def say(**facts: Any) -> None:
    """Print facts for the test."""
    print("SAYS", json.dumps({name: plain(value) for name, value in facts.items()}))


def drained(dataset: Any) -> list[Any]:
    """Return what this worker's replicas received at each step."""
    return [plain(strategy.experimental_local_results(element)) for element in dataset]


def with_policy(dataset: Any, policy: gd.data.AutoShardPolicy) -> Any:
    """Return the dataset with an option that says how it is shared out."""
    options = gd.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


with strategy.scope():
    made = gd.Variable(10.0 + worker)
    large = gd.Variable(np.full((300, 100), worker, np.float32))
    key = gd.Variable(jax.random.key(worker))
    flags = gd.Variable(np.array([worker > 0, True]))
    total = gd.Variable(
        1.0 + worker,
        synchronization=gd.VariableSynchronization.ON_READ,
        aggregation=gd.VariableAggregation.SUM,
    )
say(
    made=made,
    large=large.read_value()[0, 0],
    key=jax.random.key_data(key.read_value()),
    flags=flags,
    copies=total.values,
    total=total.read_value(),
)
made.assign(20.0 + worker)
say(assigned=made, copies=made.values)

numbers = strategy.experimental_distribute_values_from_function(
    lambda context: float(context.replica_id_in_sync_group)
)
ragged = strategy.experimental_distribute_values_from_function(
    lambda context: np.arange(context.replica_id_in_sync_group)
)
names = strategy.experimental_distribute_values_from_function(
    lambda context: f"replica {context.replica_id_in_sync_group}"
)
say(
    replicas=strategy.num_replicas_in_sync,
    sum=strategy.reduce("SUM", numbers, axis=None),
    mean=strategy.reduce("MEAN", ragged, axis=0),
    gathered=strategy.gather(ragged, axis=0),
    local=strategy.experimental_local_results(numbers),
    names=[str(name) for name in strategy.experimental_local_results(names)],
    ids=strategy.experimental_local_results(
        strategy.run(lambda: gd.get_replica_context().replica_id_in_sync_group)
    ),
)

contexts: list[Any] = []


def dataset_fn(context: gd.InputContext) -> gd.data.Dataset:
    """Return 2 rows on worker 0 and 6 on worker 1."""
    contexts.append([context.num_input_pipelines, context.input_pipeline_id])
    return gd.data.Dataset.range(2 + 4 * worker).batch(2)


from_function = strategy.distribute_datasets_from_function(dataset_fn)
say(from_function=drained(from_function), contexts=contexts)
ten = gd.data.Dataset.range(10)
batches = ten.batch(4)
say(
    data=drained(strategy.experimental_distribute_dataset(batches)),
    off=drained(
        strategy.experimental_distribute_dataset(with_policy(batches, gd.data.AutoShardPolicy.OFF))
    ),
    shuffled=drained(strategy.experimental_distribute_dataset(ten.shuffle(10).batch(5))),
    nothing=drained(strategy.experimental_distribute_dataset(ten.take(0).batch(4))),
)

folder = Path(tempfile.mkdtemp())
files = [folder / f"{place}.txt" for place in range(3)]
for place, file in enumerate(files):
    file.write_text("".join(f"{10 * place + line}\n" for line in range(2 + place)))
for count in (3, 1):
    lines = gd.data.Dataset.from_files([str(file) for file in files[:count]]).map(int).batch(4)
    say(files=drained(strategy.experimental_distribute_dataset(lines)))


@gd.function
def sum_of_three(iterator: Any) -> Any:
    """Return the sum of the rows of three elements."""
    total = 0
    for _ in range(3):
        total += strategy.reduce("SUM", next(iterator), axis=0)
    return total


with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always", gd.ElementByElementWarning)
    say(three=sum_of_three(iter(strategy.experimental_distribute_dataset(ten.batch(3)))))
say(told=[warning.category.__name__ for warning in told])

iterator = iter(strategy.experimental_distribute_dataset(gd.data.Dataset.range(10**6).batch(4)))
say(first=strategy.reduce("SUM", next(iterator), axis=0))  # and leaves with elements prepared
