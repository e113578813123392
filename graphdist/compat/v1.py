"""The names of `tf.compat.v1.distribute`: `import graphdist.compat.v1 as gd1`.

Its strategies behave like graphdist's strategies of the same names, and take the same arguments.
They also have TF1's older methods; a method that has a successor warns once. They have neither
`gather` nor `experimental_distribute_values_from_function`. They are no instances of
`graphdist.Strategy`, and graphdist's strategies are no instances of `gd1.Strategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any  # Any: users' pytrees and functions

import jax

from graphdist.context import has_strategy, in_cross_replica_context
from graphdist.data.input_options import InputContext, InputReplicationMode
from graphdist.errors import UnsupportedError
from graphdist.options import (
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    ReduceOp,
    RunOptions,
)
from graphdist.parameter_server.strategy import ParameterServerBase
from graphdist.strategies.base import CommonStrategy
from graphdist.strategies.central_storage import CentralStorageBase
from graphdist.strategies.cross_device_ops import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from graphdist.strategies.current import (
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
)
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.mirrored import MirroredBase
from graphdist.strategies.multi_worker_mirrored import MultiWorkerMirroredBase
from graphdist.strategies.one_device import OneDeviceBase
from graphdist.strategies.replica_context import ReplicaContext
from graphdist.strategies.tpu import TPUBase
from graphdist.user_warnings import warn_of_older_name
from graphdist.values.reducible import Axis

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputReplicationMode",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "experimental",
    "experimental_set_strategy",
    "get_loss_reduction",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]

CollectiveCommunication = CommunicationImplementation
"""The older name of `CommunicationImplementation`."""


class Strategy(CommonStrategy):
    """The base of strategies with the API of TF1."""

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Axis = None) -> Any:
        """Do what `graphdist.Strategy.reduce` does, by default over the replicas alone.

        >>> strategy = MirroredStrategy(["cpu:0", "cpu:1"])
        >>> x = strategy.run(lambda: get_replica_context().replica_id_in_sync_group + 1)
        >>> strategy.reduce("SUM", x)
        Array(3, dtype=int32)
        """
        return super().reduce(reduce_op, value, axis)

    def experimental_run_v2(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Do what `run` does."""
        warn_of_older_name("Strategy.experimental_run_v2", "Strategy.run")
        return self.run(fn, args, kwargs)

    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> Any:
        """Return the dataset of the slices of arrays along dimension 0.

        `session` is accepted, because `tf.distribute` has this argument.
        """
        warn_of_older_name(
            "Strategy.experimental_make_numpy_dataset", "gd.data.Dataset.from_tensor_slices"
        )
        return self.extended.experimental_make_numpy_dataset(numpy_input, session)


class OneDeviceStrategy(OneDeviceBase, Strategy):
    """Runs everything on one device; see `graphdist.OneDeviceStrategy`."""


class MirroredStrategy(MirroredBase, Strategy):
    """Runs one replica on each device; see `graphdist.MirroredStrategy`."""


class CentralStorageStrategy(CentralStorageBase, Strategy):
    """Keeps one copy of each variable; see `graphdist.CentralStorageStrategy`."""


class MultiWorkerMirroredStrategy(MultiWorkerMirroredBase, Strategy):
    """Runs on the devices of one worker; see `graphdist.MultiWorkerMirroredStrategy`.

    `communication` is the implementation of its `CommunicationOptions`.
    """

    def __init__(
        self,
        communication: CommunicationImplementation | str = CommunicationImplementation.AUTO,
        cluster_resolver: Any = None,
        *,
        devices: Sequence[str | jax.Device] | None = None,
    ) -> None:
        """Take the devices of this process."""
        options = CommunicationOptions(implementation=communication)
        super().__init__(cluster_resolver, options, devices=devices)


class ParameterServerStrategy(ParameterServerBase, Strategy):
    """Keeps variables on servers; see `graphdist.ParameterServerStrategy`.

    TF1 runs one such program for each worker. Here one program coordinates the workers, as in
    TF2: give them their work with `gd.coordinator.ClusterCoordinator(strategy)`.
    """

    def __init__(self, cluster_resolver: Any = None, **options: Any) -> None:
        """Start the servers; `graphdist.ParameterServerStrategy` has the same `options`."""
        super().__init__(cluster_resolver, **options)


class TPUStrategy(TPUBase, Strategy):
    """Runs one replica on each TPU core; see `graphdist.TPUStrategy`.

    `device_assignment` is its `experimental_device_assignment`. `steps_per_run` is how many steps
    the TF1 API ran for each call from the host. Here a call runs the function once: only None and 1
    are accepted.
    """

    def __init__(
        self,
        tpu_cluster_resolver: Any = None,
        steps_per_run: int | None = None,
        device_assignment: Any = None,
        *,
        topology: str | None = None,
        num_slices: int = 1,
    ) -> None:
        """Take the devices."""
        if steps_per_run not in (None, 1):
            raise UnsupportedError(
                f"steps_per_run is {steps_per_run!r}, and each call runs the function once",
                hint="write the steps as a loop in the function, with jax.lax.fori_loop",
            )
        super().__init__(
            tpu_cluster_resolver, device_assignment, topology=topology, num_slices=num_slices
        )


def get_loss_reduction() -> ReduceOp:
    """Return how replicas' losses are combined: SUM, as each is divided by the global batch size.

    >>> get_loss_reduction()
    <ReduceOp.SUM: 'SUM'>
    """
    return ReduceOp.SUM


experimental = SimpleNamespace(
    CentralStorageStrategy=CentralStorageStrategy,
    CollectiveCommunication=CollectiveCommunication,
    CollectiveHints=CollectiveHints,
    CommunicationImplementation=CommunicationImplementation,
    CommunicationOptions=CommunicationOptions,
    MultiWorkerMirroredStrategy=MultiWorkerMirroredStrategy,
    ParameterServerStrategy=ParameterServerStrategy,
    TPUStrategy=TPUStrategy,
)
