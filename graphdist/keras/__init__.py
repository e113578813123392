"""Keras 3 on every strategy: a model made or compiled in a scope trains on the scope's replicas.

Write `import graphdist.keras` before you make a model. The import selects the JAX backend of Keras.
It raises `UnsupportedError` if Keras already runs on another backend.
"""

from graphdist.keras.installed import require_keras_on_jax

require_keras_on_jax()

from graphdist.keras import (  # noqa: E402 - they import Keras
    automatic_steps,
    combined_state,
    gradients,
    models,
    reads_and_writes,
    sent_objects,
    unpublished_names,
)
from graphdist.keras.batch_normalization import SynchronizedBatchNormalization  # noqa: E402
from graphdist.keras.models import distribute, training_step  # noqa: E402
from graphdist.keras.placed_variables import variable_of  # noqa: E402
from graphdist.keras.reads_and_writes import value_and_grad  # noqa: E402

unpublished_names.keep_errors_as_they_are()
models.train_models_on_strategies()
automatic_steps.join_steps_of_epochs()
reads_and_writes.store_values_on_strategies()
reads_and_writes.place_variables_while_tracing()
gradients.sum_gradients_of_replicas()
gradients.scale_losses_of_replicas()
combined_state.aggregate_averages_of_keras()
sent_objects.send_objects_of_keras()

__all__ = [
    "SynchronizedBatchNormalization",
    "distribute",
    "training_step",
    "value_and_grad",
    "variable_of",
]
