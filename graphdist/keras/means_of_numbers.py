"""Means of single numbers in the steps of `fit`: a number for each replica's rows counts by them.

`keras.metrics.Mean`, and every metric that is made of a function, counts rows where it is given a
number for each row. A single number, such as the loss that a custom `train_step` passes on, is a
mean over the rows, and counts once for each batch. Replicas have a number each for their parts:
these count by their shares of the rows, which add up to one. Keras has no hook for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any  # Any: arrays

import keras
import numpy as np

from graphdist.keras.parts import current_part


def weigh_numbers_by_rows() -> None:
    """Make a mean count a replica's single number by its share of the rows."""
    kind = keras.metrics.Mean
    if not vars(kind.update_state).get("weighs_by_rows"):
        kind.update_state = _weighing(kind.update_state)
        vars(kind.update_state)["weighs_by_rows"] = True


def _weighing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        part = current_part()
        if part is not None and sample_weight is None and np.ndim(values) == 0:
            sample_weight = part.share
        return original(self, values, sample_weight)

    return update_state
