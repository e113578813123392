"""Imports `graphdist.keras` if a program uses Keras and a strategy, or warns why it cannot.

Programs for tf.distribute import Keras and open a scope, but do not import `graphdist.keras`.
"""

from __future__ import annotations

import sys
from functools import wraps
from importlib import import_module
from typing import Any  # Any: Keras, which is not imported here

from graphdist.context import current_strategy, has_strategy
from graphdist.errors import GraphdistError
from graphdist.user_warnings import warn_user

_OURS = "graphdist.keras"
_warned: set[str] = set()
"""The backends of Keras for which the first model in a scope warns."""


def switch_on_keras() -> None:
    """Let Keras's models train on strategies, if the program has imported Keras.

    If Keras runs on another backend than JAX, the first model that is made in a scope warns.
    """
    keras: Any = sys.modules.get("keras")
    if _OURS in sys.modules or not hasattr(keras, "Model"):  # not imported, or not completely
        return
    backend = keras.config.backend()
    if backend != "jax":
        _warn_of_models(keras, backend)
        return
    try:
        import_module(_OURS)
    except GraphdistError as error:
        warn_user(f"Keras models train on one device in this scope: {error}")


def warn_of_late_keras() -> None:
    """Warn at the end of a scope if the program has imported Keras only inside the scope."""
    keras: Any = sys.modules.get("keras")
    if _OURS not in sys.modules and hasattr(keras, "Model") and keras.config.backend() == "jax":
        import_module(_OURS)
        warn_user(
            "Keras was imported inside a strategy's scope: models that were made and compiled in "
            "it train on one device. Import keras before the scope"
        )


def _warn_of_models(keras: Any, backend: str) -> None:
    if backend in _warned:
        return
    _warned.add(backend)
    new = keras.Model.__new__

    @wraps(new)
    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if has_strategy():
            keras.Model.__new__ = new  # Keras calls it several times for one model
            warn_user(
                f"a Keras model is made in the scope of {current_strategy()}, and trains on one "
                f"device: Keras runs on {backend}, graphdist on jax. Set KERAS_BACKEND=jax before "
                f"keras is imported"
            )
        return new(cls, *args, **kwargs)

    keras.Model.__new__ = make
