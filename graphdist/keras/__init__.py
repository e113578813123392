"""Keras 3 under every strategy: models made or compiled in a scope train on its replicas.

Import it before a model is made: `import graphdist.keras`. It chooses the JAX backend of Keras,
which is not imported yet or runs on JAX already.
"""

from graphdist.keras.installed import require_keras_on_jax

require_keras_on_jax()

from graphdist.keras.ahead_of_time import training_step  # noqa: E402 - imports Keras
from graphdist.keras.batch_normalization import SynchronizedBatchNormalization  # noqa: E402
from graphdist.keras.combined_state import name_averages_of_keras  # noqa: E402 - imports Keras
from graphdist.keras.losses import divide_losses_by_replicas  # noqa: E402
from graphdist.keras.means_of_numbers import weigh_numbers_by_rows  # noqa: E402
from graphdist.keras.models import distribute, watch_new_models  # noqa: E402 - import Keras
from graphdist.keras.optimizers import sum_gradients_of_replicas  # noqa: E402
from graphdist.keras.placed_variables import variable_of  # noqa: E402
from graphdist.keras.reads_and_writes import store_values_on_strategies  # noqa: E402
from graphdist.keras.sent_objects import send_objects_of_keras  # noqa: E402
from graphdist.keras.traced_state import (  # noqa: E402
    place_variables_while_tracing,
    value_and_grad,
)
from graphdist.keras.unpublished_names import keep_errors_as_they_are  # noqa: E402

keep_errors_as_they_are()
watch_new_models()
store_values_on_strategies()
place_variables_while_tracing()
sum_gradients_of_replicas()
divide_losses_by_replicas()
name_averages_of_keras()
weigh_numbers_by_rows()
send_objects_of_keras()

__all__ = [
    "SynchronizedBatchNormalization",
    "distribute",
    "training_step",
    "value_and_grad",
    "variable_of",
]
