"""Imports Keras, and checks that it runs on JAX."""

from __future__ import annotations

import sys
from importlib import import_module

from graphdist.config import choose_keras_backend
from graphdist.errors import UnsupportedError
from graphdist.runtime.extras import require_package


def require_keras_on_jax() -> None:
    """Import Keras with its JAX backend.

    Raises `MissingExtraError` if Keras is not installed, `UnsupportedError` if Keras already runs
    on another backend or the environment asks for another backend.
    """
    chosen = choose_keras_backend("jax")
    if "keras" not in sys.modules:  # otherwise its backend is chosen already
        require_jax(chosen)
    require_package("keras", "graphdist.keras")
    require_jax(import_module("keras").config.backend())


def require_jax(backend: str) -> None:
    """Raise `UnsupportedError` for a backend of Keras other than JAX."""
    if backend != "jax":
        raise UnsupportedError(
            f"Keras runs on {backend}, graphdist on jax",
            hint="set KERAS_BACKEND=jax, or import graphdist.keras before keras",
        )
