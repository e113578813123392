"""The strategy methods of TF1, the iterators of TF1, and TF1's loop over an iterator.

A method that has a newer name warns once, and calls the method that replaced it.

An iterator has the methods `initialize` and `get_next`. The first call of `get_next` needs no
`initialize` before. After `initialize` the iterator starts again.

`run_steps_on_iterator` runs the first step in a program of its own, because the outputs of the
first step show what a step returns. Later steps run in programs of `STEPS` steps each, on stacked
elements, if the elements have one type.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import count, islice
from typing import TYPE_CHECKING, Any  # Any: users' pytrees, functions and configurations

import jax
import jax.numpy as jnp

from graphdist.context import Entry, current_strategy, entered, running_replica
from graphdist.data.dataset import Dataset
from graphdist.data.dataset_reduction import in_steps
from graphdist.data.input_options import InputContext, InputReplicationMode
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError, OutOfRangeError
from graphdist.options import ReduceOp, member_of
from graphdist.strategies.input import InputMethods
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.user_warnings import warn_of_older_name
from graphdist.values.components import per_replica_of
from graphdist.values.distributed import PerReplicaArray, type_name

if TYPE_CHECKING:
    from graphdist.state.variable import Variable


class LegacyMethods(InputMethods):
    """The methods of strategies that TF1 has. A method that has a newer name warns once."""

    def experimental_run(self, fn: Callable[..., Any], input_iterator: Any = None) -> Any:
        """Run `fn` on every replica, with the next element of an iterator if there is one.

        Raises `ArgumentTypeError` for an iterator without `get_next`.
        """
        warn_of_older_name("Strategy.experimental_run", "Strategy.run(fn, args=(next(iterator),))")
        if input_iterator is None:
            return self.run(fn)
        if not callable(getattr(input_iterator, "get_next", None)):
            raise ArgumentTypeError(
                f"the input iterator is of type {type_name(input_iterator)}, which has no get_next",
                hint="give what make_dataset_iterator returns, or iter(distributed_dataset)",
            )
        return self.run(fn, args=(input_iterator.get_next(),))

    def make_dataset_iterator(self, dataset: Any) -> DatasetIterator:
        """Return an iterator over the global batches of a dataset, each split over the replicas.

        Raises the errors of `experimental_distribute_dataset`, and of reading the first element.
        """
        warn_of_older_name(
            "Strategy.make_dataset_iterator", "Strategy.experimental_distribute_dataset"
        )
        distributed = self.experimental_distribute_dataset(dataset)
        if isinstance(dataset, Dataset):
            _ = distributed.element_spec  # raises for a dataset that cannot be split
        return DatasetIterator(distributed)

    make_dataset_iterator_dyn = make_dataset_iterator

    def make_input_fn_iterator(
        self,
        input_fn: Callable[..., Any],
        replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
    ) -> InputFunctionIterator:
        """Return an iterator over the result of `input_fn(InputContext)`, which is called once.

        `input_fn` returns a dataset, or a function that returns an element. In each step each
        replica gets one element. A last step with fewer elements than replicas is dropped. Raises
        `ArgumentError` for a replication mode other than PER_WORKER, and for any other result of
        `input_fn`.
        """
        warn_of_older_name(
            "Strategy.make_input_fn_iterator", "Strategy.distribute_datasets_from_function"
        )
        mode = member_of(InputReplicationMode, replication_mode, "replication_mode")
        if mode is not InputReplicationMode.PER_WORKER:
            raise ArgumentError(
                f"make_input_fn_iterator with replication mode {mode.name}: it takes PER_WORKER",
                hint="leave it out",
            )
        return InputFunctionIterator(self, input_fn)

    make_input_fn_iterator_dyn = make_input_fn_iterator

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> Any:
        """Call `distribute_datasets_from_function`."""
        warn_of_older_name(
            "Strategy.experimental_distribute_datasets_from_function",
            "Strategy.distribute_datasets_from_function",
        )
        return self.distribute_datasets_from_function(dataset_fn, options)

    def unwrap(self, value: Any) -> tuple[Any, ...]:
        """Return the components of a value."""
        warn_of_older_name("Strategy.unwrap", "Strategy.experimental_local_results")
        return self.experimental_local_results(value)

    def group(self, value: Any, name: str | None = None) -> Any:
        """Wait until all components of a value are computed.

        Returns the component if there is only one, or else None.
        """
        components = self.experimental_local_results(value)
        if current_trace() is None:
            jax.block_until_ready(components)
        return components[0] if len(components) == 1 else None

    def configure(
        self,
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
                f"configure is given a cluster, but {self} has one process",
                hint="leave cluster_spec out",
            )

    def update_config_proto(self, config_proto: Any) -> Any:
        """Return a copy of a configuration with the settings of `jax.config` for this strategy.

        `config_proto` is a dict or an object with attributes, and is not changed. The copy has
        `jax_platforms` and, for CPU devices, `jax_num_cpu_devices`. If `jax.config` has these
        settings, a process has the strategy's devices. If the configuration has TF1's option
        `isolate_session_state`, the same strategies set this option as in `tf.distribute`.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> strategy.update_config_proto({"jax_enable_x64": True})
        {'jax_enable_x64': True, 'jax_platforms': 'cpu', 'jax_num_cpu_devices': 2}
        """
        is_dict = isinstance(config_proto, Mapping)
        settings = _settings(self)
        names = config_proto if is_dict else dir(config_proto)
        if self.isolates_session_state and "isolate_session_state" in names:
            settings["isolate_session_state"] = True
        if is_dict:
            return {**config_proto, **settings}
        changed = copy.deepcopy(config_proto)
        for name, value in settings.items():
            setattr(changed, name, value)
        return changed

    def colocate_vars_with(self, colocate_with_variable: Variable) -> AbstractContextManager[None]:
        """Call `extended.colocate_vars_with`."""
        warn_of_older_name("Strategy.colocate_vars_with", "Strategy.extended.colocate_vars_with")
        return self.extended.colocate_vars_with(colocate_with_variable)


def _settings(strategy: StrategyBase) -> dict[str, Any]:
    """Return the settings of `jax.config` that give a process the strategy's devices."""
    if strategy.is_default:
        return {}
    platform = strategy.devices.platform
    if platform != "cpu":
        return {"jax_platforms": platform}
    indices = [int(name.split(":")[1]) for name in strategy.devices.names]
    return {"jax_platforms": platform, "jax_num_cpu_devices": max(indices) + 1}


