"""The parameter classes of our operations; the table in `ops.py` has the class of each operation.

Dimensions are counted from 0. A value is sharded over the replicas of a group, and each of
`num_groups` groups of `group_size` replicas holds all shards.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from graphdist.ir.arrays import Array
from graphdist.ir.graph import GraphVariable
from graphdist.ir.mesh import REPLICA, MeshAxis, MeshShape
from graphdist.ir.parameters import Parameters


class OfVariable(Parameters):
    """Parameters of a read or an assignment."""

    variable: GraphVariable


class Aggregating(OfVariable):
    """Parameters of the aggregation of the values that replicas write to a variable."""

    context: Literal["replica", "cross"]
    """Where the program writes: in a replica function, or in cross-replica context."""


class OverReplicas(Parameters, kw_only=True):
    """Parameters of an operation over the replicas of each group, or over all replicas."""

    group_size: int
    """The number of replicas in a group."""
    num_groups: int = 1
    """The number of groups; 1: all replicas are one group."""

    @property
    def mesh(self) -> MeshShape:
        """Return the shape of the mesh of all groups."""
        return MeshShape(self.group_size * self.num_groups, self.num_groups)

    @property
    def num_shards(self) -> int:
        """Return the number of shards of a value."""
        return self.group_size


class Reducing(OverReplicas):
    """Parameters of a reduction over replicas."""

    reducer: str
    """One of `REDUCERS`."""


class ReduceScattering(Reducing):
    """Parameters of a reduction of whose result each replica keeps one shard."""

    axis: int
    """The dimension along which the result is sharded."""
    stages: tuple[int, ...] = field(default=(), kw_only=True)
    """The number of replicas in each stage; (): one stage over the group."""


class AlongAxis(OverReplicas):
    """Parameters of an operation that takes a shard of a value, or joins the shards."""

    axis: int
    """The dimension along which the value is sharded."""


class OverCores(Parameters, kw_only=True):
    """Parameters of an operation over the cores of each replica."""

    num_cores: int
    """The number of cores of a replica."""

    @property
    def num_shards(self) -> int:
        """Return the number of shards of a value."""
        return self.num_cores


class ReducingOverCores(OverCores):
    """Parameters of a reduction over cores."""

    reducer: Literal["sum", "max", "min"]


class AlongAxisOverCores(OverCores):
    """Parameters of an operation that takes a core's shard of a value, or joins the shards."""

    axis: int
    """The dimension along which the value is sharded."""


class OrderingBlocks(AlongAxisOverCores):
    """Parameters of an operation that puts blocks in the order of cores, or back."""

    blocks: tuple[int, ...]
    """The sizes of the blocks along `axis`, in elements of the full value."""


class ExchangingOverCores(OverCores):
    """Parameters of an exchange of shards between the cores of each replica."""

    split_axis: int
    """The dimension along which the result is sharded."""
    concat_axis: int
    """The dimension along which the operand is sharded."""


class RotatingOverCores(OverCores):
    """Parameters of a rotation of values around the ring of a replica's cores."""

    ahead: int
    """How many places ahead the core is whose value a core gets; less than 0 for behind."""


class SlicingAhead(AlongAxisOverCores):
    """Parameters of the slice of a value that is the shard of another core."""

    ahead: int
    """How many places ahead in the ring the core of the shard is."""


class ExchangingBorders(OverCores):
    """Parameters of an exchange of borders between neighbouring cores."""

    axis: int
    """The dimension along which the value is sharded."""
    before: int
    """The number of elements from the end of the shard in front."""
    after: int
    """The number of elements from the beginning of the shard behind."""
    reducer: str = "sum"
    """How the elements are reduced behind the exchange."""


class SplittingOverCores(OverCores):
    """Parameters of the user's request to shard a value over the cores of each replica."""

    axis: int | None
    """The dimension along which the value is sharded; None: each core has the full value."""


class IntoShards(Parameters):
    """Parameters of rows of indices into a value that is held in shards."""

    component: int
    """The position, in a row of indices, of the index into the sharded dimension."""
    size: int
    """The size of the full dimension."""
    clamps: bool
    """Whether an index out of range means the nearest element."""


class Indexing(IntoShards):
    """Parameters of the indices into an own shard, for indices into the full value."""

    drops: bool = False
    """Whether an index of another shard becomes one out of range, not one of any own element."""
    begins_others: bool = False
    """Whether all other indices of a row become 0, since windows cover their dimensions."""


class IndexingOnCore(Indexing, OverCores):
    """Parameters of the indices into a core's shard."""


class IndexingOnReplica(Indexing, OverReplicas):
    """Parameters of the indices into a replica's shard."""


class KeepingRows(IntoShards):
    """Parameters of keeping what was read of an own shard."""

    offset_dims: tuple[int, ...]
    """The dimensions of the value that are not those of the rows of indices."""
    fill: float | None
    """What shard 0 has for an index out of range; None if there is none."""


