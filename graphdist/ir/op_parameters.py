"""The parameters of our operations: one class for each kind, the table in `ops.py` says which.

Dimensions are counted from 0. Shards lie over a group of replicas: `group_size` counts the replicas
of a group, `num_copies` the groups, each of which holds all shards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from graphdist.ir.arrays import Array
from graphdist.ir.graph import GraphVariable
from graphdist.ir.parameters import Parameters


@dataclass(frozen=True, slots=True, eq=False)
class OfVariable(Parameters):
    """Parameters of a read or an assignment."""

    variable: GraphVariable


@dataclass(frozen=True, slots=True, eq=False)
class Aggregating(OfVariable):
    """Parameters of the reduction of what replicas write to a variable."""

    context: Literal["replica", "cross"]
    """Where the program writes: in a replica function, or in cross-replica context."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OverReplicas(Parameters):
    """Parameters of an operation over all replicas, or over those of each group."""

    group_size: int
    """The number of replicas in a group."""
    num_copies: int = 1
    """The number of groups; 1: all replicas are one."""

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas in all groups."""
        return self.group_size * self.num_copies


@dataclass(frozen=True, slots=True, eq=False)
class Reducing(OverReplicas):
    """Parameters of a reduction over replicas."""

    reducer: str
    """One of `REDUCERS`."""


@dataclass(frozen=True, slots=True, eq=False)
class ReduceScattering(Reducing):
    """Parameters of a reduction of which each replica keeps its shard."""

    axis: int
    """The dimension along which the result is sharded."""
    stages: tuple[int, ...] = field(default=(), kw_only=True)
    """The number of replicas that each stage is over; (): there is one stage, over the group."""


@dataclass(frozen=True, slots=True, eq=False)
class AlongAxis(OverReplicas):
    """Parameters of an operation that takes a shard of a value, or joins the shards."""

    axis: int
    """The dimension along which the value is sharded."""


@dataclass(frozen=True, slots=True, eq=False)
class RandomBits(AlongAxis):
    """Parameters of the random bits of a shard."""

    shape: tuple[int, ...]
    """The shape of the value that is sharded."""
    bit_width: int
    """The bits of an element."""


@dataclass(frozen=True, slots=True, eq=False)
class Gathering(AlongAxis):
    """Parameters of an all_gather."""

    stages: tuple[int, ...] = field(default=(), kw_only=True)
    """The number of replicas that each stage is over, the last stage first; (): there is one stage,
    over the group."""


@dataclass(frozen=True, slots=True, eq=False)
class Permuting(OverReplicas):
    """Parameters of a permutation of the values of replicas."""

    pairs: tuple[tuple[int, int], ...]
    """The indices of a replica that sends and of the one that receives."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchanging(OverReplicas):
    """Parameters of an exchange: each replica sends a part of its value to every replica."""

    split_axis: int
    """The dimension along which a value is split in parts."""
    concat_axis: int
    """The dimension along which the received parts are joined."""


@dataclass(frozen=True, slots=True, eq=False)
class Selecting(OverReplicas):
    """Parameters of selecting the value of one replica."""

    replica: int
    """The index of the replica."""


@dataclass(frozen=True, slots=True, eq=False)
class Holding(Parameters):
    """Parameters of a constant."""

    value: Array
    """An array of numpy; of JAX, if it has random keys."""


@dataclass(frozen=True, slots=True, eq=False)
class Scaling(Parameters):
    """Parameters of a multiplication by a scalar."""

    factor: float


@dataclass(frozen=True, slots=True, eq=False)
class Unpacking(Parameters):
    """Parameters of unpacking a buffer."""

    shapes: tuple[tuple[int, ...], ...]
    """The shapes of the pieces, in order."""
    axes: tuple[int, ...] = field(default=(), kw_only=True)
    """The dimension along which each piece is sharded; (): pieces are distributed as the buffer."""
    num_copies: int = field(default=1, kw_only=True)
    """The number of groups of replicas that hold all shards of the pieces."""
    starts_at_run_time: bool = field(default=False, kw_only=True)
    """Whether XLA learns only at run time where pieces start."""


@dataclass(frozen=True, slots=True, eq=False)
class PackingSlices(OverReplicas):
    """Parameters of packing the shards of several values: all first ones, all second ones, .."""

    axes: tuple[int, ...]
    """The dimension along which each value is sharded."""


@dataclass(frozen=True, slots=True, eq=False)
class UnpackingSlices(OverReplicas):
    """Parameters of unpacking the full values from such a buffer."""

    shapes: tuple[tuple[int, ...], ...]
    """The shapes of the values, in order."""
    axes: tuple[int, ...]
    """The dimension along which each value is sharded."""
    starts_at_run_time: bool = field(default=False, kw_only=True)
    """Whether XLA learns only at run time where shards start."""


@dataclass(frozen=True, slots=True, eq=False)
class Joining(Parameters):
    """Parameters of joining operands, or stacked parts, on each replica."""

    axis: int
    """The dimension along which they are joined."""


@dataclass(frozen=True, slots=True, eq=False)
class Reshaping(Parameters):
    """Parameters of a reshape."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TakingPart(Parameters):
    """Parameters of taking one of several equal parts of a value."""

    axis: int
    """The dimension along which the value is split."""
    count: int
    """The number of parts."""


@dataclass(frozen=True, slots=True, eq=False)
class CountingSteps(Parameters):
    """Parameters of a count of training steps that wraps around."""

    every: int
    """The number of steps after which it is 0 again."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scanning(Parameters):
    """Parameters of a loop of a known number of iterations, over slices of scanned operands."""

    length: int
    """The number of iterations."""
    reverse: bool
    """Whether the first iteration takes the last slices."""
    unroll: int | None = None
    """The number of iterations in one of the compiled loop; None: 1."""
    gather: Literal["once", "each"] | None = None
    """Where the user wants sharded variables gathered: once in front of the loop, or in each
    iteration."""
    steps: bool = False
    """Whether an iteration is a training step, which computes to the bit what it computes alone."""
    num_consts: int
    """The number of operands that all iterations take."""
    num_carry: int
    """The number of values that an iteration passes to the next."""


@dataclass(frozen=True, slots=True, eq=False)
class Looping(Parameters):
    """Parameters of a loop with a condition."""

    num_cond_consts: int
    """The number of operands that the condition takes in all iterations."""
    num_body_consts: int
    """The number of operands that the body takes in all iterations."""


@dataclass(frozen=True, slots=True, eq=False)
class Branching(Parameters):
    """Parameters of a choice between branches."""

    every: int = 1
    """The number of steps of which one takes the last branch."""
