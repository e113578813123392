"""`DistributedDataset.reduce`: a loop over a dataset, whose steps the device runs in chunks.

A step of a small model takes the device less time than the host needs to start it. So elements are
stacked, and one program runs the steps of a chunk of them in a loop. The first element runs by
itself, and so do elements that cannot be stacked, such as the last batch. Every step is the same
computation in both programs; XLA compiles them separately, and may round the last bit of a sum
differently.

Unless the caller sets the size of a chunk, a few single steps are timed: a chunk gets as many as
take about `SECONDS` together, at most `MOST_STEPS`, and longer steps are not stacked. The size is
kept for the function, since another size needs another program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from math import log2
from typing import TYPE_CHECKING, Any  # Any: users' states and elements
from weakref import WeakKeyDictionary

import jax
import numpy as np

from graphdist.context import current_strategy
from graphdist.data.chunks import Chunk, ChunkSize
from graphdist.data.elements import type_text
from graphdist.errors import ArgumentError
from graphdist.tracing.marks import marked
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.distributed import PerReplicaArray, structure_text, wrong_type

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase

SECONDS = 0.02
MOST_STEPS = 64
_FEWEST_STEPS = 4
TIMED = 3

_chunk_sizes: WeakKeyDictionary[Callable[..., Any], int] = WeakKeyDictionary()
"""The number of steps of a chunk, by the program that runs the chunks."""


class DatasetReduction:
    """Runs the steps of a loop one by one and in chunks, and chooses the size of a chunk."""

    def __init__(
        self, single: Callable[..., Any], several: Callable[..., Any], steps: int | None = None
    ) -> None:
        """Take the compiled programs for one element and for several stacked elements.

        Each program takes its arguments as `((state, element, *constants), {})`, and returns the
        new state. `steps` is the size of a chunk; None means that it is chosen by timing steps.
        """
        self._single, self.several = single, several
        known = _chunk_sizes.get(self.several)
        self._is_timed = steps is None and known is None
        self.size = ChunkSize(steps or known or 1)
        self._seconds: list[float] = []

    def run(
        self,
        initial_state: Any,
        chunks: Iterator[Chunk],
        constants: tuple[Any, ...] = (),
        goes_on: Callable[[Any], bool] = lambda state: True,
    ) -> Any:
        """Return the state after all elements, or after the first chunk where `goes_on` is false.

        Raises `ArgumentError` if a step changes the structure or the types of the state.
        """
        state = jax.tree.map(as_array, initial_state)
        is_first = True
        while goes_on(state) and (chunk := next(chunks, None)) is not None:
            element, num_elements = chunk
            start = time.perf_counter()
            run = self._single if num_elements == 1 else self.several
            new = run((state, element, *constants), {})
            if is_first:
                require_same_kind(initial_state, state, new)
            elif self._is_timed and len(self._seconds) < TIMED:
                jax.block_until_ready(new)
                self.time(time.perf_counter() - start)
            state, is_first = new, False
        return initial_state if is_first else state

    def time(self, seconds: float) -> None:
        """Record the time of a single step; after `TIMED` of them set the size of a chunk."""
        self._seconds.append(seconds)
        if len(self._seconds) == TIMED:
            _chunk_sizes[self.several] = self.size.size = steps_worth(min(self._seconds))


def steps_worth(seconds: float) -> int:
    """Return how many steps are worth a program, if a single one takes so many seconds.

    >>> steps_worth(0.001), steps_worth(0.1)
    (16, 1)
    """
    steps = 2 ** int(max(log2(SECONDS / seconds), 0))
    return min(steps, MOST_STEPS) if steps >= _FEWEST_STEPS else 1


def reduction_by(
    reduce_func: Callable[[Any, Any], Any], strategy: StrategyBase, steps: int | None
) -> DatasetReduction:
    """Return the reduction by a user's function; raises the errors of wrong arguments."""
    if not callable(reduce_func):
        raise wrong_type("reduce_func", reduce_func, "a function")
    single, several = (
        strategy.implicit.of_function(kind, reduce_func, call)
        for kind, call in (
            ("reduce", lambda fn, args, kwargs: fn(*args)),
            ("reduce_chunk", lambda fn, args, kwargs: in_steps(fn, *args)),
        )
    )
    return DatasetReduction(single, several, checked_steps(steps))