class DatasetIterator:
    """An iterator over a distributed dataset; TensorFlow's class has this name too."""

    def __init__(self, dataset: Any) -> None:
        """Start at the first element."""
        self._dataset = dataset
        self._iterator: Any = None

    @property
    def element_spec(self) -> Any:
        """Return the shapes and dtypes of an element."""
        return self._dataset.element_spec

    def initialize(self) -> None:
        """Go back to the first element."""
        self._iterator = None

    def get_next(self) -> Any:
        """Return the next element; raises the errors of `DistributedIterator.get_next`."""
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        return self._iterator.get_next()


class InputFunctionIterator:
    """An iterator over an input function's result: a dataset, or a function that makes elements."""

    def __init__(self, strategy: StrategyBase, input_fn: Callable[..., Any]) -> None:
        """Call `input_fn(InputContext)`; raises `ArgumentError` for a result of another kind."""
        self._strategy = strategy
        source = input_fn(InputContext(1, 0, strategy.num_replicas_in_sync))
        if not callable(source) and (not isinstance(source, Iterable) or isinstance(source, str)):
            raise ArgumentError(
                f"input_fn returned a value of type {type_name(source)}, which is neither a "
                f"dataset nor a function",
                hint="return a gd.data.Dataset, or a function that returns one element",
            )
        self._source = source
        self._elements: Iterator[Any] | None = None

    def initialize(self) -> None:
        """Go back to the first element."""
        self._elements = None

    def get_next(self) -> Any:
        """Return an element per replica; raises `OutOfRangeError` if there are fewer."""
        if self._elements is None:
            source = self._source
            is_dataset = isinstance(source, Iterable)
            self._elements = iter(source) if is_dataset else (source() for _ in count())
        num_replicas = self._strategy.num_replicas_in_sync
        elements = list(islice(self._elements, num_replicas))
        if len(elements) < num_replicas:
            raise OutOfRangeError(
                f"get_next past the end: elements left: {len(elements)}, replicas: {num_replicas}",
                hint="call initialize() to start again",
            )
        if num_replicas == 1:
            return elements[0]
        return jax.tree.map(lambda *leaves: per_replica_of(leaves, self._strategy), *elements)


