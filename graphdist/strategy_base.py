"""The part of a strategy that variables, values and programs use: devices, buffers and options.

The modules of variables, values and programs import this class alone. `graphdist.strategies`
derives the users' strategies from this class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any  # Any: values of variables, resolvers, and classes of graphdist.strategies

import jax
import numpy as np

from graphdist.ir.types import PER_REPLICA, Layout
from graphdist.options import AXIS_NAME, CommunicationOptions, VariableSynchronization
from graphdist.passes import Target
from graphdist.passes.logical.local_steps import LocalSteps
from graphdist.passes.pipelines import GATHERED_BYTES
from graphdist.runtime.buffers import BufferStore
from graphdist.runtime.devices import Devices
from graphdist.runtime.resharding import sharded_copy


class StrategyBase:
    """Devices, each of which runs one replica, and the buffers of the variables on them."""

    is_default = False
    makes_plain_variables = False
    """Whether the strategy's variables have one copy, which programs of any strategy can use."""
    auto_synchronization = VariableSynchronization.AUTO
    """The synchronization that variables report for AUTO. AUTO means the same as ON_WRITE."""
    cluster_resolver: Any = None
    """The resolver that knows the processes of the cluster; None for a single process."""
    communication_options = CommunicationOptions()
    """The options of collectives that are called without options."""
    axis_name = AXIS_NAME
    """The axis name of the replicas in collectives of JAX: `lax.psum(x, strategy.axis_name)`."""
    shard_update: bool | None = False
    """Whether each replica updates its own shard of variables; None: only if that saves time."""
    shard_parameters = False
    """Whether mirrored variables are stored in shards, one per replica, from their creation."""
    local_steps: LocalSteps | None = None
    """The pass that lets replicas run local steps; None: all replicas run the same step."""
    keeps_one_value = False
    """Whether variables have one value for all replicas, whatever their synchronization."""
    isolates_session_state = False
    """Whether `update_config_proto` sets TF1's option `isolate_session_state`."""
    cross_device_ops: Any = None
    """The `CrossDeviceOps` that the user gave the strategy."""

    # `graphdist.strategies.base` defines the attributes below. Modules that it imports use them.
    run: Callable[..., Any]
    """Calls a function once on every replica."""
    reduce: Callable[..., Any]
    """Returns the sum or mean over the replicas of every `PerReplica` leaf of a value."""
    experimental_local_results: Callable[..., tuple[Any, ...]]
    """Returns this process's components of a value."""
    compiled: Callable[..., Callable[..., Any]]
    """Returns a function compiled for the strategy."""
    implicit: Any
    """The `ImplicitFunctions` that are compiled for calls outside functions."""

    def __init__(self, devices: Devices) -> None:
        """Store the devices, and begin without variables."""
        self.devices = devices
        self.buffers = BufferStore()
        self.global_batch_sizes: set[int] = set()
        """The numbers of rows of the first global batch of each dataset that was distributed."""

    @property
    def extended(self) -> Any:
        """Return the `StrategyExtended`; `graphdist.strategies.base` defines this property."""
        raise NotImplementedError

    @property
    def num_replicas_in_sync(self) -> int:
        """Return the number of replicas."""
        return len(self.devices)

    @property
    def target(self) -> Target:
        """Return the target for which programs of the strategy are compiled."""
        devices = self.devices
        return Target(
            devices.platform,
            self.shard_update,
            self.communication_options.bytes_per_pack,
            devices.num_slices,
            devices.are_three_dimensional,
            # A pack is one array of this process, on the devices that run the steps.
            packs_variables=devices.parameter_device is None and devices.workers is None,
            shard_parameters=self.shard_parameters,
            gathered_bytes=devices.memory_bytes // 8 or GATHERED_BYTES,
            local_steps=self.local_steps,
            num_cores=devices.num_cores,
            is_of_one_process=devices.are_of_one_process,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.devices}>"

    def beside(self, other: StrategyBase) -> str:
        """Return the strategy's name in an error that also names `other`."""
        return f"another {self}" if self is not other and str(self) == str(other) else str(self)

    def variable_in_shards(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the sharded variable for `Variable(*args, **kwargs)`; None if it is unsharded."""
        return None

    def storage_elsewhere(self, name: str, value: Any) -> Any:
        """Return the storage of a new variable whose value is not on these devices, or None."""
        return None

    def program_of(self, traced: Any, compiled: Callable[[Any], Any]) -> Any:
        """Return the program of a traced function.

        `compiled(traced)` compiles a program for variables on these devices.
        """
        return compiled(traced)

    def place_variable(self, value: Any, layout: Layout) -> Any:
        """Return a new buffer with the value; a PER_REPLICA buffer has a copy for each replica.

        No device receives more than its shard of a sharded buffer. If the value is a shape, or the
        devices are absent, the result is a shape.
        """
        if self.devices.is_absent or isinstance(value, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(value.shape, value.dtype)
        if layout.dimension is not None or layout.core is not None:
            return sharded_copy(value, self.devices.home(layout))
        if layout is not PER_REPLICA:
            home = self.devices.home(layout)
            # Steps donate the buffer, so no other array may hold its memory.
            return jax.device_put(jax.numpy.array(value, copy=True), home, may_alias=False)
        is_key = jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)  # unknown to numpy
        part = (value if is_key else np.asarray(value)).reshape(value.shape or (1,))
        join: Any = jax.numpy.concatenate if is_key else np.concatenate
        copies = join([part] * self.num_replicas_in_sync)
        return jax.device_put(copies, self.devices.home(layout), may_alias=False)
