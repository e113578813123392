"""The strategy methods of TF1. Each calls the method that replaced it.

`CommonStrategy` has these functions as methods. A function that has a newer name warns once. The
iterators are in `legacy_iterators.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any  # Any: users' pytrees, functions and configurations

import jax

from graphdist.data.dataset import Dataset
from graphdist.data.input_options import InputReplicationMode
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.options import member_of
from graphdist.strategies.abstract_strategy import AbstractStrategy
from graphdist.strategies.legacy_iterators import DatasetIterator, InputFunctionIterator
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.tracing.user_lines import here
from graphdist.user_warnings import warn_of_older_name
from graphdist.values.distributed import type_name

if TYPE_CHECKING:
    from graphdist.state.variable import Variable


def experimental_run(
    strategy: AbstractStrategy, fn: Callable[..., Any], input_iterator: Any = None
) -> Any:
    """Run `fn` on every replica, with the next element of an iterator if there is one.

    Raises `ArgumentTypeError` for an iterator without `get_next`.
    """
    warn_of_older_name("Strategy.experimental_run", "Strategy.run(fn, args=(next(iterator),))")
    if input_iterator is None:
        return strategy.run(fn)
    if not callable(getattr(input_iterator, "get_next", None)):
        raise ArgumentTypeError(
            f"the input iterator is of type {type_name(input_iterator)}, which has no get_next",
            source=here(),
            hint="give what make_dataset_iterator returns, or iter(distributed_dataset)",
        )
    return strategy.run(fn, args=(input_iterator.get_next(),))


def make_dataset_iterator(strategy: AbstractStrategy, dataset: Any) -> DatasetIterator:
    """Return an iterator over the global batches of a dataset, each split over the replicas.

    Raises the errors of `experimental_distribute_dataset` and of its first element.
    """
    warn_of_older_name("Strategy.make_dataset_iterator", "Strategy.experimental_distribute_dataset")
    distributed = strategy.experimental_distribute_dataset(dataset)
    if isinstance(dataset, Dataset):
        _ = distributed.element_spec  # raises for a dataset that cannot be split
    return DatasetIterator(distributed)


def make_input_fn_iterator(
    strategy: AbstractStrategy,
    input_fn: Callable[..., Any],
    replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
) -> InputFunctionIterator:
    """Return an iterator over the result of `input_fn(InputContext)`, which is called once.

    The result is a dataset, or a function that returns an element. In each step each replica gets
    one element. A last step with fewer elements than replicas is dropped. Raises `ArgumentError`
    for a replication mode other than PER_WORKER, and for any other result of `input_fn`.
    """
    warn_of_older_name(
        "Strategy.make_input_fn_iterator", "Strategy.distribute_datasets_from_function"
    )
    mode = member_of(InputReplicationMode, replication_mode, "replication_mode")
    if mode is not InputReplicationMode.PER_WORKER:
        raise ArgumentError(
            f"make_input_fn_iterator with replication mode {mode.name}: it takes PER_WORKER",
            source=here(),
            hint="leave it out",
        )
    return InputFunctionIterator(strategy, input_fn)


def distribute_datasets_from_function(
    strategy: AbstractStrategy, dataset_fn: Callable[..., Any], options: Any = None
) -> Any:
    """Call `distribute_datasets_from_function`."""
    warn_of_older_name(
        "Strategy.experimental_distribute_datasets_from_function",
        "Strategy.distribute_datasets_from_function",
    )
    return strategy.distribute_datasets_from_function(dataset_fn, options)


def unwrap(strategy: AbstractStrategy, value: Any) -> tuple[Any, ...]:
    """Return the components of a value."""
    warn_of_older_name("Strategy.unwrap", "Strategy.experimental_local_results")
    return strategy.experimental_local_results(value)


def group(strategy: AbstractStrategy, value: Any, name: str | None = None) -> Any:
    """Wait until all components of a value are computed; return the only component, else None."""
    components = strategy.experimental_local_results(value)
    if current_trace() is None:
        jax.block_until_ready(components)
    return components[0] if len(components) == 1 else None


def configure(
    strategy: AbstractStrategy,
    session_config: Any = None,
    cluster_spec: Any = None,
    task_type: str | None = None,
    task_id: int | None = None,
) -> None:
    """Do nothing: a strategy is configured when it is made.

    Raises `ArgumentError` for a cluster.
    """
    if cluster_spec:
        raise ArgumentError(
            f"configure is given a cluster, but {strategy} has one process",
            source=here(),
            hint="leave cluster_spec out",
        )


def update_config_proto(strategy: AbstractStrategy, config_proto: Any) -> Any:
    """Return a copy of a configuration with the settings of `jax.config` for this strategy.

    `config_proto` is a dict or an object with attributes, and is not changed. The copy has
    `jax_platforms` and, for CPU devices, `jax_num_cpu_devices`. With these settings in `jax.config`
    a process has the strategy's devices. If the configuration has TF1's `isolate_session_state`,
    the same strategies set it as in `tf.distribute`.

    >>> import graphdist as gd
    >>> gd.MirroredStrategy(["cpu:0", "cpu:1"]).update_config_proto({"jax_enable_x64": True})
    {'jax_enable_x64': True, 'jax_platforms': 'cpu', 'jax_num_cpu_devices': 2}
    """
    is_dict = isinstance(config_proto, Mapping)
    settings = _settings(strategy)
    names = config_proto if is_dict else dir(config_proto)
    if strategy.isolates_session_state and "isolate_session_state" in names:
        settings["isolate_session_state"] = True
    if is_dict:
        return {**config_proto, **settings}
    changed = copy.deepcopy(config_proto)
    for name, value in settings.items():
        setattr(changed, name, value)
    return changed


def _settings(strategy: AbstractStrategy) -> dict[str, Any]:
    """Return the settings of `jax.config` that give a process the strategy's devices."""
    if strategy.is_default:
        return {}
    platform = strategy.devices.platform
    if platform != "cpu":
        return {"jax_platforms": platform}
    indices = [int(name.split(":")[1]) for name in strategy.devices.names]
    return {"jax_platforms": platform, "jax_num_cpu_devices": max(indices) + 1}


def colocate_vars_with(
    strategy: AbstractStrategy, colocate_with_variable: Variable
) -> AbstractContextManager[None]:
    """Call `extended.colocate_vars_with`."""
    warn_of_older_name("Strategy.colocate_vars_with", "Strategy.extended.colocate_vars_with")
    return strategy.extended.colocate_vars_with(colocate_with_variable)
