"""`compile(steps_per_execution="auto")`: how many steps an execution has is measured.

Keras on JAX takes numbers alone. So "auto" is given to Keras as `Automatic`, a 1 of a class of its
own, which is also what a saved model has. Each kind of steps, such as those of `evaluate`, times a
few single steps. Then an execution gets as many as are worth it, as in `DistributedDataset.reduce`.

Keras's iterator over an epoch numbers the executions. For an `Automatic` number it counts single
steps, and `_executions` joins the next of them to one execution. The last execution of an epoch has
the steps that are left. Steps run one by one up to a multiple of the size, so that this is the same
number in each epoch, also if the size was found in the middle of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from itertools import islice
from typing import Any  # Any: iterators and batches of Keras

from graphdist.keras.replacements import wrap_method
from graphdist.keras.unpublished_names import STEPS_OF_AN_EPOCH, EpochIterator, steps_left


class Automatic(int):
    """1 step per execution until it is known how many are worth it."""

    def __repr__(self) -> str:
        return "auto"


AUTO = Automatic(1)

size_of_execution: ContextVar[Callable[[], int]] = ContextVar(
    "graphdist_keras_size_of_execution", default=lambda: 1
)
"""The function that returns the number of steps of the next execution."""


def numbers_executions() -> bool:
    """Return whether this version of Keras has the method that numbers the executions."""
    return hasattr(EpochIterator, STEPS_OF_AN_EPOCH)


def join_steps_of_epochs() -> None:
    """Let the epochs of Keras have executions of as many steps as are measured to be worth it."""
    if numbers_executions():
        wrap_method(EpochIterator, STEPS_OF_AN_EPOCH, _steps_of_an_epoch)


def _steps_of_an_epoch(original: Callable[[Any], Iterator[Any]], epoch: Any) -> Iterator[Any]:
    is_automatic = isinstance(epoch.steps_per_execution, Automatic)
    return _executions(epoch, original(epoch)) if is_automatic else original(epoch)


def _executions(epoch: Any, steps: Iterator[Any]) -> Iterator[Any]:
    """Yield the first and the last step of each execution, and an iterator over its batches."""
    for first, last, batches in steps:
        size = size_of_execution.get()()
        others = 0 if first % size else min([size - 1, *steps_left(epoch, first)])
        for _, last, _ in islice(steps, others):  # noqa: B007 - the last one is used
            pass
        yield first, last, islice(batches, others + 1)
