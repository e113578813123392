"""The options of a dataset: how its elements are divided among workers."""

from __future__ import annotations

from enum import IntEnum
from typing import Any  # Any: a policy before it is checked

from graphdist.options import member_of


class AutoShardPolicy(IntEnum):
    """How a dataset is divided among several workers.

    FILE: each worker reads some of the dataset's files. DATA: each takes some of the elements.
    AUTO: by file if the dataset reads files, else by element. HINT: `shard(SHARD_HINT, SHARD_HINT)`
    in the dataset becomes the worker's shard. OFF: each worker takes everything.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class DistributeOptions:
    """Options that matter when a dataset is distributed."""

    def __init__(self, auto_shard_policy: AutoShardPolicy | None = None) -> None:
        """Set the policy; None is the policy of the options this is merged with, or else AUTO."""
        self._policy = auto_shard_policy

    @property
    def auto_shard_policy(self) -> AutoShardPolicy:
        """Return the policy; it can be set, which raises `ArgumentError` for an unknown one."""
        return AutoShardPolicy.AUTO if self._policy is None else self._policy

    @auto_shard_policy.setter
    def auto_shard_policy(self, policy: Any) -> None:
        self._policy = member_of(AutoShardPolicy, policy, "auto_shard_policy")


class Options:
    """Options of a dataset, for `Dataset.with_options`.

    >>> options = Options()
    >>> options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF
    >>> options
    Options(auto_shard_policy=OFF)
    """

    def __init__(self) -> None:
        """Set nothing."""
        self.experimental_distribute = DistributeOptions()

    def merge(self, options: Options) -> Options:
        """Return new options: these, overridden by what `options` sets."""
        merged = Options()
        for given in (self, options):
            policy = given.experimental_distribute._policy
            if policy is not None:
                merged.experimental_distribute.auto_shard_policy = policy
        return merged

    def __repr__(self) -> str:
        return f"Options(auto_shard_policy={self.experimental_distribute.auto_shard_policy.name})"
