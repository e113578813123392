"""Models that were made before `graphdist.keras` was imported: their first call places them.

`watch_new_models` sees only models that are made later. So `compile`, `fit`, `evaluate` and
`predict` of `keras.Model` first give an earlier model its placement. A model that is compiled in a
scope is placed on the scope's strategy. A model that was compiled outside the scope in which it is
used raises an error that says what to write.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any  # Any: arguments of Keras's methods

import keras

from graphdist.context import has_strategy
from graphdist.keras.models import is_watched, placement_of
from graphdist.strategies.current import get_strategy


def place_earlier_models() -> None:
    """Let models that were made before train on strategies too."""
    for name in ("compile", "fit", "evaluate", "predict"):
        # Replaced in the class that defines the method: Keras checks whether a model's class has a
        # method of its own.
        of = next(each for each in keras.Model.__mro__ if name in vars(each))
        setattr(of, name, _placing(vars(of)[name], name == "compile"))


def _placing(method: Callable[..., Any], compiles: bool) -> Callable[..., Any]:
    @wraps(method)
    def call(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        if not is_watched(model):
            placement = placement_of(model)
            if compiles and has_strategy():
                placement.place_on(get_strategy())
        return method(model, *args, **kwargs)

    return call
