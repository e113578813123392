"""The names of Keras that are used here and that Keras does not publish. No other module has any.

`DataAdapter` is the class of data that `fit` takes as it is. The public kinds of data do not do: a
`PyDataset` must say how many batches it has, which is not known of a filtered dataset, and a
generator ends with the first epoch.

`_get_jax_state` is the method in which Keras reads all variables before a step, in each epoch and
after each callback that looks at the model. The public `value` of a variable cannot know that
nobody needs the copy that it makes. Where Keras has no such method, values are copied, and
everything else is the same.

An optimizer numbers its variables by their `id`, which is another one in another process:
`_trainable_variables` and `_trainable_variables_indices`. The variables of Keras keep their array
in `_value`.

An error that is raised in a layer is raised again by Keras as another one, which has its first line
and the arguments of the layer. `_keras_call_info_injected` marks those that it has treated so. Ours
have the user's line and what to do, and are marked: they stay as they are.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any  # Any: objects of Keras

import keras

from graphdist.errors import GraphdistError, UnsupportedError
from graphdist.tracing.user_lines import here

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
    """Let an optimizer that was made in another process know its variables."""
    variables = vars(optimizer).get("_trainable_variables", ())
    numbers = {id(variable): number for number, variable in enumerate(variables)}
    vars(optimizer)["_trainable_variables_indices"] = numbers


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
