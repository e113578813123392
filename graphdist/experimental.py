"""Names of `tf.distribute.experimental`. graphdist has newer names for the same classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: what users pass as resolver

import jax

from graphdist import coordinator
from graphdist.options import (
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    ValueContext,
)
from graphdist.parameter_server import partitioners
from graphdist.parameter_server.strategy import ParameterServerStrategy
from graphdist.strategies import multi_worker_mirrored, tpu
from graphdist.strategies.central_storage import CentralStorageStrategy
from graphdist.user_warnings import warn_of_older_name

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
    "ValueContext",
    "coordinator",
    "partitioners",
]

CollectiveCommunication = CommunicationImplementation


class _SameClass(type):
    """The metaclass of an older class, for which `isinstance` accepts instances of the newer class.

    The newer class is the base class of the older class.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


class MultiWorkerMirroredStrategy(
    multi_worker_mirrored.MultiWorkerMirroredStrategy, metaclass=_SameClass
):
    """The older form of `gd.MultiWorkerMirroredStrategy`; `isinstance` treats both alike.

    `communication` becomes the `implementation` of the newer class's `CommunicationOptions`.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: Any = None,
        *,
        devices: Sequence[str | jax.Device] | None = None,
    ) -> None:
        """Join the other workers, if there are any, and find the devices of all workers."""
        warn_of_older_name(
            "experimental.MultiWorkerMirroredStrategy", "MultiWorkerMirroredStrategy"
        )
        options = CommunicationOptions(implementation=communication)
        super().__init__(cluster_resolver, options, devices=devices)


class TPUStrategy(tpu.TPUStrategy, metaclass=_SameClass):
    """The older form of `gd.TPUStrategy`; `isinstance` treats both alike.

    `device_assignment` becomes the newer class's `experimental_device_assignment`.
    """

    def __init__(
        self,
        tpu_cluster_resolver: Any = None,
        device_assignment: Any = None,
        *,
        topology: str | None = None,
        num_slices: int = 1,
    ) -> None:
        """Find the devices."""
        warn_of_older_name("experimental.TPUStrategy", "TPUStrategy")
        super().__init__(
            tpu_cluster_resolver, device_assignment, topology=topology, num_slices=num_slices
        )
