"""The names of Keras that are used here and are not public; no other module uses such names.

`DataAdapter` is the class of data that `fit` takes as it is. The public kinds of data do not fit: a
`PyDataset` must say how many batches it has, which is not known of a filtered dataset, and a
generator ends with the first epoch.

`_get_jax_state` is the method in which Keras reads all variables before a step, in each epoch and
after each callback that looks at the model. The public `value` of a variable cannot know that
nobody needs the copy that it makes. Where Keras has no such method, values are copied, and
everything else is the same.

An optimizer numbers its variables by their `id`, which is another one in another process:
`_trainable_variables` and `_trainable_variables_indices`. A variable of Keras keeps its array in
`_value`.

Keras replaces an error that is raised in a layer by another one, which has only its first line and
the arguments of the layer. `_keras_call_info_injected` marks errors that Keras has replaced. Errors
of graphdist have a line and a hint; they are marked, too, and stay as they are.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any  # Any: objects of Keras

import keras

from graphdist.errors import GraphdistError, UnsupportedError

STATE_OF_A_STEP = "_get_jax_state"
"""The method of a model that returns the values which Keras passes to a step."""


TREATED = "_keras_call_info_injected"
"""The attribute of errors that Keras raises as they are."""
ARRAY_OF_A_VARIABLE = "_value"
"""The attribute of a variable that has its array."""


def state_of_a_step(model: keras.Model, **wanted: bool) -> Any:
    """Return what Keras itself passes to a step."""
    return getattr(type(model), STATE_OF_A_STEP)(model, **wanted)


def keep_errors_as_they_are() -> None:
    """Let errors of graphdist that are raised in layers keep their lines and hints."""
    setattr(GraphdistError, TREATED, True)


def number_variables_again(optimizer: Any) -> None:
    """Set the indices by which an optimizer from another process finds its variables."""
    variables = vars(optimizer).get("_trainable_variables", ())
    indices = {id(variable): index for index, variable in enumerate(variables)}
    vars(optimizer)["_trainable_variables_indices"] = indices


def data_adapter(module: str = "keras.src.trainers.data_adapters.data_adapter") -> Any:
    """Return the class `DataAdapter` of Keras; raises `UnsupportedError` if Keras has moved it."""
    try:
        return import_module(module).DataAdapter
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"Keras {keras.__version__} has no class DataAdapter in {module}",
            hint="install a version of Keras that graphdist was tried with, such as 3.15",
        ) from error


DataAdapter = data_adapter()
