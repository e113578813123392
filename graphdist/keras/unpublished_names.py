"""The names of Keras that are used here and that Keras does not publish. No other module has any.

`DataAdapter` is the class of data that `fit` takes as it is. The public kinds of data do not do: a
`PyDataset` must say how many batches it has, which is not known of a filtered dataset, and a
generator ends with the first epoch.

`_get_jax_state` is the method in which Keras reads all variables before a step, in each epoch and
after each callback that looks at the model. The public `value` of a variable cannot know that
nobody needs the copy that it makes. Where Keras has no such method, values are copied, and
everything else is the same.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any  # Any: objects of Keras

import keras

from graphdist.errors import UnsupportedError
from graphdist.tracing.user_lines import here

STATE_OF_A_STEP = "_get_jax_state"
"""The method of a model that returns the values which Keras passes to a step."""


def state_of_a_step(model: keras.Model, **wanted: bool) -> Any:
    """Return what Keras itself passes to a step."""
    return getattr(type(model), STATE_OF_A_STEP)(model, **wanted)


def data_adapter(module: str = "keras.src.trainers.data_adapters.data_adapter") -> Any:
    """Return the class `DataAdapter` of Keras.

    Raises `UnsupportedError` if Keras has it no longer where it was.
    """
    try:
        return import_module(module).DataAdapter
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"Keras {keras.__version__} has no class DataAdapter in {module}",
            source=here(),
            hint="install a version of Keras that graphdist was tried with, such as 3.15",
        ) from error


DataAdapter = data_adapter()
