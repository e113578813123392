"""Warns of layers that keep state in Python attributes, which compiled steps do not change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any  # Any: attributes of layers

import jax
import keras

from graphdist.user_warnings import warn_user

_BY_KERAS = ("built", "trainable", "supports_masking", "supports_jit", "autocast")


@contextmanager
def python_state_watched(model: keras.Model) -> Iterator[None]:
    """Warn of each layer whose attributes change in a `with` block that traces a step."""
    before = [(layer, _attributes(layer)) for layer in layers_of(model)]
    yield
    for layer, attributes in before:
        for name, value in _attributes(layer).items():
            if name not in attributes or _differ(attributes[name], value):
                warn_user(
                    f"layer {layer.name!r} sets its attribute {name!r} when it is called: that "
                    f"happens while the step is compiled, and not in each step. Keep state in a "
                    f"variable: self.add_weight(trainable=False), and assign it"
                )


def _differ(before: Any, after: Any) -> bool:
    if isinstance(before, jax.core.Tracer) or isinstance(after, jax.core.Tracer):
        return before is not after
    return bool(before != after)


def layers_of(layer: Any) -> Iterator[Any]:
    """Yield a layer and the layers in it."""
    yield layer
    for inner in getattr(layer, "layers", ()):
        yield from layers_of(inner)


def _attributes(layer: Any) -> dict[str, Any]:
    """Return the public attributes that hold scalars, strings or traced values.

    A container is represented by its length.
    """
    return {
        name: len(value) if isinstance(value, list | dict | set) else value
        for name, value in vars(layer).items()
        if not name.startswith("_")
        and name not in _BY_KERAS
        and isinstance(value, list | dict | set | int | float | str | jax.core.Tracer)
    }
