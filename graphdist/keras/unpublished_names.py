"""The names of Keras that graphdist uses although they are not public.

No other module uses such names.

`fit` uses an instance of `DataAdapter` as the adapter of its data. The public kinds of data are no
replacement: a `PyDataset` must say how many batches it has, which is unknown for a filtered
dataset, and a generator ends with the first epoch.

In the method `_get_jax_state` Keras reads all variables before a step, in each epoch and after each
callback that looks at the model. It is replaced because each read of a variable's public `value`
makes a copy, which the step does not need. If Keras has no such method, values are copied, and
nothing else changes.

The class `EpochIterator` counts the steps of an epoch in the method `_enumerate_iterator`. It is
replaced so that the number of steps of an execution can change during an epoch. The attribute
`_num_batches` is the number of batches of the data, if it is known, and `_steps_seen` is how many
were counted since the data began. If Keras has no such method, "auto" means single steps.

An optimizer of Keras finds the index of a variable by the variable's `id`, which differs between
processes: `_trainable_variables` and `_trainable_variables_indices`. A variable of Keras keeps its
array in `_value`.

Keras replaces an error that is raised in a layer by a new error, which has only the first line of
the message and the arguments of the layer. Keras marks the new error by
`_keras_call_info_injected`, and does not replace a marked error. The classes of graphdist's errors
have this mark, so that their line and hint stay.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any  # Any: objects of Keras

import keras

from graphdist.errors import GraphdistError, UnsupportedError

STATE_OF_A_STEP = "_get_jax_state"
"""The method of a model that returns the values which Keras passes to a step."""


STEPS_OF_AN_EPOCH = "_enumerate_iterator"
"""The method of an `EpochIterator` that counts the steps of an epoch."""

TREATED = "_keras_call_info_injected"
"""The attribute that marks errors which Keras does not replace."""
ARRAY_OF_A_VARIABLE = "_value"
"""The attribute of a variable that has its array."""


def keep_errors_as_they_are() -> None:
    """Keep the user's line and the hint in errors of graphdist that are raised in layers."""
    setattr(GraphdistError, TREATED, True)


def steps_left(epoch: Any, step: int) -> list[int]:
    """Return how many steps follow `step` in an epoch, and how many batches in the data, if known.

    Both are numbers of an `EpochIterator` that has just counted `step`.
    """
    batches = vars(epoch)["_num_batches"]
    left = [epoch.steps_per_epoch - step - 1] if epoch.steps_per_epoch else []
    return [*left, batches - vars(epoch)["_steps_seen"]] if batches else left


def number_variables_again(optimizer: Any) -> None:
    """Set the indices by which an optimizer from another process finds its variables."""
    variables = vars(optimizer).get("_trainable_variables", ())
    indices = {id(variable): index for index, variable in enumerate(variables)}
    vars(optimizer)["_trainable_variables_indices"] = indices


def class_of_keras(name: str, module: str) -> Any:
    """Return a class of Keras. Raises `UnsupportedError` if `module` has none of this name."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"Keras {keras.__version__} has no class {name} in {module}",
            hint="install a version of Keras that graphdist was tried with, such as 3.15",
        ) from error


DataAdapter = class_of_keras("DataAdapter", "keras.src.trainers.data_adapters.data_adapter")
EpochIterator = class_of_keras("EpochIterator", "keras.src.trainers.epoch_iterator")
