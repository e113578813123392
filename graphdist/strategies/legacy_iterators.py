"""TF1's iterators, and its loop over an iterator.

An iterator has the methods `initialize` and `get_next`. It needs no initialization before its first
element, and starts again when it is initialized again.

In `run_steps_on_iterator` the first step is a program of its own, since its outputs show what a
step returns. If their elements have one type, the next steps run in programs of `STEPS` steps each,
on stacked elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any  # Any: users' pytrees and functions

import jax
import jax.numpy as jnp

from graphdist.context import Entry, current_entry, current_strategy, entered
from graphdist.data.dataset_reduction import in_steps
from graphdist.data.input_options import InputContext
from graphdist.errors import ArgumentError, ContextError, OutOfRangeError
from graphdist.options import ReduceOp
from graphdist.strategies.abstract_strategy import AbstractStrategy
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.tracing.user_lines import here
from graphdist.values.components import per_replica_of
from graphdist.values.distributed import PerReplicaArray, type_name


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
                source=here(),
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
                source=here(),
                hint="call initialize() to start again",
            )
        if num_replicas == 1:
            return elements[0]
        return jax.tree.map(lambda *leaves: per_replica_of(leaves, self._strategy), *elements)


STEPS = 16
"""The number of steps in one program: more would save little time, and need more memory."""


class MultiStepContext:
    """The first argument of a loop's function. It stores outputs of the last step."""

    def __init__(
        self, outputs: Mapping[str, Any] | None = None, others: Mapping[str, Any] | None = None
    ) -> None:
        """Start with `outputs`, which are arrays, and `others`, which are not."""
        self._outputs, self._others = dict(outputs or {}), dict(others or {})

    @property
    def last_step_outputs(self) -> dict[str, Any]:
        """Return the outputs by name."""
        return self._outputs

    @property
    def non_tensor_outputs(self) -> dict[str, Any]:
        """Return the outputs that are not arrays, by name."""
        return self._others

    def set_last_step_output(self, name: str, output: Any, reduce_op: Any = None) -> None:
        """Store an output of this step, reduced over the replicas by `reduce_op` if it is given."""
        op = None if reduce_op is None else ReduceOp.of(reduce_op)

        def keep(strategy: AbstractStrategy, output: Any) -> None:
            reduced = output if op is None else strategy.reduce(op, output, axis=None)
            self._outputs[name] = reduced

        _in_cross_replica(keep, output)

    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Store an output that is not an array."""

        def keep(strategy: AbstractStrategy, output: Any) -> None:
            self._others[name] = output

        _in_cross_replica(keep, output)


def _in_cross_replica(keep: Callable[[Any, Any], None], output: Any) -> None:
    entry = current_entry()
    if entry is not None and entry.replica_context is not None:
        entry.replica_context.merge_call(keep, args=(output,))
    else:
        keep(current_strategy(), output)


def run_steps_on_iterator(
    strategy: AbstractStrategy,
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
            source=here(),
            hint="call it outside: it compiles its function",
        )
    initial, outputs, others = dict(initial_loop_values or {}), {}, {}
    with entered(Entry(strategy)):
        step = strategy.implicit_call("run_steps_on_iterator", fn, _step)
        several = strategy.implicit_call("run_steps_on_iterator_chunk", fn, _several)
        for elements in _groups(iterator.get_next, iterations):
            if len(elements) == 1:
                outputs, others = step((elements[0],), {})
            else:
                outputs = several((outputs, elements), {})
    return MultiStepContext({**initial, **outputs}, others)


def _groups(get_next: Callable[[], Any], iterations: int) -> Iterator[list[Any]]:
    """Yield the next elements in lists: first one element, then lists of `STEPS` of one type.

    Elements that cannot be stacked come in lists of one. If the iterator ends too early, raises
    `OutOfRangeError` after all elements.
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
    """Return the types of the arrays of an element; None if they cannot be stacked."""
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
