"""Replicas on several devices, with one copy of each variable, kept on one device."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from graphdist.ir.source import Source
from graphdist.runtime.devices import Devices, find_device, find_devices, working_devices
from graphdist.strategies.base import Strategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.tracing.sources import here


class CentralStorageStrategy(Strategy):
    """Runs one replica on each compute device, with one copy of each variable on another device.

    Between steps a variable lies whole on the parameter device. A step gets it put on all compute
    devices, computes what `MirroredStrategy` would, number for number, and its new value is brought
    back. So the compute devices hold state only while a step uses it, for the price of two
    transfers a step, and a step that fails leaves the variables as they were.

    `compute_devices` are names or `jax.Device`; None means all accelerators or, without any, one
    CPU device. `parameter_device` is by default the compute device if there is one, else the host's
    CPU. Raises `DeviceError`.

    >>> strategy = CentralStorageStrategy(["cpu:0", "cpu:1"])
    >>> strategy.num_replicas_in_sync, strategy.extended.parameter_devices
    (2, ('cpu:0',))
    """

    isolates_session_state = True

    def __init__(
        self,
        compute_devices: Sequence[str | jax.Device] | None = None,
        parameter_device: str | jax.Device | None = None,
    ) -> None:
        """Take the devices."""
        super().__init__(StrategyExtended(central(compute_devices, parameter_device, here())))


def central(
    compute: Sequence[str | jax.Device] | None, parameter: str | jax.Device | None, at: Source
) -> Devices:
    """Return the devices of a strategy with one copy of each variable; `at` is the user's line."""
    devices = working_devices() if compute is None else find_devices(compute, at)
    if parameter is not None:
        home = find_device(parameter, at)
    elif len(devices) == 1:
        home = devices.devices[0]
    else:
        home = find_device("cpu:0", at)
    # A variable of one replica on its own device is moved nowhere.
    return Devices(devices.devices, None if devices.devices == (home,) else home)
