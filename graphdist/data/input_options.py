"""The options of datasets and of their distribution, and the context of a dataset function."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, NamedTuple  # Any: options before they are checked

from graphdist.errors import ArgumentError
from graphdist.options import member_of
from graphdist.values.distributed import wrong_type


class InputReplicationMode(Enum):
    """How often a dataset function is called.

    PER_WORKER: once per process, for all replicas of the process. PER_REPLICA: once per replica;
    each replica iterates a dataset of its own.
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


class _Fields(NamedTuple):
    experimental_fetch_to_device: bool = True
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1


class InputOptions(_Fields):
    """How elements of a dataset reach the replicas.

    `experimental_fetch_to_device`: put them on the replicas' devices; if not they stay NumPy arrays
    in the memory of the host. `experimental_replication_mode`: how often the function given to
    `distribute_datasets_from_function` is called. `experimental_place_dataset_on_device`: changes
    nothing, since every dataset runs on the host.
    `experimental_per_replica_buffer_size`: how many elements are prepared ahead of the one in use;
    0 is none, -1 leaves the choice to graphdist.

    Raises `ArgumentError` for an unknown replication mode or a buffer size below -1,
    `ArgumentTypeError` for values of another kind.

    >>> InputOptions(experimental_per_replica_buffer_size=4).experimental_fetch_to_device
    True
    """

    __slots__ = ()

    def __new__(
        cls,
        experimental_fetch_to_device: bool | None = None,
        experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
        experimental_place_dataset_on_device: bool = False,
        experimental_per_replica_buffer_size: int = 1,
    ) -> InputOptions:
        """Check the options; None for `experimental_fetch_to_device` means True."""
        fetch = True if experimental_fetch_to_device is None else experimental_fetch_to_device
        place = experimental_place_dataset_on_device
        for name, value in (("fetch_to_device", fetch), ("place_dataset_on_device", place)):
            if not isinstance(value, bool):
                raise wrong_type(f"experimental_{name}", value, "bool", "write True or False")
        mode = member_of(
            InputReplicationMode, experimental_replication_mode, "experimental_replication_mode"
        )
        size = experimental_per_replica_buffer_size
        if isinstance(size, bool) or not isinstance(size, int):
            raise wrong_type("experimental_per_replica_buffer_size", size, "int")
        if size < -1:
            raise ArgumentError(
                f"experimental_per_replica_buffer_size is {size}: it must be at least -1",
                hint="give the number of elements to prepare ahead, or -1 to have it chosen",
            )
        return super().__new__(cls, fetch, mode, place, size)


def checked_input_options(options: Any) -> InputOptions:
    """Return the options, or the default options for None.

    Raises `ArgumentTypeError` for an object of another type.
    """
    if options is not None and not isinstance(options, InputOptions):
        raise wrong_type("options", options, "InputOptions", "write gd.InputOptions(...)")
    return options or InputOptions()


@dataclass(frozen=True)
class InputContext:
    """Which part of the input a dataset function makes.

    The part is pipeline `input_pipeline_id` of `num_input_pipelines`. There is one pipeline per
    process, or one per replica in PER_REPLICA mode and where a replica has several processes.

    >>> context = InputContext(num_replicas_in_sync=4)
    >>> context.get_per_replica_batch_size(32)
    8
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return the batch size of one replica.

        Raises `ArgumentError` when the global batch size does not divide by the number of replicas.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise ArgumentError(
                f"global batch size {global_batch_size} does not divide by "
                f"{self.num_replicas_in_sync} replicas",
                hint=f"use a multiple of {self.num_replicas_in_sync}, "
                f"or experimental_distribute_dataset, which splits any batch",
            )
        return global_batch_size // self.num_replicas_in_sync

    def __str__(self) -> str:
        return (
            f"InputContext(input pipeline id {self.input_pipeline_id}, "
            f"total: {self.num_input_pipelines})"
        )


class AutoShardPolicy(IntEnum):
    """How a dataset is divided among several workers.

    FILE: each worker reads some of the dataset's files. DATA: each worker takes some of the
    elements. AUTO: by file if the dataset reads files, else by element. HINT: `shard(SHARD_HINT,
    SHARD_HINT)` in the dataset becomes the worker's shard. OFF: each worker takes all elements.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class DistributeOptions:
    """The options of a dataset that apply when it is distributed."""

    def __init__(self, auto_shard_policy: AutoShardPolicy | None = None) -> None:
        """Set the policy; None means that of the options that it is merged with, or else AUTO."""
        self._policy = auto_shard_policy

    @property
    def auto_shard_policy(self) -> AutoShardPolicy:
        """Return the policy. Setting an unknown policy raises `ArgumentError`."""
        return AutoShardPolicy.AUTO if self._policy is None else self._policy

    @auto_shard_policy.setter
    def auto_shard_policy(self, policy: Any) -> None:
        """Return the policy. Setting an unknown policy raises `ArgumentError`."""
        self._policy = member_of(AutoShardPolicy, policy, "auto_shard_policy")


class Options:
    """Options of a dataset, for `Dataset.with_options`.

    >>> options = Options()
    >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    >>> options
    Options(auto_shard_policy=OFF)
    """

    def __init__(self) -> None:
        """Begin with no option set."""
        self.experimental_distribute = DistributeOptions()

    def merge(self, options: Options) -> Options:
        """Return new options: those of `self`, overridden by those that `options` sets."""
        merged = Options()
        for source in (self, options):
            policy = source.experimental_distribute._policy
            if policy is not None:
                merged.experimental_distribute.auto_shard_policy = policy
        return merged

    def __repr__(self) -> str:
        return f"Options(auto_shard_policy={self.experimental_distribute.auto_shard_policy.name})"
