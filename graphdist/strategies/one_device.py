"""One replica on one named device."""

from __future__ import annotations

import jax

from graphdist.options import AXIS_NAME, checked_axis_name
from graphdist.runtime.devices import Devices, find_device
from graphdist.strategies.base import CommonStrategy, Strategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import wrong_type


class OneDeviceBase(CommonStrategy):
    """The part of `OneDeviceStrategy` that its form in `graphdist.compat.v1` shares."""

    has_input_per_replica = False
    makes_plain_variables = True

    def __init__(
        self, device: str | jax.Device | None = None, *, axis_name: str = AXIS_NAME
    ) -> None:
        """Find the device."""
        self.axis_name = checked_axis_name(axis_name)
        if not isinstance(device, str | jax.Device | None):
            hint = "for several devices make a gd.MirroredStrategy"
            raise wrong_type("device", device, "a name or a jax.Device", hint)
        chosen = jax.local_devices()[0] if device is None else find_device(device, here())
        super().__init__(StrategyExtended(Devices((chosen,))))


class OneDeviceStrategy(OneDeviceBase, Strategy):
    """Runs everything on one device; values are never wrapped.

    `device` is a name such as "cpu:0", a `jax.Device`, or None for the first device. Collectives
    over `axis_name` are over one replica, and change nothing. Raises `DeviceError` if the device
    does not exist, and `ArgumentTypeError` for anything but a device or a name.

    >>> OneDeviceStrategy("cpu:0").run(lambda x: x + 1, args=(2.0,))
    3.0
    """
