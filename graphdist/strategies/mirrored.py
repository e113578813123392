"""One replica on each device of this host, variables mirrored on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from graphdist.runtime.devices import find_devices
from graphdist.strategies.base import Strategy
from graphdist.tracing.sources import here


class MirroredStrategy(Strategy):
    """Runs one replica on each device, with variables mirrored on all of them.

    `devices` names them ("cpu:0", "gpu:1", or `jax.Device`); None or an empty list means all local
    devices. `cross_device_ops` is accepted for `tf.distribute`'s sake: XLA chooses the algorithms.
    Raises `DeviceError` for devices that are not there, are named twice, or are of several
    platforms.

    >>> MirroredStrategy(["cpu:0", "cpu:1"]).num_replicas_in_sync
    2
    """

    def __init__(
        self, devices: Sequence[str | jax.Device] | None = None, cross_device_ops: Any = None
    ) -> None:
        """Take the devices."""
        super().__init__(find_devices(devices, here()))
