"""The 61 tests of tf-keras for models under a strategy, by meaning: ours, or why there is none.

The names are those of `tf_keras/distribute/distribute_strategy_test.py`; where a name is there
twice, a class stands before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import keras
import numpy as np

import graphdist as gd
from tests.keras.models import mirrored

Test = TypeVar("Test", bound=Callable[..., Any])

COVERED: set[str] = set()
"""Names of theirs whose meaning a test of ours has."""


def covers(*names: str) -> Callable[[Test], Test]:
    """Say which of theirs a test stands for."""
    COVERED.update(names)
    return lambda test: test


class Pair:
    """A model on one device and the same model on two replicas."""

    def __init__(self, make: Callable[[], Any], **compiled: Any) -> None:
        self.models = []
        for strategy in (None, mirrored(2)):
            keras.utils.set_random_seed(1)
            with contextlib.nullcontext() if strategy is None else strategy.scope():
                model = make()
                model.compile(**compiled)
            self.models.append(model)
        self._weights = self.models[0].get_weights()

    def begun_again(self) -> Pair:
        """Return the pair with the weights that it began with."""
        for model in self.models:
            model.set_weights(self._weights)
        return self

    def same(self, program: Callable[[Any], Any]) -> Any:
        """Return what a program returns for both models, if it is the same."""
        alone, together = (program(model) for model in self.models)
        for here, there in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-5)
        return together


class Batches(keras.callbacks.Callback):
    """The numbers of the batches of which callbacks are told."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: dict[str, list[int]] = {"train": [], "test": [], "predict": []}
        self.ended: dict[str, list[int]] = {"train": [], "test": [], "predict": []}
        self.epochs = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun["train"].append(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ended["train"].append(batch)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun["test"].append(batch)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ended["test"].append(batch)

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun["predict"].append(batch)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ended["predict"].append(batch)


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def slices(*tensors: Any) -> gd.data.Dataset:
    """Return a dataset of the rows of arrays."""
    return gd.data.Dataset.from_tensor_slices(tensors if len(tensors) > 1 else tensors[0])


NAMES = (
    "test_calculating_input_params_no_steps_no_batch_size",
    "test_calculating_input_params_with_steps_no_batch_size",
    "test_calculating_input_params_no_steps_with_batch_size",
    "test_calculating_input_params_with_steps_with_batch_size",
    "test_calling_model_with_numpy_arrays",
    "test_calling_model_with_mixed_precision",
    "test_operator_overload_mixed_precision",
    "test_calling_model_with_nested_numpy_arrays",
    "test_numpy_with_sample_weights",
    "test_flatten_predict_outputs",
    "test_evaluate_with_partial_batch",
    "test_predict_with_partial_batch",
    "test_no_target_model",
    "test_predict_multi_output_model_with_partial_batch",
    "test_gradients_are_none",
    "test_calling_model_on_same_dataset",
    "test_model_interleaved_eval_same_as_direct_eval",
    "test_fit_with_tuple_and_dict_dataset_inputs",
    "test_fit_with_dictionary_in_the_dataset_b135161171",
    "test_fit_eval_and_predict_methods_on_dataset_without_steps",
    "test_predict_on_dataset_with_unknown_cardinality_without_steps",
    "test_on_dataset_with_unknown_cardinality_without_steps",
    "test_on_dataset_with_unknown_cardinality",
    "test_fit_eval_and_predict_methods_on_dataset",
    "test_fit_eval_and_predict_with_optimizer",
    "test_dataset_wrong_input_shape",
    "test_dataset_external_batch_input_validation",
    "test_learning_phase_value",
    "testOptimizerWithCallbacks",
    "test_evaluate_with_dataset_with_partial_batch",
    "test_predict_with_dataset_with_partial_batch",
    "test_predict_multi_output_model_with_dataset_with_partial_batch",
    "test_match_model_input_matches_with_dataset_tensors",
    "test_dataset_with_sample_weights",
    "test_predict_on_dataset_shard_options_file_multi_worker_mirrored",
    "test_regularizer_loss",
    "test_distribution_strategy_on_sequential_model",
    "test_distribution_strategy_on_functional_model",
    "test_distributed_dataset",
    "test_distributed_datasets_from_function",
    "test_host_training_loop",
    "test_host_training_loop_last_partial_execution",
    "test_host_training_loop_dataset_unknown_size",
    "test_host_training_loop_truncate_to_epoch",
    "test_gradient_clipping",
    "test_custom_gradient_transformation",
    "test_distribution_strategy_one_dimensional",
    "test_distribution_strategy_with_loss_reduction_types",
    "test_distribution_strategy_with_symbolic_add_loss",
    "test_distribution_strategy_with_callable_add_loss",
    "test_distribution_strategy_with_add_metric_in_call",
    "test_distribution_strategy_with_add_metric_object",
    "test_distribution_strategy_with_add_metric_outside_call",
    "test_correctness_of_add_loss_with_merge_call",
    "MultipleAddLossAndMetricCalls.test_fit_and_evaluate",
    "ModelCapturesStrategy.test_fit_and_evaluate",
    "test_optimizer",
)
"""Those that have a counterpart here."""

DECLARED = {
    "test_sparse_tensor_outputs": "JAX programs return no sparse arrays",
    "test_ragged_tensor_outputs": "JAX has no ragged arrays",
    "test_unimplemented_parameter_server_strategy": (
        "`fit` is synchronous: schedule the steps on a `ParameterServerStrategy`"
    ),
    "test_optimizer_in_cross_replica_context_raises_error": (
        "an optimizer works outside `run` too: it applies one gradient for all replicas"
    ),
}
"""Those that are not, each with its reason, which `docs/keras.md` gives too."""
