"""What a replica variant must know of the others while it is traced.

Variants are traced one after the other. Where one gathers or calls `merge_call` it needs the
others' shapes there, before they are traced. It assumes the shapes of the last round, or else it
guesses: a size that differs between two variants in an argument differs in the same way everywhere.
When all variants are traced the assumptions are checked. If one was wrong all variants are traced
again, with the shapes known by then. The guess is right wherever a shape depends on the rows of a
batch, and a wrong one costs time alone: no trace is used whose assumptions were wrong.

The others' Python values cannot be guessed: there the trace of the variant ends, until a later
round. Where a variant counts examples, others need not: one that never does so has none. Each round
knows one more call at least, so that rounds end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar  # Any: users' functions and values

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.context import Entry, entered
from graphdist.errors import ArgumentError, TraceError
from graphdist.ir.source import Source
from graphdist.ir.types import dtype_name
from graphdist.program.argument_changes import call_with_copies
from graphdist.program.argument_keys import StaticValue
from graphdist.program.step_functions import name_of
from graphdist.tracing.axis_name import for_all
from graphdist.tracing.merge_call import Merged, merge_call_p
from graphdist.tracing.state import current_trace, fresh_trace
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import (
    DistributedValues,
    PerReplica,
    Shapes,
    TracedPerReplica,
    is_array,
    largest,
    structure_text,
    unequal,
)
from graphdist.values.pytrees import unflatten

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase


@dataclass(frozen=True)
class ReplicaVariant:
    """Replicas that are traced as one; `replica` is the one the trace is made for."""

    number: int
    replicas: tuple[int, ...]
    knows_its_number: bool

    @property
    def replica(self) -> int:
        """Return the first replica of the variant."""
        return self.replicas[0]


Made = TypeVar("Made")

_NO_EXAMPLES = (0,)


class NotKnownYet(BaseException):
    """The trace of a variant needs Python values of variants that were not traced so far.

    Not an `Exception`: the user's own handlers are not meant.
    """


@dataclass(frozen=True)
class _Leaf:
    """An argument of a `merge_call` on a variant: an array of this type, or a Python value."""

    shape: tuple[int, ...] | None
    what: Any


@dataclass
class _Answer:
    """The merged program of a `merge_call`, and its results as each replica gets them."""

    merged: Merged
    structure: Any
    leaves: list[Any]


class Assumptions:
    """What all variants assume of each other."""

    def __init__(
        self,
        strategy: StrategyBase,
        variants: Sequence[ReplicaVariant],
        argument_shapes: Sequence[Shapes],
    ) -> None:
        """Know nothing yet."""
        self.strategy, self.variants = strategy, variants
        self.answers: dict[int, _Answer] = {}
        self.made: list[Any] = []
        self._argument_shapes = argument_shapes
        self._known: dict[tuple[Hashable, int], Any] = {}
        self._used: list[tuple[tuple[Hashable, int], Any]] = []
        self._counts: set[Hashable] = set()
        self._missing: Source | None = None
        self._num_known = -1

    def start(self) -> None:
        """Start a round; raises `TraceError` if the last round taught nothing new."""
        if self._missing is not None and len(self._known) == self._num_known:
            raise never_comes(self._missing)
        self._num_known = len(self._known)
        self._used, self.answers, self._missing = [], {}, None

    def are_settled(self) -> bool:
        """Return whether every value was known or guessed, and every assumption was right."""
        if self._missing is not None:
            return False
        for key, _ in self._used:
            if key[0] in self._counts:
                self._known.setdefault(key, _NO_EXAMPLES)
        return all(self._known.get(key, assumed) == assumed for key, assumed in self._used)

    @property
    def is_missing_something(self) -> bool:
        """Return whether a variant's trace has ended early in this round."""
        return self._missing is not None

    def count(self, place: Hashable, variant: ReplicaVariant, examples: int) -> int:
        """Note a variant's number of examples at a place; return how many all replicas have."""
        self._counts.add(place)
        of_all = self.exchange(
            place,
            variant,
            (examples,),
            lambda other: self.guess((examples,), variant, other),
        )
        return sum(shape[0] for shape in of_all)

    def exchange(
        self,
        call: Hashable,
        variant: ReplicaVariant,
        value: Any,
        guess: Callable[[ReplicaVariant], Any] | None,
    ) -> list[Any]:
        """Note a variant's value at a call; return the value of every replica there.

        Raises `NotKnownYet` for a value that is not known, without a `guess` of it.
        """
        self._known[call, variant.number] = value
        found: dict[int, Any] = {}
        for other in self.variants:
            key = (call, other.number)
            if key not in self._known and guess is None:
                self._missing = here()
                raise NotKnownYet
            assumed = self._known[key] if key in self._known else guess(other)  # type: ignore[misc]
            self._used.append((key, assumed))
            found.update(dict.fromkeys(other.replicas, assumed))
        return [found[replica] for replica in range(len(found))]

    def guess(
        self, shape: tuple[int, ...], variant: ReplicaVariant, other: ReplicaVariant
    ) -> tuple[int, ...]:
        """Guess the shape another variant has where this one has `shape`."""
        sizes = {
            mine: theirs
            for shapes in self._argument_shapes
            for mine, theirs in zip(shapes[variant.replica], shapes[other.replica], strict=True)
            if mine != theirs
        }
        return tuple(sizes.get(size, size) for size in shape)


