"""A replica's rows of a batch, and their share of it.

A replica without rows runs the step on a row of zeros, whose share is 0: all replicas run the same
collectives and assignments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any  # Any: pytrees of arrays

import jax

from graphdist.strategies.current import get_replica_context


@dataclass(frozen=True, slots=True)
class Part:
    """A replica's rows of a batch."""

    data: Any
    rows: int
    share: float
    """The share of the rows of the batch."""
    mean_share: float
    """The share in a mean over the replicas that have rows."""

    @classmethod
    def of(cls, data: Any) -> Part:
        """Return the calling replica's part, of which `data` are the rows."""
        context, rows = get_replica_context(), int(jax.tree.leaves(data)[0].shape[0])
        if not rows:
            return cls(jax.tree.map(_row_of_zeros, data), 0, 0.0, 0.0)
        total = context.examples_of_all(rows)
        replicas_with_rows = -(-total // -(-total // context.num_replicas_in_sync))
        return cls(data, rows, rows / total, 1 / replicas_with_rows)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the current part in a `with` block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Part | None] = ContextVar("graphdist_keras_part", default=None)


def current_part() -> Part | None:
    """Return the part that the calling layer runs on, None outside steps of a strategy."""
    return _current.get()


def _row_of_zeros(leaf: Any) -> jax.Array:
    return jax.numpy.zeros((1, *leaf.shape[1:]), leaf.dtype)
