"""Objects of Keras in functions that workers of parameter servers run.

Layers, models, metrics, losses and optimizers are sent to a worker with all their attributes.
Keras's own pickling is not used, because it makes new variables. A Keras variable is placed on a
server before it is sent, and is sent together with its `PlacedVariable`. So the variable has the
same value in the worker. All weights must exist before: a layer that is not built, or an optimizer
without variables, raises an error.
"""

from __future__ import annotations

from typing import Any  # Any: objects of Keras

import keras

from graphdist.errors import ArgumentError
from graphdist.keras.models import STRATEGY_OF_A_MODEL
from graphdist.keras.placed_variables import as_sent
from graphdist.keras.unpublished_names import number_variables_again
from graphdist.parameter_server.pickling import of_other_libraries
from graphdist.parameter_server.strategy import ParameterServerBase
from graphdist.parameter_server.worker import imported_by_workers

_OPTIMIZERS = (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)
_KINDS = (keras.Operation, keras.metrics.Metric, keras.losses.Loss, *_OPTIMIZERS)
_NOT_SENT = ("build", "quantize", STRATEGY_OF_A_MODEL)
"""The methods that Keras wraps in each layer, to prepare and check the making of weights; and the
strategy of a model."""


def reduced(value: Any, strategy: ParameterServerBase) -> Any:
    """Return an object of Keras in pickle's reduced form (`__reduce__`); None for other objects."""
    if isinstance(value, keras.Variable):
        return object.__new__, (type(value),), as_sent(value, strategy), None, None, _restore
    if type(value).__module__.partition(".")[0] == "keras":
        if isinstance(value, list):  # Keras's own class of list, which tracks a layer's parts
            return list, (), None, iter(value)
        if isinstance(value, dict):
            return dict, (), None, None, iter(value.items())
    if not isinstance(value, _KINDS):
        return None
    if not getattr(value, "built", True) and isinstance(value, (keras.layers.Layer, *_OPTIMIZERS)):
        raise _not_built(value)
    attributes = {name: each for name, each in vars(value).items() if name not in _NOT_SENT}
    return object.__new__, (type(value),), attributes, None, None, _restore


def _restore(rebuilt: Any, attributes: dict[str, Any]) -> None:
    vars(rebuilt).update(attributes)
    if isinstance(rebuilt, _OPTIMIZERS):
        number_variables_again(rebuilt)


def _not_built(value: Any) -> ArgumentError:
    is_layer = isinstance(value, keras.layers.Layer)
    kind = "layer" if is_layer else "optimizer"
    how = (
        "call the model once, model(x)"
        if is_layer
        else "optimizer.build(model.trainable_variables)"
    )
    return ArgumentError(
        f"a scheduled function uses {kind} {value.name!r} of Keras, which has no variables yet",
        hint=f"make them before, inside strategy.scope(): {how}",
    )


def send_objects_of_keras() -> None:
    """Let scheduled functions use objects of Keras."""
    if reduced not in of_other_libraries:
        of_other_libraries.append(reduced)
        imported_by_workers.append("graphdist.keras")
