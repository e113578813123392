"""Random programs in the strategy's words: run, reduce, gather, collectives, variables.

1. What a replica function may contain depends on where it stands: no write under `vmap`, and
   no read in a branch there, no variable in a checkpoint, no collective where replicas may take
   different ways.
2. Numbers stay whole: what is averaged is a multiple of 12, which every number of replicas from 1
   to 4 divides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any  # Any: distributed values

import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

import graphdist as gd
from graphdist import VariableAggregation as Aggregation
from graphdist import VariableSynchronization as Synchronization
from tests.properties.exact import SIZE, Array, Kind, bounded, random_arrays, whole
from tests.properties.programs import VECTORS, Maker
from tests.properties.steps import Body

AXIS = "replica"
DIVISIBLE = 12
AVERAGED = ("f32", "i32")
PER_REPLICA: tuple[Kind, ...] = (("f32", 1), ("f32", 2), ("i32", 0), ("bool", 1))
MIRRORED: tuple[Kind, ...] = (("f32", 1), ("i32", 0), ("bf16", 1))


@dataclass(frozen=True)
class Declared:
    """How a variable is declared."""

    kind: Kind
    synchronization: Synchronization
    aggregation: Aggregation

    @property
    def is_mirrored(self) -> bool:
        return self.synchronization is not Synchronization.ON_READ


_ON_WRITE, _ON_READ = Synchronization.ON_WRITE, Synchronization.ON_READ
VARIABLES = (
    Declared(("f32", 1), _ON_WRITE, Aggregation.MEAN),
    Declared(("i32", 0), _ON_WRITE, Aggregation.SUM),
    Declared(("f32", 0), _ON_WRITE, Aggregation.ONLY_FIRST_REPLICA),
    Declared(("bool", 1), _ON_WRITE, Aggregation.ONLY_FIRST_REPLICA),
    Declared(("f32", 1), Synchronization.AUTO, Aggregation.NONE),
    Declared(("f32", 1), _ON_READ, Aggregation.SUM),
    Declared(("f32", 0), _ON_READ, Aggregation.MEAN),
    Declared(("i32", 1), _ON_READ, Aggregation.ONLY_FIRST_REPLICA),
    Declared(("i32", 0), _ON_READ, Aggregation.NONE),
)


class World:
    """The variables that programs use, made for the strategy of a run."""

    def __init__(self) -> None:
        self.variables: list[gd.Variable] = []

    def make(self, strategy: gd.Strategy, seed: int) -> dict[str, Array]:
        """Make the variables and return their initial values, the same for the same seed."""
        values = random_arrays([declared.kind for declared in VARIABLES], seed)
        with strategy.scope():
            self.variables = [
                gd.Variable(
                    value,
                    name=f"v{number}",
                    synchronization=declared.synchronization,
                    aggregation=declared.aggregation,
                )
                for number, (declared, value) in enumerate(zip(VARIABLES, values, strict=True))
            ]
        return {f"v{number}": value for number, value in enumerate(values)}


def spread(x: Array) -> Array:
    """Return numbers whose mean over the replicas is whole; flags as they are."""
    return x if x.dtype == jnp.bool_ else DIVISIBLE * x


def part(gathered: Array, axis: int, is_last: bool) -> Array:
    """Return as much of what was gathered as one replica gave: the end, or a bit of everyone's."""
    length = gathered.shape[axis]
    if is_last:
        return lax.slice_in_dim(gathered, length - SIZE, length, axis=axis)
    return lax.slice_in_dim(gathered, 0, length, length // SIZE, axis)


class StatefulMaker(Maker):
    """A program in cross-replica context, which may read and assign variables."""

    def __init__(
        self,
        draw: st.DrawFn,
        takes: Sequence[Kind],
        depth: int,
        world: World,
        *,
        in_reverse: bool = False,
        reads: bool = True,
        writes: bool = True,
        communicates: bool = True,
        is_mapped: bool = False,
    ) -> None:
        super().__init__(draw, takes, depth, in_reverse)
        self.world = world
        self.reads = reads
        self.writes = writes
        self.communicates = communicates
        self.is_mapped = is_mapped

    def inside(self, within: str, takes: Sequence[Kind], in_reverse: bool) -> Maker:
        is_without_state = within == "checkpoint" or (self.is_mapped and within == "branch")
        reads = self.reads and not is_without_state
        return type(self)(
            self.draw,
            takes,
            self.depth - 1,
            self.world,
            in_reverse=in_reverse,
            reads=reads,
            writes=self.writes and reads and within not in ("vmap", "test"),
            communicates=self.communicates and self.is_uniform(within),
            is_mapped=self.is_mapped or within == "vmap",
        )

    def is_uniform(self, within: str) -> bool:
        """Return whether all replicas take the same way into such a part of the program."""
        return True

    def menu(self) -> list[Callable[[], object]]:
        return super().menu() + [self.read] * 3 * self.reads + [self.write] * 3 * self.writes

    def is_readable(self, declared: Declared) -> bool:
        return declared.is_mirrored or declared.aggregation is not Aggregation.NONE

    def is_writable(self, declared: Declared, method: str) -> bool:
        is_total = not declared.is_mirrored and declared.aggregation is Aggregation.SUM
        return self.is_readable(declared) and not (is_total and method != "assign")

    def read(self) -> None:
        fitting = [i for i, declared in enumerate(VARIABLES) if self.is_readable(declared)]
        number = self.choose(*fitting)
        world, kind = self.world, VARIABLES[number].kind
        self.add(f"read v{number}", lambda: [bounded(world.variables[number].value())], [], kind)

    def write(self) -> None:
        method = self.choose("assign", "assign_add", "assign_sub")
        fitting = [
            number
            for number, declared in enumerate(VARIABLES)
            if self.is_writable(declared, method)
            and (method == "assign" or declared.kind[0] != "bool")
        ]
        if not fitting:
            return
        number = self.choose(*fitting)
        world, kind = self.world, VARIABLES[number].kind
        value = self.assigned(VARIABLES[number])

        def call(x: Array) -> list[Array]:
            return [bounded(getattr(world.variables[number], method)(spread(x)))]

        self.add(f"{method} v{number}", call, [value], kind)

    def assigned(self, declared: Declared) -> int:
        """Return the value to assign to a variable."""
        return self.of(declared.kind)


class ReplicaMaker(StatefulMaker):
    """A replica function, which may communicate where all replicas come along."""

    is_next_uniform = False

    def is_uniform(self, within: str) -> bool:
        return within not in ("while", "test") and (within != "branch" or self.is_next_uniform)

    def menu(self) -> list[Callable[[], object]]:
        menu = [*super().menu(), self.replica_id]
        collectives = [self.all_reduce, self.all_reduce_mean, self.all_gather, self.by_axis_name]
        return menu + collectives * self.communicates * 2

    def is_readable(self, declared: Declared) -> bool:
        return True

    def is_writable(self, declared: Declared, method: str) -> bool:
        return self.communicates or not declared.is_mirrored

    def assigned(self, declared: Declared) -> int:
        value = self.of(declared.kind)
        if declared.is_mirrored and declared.aggregation is Aggregation.NONE:
            return self.total(value)
        return value

    def one_of(self, name: str, index: int, kept: Sequence[int], count: int) -> None:
        """Let all replicas take the same branch, or each its own, which must not communicate."""
        self.is_next_uniform = self.communicates and self.choose(True, False)
        if self.is_next_uniform:
            index = self.total(index)
        super().one_of(name, index, kept, count)

    def total(self, place: int) -> int:
        """Return the sum of a value over the replicas."""
        kind = self.kinds[place]

        def call(x: Array) -> list[Array]:
            context = gd.get_replica_context()
            if x.dtype == jnp.bool_:
                return [context.all_reduce("SUM", x.astype(jnp.int32)) > 1]
            return [bounded(context.all_reduce("SUM", x))]

        return self.add("all_reduce", call, [place], kind)

    def replica_id(self) -> None:
        def call() -> list[Array]:
            return [jnp.int32(gd.get_replica_context().replica_id_in_sync_group)]

        self.add("replica_id", call, [], ("i32", 0))

    def all_reduce(self) -> None:
        self.total(self.any())

    def all_reduce_mean(self) -> None:
        """Add the means of two values at once."""
        x, y = self.any(AVERAGED), self.any(AVERAGED)
        gives = [("f32", rank) for _, rank in self.kinds_of([x, y])]

        def call(*values: Array) -> list[Array]:
            means = gd.get_replica_context().all_reduce("MEAN", {"of": [*map(spread, values)]})
            return [whole(mean / 4) for mean in means["of"]]

        self.add("all_reduce MEAN", call, [x, y], *gives)

    def all_gather(self) -> None:
        x, is_last = self.any(ranks=VECTORS), self.choose(True, False)
        axis = self.choose(*range(self.kinds[x][1]))

        def call(x: Array) -> list[Array]:
            return [part(gd.get_replica_context().all_gather(x, axis), axis, is_last)]

        self.add(f"all_gather {axis}", call, [x], self.kinds[x])

    def by_axis_name(self) -> None:
        """Call a collective of JAX's by the name of the axis."""
        x = self.any(AVERAGED, VECTORS)
        name = self.choose(*BY_AXIS_NAME)

        def call(x: Array) -> list[Array]:
            return [bounded(BY_AXIS_NAME[name](x))]

        self.add(f"lax.{name}", call, [x], self.kinds[x])


def _a_row_each(x: Array) -> Array:
    """Return a row for each replica, the sender's number in it."""
    numbers = jnp.arange(lax.axis_size(AXIS), dtype=x.dtype)
    return x + jnp.expand_dims(numbers, tuple(range(1, x.ndim + 1)))


def _to_the_next(x: Array) -> Array:
    size = lax.axis_size(AXIS)
    return lax.ppermute(x, AXIS, [(i, i + 1) for i in range(size - 1)])


BY_AXIS_NAME: dict[str, Callable[[Array], Array]] = {
    "psum": lambda x: lax.psum(x, AXIS),
    "pmax": lambda x: lax.pmax(lax.stop_gradient(x), AXIS),  # JAX has no gradient of it
    "all_gather": lambda x: lax.all_gather(x, AXIS, axis=1)[:, -1],
    "psum_scatter": lambda x: lax.psum_scatter(_a_row_each(x), AXIS),
    "ppermute": _to_the_next,
    "all_to_all": lambda x: lax.all_to_all(_a_row_each(x), AXIS, 0, 0)[-1],
    "axis_index": lambda x: x + lax.axis_index(AXIS).astype(x.dtype),
}
"""Collectives of JAX, and the number, each giving an array like the one it takes."""


@dataclass(frozen=True)
class Combined:
    """How cross-replica code makes one value of a replica function's output."""

    how: str
    output: int
    axis: Any
    gives: Kind

    def __call__(self, strategy: gd.Strategy, outputs: Sequence[Any]) -> Array:
        value = outputs[self.output]
        if self.how == "gather":
            return part(strategy.gather(value, self.axis), self.axis, True)
        total = strategy.reduce(self.how, value, self.axis)
        return whole(total / 4).astype(total.dtype)


@dataclass(frozen=True)
class Distributed:
    """A step: cross-replica code, a run, what becomes of its outputs, and a second run."""

    world: World = field(repr=False)
    before: Body
    first: Body
    combined: tuple[Combined, ...]
    after: Body
    second: Body

    def __call__(
        self, strategy: gd.Strategy, per_replica: Sequence[Any], mirrored: Sequence[Array]
    ) -> Any:
        """Run the step."""
        early = self.before(*mirrored)
        outputs = strategy.run(self.first, (*per_replica, *mirrored, *early))
        late = self.after(*early, *(combine(strategy, outputs) for combine in self.combined))
        return outputs, early, late, strategy.run(self.second, (*per_replica, *late))


def _returned(maker: ReplicaMaker) -> tuple[list[int], list[Combined]]:
    """Return some outputs of a replica function, and what cross-replica code makes of them."""
    outputs: list[int] = []
    combined: list[Combined] = []
    for number in range(maker.choose(1, 2, 3)):
        how = maker.choose("SUM", "MEAN", "gather")
        if how == "gather":
            x = maker.any(ranks=VECTORS)
            outputs.append(maker.add("flip", lambda x: [jnp.flip(x)], [x], maker.kinds[x]))
            axis = maker.choose(*range(maker.kinds[x][1]))
            combined.append(Combined(how, number, axis, maker.kinds[x]))
            continue
        x = maker.any(AVERAGED)
        dtype, rank = maker.kinds[x]
        outputs.append(maker.add("spread", lambda x: [spread(x)], [x], (dtype, rank)))
        axis = maker.choose(None, *range(rank), tuple(range(rank)))
        left = rank if axis is None else rank - 1 if isinstance(axis, int) else 0
        combined.append(Combined(how, number, axis, ("f32" if how == "MEAN" else dtype, left)))
    return outputs, combined


@st.composite
def distributed_programs(draw: st.DrawFn) -> Distributed:
    """Draw steps that are legal on any number of replicas."""
    world = World()
    maker = StatefulMaker(draw, MIRRORED, 1, world)
    maker.grow(1, 4)
    before = maker.finished([maker.any() for _ in range(2)])
    replica = ReplicaMaker(draw, (*PER_REPLICA, *MIRRORED, *before.gives), 2, world)
    replica.grow(5, 12)
    outputs, combined = _returned(replica)
    first = replica.finished([*outputs, *replica.some_or_all()])
    maker = StatefulMaker(draw, (*before.gives, *(one.gives for one in combined)), 1, world)
    maker.grow(1, 4)
    after = maker.finished([maker.any() for _ in range(2)])
    replica = ReplicaMaker(draw, (*PER_REPLICA, *after.gives), 1, world)
    replica.grow(1, 4)
    second = replica.finished(replica.some_or_all())
    return Distributed(world, before, first, tuple(combined), after, second)