def checked_steps(steps: Any) -> int | None:
    """Return the user's `steps_per_execution`.

    Raises `ArgumentTypeError` for another type than int or None, `ArgumentError` for less than 1.
    """
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
        hint = "write how many steps one program runs, or None to have it measured"
        raise wrong_type("steps_per_execution", steps, "an int", hint)
    if steps is not None and steps < 1:
        raise ArgumentError(f"steps_per_execution is {steps}: it must be at least 1")
    return steps


def in_steps(fn: Callable[..., Any], state: Any, elements: Any, *constants: Any) -> Any:
    """Return the state after a step with each of the stacked elements, in a loop of the program.

    Outside a trace the host runs the loop, since a step may read elements of another dataset.
    """

    def step(state: Any, element: Any) -> tuple[Any, None]:
        return fn(state, jax.tree.map(partial(marked, steps=True), element), *constants), None

    if current_trace() is not None:
        return jax.lax.scan(step, state, elements)[0]
    for element in _unstacked(elements):
        state = fn(state, element, *constants)
    return state


def _unstacked(elements: Any) -> Iterator[Any]:
    """Yield the elements that were stacked to `elements`."""
    leaves = jax.tree.leaves(elements, is_leaf=_is_per_replica)
    strategy = next((leaf.strategy for leaf in leaves if _is_per_replica(leaf)), current_strategy())
    take = strategy.implicit.of_function("a step", _element_at, lambda fn, args, kwargs: fn(*args))
    count = leaves[0].type.shape[0] if _is_per_replica(leaves[0]) else leaves[0].shape[0]
    for index in range(count):
        yield take((elements, np.int32(index)), {})


def _element_at(elements: Any, index: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], elements)


def _is_per_replica(leaf: Any) -> bool:
    return isinstance(leaf, PerReplicaArray)


def as_array(leaf: Any) -> Any:
    """Return a Python scalar as an array, since it may change at each step; keep other leaves."""
    if not _is_scalar(leaf):
        return leaf
    # The dtype that steps return, so that one program serves all steps.
    return jax.numpy.asarray(np.asarray(leaf, jax.dtypes.canonicalize_dtype(type(leaf))))


def _is_scalar(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex)


def require_same_kind(initial: Any, before: Any, after: Any) -> None:
    """Raise `ArgumentError` unless two states have one structure, and leaves of one type.

    `before` and `after` are the states around the first step. Where `initial`, the user's state,
    has a Python scalar, the dtype may change.
    """
    old, new = (structure_text(jax.tree.structure(state)) for state in (before, after))
    if old != new:
        raise ArgumentError(
            f"a step returns the state {new}, and was given {old}",
            hint="return a state of the structure of initial_state",
        )
    leaves = zip(
        jax.tree_util.tree_leaves_with_path(before),
        jax.tree.leaves(after),
        jax.tree.leaves(initial),
        strict=True,
    )
    for (path, leaf), returned, first in leaves:
        old_type, new_type = _type_of(leaf), _type_of(returned)
        is_alike = old_type[1] == new_type[1] if _is_scalar(first) else old_type == new_type
        if not is_alike:
            name = f"state{jax.tree_util.keystr(path)}"
            raise ArgumentError(
                f"a step returns {name} as {type_text(*new_type)}, "
                f"and takes it as {type_text(*old_type)}",
                hint="begin with an array of the shape and dtype that a step returns",
            )


def _type_of(leaf: Any) -> tuple[Any, Any]:
    leaf = getattr(leaf, "array", leaf)  # of a distributed value
    return getattr(leaf, "dtype", None), np.shape(leaf)