STEPS = 16
"""The number of steps in one program. More steps would save little time and need more memory."""


class MultiStepContext:
    """The outputs of the last step of a loop, and the first argument of the loop's function."""

    def __init__(
        self, outputs: Mapping[str, Any] | None = None, others: Mapping[str, Any] | None = None
    ) -> None:
        """Start with `outputs`, which are arrays, and `others`, which are not."""
        self.last_step_outputs, self.non_tensor_outputs = dict(outputs or {}), dict(others or {})

    def set_last_step_output(self, name: str, output: Any, reduce_op: Any = None) -> None:
        """Store an output of this step; if `reduce_op` is given, reduced over the replicas."""
        op = None if reduce_op is None else ReduceOp.of(reduce_op)

        def store(strategy: StrategyBase, output: Any) -> None:
            reduced = output if op is None else strategy.reduce(op, output, axis=None)
            self.last_step_outputs[name] = reduced

        _in_cross_replica(store, output)

    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Store an output that is not an array."""
        _in_cross_replica(lambda _, output: self.non_tensor_outputs.update({name: output}), output)


def _in_cross_replica(store: Callable[[Any, Any], None], output: Any) -> None:
    """Call `store(strategy, output)` in cross-replica context."""
    context = running_replica()
    if context is not None:
        context.merge_call(store, args=(output,))
    else:
        store(current_strategy(), output)


def run_steps_on_iterator(
    strategy: StrategyBase,
    fn: Callable[..., Any],
    iterator: Any,
    iterations: int,
    initial_loop_values: Mapping[str, Any] | None,
) -> MultiStepContext:
    """Compile `fn(context, inputs)`, and call it with the next elements of an iterator."""
    if current_trace() is not None:
        raise ContextError(
            "experimental_run_steps_on_iterator is called inside a function, which cannot read "
            "elements of an iterator",
            hint="call it outside: it compiles its function",
        )
    initial, outputs, others = dict(initial_loop_values or {}), {}, {}
    with entered(Entry(strategy)):
        step = strategy.implicit.of_function("run_steps_on_iterator", fn, _step)
        several = strategy.implicit.of_function("run_steps_on_iterator_chunk", fn, _several)
        for elements in _groups(iterator.get_next, iterations):
            if len(elements) == 1:
                outputs, others = step((elements[0],), {})
            else:
                outputs = several((outputs, elements), {})
    return MultiStepContext({**initial, **outputs}, others)


def _groups(get_next: Callable[[], Any], iterations: int) -> Iterator[list[Any]]:
    """Yield the next elements in lists: first one element, then lists of `STEPS` of one type.

    Elements that cannot be stacked are yielded in lists of one. Raises `OutOfRangeError` after all
    elements if the iterator has fewer than `iterations`.
    """
    group: list[Any] = []
    for iteration in range(iterations):
        try:
            group.append(get_next())
        except OutOfRangeError:
            yield from ([element] for element in group)
            raise
        if iteration == 0 or len(group) == STEPS:
            first = _types(group[0])
            can_stack = first is not None and all(_types(element) == first for element in group)
            yield from [group] if can_stack else ([element] for element in group)
            group = []
    yield from ([element] for element in group)


def _types(element: Any) -> tuple[Any, ...] | None:
    """Return the types of the arrays of an element; None if the arrays cannot be stacked."""
    leaves, structure = jax.tree.flatten(element)
    types: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, PerReplicaArray) and leaf.shapes is None:
            types.append(leaf.type)
        elif isinstance(leaf, jax.Array):
            types.append((leaf.shape, leaf.dtype))
        else:
            return None
    return structure, *types


def _step(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> tuple[Any, Any]:
    context = MultiStepContext()
    fn(context, *args)
    return context.last_step_outputs, context.non_tensor_outputs


def _several(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    outputs, elements = args
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *elements)
    return in_steps(lambda outputs, element: _step(fn, (element,), {})[0], outputs, stacked)
