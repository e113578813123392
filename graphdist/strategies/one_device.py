"""One replica on one named device."""

from __future__ import annotations

import jax

from graphdist.ir.source import Source
from graphdist.runtime.devices import Devices, find_device
from graphdist.strategies.base import Strategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.tracing.sources import here


class OneDeviceStrategy(Strategy):
    """Runs everything on one device; values are never wrapped.

    `device` is a name such as "cpu:0", a `jax.Device`, or None for the first one. Raises
    `DeviceError`.

    >>> OneDeviceStrategy("cpu:0").run(lambda x: x + 1, args=(2.0,))
    3.0
    """

    def __init__(self, device: str | jax.Device | None = None) -> None:
        """Take the device."""
        super().__init__(StrategyExtended(one_device(device, here())))


def one_device(device: str | jax.Device | None, at: Source) -> Devices:
    """Return the one device, None for the first local one; `at` is the user's line."""
    return Devices((jax.local_devices()[0] if device is None else find_device(device, at),))
