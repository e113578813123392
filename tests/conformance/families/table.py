"""Families of recorded cases and the functions that run them."""

from __future__ import annotations

from tests.conformance.environment import Program
from tests.conformance.families import (
    checkpoints,
    collectives,
    construct,
    contexts,
    control_flow,
    datasets,
    extended,
    input,
    keras,
    legacy,
    merge_call,
    multi_worker,
    random_and_loss,
    reduce,
    resolvers,
    run,
    values,
    variable_matrix,
    variables,
)

FAMILIES: dict[str, Program] = {
    "reduce": reduce.reduce,
    "gather": reduce.gather,
    "values_from_function": values.values_from_function,
    "value_context": values.value_context,
    "local_results": values.local_results,
    "perreplica": values.perreplica,
    "input_context": construct.input_context,
    "run_options": construct.run_options,
    "communication_options": construct.communication_options,
    "collective_hints": construct.collective_hints,
    "reduce_op": construct.reduce_op,
    "construct": construct.construct,
    "run": run.run,
    "control_flow": control_flow.control_flow,
    "all_reduce": collectives.all_reduce,
    "all_gather": collectives.all_gather,
    "merge_call": merge_call.merge_call,
    "context": contexts.context_family,
    "variable": variables.variable,
    "variable_matrix": variable_matrix.variable_matrix,
    "variable_matrix_function": variable_matrix.variable_matrix_function,
    "variable_scatter": variable_matrix.variable_scatter,
    "dataset": datasets.dataset,
    "dataset_spec": datasets.dataset_spec,
    "dataset_from_function": input.dataset_from_function,
    "input_options": input.input_options,
    "batch_sizes_for_worker": input.batch_sizes_for_worker,
    "auto_shard": input.auto_shard,
    "cross_device_ops": extended.cross_device_ops,
    "extended": extended.extended,
    "random": random_and_loss.random,
    "loss": random_and_loss.loss,
    "checkpoint": checkpoints.checkpoint,
    "keras": keras.keras_family,
    "legacy": legacy.legacy,
    "legacy_v1_class": legacy.legacy_v1_class,
    "resolver": resolvers.resolver,
    "multi_worker": multi_worker.multi_worker,
    "multi_worker_util": resolvers.multi_worker_util,
}

LATER = frozenset(
    {
        "parameter_server",
        "partitioner",
        "sharded_variable",
    }
)
"""Families of parts that come later: their cases are counted, not run."""
