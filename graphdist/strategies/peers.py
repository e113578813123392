"""Assumptions about the shapes and Python values of other replica variants, during a trace.

Variants are traced one after the other. If a variant gathers or calls `merge_call`, the trace of
the variant needs the shapes of all variants at this call, also of variants that are traced later.
The trace uses the shapes that an earlier round recorded. If no round has recorded a shape, the
trace guesses the shape: where an argument has the size n in the traced variant and the size m in
another variant, every size n is guessed to be m in the other variant. The guess is right if shapes
depend on the rows of a batch. After all variants are traced, the assumptions are checked. If an
assumption was wrong, a new round traces all variants again, with the shapes that are known now. So
a wrong guess only costs time.

Python values cannot be guessed. If a value is not known yet, the trace of the variant ends at the
call, and continues in a later round. Variants may count examples at different lines. A variant that
does not count at a line has no examples there. Each round makes at least one more call known, so
the rounds end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar  # Any: users' functions and values

import jax
import jax.numpy as jnp

from graphdist.context import Entry, entered
from graphdist.errors import ArgumentError, TraceError
from graphdist.ir.source import Source
from graphdist.ir.types import dtype_name
from graphdist.program.argument_changes import call_with_copies
from graphdist.program.argument_keys import StaticValue
from graphdist.program.step_functions import name_of
from graphdist.tracing.axis_name import run_in_cross_replica_context
from graphdist.tracing.merge_call import Merged, merge_call_p
from graphdist.tracing.trace_in_progress import current_trace, fresh_trace
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import (
    PerReplica,
    Shapes,
    TracedPerReplica,
    is_array,
    is_distributed,
    largest,
    require_one_structure,
    unequal,
)
from graphdist.values.pytrees import unflatten

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase


@dataclass(frozen=True)
class ReplicaVariant:
    """A set of replicas with one common trace: the trace of the set's first replica."""

    index: int
    replicas: tuple[int, ...]
    knows_replica_id: bool

    @property
    def replica(self) -> int:
        """Return the first replica of the variant."""
        return self.replicas[0]


Shared = TypeVar("Shared")

_NO_EXAMPLES = (0,)


class NotKnownYet(BaseException):
    """The trace of a variant needs Python values of variants that are not traced yet.

    This class is no `Exception`, so that handlers of the user do not catch it.
    """


class _Leaf(NamedTuple):
    """A leaf of a `merge_call`'s arguments: an array's shape and dtype, or None and a value."""

    shape: tuple[int, ...] | None
    value: Any


@dataclass
class _Answer:
    """The merged program of a `merge_call`, and the leaves of the program's result."""

    merged: Merged
    structure: Any
    leaves: list[Any]


