"""The parameters of our operations: one class for each kind, the table in `ops.py` says which.

Replicas are counted in groups: where slices are shared out over groups of replicas, `group_size` is
the replicas of one group and `num_copies` counts the groups, each of which holds all slices.
Dimensions are counted from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from graphdist.ir.arrays import Array
from graphdist.ir.graph import GraphVariable
from graphdist.ir.parameters import Parameters


@dataclass(frozen=True, slots=True, eq=False)
class OfVariable(Parameters):
    """Of what reads or assigns a variable."""

    variable: GraphVariable


@dataclass(frozen=True, slots=True, eq=False)
class Aggregating(OfVariable):
    """Of the value to write to a variable, made of those that the replicas have."""

    context: Literal["replica", "cross"]
    """Who writes: each replica, or one program for all of them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OverReplicas(Parameters):
    """Of what is about all replicas, or about those of each group."""

    group_size: int
    """The replicas of a group."""
    num_copies: int = 1
    """The groups; 1: all replicas are one group."""

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas in all groups."""
        return self.group_size * self.num_copies


@dataclass(frozen=True, slots=True, eq=False)
class Reducing(OverReplicas):
    """Of a reduction over replicas."""

    reducer: str
    """One of `REDUCERS`."""


@dataclass(frozen=True, slots=True, eq=False)
class ReduceScattering(Reducing):
    """Of a reduction of which each replica keeps a slice."""

    axis: int
    """The dimension that is cut."""
    stages: tuple[int, ...] = field(default=(), kw_only=True)
    """The replicas of a group in each stage; (): all at once."""


@dataclass(frozen=True, slots=True, eq=False)
class AlongAxis(OverReplicas):
    """Of what cuts a value in slices, or joins them."""

    axis: int
    """The dimension that is cut."""


@dataclass(frozen=True, slots=True, eq=False)
class Gathering(AlongAxis):
    """Of a gather, which may take several stages, the last first."""

    stages: tuple[int, ...] = field(default=(), kw_only=True)
    """The replicas of a group in each stage; (): all at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Permuting(OverReplicas):
    """Of values that replicas send to each other."""

    pairs: tuple[tuple[int, int], ...]
    """The replicas that send, each with the one that receives."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchanging(OverReplicas):
    """Of values of which each replica sends a part to every replica."""

    split_axis: int
    """The dimension that is cut in parts."""
    concat_axis: int
    """The dimension along which what was received is joined."""


@dataclass(frozen=True, slots=True, eq=False)
class Selecting(OverReplicas):
    """Of the value of one replica."""

    replica: int


@dataclass(frozen=True, slots=True, eq=False)
class Holding(Parameters):
    """Of a constant."""

    value: Array
    """An array of numpy; random keys are one of JAX."""


@dataclass(frozen=True, slots=True, eq=False)
class Scaling(Parameters):
    """Of a product with a number."""

    factor: float


@dataclass(frozen=True, slots=True, eq=False)
class Unpacking(Parameters):
    """Of the pieces of a buffer."""

    shapes: tuple[tuple[int, ...], ...]
    """Of the pieces, in order."""
    axes: tuple[int, ...] = field(default=(), kw_only=True)
    """The dimension along which each piece is a slice; (): the pieces are what the buffer is."""
    num_copies: int = field(default=1, kw_only=True)
    """The groups of replicas that each hold all of these slices."""
    starts_at_run_time: bool = field(default=False, kw_only=True)
    """Whether to keep from XLA where the pieces start."""


@dataclass(frozen=True, slots=True, eq=False)
class PackingSlices(OverReplicas):
    """Of a buffer of slices: all first slices of several values, then all second ones, .."""

    axes: tuple[int, ...]
    """The dimension that is cut, of each value."""


@dataclass(frozen=True, slots=True, eq=False)
class UnpackingSlices(OverReplicas):
    """Of the full values in such a buffer."""

    shapes: tuple[tuple[int, ...], ...]
    """Of the values, in order."""
    axes: tuple[int, ...]
    """The dimension that is cut, of each value."""
    starts_at_run_time: bool = field(default=False, kw_only=True)
    """Whether to keep from XLA where the slices start."""


@dataclass(frozen=True, slots=True, eq=False)
class Joining(Parameters):
    """Of operands, or parts, that are joined on each replica."""

    axis: int
    """The dimension along which they are joined."""


@dataclass(frozen=True, slots=True, eq=False)
class Reshaping(Parameters):
    """Of the elements of a value in another shape."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TakingPart(Parameters):
    """Of one of several equal parts of a value."""

    axis: int
    """The dimension that is cut."""
    count: int
    """The number of parts."""


@dataclass(frozen=True, slots=True, eq=False)
class CountingSteps(Parameters):
    """Of a count of steps that begins again."""

    every: int
    """The steps after which it does."""


@dataclass(frozen=True, slots=True, eq=False)
class Pulling(Parameters):
    """Of what a worker reads on a parameter server."""

    bytes: int
    """The bytes that are sent to the worker."""
    fill: float | bool | None = None
    """The number in rows that are not there; None: the nearest row stands for these."""
    server: int | None = None
    """The number of the server."""


@dataclass(frozen=True, slots=True, eq=False)
class Pushing(Parameters):
    """Of an update that a parameter server makes."""

    num_variables: int
    """The operands that are variables of the server, which are the first."""
    bytes: int
    """The bytes that the worker sends."""
    server: int | None = None
    """The number of the server."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scanning(Parameters):
    """Of a loop over the slices of some operands."""

    length: int
    """The number of iterations."""
    reverse: bool
    """Whether the first iteration takes the last slices."""
    unroll: int | None = None
    """The iterations that one of the compiled loop computes; None: 1."""
    gather: Literal["once", "each"] | None = None
    """How often variables in slices are gathered, if the user says it: once in front of the loop,
    or in each iteration."""
    steps: bool = False
    """Whether each iteration is a step of training, which computes what it computes alone."""
    num_consts: int
    """The operands that all iterations take."""
    num_carry: int
    """The values that each iteration passes to the next."""


@dataclass(frozen=True, slots=True, eq=False)
class Looping(Parameters):
    """Of a loop with a condition."""

    num_cond_consts: int
    """The operands that the condition alone takes, in all iterations."""
    num_body_consts: int
    """The operands that the body alone takes, in all iterations."""


@dataclass(frozen=True, slots=True, eq=False)
class Branching(Parameters):
    """Of a choice among branches."""

    every: int = 1
    """One in so many steps takes the last branch."""
