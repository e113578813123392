"""Cases of several workers that should not behave as TensorFlow's."""

from __future__ import annotations

from tests.conformance.patterns import declare
from tests.conformance.reasons import ALONE_OR_ZERO, EVERYWHERE, NEVER_DIFFER

WORKERS = (
    *declare(EVERYWHERE, "multi_worker/all_reduce_in_{while_graph,nested_tf_function}|*"),
    *declare(
        NEVER_DIFFER,
        "multi_worker/variable_aggregation|*",
        at=".workers[1][{2,3,6}]*",
    ),
    *declare(
        ALONE_OR_ZERO,
        "multi_worker/reduce_python_value|*",
        at=".workers[{0,1}][{0,1}]",
    ),
    *declare(
        "all workers compile one program, in which merge_call sees all replicas",
        "multi_worker/merge_call_per_worker|*",
    ),
    *declare(
        "a failed step never poisons the next one",
        "multi_worker/shape_mismatch_all_reduce|*",
        at=".workers[{0,1}][1]",
    ),
    *declare(
        "how many rows a replica gets is known where drop_remainder says it",
        "multi_worker/dataset_element_spec|*",
        at=".workers[{0,1}][1][0]",
    ),
    *declare(
        "strategy.cluster_resolver is the one that was given",
        "parameter_server/basic_fields|*",
        at="[3]",
    ),
)