class Assumptions:
    """The shapes and Python values that the traces of variants assume of other variants."""

    def __init__(
        self,
        strategy: StrategyBase,
        variants: Sequence[ReplicaVariant],
        argument_shapes: Sequence[Shapes],
    ) -> None:
        """Start without assumptions."""
        self.strategy, self.variants = strategy, variants
        self.answers: dict[int, _Answer] = {}
        self.shared: list[Any] = []
        self._argument_shapes = argument_shapes
        self._known: dict[tuple[Hashable, int], Any] = {}
        self._used: list[tuple[tuple[Hashable, int], Any]] = []
        self.counts: set[Hashable] = set()
        """The calls that count examples."""
        self.missing: Source | None = None
        """The call at which a variant's trace has ended early in this round."""
        self._num_known = -1

    def start(self) -> None:
        """Start a round; raises `TraceError` if the last round made no more calls known."""
        if self.missing is not None and len(self._known) == self._num_known:
            raise missing_merge_call(self.missing)
        self._num_known = len(self._known)
        self._used, self.answers, self.missing = [], {}, None

    def are_settled(self) -> bool:
        """Return whether no value was missing, and every assumption was right."""
        if self.missing is not None:
            return False
        for key, _ in self._used:
            if key[0] in self.counts:
                self._known.setdefault(key, _NO_EXAMPLES)
        return all(self._known.get(key, assumed) == assumed for key, assumed in self._used)

    def exchange_shapes(
        self, call: Hashable, variant: ReplicaVariant, shape: tuple[int, ...]
    ) -> list[Any]:
        """Record the shape of a variant's array at a call; return the shapes on all replicas."""
        return self.exchange(call, variant, shape, lambda other: self.guess(shape, variant, other))

    def exchange(
        self,
        call: Hashable,
        variant: ReplicaVariant,
        value: Any,
        guess: Callable[[ReplicaVariant], Any] | None,
    ) -> list[Any]:
        """Record a variant's value at a call; return the values of all replicas at this call.

        `guess` returns the assumed value of a variant whose value is not known. Raises
        `NotKnownYet` if a value is not known and `guess` is None.
        """
        self._known[call, variant.index] = value
        of_replica: dict[int, Any] = {}
        for other in self.variants:
            key = (call, other.index)
            if key in self._known:
                assumed = self._known[key]
            elif guess is not None:
                assumed = guess(other)
            else:
                self.missing = here()
                raise NotKnownYet
            self._used.append((key, assumed))
            of_replica.update(dict.fromkeys(other.replicas, assumed))
        return [of_replica[replica] for replica in range(len(of_replica))]

    def guess(
        self, shape: tuple[int, ...], variant: ReplicaVariant, other: ReplicaVariant
    ) -> tuple[int, ...]:
        """Guess the shape in the variant `other` of an array that has `shape` in `variant`."""
        sizes = {
            mine: theirs
            for shapes in self._argument_shapes
            for mine, theirs in zip(shapes[variant.replica], shapes[other.replica], strict=True)
            if mine != theirs
        }
        return tuple(sizes.get(size, size) for size in shape)


