"""Cases of Keras that cannot or should not behave as TensorFlow's, each with the reason.

Under TensorFlow's CentralStorageStrategy the metrics of Keras were wrong, its weights were not.
"""

from __future__ import annotations

from tests.conformance.patterns import declare
from tests.conformance.reasons import AS_MIRRORED

KERAS = (
    *declare(AS_MIRRORED, "keras/evaluate_partial_batch|central*", at="[{0,1}]"),
    *declare(AS_MIRRORED, "keras/fit_linear_*|central*", at="[0].{loss,mae}*"),
    *declare(AS_MIRRORED, "keras/batch_norm_moving_stats|central*"),
)