class Peers:
    """The other replicas, as one variant that is being traced sees them."""

    def __init__(self, variant: ReplicaVariant, assumptions: Assumptions) -> None:
        """Start the trace of a variant."""
        self._variant, self._assumptions = variant, assumptions
        self._calls, self._made = count(), count()
        self._turns: Counter[str] = Counter()

    def shapes_of_all(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the shape on every replica of an array that has this shape here."""
        return self._assumptions.exchange(
            next(self._calls),
            self._variant,
            shape,
            lambda other: self._assumptions.guess(shape, self._variant, other),
        )

    def examples_of_all(self, examples: int) -> int:
        """Return how many examples all replicas have together, where this one has `examples`."""
        line = str(here())
        self._turns[line] += 1
        return self._assumptions.count((line, self._turns[line]), self._variant, examples)

    def made_once(self, make: Callable[[], Made]) -> Made:
        """Return the object that the first variant made at this place, or a new one."""
        place, made = next(self._made), self._assumptions.made
        if place == len(made):
            made.append(make())
        result: Made = made[place]
        return result

    def merge_call(
        self, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call `merge_fn` once for all variants; return this variant's part of its result."""
        call = next(self._calls)
        leaves, structure = jax.tree.flatten((args, dict(kwargs)))
        given = [_leaf_of(leaf) for leaf in leaves]
        guess = None
        if all(leaf.shape is not None for leaf in given):
            guess = lambda other: (structure, self._like(given, other))  # noqa: E731
        of_all = self._assumptions.exchange(call, self._variant, (structure, given), guess)
        if self._variant.number == 0:
            trace = current_trace()
            assert trace is not None
            with trace.means.at("merge_call", call):
                answer = _answer(self._assumptions.strategy, merge_fn, of_all)
            self._assumptions.answers[call] = answer
        if call not in self._assumptions.answers:
            if self._assumptions.is_missing_something:
                raise NotKnownYet
            raise never_comes(here())
        answer = self._assumptions.answers[call]
        return self._part(answer, [leaf for leaf in leaves if is_array(leaf)])

    def _like(self, given: Sequence[_Leaf], other: ReplicaVariant) -> list[_Leaf]:
        return [
            leaf
            if leaf.shape is None
            else _Leaf(self._assumptions.guess(leaf.shape, self._variant, other), leaf.what)
            for leaf in given
        ]

    def _part(self, answer: _Answer, arrays: Sequence[Any]) -> Any:
        """Return what the replicas of this variant get."""
        replica = self._variant.replica
        shapes = tuple(
            np.shape(leaf.local) if leaf.shapes is None else leaf.shapes[replica]
            for leaf in answer.leaves
            if isinstance(leaf, TracedPerReplica)
        )
        results = iter(merge_call_p.bind(*arrays, merged=answer.merged, shapes=shapes))
        leaves = []
        for leaf in answer.leaves:
            if isinstance(leaf, TracedPerReplica):
                leaves.append(next(results))
            else:
                leaves.append(leaf.values[replica] if isinstance(leaf, PerReplica) else leaf)
        return jax.tree.unflatten(answer.structure, leaves)


def never_comes(source: Source) -> TraceError:
    """Return the error for a `merge_call` that not all replicas come to."""
    return TraceError(
        "a replica comes to merge_call that another replica never comes to",
        source=source,
        hint="let all replicas make the same collectives and assignments",
    )


def _leaf_of(leaf: Any) -> _Leaf:
    if is_array(leaf):
        return _Leaf(tuple(leaf.shape), leaf.dtype)
    return _Leaf(None, leaf)


def _answer(strategy: StrategyBase, merge_fn: Callable[..., Any], of_all: Sequence[Any]) -> _Answer:
    """Trace `merge_fn` on the arguments of all replicas."""
    structure = of_all[0][0]
    for replica, (other, _) in enumerate(of_all):
        if other != structure:
            raise ArgumentError(
                f"merge_call is given {structure_text(structure)} on replica 0 and "
                f"{structure_text(other)} on replica {replica}: the structures differ",
                source=here(),
            )
    rows = list(zip(*(leaves for _, leaves in of_all), strict=True))
    dynamic = [i for i, row in enumerate(rows) if row[0].shape is not None]
    avals = [_aval(rows[i]) for i in dynamic]
    returned: list[Any] = []

    def body(*locals: Any) -> list[Any]:
        filled = [_static(row) for row in rows]
        for i, local in zip(dynamic, locals, strict=True):
            filled[i] = TracedPerReplica(local, unequal([leaf.shape for leaf in rows[i]]))
        args, kwargs = unflatten(structure, filled)
        with fresh_trace(), entered(Entry(strategy)):
            result = for_all(
                lambda: call_with_copies(merge_fn, (strategy, *args), kwargs, name_of(merge_fn))
            )
        leaves, shape = jax.tree.flatten(result, is_leaf=_is_leaf)
        found = [TracedPerReplica(jnp.asarray(leaf)) if is_array(leaf) else leaf for leaf in leaves]
        spreads[:] = map(is_array, leaves)
        returned[:] = [shape, *map(_described, found)]
        return [leaf.local for leaf in found if isinstance(leaf, TracedPerReplica)]

    spreads: list[bool] = []
    jaxpr = jax.make_jaxpr(body)(*avals)
    of_outputs = zip(returned[1:], spreads, strict=True)
    of_arrays = tuple(spread for leaf, spread in of_outputs if isinstance(leaf, TracedPerReplica))
    merged = Merged(jaxpr, of_arrays, strategy.num_replicas_in_sync)
    return _Answer(merged, returned[0], returned[1:])


def _described(leaf: Any) -> Any:
    """Return a leaf of a result with a shape in place of its tracer, which ends with the trace."""
    if not isinstance(leaf, TracedPerReplica):
        return leaf
    return TracedPerReplica(jax.ShapeDtypeStruct(leaf.local.shape, leaf.local.dtype), leaf.shapes)


def _is_leaf(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, DistributedValues)


def _static(row: Sequence[_Leaf]) -> Any:
    """Return a Python value of all replicas, or a `PerReplica` of theirs."""
    values = [leaf.what for leaf in row]
    return values[0] if all(_is_same(values[0], value) for value in values) else PerReplica(values)


def _is_same(value: Any, other: Any) -> bool:
    try:
        return value is other or StaticValue(value) == StaticValue(other)
    except TypeError:  # a value without a hash
        return type(value) is type(other) and bool(value == other)


def _aval(row: Sequence[_Leaf]) -> jax.ShapeDtypeStruct:
    for replica, leaf in enumerate(row):
        alike = leaf.shape is not None and len(leaf.shape) == len(row[0].shape or ())
        if not alike or leaf.what != row[0].what:
            raise ArgumentError(
                f"merge_call is given {_text(row[0])} on replica 0 and {_text(leaf)} on replica "
                f"{replica}",
                source=here(),
                hint="give all replicas arrays of one dtype and rank",
            )
    return jax.ShapeDtypeStruct(largest([leaf.shape or () for leaf in row]), row[0].what)


def _text(leaf: _Leaf) -> str:
    return repr(leaf.what) if leaf.shape is None else f"{dtype_name(leaf.what)}{list(leaf.shape)}"