class Peers:
    """The calls in the trace of one variant that need shapes or values of other variants."""

    def __init__(self, variant: ReplicaVariant, assumptions: Assumptions) -> None:
        """Start before the first call of a variant's trace; all variants share `assumptions`."""
        self._variant, self._assumptions = variant, assumptions
        self._calls, self._shared = count(), count()
        self._executions: Counter[str] = Counter()

    def shapes_of_all(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the shapes on all replicas of an array that has this shape on this variant."""
        return self._assumptions.exchange_shapes(next(self._calls), self._variant, shape)

    def examples_of_all(self, examples: int) -> int:
        """Return the total number of examples; each replica of this variant has `examples`."""
        line = str(here())
        self._executions[line] += 1
        call = line, self._executions[line]
        self._assumptions.counts.add(call)
        shapes = self._assumptions.exchange_shapes(call, self._variant, (examples,))
        return sum(rows for (rows,) in shapes)

    def made_once(self, make: Callable[[], Shared]) -> Shared:
        """Call `make` in the trace of the first variant; return its result in all traces."""
        index, shared = next(self._shared), self._assumptions.shared
        if index == len(shared):
            shared.append(make())
        return shared[index]

    def merge_call(
        self, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call `merge_fn` once for all variants; return this variant's results."""
        call = next(self._calls)
        leaves, structure = jax.tree.flatten((args, dict(kwargs)))
        described = [_leaf_of(leaf) for leaf in leaves]
        are_arrays = all(leaf.shape is not None for leaf in described)

        def guess(other: ReplicaVariant) -> Any:
            shapes = [
                self._assumptions.guess(leaf.shape or (), self._variant, other)
                for leaf in described
            ]
            return structure, [
                leaf._replace(shape=shape) for leaf, shape in zip(described, shapes, strict=True)
            ]

        of_all = self._assumptions.exchange(
            call, self._variant, (structure, described), guess if are_arrays else None
        )
        if self._variant.index == 0:
            trace = current_trace()
            assert trace is not None
            with trace.means.region("merge_call", call):
                answer = _answer(self._assumptions.strategy, merge_fn, of_all)
            self._assumptions.answers[call] = answer
        if call not in self._assumptions.answers:
            if self._assumptions.missing is not None:
                raise NotKnownYet
            raise missing_merge_call(here())
        answer = self._assumptions.answers[call]
        return self._part(answer, [leaf for leaf in leaves if is_array(leaf)])

    def _part(self, answer: _Answer, arrays: Sequence[Any]) -> Any:
        """Return the results on the replicas of this variant."""
        replica = self._variant.replica
        arrays_of_answer = [x for x in answer.leaves if isinstance(x, TracedPerReplica)]
        shapes = tuple(leaf.shape_on(replica) for leaf in arrays_of_answer)
        results = iter(merge_call_p.bind(*arrays, merged=answer.merged, shapes=shapes))
        leaves = []
        for leaf in answer.leaves:
            if isinstance(leaf, TracedPerReplica):
                leaves.append(next(results))
            else:
                leaves.append(leaf.values[replica] if isinstance(leaf, PerReplica) else leaf)
        return jax.tree.unflatten(answer.structure, leaves)


def missing_merge_call(source: Source) -> TraceError:
    """Return the error for a `merge_call` that not all replicas execute."""
    return TraceError(
        "a replica executes merge_call that another replica does not execute",
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
    structures = [structure for structure, _ in of_all]
    require_one_structure("merge_call is given", structures, range(len(structures)))
    rows = list(zip(*(leaves for _, leaves in of_all), strict=True))
    dynamic = [i for i, row in enumerate(rows) if row[0].shape is not None]
    avals = [_aval(rows[i]) for i in dynamic]
    returned: list[Any] = []

    def body(*locals: Any) -> list[Any]:
        values = [_static(row) for row in rows]
        for i, local in zip(dynamic, locals, strict=True):
            values[i] = TracedPerReplica(local, unequal([leaf.shape for leaf in rows[i]]))
        args, kwargs = unflatten(structure, values)
        with fresh_trace(), entered(Entry(strategy)):
            result = run_in_cross_replica_context(
                lambda: call_with_copies(merge_fn, (strategy, *args), kwargs, name_of(merge_fn))
            )
        leaves, shape = jax.tree.flatten(result, is_leaf=is_leaf_of_result)
        wrapped = [TracedPerReplica(jnp.asarray(x)) if is_array(x) else x for x in leaves]
        arrays = [leaf for leaf in wrapped if isinstance(leaf, TracedPerReplica)]
        mirrored[:] = [not any(array is leaf for leaf in leaves) for array in arrays]
        returned[:] = [shape, *map(_described, wrapped)]
        return [array.local for array in arrays]

    mirrored: list[bool] = []
    jaxpr = jax.make_jaxpr(body)(*avals)
    merged = Merged(jaxpr, tuple(mirrored), strategy.num_replicas_in_sync)
    return _Answer(merged, returned[0], returned[1:])


def _described(leaf: Any) -> Any:
    """Return a leaf of a result, with its tracer replaced by the tracer's shape and dtype."""
    if not isinstance(leaf, TracedPerReplica):
        return leaf
    return TracedPerReplica(jax.ShapeDtypeStruct(leaf.local.shape, leaf.local.dtype), leaf.shapes)


def is_leaf_of_result(leaf: Any) -> bool:
    """Return whether a node is a leaf. None is one, since another replica may have an array."""
    return leaf is None or is_distributed(leaf)


def _static(row: Sequence[_Leaf]) -> Any:
    """Return the Python value of all replicas, or a `PerReplica` if the values differ."""
    values = [leaf.value for leaf in row]
    return values[0] if all(_is_same(values[0], value) for value in values) else PerReplica(values)


def _is_same(value: Any, other: Any) -> bool:
    try:
        return value is other or StaticValue(value) == StaticValue(other)
    except TypeError:  # a value without a hash
        return type(value) is type(other) and bool(value == other)


def _aval(row: Sequence[_Leaf]) -> jax.ShapeDtypeStruct:
    for replica, leaf in enumerate(row):
        alike = leaf.shape is not None and len(leaf.shape) == len(row[0].shape or ())
        if not alike or leaf.value != row[0].value:
            raise ArgumentError(
                f"merge_call is given {_text(row[0])} on replica 0 and {_text(leaf)} on replica "
                f"{replica}",
                hint="give all replicas arrays of one dtype and rank",
            )
    return jax.ShapeDtypeStruct(largest([leaf.shape or () for leaf in row]), row[0].value)


def _text(leaf: _Leaf) -> str:
    return repr(leaf.value) if leaf.shape is None else f"{dtype_name(leaf.value)}{list(leaf.shape)}"
