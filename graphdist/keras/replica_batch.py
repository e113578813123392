"""A replica's rows of a batch, and their share of it.

A replica without rows runs the step on a row of zeros, and its share is 0. So all replicas run the
same collectives and assignments.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any  # Any: pytrees of arrays

import jax

from graphdist.keras.replacements import value_set
from graphdist.strategies.current import get_replica_context


@dataclass(slots=True)
class ReplicaBatch:
    """A replica's rows of a batch."""

    data: Any
    """The rows, or one row of zeros if there are none."""
    num_rows: int
    share_of_rows: float
    """`num_rows` divided by the rows of the global batch: the replica's share of the loss."""
    share_of_mean: float
    """The weight of the replica in a mean over the replicas that have rows."""
    is_loss_scaled: bool = False
    """Whether the step has multiplied its loss by `share_of_rows`."""
    are_gradients_applied: bool = False
    """Whether the step has given its gradients to an optimizer."""

    @classmethod
    def of(cls, data: Any) -> ReplicaBatch:
        """Return the batch of the calling replica, whose rows are `data`."""
        context, rows = get_replica_context(), int(jax.tree.leaves(data)[0].shape[0])
        if not rows:
            return cls(jax.tree.map(_row_of_zeros, data), 0, 0.0, 0.0)
        total = context.examples_of_all(rows)
        replicas_with_rows = -(-total // -(-total // context.num_replicas_in_sync))
        return cls(data, rows, rows / total, 1 / replicas_with_rows)

    def entered(self) -> AbstractContextManager[None]:
        """Make this the current batch in a `with` block."""
        return value_set(_current, self)


_current: ContextVar[ReplicaBatch | None] = ContextVar("graphdist_keras_batch", default=None)


def current_replica_batch() -> ReplicaBatch | None:
    """Return the batch that the calling layer runs on, None outside steps of a strategy."""
    return _current.get()


def _row_of_zeros(leaf: Any) -> jax.Array:
    return jax.numpy.zeros((1, *leaf.shape[1:]), leaf.dtype)
