"""Names that `tf.distribute.experimental` has, where graphdist has them under newer names too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: what users pass as resolver

import jax

from graphdist.deprecation import warn_once
from graphdist.options import (
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    ValueContext,
)
from graphdist.strategies import multi_worker_mirrored
from graphdist.strategies.central_storage import CentralStorageStrategy

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ValueContext",
]

CollectiveCommunication = CommunicationImplementation


class _SameClass(type):
    """The class of a class that has the instances of the newer one too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, multi_worker_mirrored.MultiWorkerMirroredStrategy)


class MultiWorkerMirroredStrategy(
    multi_worker_mirrored.MultiWorkerMirroredStrategy, metaclass=_SameClass
):
    """The older form of `gd.MultiWorkerMirroredStrategy`, which has the same instances.

    `communication` is the implementation of its `CommunicationOptions`.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: Any = None,
        *,
        devices: Sequence[str | jax.Device] | None = None,
    ) -> None:
        """Take the devices of this process."""
        warn_once("experimental.MultiWorkerMirroredStrategy", "MultiWorkerMirroredStrategy")
        options = CommunicationOptions(implementation=communication)
        super().__init__(cluster_resolver, options, devices=devices)
