"""TF1's loop over an iterator, `run_steps_on_iterator`, and the context that its function gets.

The first step is a program of its own, whose outputs say what a step returns. The next ones run
`STEPS` at a time in one program, which stacks their elements, if these have one type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any  # Any: users' pytrees and functions

import jax
import jax.numpy as jnp

from graphdist.context import Entry, current_entry, current_strategy, entered
from graphdist.data.dataset_reduction import in_steps
from graphdist.errors import ContextError, OutOfRangeError
from graphdist.options import ReduceOp
from graphdist.strategies.abstract_strategy import AbstractStrategy
from graphdist.tracing.state import current_trace
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import PerReplicaArray

STEPS = 16
"""The steps of one program: more would gain little, and hold more elements."""


class MultiStepContext:
    """What a loop over an iterator hands its function, to keep outputs of the last step."""

    def __init__(
        self, outputs: Mapping[str, Any] | None = None, others: Mapping[str, Any] | None = None
    ) -> None:
        """Start with these outputs, arrays and others."""
        self._outputs, self._others = dict(outputs or {}), dict(others or {})

    @property
    def last_step_outputs(self) -> dict[str, Any]:
        """Return the outputs by name."""
        return self._outputs

    @property
    def non_tensor_outputs(self) -> dict[str, Any]:
        """Return the outputs that are no arrays by name."""
        return self._others

    def set_last_step_output(self, name: str, output: Any, reduce_op: Any = None) -> None:
        """Keep an output of this step: reduced over the replicas or, without an op, as it is."""
        op = None if reduce_op is None else ReduceOp.of(reduce_op)

        def keep(strategy: AbstractStrategy, output: Any) -> None:
            reduced = output if op is None else strategy.reduce(op, output, axis=None)
            self._outputs[name] = reduced

        _in_cross_replica(keep, output)

    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Keep an output that is no array."""

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
    """Call `fn(context, inputs)`, compiled, with the next elements of an iterator."""
    if current_trace() is not None:
        raise ContextError(
            "experimental_run_steps_on_iterator is called inside a function, which cannot ask an "
            "iterator for elements",
            source=here(),
            hint="call it outside: what it calls is compiled",
        )
    given, outputs, others = dict(initial_loop_values or {}), {}, {}
    with entered(Entry(strategy)):
        step = strategy.implicit_call("run_steps_on_iterator", fn, _step)
        several = strategy.implicit_call("run_steps_on_iterator_chunk", fn, _several)
        for elements in _groups(iterator.get_next, iterations):
            if len(elements) == 1:
                outputs, others = step((elements[0],), {})
            else:
                outputs = several((outputs, elements), {})
    return MultiStepContext({**given, **outputs}, others)


def _groups(get_next: Callable[[], Any], iterations: int) -> Iterator[list[Any]]:
    """Yield the next elements, `STEPS` of one type together or one alone; the first is alone.

    Raises `OutOfRangeError` after the elements before the end.
    """
    group: list[Any] = []
    for place in range(iterations):
        try:
            group.append(get_next())
        except OutOfRangeError:
            yield from ([element] for element in group)
            raise
        if place == 0 or len(group) == STEPS:
            yield from _together(group)
            group = []
    yield from ([element] for element in group)


def _together(group: list[Any]) -> list[list[Any]]:
    kind = _kind(group[0])
    is_alike = kind is not None and all(_kind(element) == kind for element in group)
    return [group] if is_alike else [[element] for element in group]


def _kind(element: Any) -> tuple[Any, ...] | None:
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
