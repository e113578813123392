"""Models that were made before `graphdist.keras` was imported: their first call places them.

`watch_new_models` sees new models alone. So the methods of `keras.Model` that begin to train or to
compute give such a model its placement, and then go on as Keras's. A model that is compiled in a
scope is placed there; one that was compiled outside is refused inside, with what to write.
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
        # In the class that defines it: Keras asks whether a model's class has another method.
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
