"""Replicas on several devices, with a single copy of each variable, stored on one device."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from graphdist.options import AXIS_NAME, checked_axis_name
from graphdist.runtime.devices import Devices, find_device, find_devices, working_devices
from graphdist.strategies.base import CommonStrategy, Strategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.workers_of_job import NAME_DEVICES, require_all_processes
from graphdist.tracing.user_lines import here


class CentralStorageBase(CommonStrategy):
    """The part of `CentralStorageStrategy` that its form in `graphdist.compat.v1` shares."""

    isolates_session_state = True

    def __init__(
        self,
        compute_devices: Sequence[str | jax.Device] | None = None,
        parameter_device: str | jax.Device | None = None,
        *,
        axis_name: str = AXIS_NAME,
    ) -> None:
        """Find the devices."""
        self.axis_name = checked_axis_name(axis_name)
        at = here()
        if compute_devices is None:
            require_all_processes(
                "CentralStorageStrategy", NAME_DEVICES.replace("devices=", "compute_devices=")
            )
            devices = working_devices()
        else:
            devices = find_devices(compute_devices, at)
        if parameter_device is not None:
            home = find_device(parameter_device, at)
        else:
            home = devices.devices[0] if len(devices) == 1 else find_device("cpu:0", at)
        # If the parameter device is the only compute device, variables are never copied.
        is_at_home = devices.devices == (home,)
        super().__init__(StrategyExtended(Devices(devices.devices, None if is_at_home else home)))


class CentralStorageStrategy(CentralStorageBase, Strategy):
    """Runs one replica on each compute device, with one copy of each variable on another device.

    Between steps a variable is stored on the parameter device. For a step it is copied to all
    compute devices. The step computes exactly the results of `MirroredStrategy`, and the new value
    is copied back. So the compute devices hold state only while a step uses it, at the cost of the
    copies. All replicas' copies of ON_READ variables are stored on the parameter device, too.

    `compute_devices` are names or `jax.Device`; None means all accelerators or, without any, one
    CPU device. `parameter_device` is by default the only compute device, or else the host's CPU.
    `axis_name` is the replicas' axis name in collectives of JAX. Raises `DeviceError`.

    >>> strategy = CentralStorageStrategy(["cpu:0", "cpu:1"])
    >>> strategy.num_replicas_in_sync, strategy.extended.parameter_devices
    (2, ('cpu:0',))
    """
