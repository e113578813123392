"""One replica on each device of this host, variables mirrored on all of them."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from graphdist.cross_device_ops import CrossDeviceOps, checked_ops
from graphdist.options import VariableSynchronization
from graphdist.runtime.devices import find_devices
from graphdist.strategies.base import Strategy, StrategyBase
from graphdist.strategies.extended import StrategyExtended
from graphdist.tracing.sources import here


class MirroredBase(StrategyBase):
    """A mirrored strategy, with the methods of one API or the other."""

    isolates_session_state = True
    auto_synchronization = VariableSynchronization.ON_WRITE

    def __init__(
        self,
        devices: Sequence[str | jax.Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
    ) -> None:
        """Take the devices."""
        super().__init__(StrategyExtended(find_devices(devices, here())))
        self.cross_device_ops = checked_ops(cross_device_ops)


class MirroredStrategy(MirroredBase, Strategy):
    """Runs one replica on each device, with variables mirrored on all of them.

    `devices` names them ("cpu:0", "gpu:1", or `jax.Device`); None or an empty list means all local
    devices. `cross_device_ops` is a hint: see `gd.CrossDeviceOps`. Raises `DeviceError` for devices
    that are not there, are named twice, or are of several platforms, `ArgumentTypeError` for what
    is no `CrossDeviceOps`.

    >>> MirroredStrategy(["cpu:0", "cpu:1"]).num_replicas_in_sync
    2
    """
