"""What a strategy is to those below it: devices, the buffers of its variables, and options.

Variables, values and programs belong to a strategy, and need no more of it than this. What it does
for users is in `graphdist.strategies`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any  # Any: values of variables, and resolvers

import jax
import numpy as np

from graphdist.ir.types import PER_REPLICA, Distribution
from graphdist.options import AXIS_NAME, CommunicationOptions, VariableSynchronization
from graphdist.passes import Target
from graphdist.runtime.buffers import BufferStore
from graphdist.runtime.devices import Devices


class StrategyBase:
    """Devices that programs run on, one replica on each, and what is kept on them."""

    is_default = False
    makes_plain_variables = False
    """Whether its variables have one copy, which any other strategy's programs can use."""
    auto_synchronization = VariableSynchronization.AUTO
    """What AUTO is called on its variables; it means ON_WRITE everywhere."""
    cluster_resolver: Any = None
    """What says which processes there are; None when there is one."""
    communication_options = CommunicationOptions()
    """Those of its collectives that are given none."""
    axis_name = AXIS_NAME
    """What collectives of JAX call the replicas: `lax.psum(x, strategy.axis_name)`."""
    shard_update: bool | None = False
    """Whether updates of variables are shared out over the replicas; None: where it is worth it."""
    isolates_session_state = False
    """Whether it sets the option of that name in a configuration of TF1."""

    def __init__(self, devices: Devices) -> None:
        """Take the devices."""
        self.devices = devices
        self.buffers = BufferStore()
        self.global_batch_sizes: set[int] = set()
        """How many rows the first batches of its datasets had, before they were split."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Return the number of replicas."""
        return len(self.devices)

    @property
    def target(self) -> Target:
        """Return what programs of the strategy are compiled for."""
        devices = self.devices
        return Target(
            devices.platform,
            self.shard_update,
            self.communication_options.bytes_per_pack,
            devices.num_slices,
            # A pack is one array of this process, on the devices that compute.
            packs_variables=devices.parameter_device is None and devices.workers is None,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.devices}>"

    def beside(self, other: StrategyBase) -> str:
        """Return what an error calls the strategy that names `other` too."""
        return f"another {self}" if self is not other and str(self) == str(other) else str(self)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call a function once on every replica; every strategy says how."""
        raise NotImplementedError

    def compiled(self, body: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function compiled for the strategy; the package of programs says how."""
        raise NotImplementedError

    def place_variable(self, value: Any, distribution: Distribution) -> Any:
        """Return a buffer of its own for a variable: the value, or PER_REPLICA one copy of it each.

        A value given by its shape, or on devices that are not here, is a shape there too.
        """
        if self.devices.is_absent or isinstance(value, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(value.shape, value.dtype)
        if distribution is not PER_REPLICA:
            home = self.devices.home(distribution)
            return jax.device_put(jax.numpy.array(value, copy=True), home, may_alias=False)
        is_key = jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)  # unknown to numpy
        part = (value if is_key else np.asarray(value)).reshape(value.shape or (1,))
        join: Any = jax.numpy.concatenate if is_key else np.concatenate
        whole = join([part] * self.num_replicas_in_sync)
        return jax.device_put(whole, self.devices.home(distribution), may_alias=False)
