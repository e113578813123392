"""Optimizers of Keras on replicas: the gradients that they get are summed over the replicas.

Every optimizer gets its gradients in `apply` or `stateless_apply`. Keras has no hook for either, so
that `sum_gradients_of_replicas` wraps them. Clipping, accumulation and loss scaling then see the
sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any  # Any: arrays and objects of Keras

import keras

from graphdist.context import in_replica_context_of_a_run
from graphdist.strategies.current import get_replica_context

_KINDS = (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)
_are_summed: ContextVar[bool] = ContextVar("graphdist_keras_gradients_are_summed", default=False)


def summed(grads: Any) -> Any:
    """Return gradients summed over the replicas; a missing one stays None."""
    given = {place: grad for place, grad in enumerate(grads) if grad is not None}
    sums = get_replica_context().all_reduce("SUM", given)
    return [sums.get(place) for place in range(len(grads))]


@contextmanager
def gradients_summed() -> Iterator[None]:
    """Let optimizers take gradients as they are in a `with` block: they are summed already."""
    token = _are_summed.set(True)
    try:
        yield
    finally:
        _are_summed.reset(token)


def are_gradients_summed() -> bool:
    """Return whether an optimizer is at work on gradients that are summed already."""
    return _are_summed.get()


def sum_gradients_of_replicas() -> None:
    """Make the optimizers of Keras sum gradients over the replicas that apply them."""
    for kind in _KINDS:
        for method, wrap in (("apply", _apply), ("stateless_apply", _stateless_apply)):
            original = vars(kind).get(method) or getattr(kind, method)
            if not vars(original).get("sums_gradients"):
                wrapped = wrap(original)
                vars(wrapped)["sums_gradients"] = True
                setattr(kind, method, wrapped)


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if not _is_to_sum():
            return original(self, grads, trainable_variables)
        with gradients_summed():
            return original(self, summed(list(grads)), trainable_variables)

    return apply


def _stateless_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def stateless_apply(
        self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        if not _is_to_sum():
            return original(self, optimizer_variables, grads, trainable_variables)
        with gradients_summed():
            return original(self, optimizer_variables, summed(list(grads)), trainable_variables)

    return stateless_apply


def _is_to_sum() -> bool:
    return in_replica_context_of_a_run() and not _are_summed.get()