class KeepingRowsOfCore(KeepingRows, OverCores):
    """Parameters of keeping what a core has read of its own shard."""


class KeepingRowsOfReplica(KeepingRows, OverReplicas):
    """Parameters of keeping what a replica has read of its own shard."""


class RandomBits(AlongAxis):
    """Parameters of the random bits of a shard."""

    shape: tuple[int, ...]
    """The shape of the full value."""
    bit_width: int
    """The bits of an element."""


class Copying(Parameters):
    """Parameters of a copy between the memories of a device and of its host."""

    memory: Literal["device", "host"]
    """The memory that the copy is in."""


class Gathering(AlongAxis):
    """Parameters of an all_gather."""

    stages: tuple[int, ...] = field(default=(), kw_only=True)
    """The number of replicas in each stage, the last stage first; (): one stage over the group."""


class Permuting(OverReplicas):
    """Parameters of a permutation of the values of replicas."""

    pairs: tuple[tuple[int, int], ...]
    """Pairs of the index of a sending replica and the index of the replica that receives."""


class Exchanging(OverReplicas):
    """Parameters of an exchange: each replica sends a part of its value to every replica."""

    split_axis: int
    """The dimension along which a value is split into parts."""
    concat_axis: int
    """The dimension along which the received parts are joined."""


class Selecting(OverReplicas):
    """Parameters of selecting the value of one replica."""

    replica: int
    """The index of the replica."""


class Holding(Parameters):
    """Parameters of a constant."""

    value: Array
    """An array of numpy, or of JAX if the array holds random keys."""


class Scaling(Parameters):
    """Parameters of a multiplication by a scalar."""

    factor: float


class Unpacking(Parameters):
    """Parameters of unpacking a buffer."""

    shapes: tuple[tuple[int, ...], ...]
    """The shapes of the pieces, in order."""
    axes: tuple[int, ...] = field(default=(), kw_only=True)
    """The dimension along which each piece is sharded; (): pieces have the buffer's layout."""
    over: MeshAxis = field(default=REPLICA, kw_only=True)
    """The axis of the mesh over which pieces are sharded."""
    starts_at_run_time: bool = field(default=False, kw_only=True)
    """Whether XLA learns only at run time where pieces start."""


class PackingSlices(OverReplicas):
    """Parameters of packing several values: all first shards, then all second shards, and so on."""

    axes: tuple[int, ...]
    """The dimension along which each value is sharded."""


class UnpackingSlices(OverReplicas):
    """Parameters of unpacking the full values from a buffer that `pack_slices` packed."""

    shapes: tuple[tuple[int, ...], ...]
    """The shapes of the values, in order."""
    axes: tuple[int, ...]
    """The dimension along which each value is sharded."""
    starts_at_run_time: bool = field(default=False, kw_only=True)
    """Whether XLA learns only at run time where shards start."""


class Joining(Parameters):
    """Parameters of joining operands, or stacked parts, on each replica."""

    axis: int
    """The dimension along which the operands or parts are joined."""


class Reshaping(Parameters):
    """Parameters of a reshape."""

    shape: tuple[int, ...]


class TakingPart(Parameters):
    """Parameters of taking one of several equal parts of a value."""

    axis: int
    """The dimension along which the value is split."""
    count: int
    """The number of parts."""


class TakingAlong(Parameters):
    """Parameters of taking elements by their indices along a dimension."""

    axis: int
    """The dimension."""
    shard: int = 0
    """The number of elements of each shard, of which the value has several along `axis`."""
    added: int = 0
    """What is added for each shard in front of the one that an element is of."""


class CountingSteps(Parameters):
    """Parameters of a count of training steps that wraps around."""

    every: int
    """The number of steps after which the count is 0 again."""


class Scanning(Parameters, kw_only=True):
    """Parameters of a loop of a known number of iterations, over slices of scanned operands."""

    length: int
    """The number of iterations."""
    reverse: bool
    """Whether the first iteration takes the last slices."""
    unroll: int | None = None
    """The number of iterations in one iteration of the compiled loop; None: 1."""
    gather: Literal["once", "each"] | None = None
    """Where the user wants sharded variables gathered: once before the loop, or in each iteration.
    None if the user does not say."""
    steps: bool = False
    """Whether an iteration is a training step, bit-identical to the step outside of a loop."""
    num_consts: int
    """The number of operands that are the same in all iterations."""
    num_carry: int
    """The number of carries."""


class Looping(Parameters):
    """Parameters of a loop with a condition."""

    num_cond_consts: int
    """The number of the condition's operands that are the same in all iterations."""
    num_body_consts: int
    """The number of the body's operands that are the same in all iterations."""


class Branching(Parameters):
    """Parameters of a choice between branches."""

    every: int = 1
    """If over 1, the `cond` is for local steps: its last branch runs in every `every`-th step."""
