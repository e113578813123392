"""Keras 3 under every strategy: models made or compiled in a scope train on its replicas.

Import it before a model is made: `import graphdist.keras`. It chooses the JAX backend of Keras,
which is not imported yet or runs on JAX already.
"""

from graphdist.keras.installed import require_keras_on_jax

require_keras_on_jax()

from graphdist.keras.batch_normalization import SynchronizedBatchNormalization  # noqa: E402
from graphdist.keras.models import distribute, watch_new_models  # noqa: E402 - import Keras

watch_new_models()

__all__ = ["SynchronizedBatchNormalization", "distribute"]
