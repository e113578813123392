"""The names of `tf.distribute.coordinator`: functions that a coordinator schedules on workers."""

from graphdist.parameter_server.closures import RemoteValue
from graphdist.parameter_server.cluster_coordinator import ClusterCoordinator
from graphdist.parameter_server.input import PerWorkerValues
from graphdist.parameter_server.messages import Traffic
from graphdist.parameter_server.worker import (
    current_worker_index as experimental_get_current_worker_index,
)

__all__ = [
    "ClusterCoordinator",
    "PerWorkerValue",
    "PerWorkerValues",
    "RemoteValue",
    "Traffic",
    "experimental_get_current_worker_index",
]

PerWorkerValue = PerWorkerValues
"""The newer name of `PerWorkerValues`."""
