"""Imports Keras, and checks that it runs on JAX."""

from __future__ import annotations

import sys
from importlib import import_module

from graphdist.config import choose_keras_backend
from graphdist.errors import MissingExtraError, UnsupportedError
from graphdist.tracing.user_lines import here


def require_keras_on_jax() -> None:
    """Import Keras with its JAX backend.

    Raises `MissingExtraError` if Keras is not installed, `UnsupportedError` if Keras already runs
    on another backend or the environment asks for another backend.
    """
    chosen = choose_keras_backend("jax")
    if "keras" not in sys.modules:  # otherwise its backend is chosen already
        require_jax(chosen)
    try:
        keras = import_module("keras")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"graphdist.keras needs the package {error.name}",
            source=here(),
            hint="pip install 'graphdist[keras]'",
        ) from error
    require_jax(keras.config.backend())


def require_jax(backend: str) -> None:
    """Raise `UnsupportedError` for a backend of Keras other than JAX."""
    if backend != "jax":
        raise UnsupportedError(
            f"Keras runs on {backend}, graphdist on jax",
            hint="set KERAS_BACKEND=jax, or import graphdist.keras before keras",
        )
