"""What replica variants assume of each other in a trace: guesses, and their correction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any  # Any: arrays and distributed values

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.errors import TraceError
from graphdist.strategies.peers import Assumptions, NotKnownYet, Peers, ReplicaVariant

Shape = tuple[int, ...]
UNUSED: Any = None  # the strategy, where nothing is asked of it


def assumptions_of(*shapes: Sequence[Shape], replicas: int = 2) -> Assumptions:
    """Return what variants assume, of one replica each, with arguments of these shapes."""
    variants = [ReplicaVariant(i, (i,), True) for i in range(replicas)]
    return Assumptions(UNUSED, variants, [tuple(of_all) for of_all in shapes])


def rounds(assumptions: Assumptions, trace: Callable[[Peers, ReplicaVariant], None]) -> int:
    """Trace all variants until they agree; return how many rounds that took."""
    for taken in range(1, 10):
        assumptions.start()
        for variant in assumptions.variants:
            with suppress(NotKnownYet):
                trace(Peers(variant, assumptions), variant)
        if assumptions.are_settled():
            return taken
    raise AssertionError("no end")


def test_a_size_that_differs_in_an_argument_is_guessed_to_differ_alike() -> None:
    assumptions, seen = assumptions_of([(3, 8), (5, 8)]), []

    def trace(peers: Peers, variant: ReplicaVariant) -> None:
        rows = (3, 5)[variant.index]
        seen.append(peers.shapes_of_all((rows, 2)))

    assert rounds(assumptions, trace) == 1
    assert seen == [[(3, 2), (5, 2)]] * 2


def test_a_wrong_guess_is_corrected_in_a_second_round() -> None:
    assumptions, seen = assumptions_of([(3,), (5,)]), []

    def trace(peers: Peers, variant: ReplicaVariant) -> None:
        # 3 is a size of the argument, and here by chance: the other variant has 3 too.
        seen.append(peers.shapes_of_all((3,)))

    assert rounds(assumptions, trace) == 2
    assert seen[0] == [(3,), (5,)]
    assert seen[1:] == [[(3,), (3,)]] * 3


def test_a_later_call_is_corrected_with_the_one_it_depends_on() -> None:
    assumptions, last = assumptions_of([(3,), (5,)]), {}

    def trace(peers: Peers, variant: ReplicaVariant) -> None:
        lengths = [shape[0] for shape in peers.shapes_of_all((3,))]
        last[variant.index] = peers.shapes_of_all((sum(lengths) + variant.index,))

    assert rounds(assumptions, trace) == 2
    assert last == {0: [(6,), (7,)], 1: [(6,), (7,)]}


def test_replicas_of_one_variant_have_one_shape() -> None:
    variants = [ReplicaVariant(0, (0, 2), False), ReplicaVariant(1, (1,), False)]
    assumptions = Assumptions(UNUSED, variants, [((4,), (1,), (4,))])
    assumptions.start()
    assert Peers(variants[1], assumptions).shapes_of_all((1,)) == [(4,), (1,), (4,)]


def test_values_that_cannot_be_guessed_end_the_trace_until_they_are_known() -> None:
    assumptions, seen = assumptions_of(), []

    def trace(peers: Peers, variant: ReplicaVariant) -> None:
        value = ("a", "b")[variant.index]
        seen.append((variant.index, assumptions.exchange("call", variant, value, None)))

    assert rounds(assumptions, trace) == 2
    assert seen == [(1, ["a", "b"]), (0, ["a", "b"]), (1, ["a", "b"])]


def test_a_call_that_another_variant_never_comes_to_is_an_error_and_no_endless_loop() -> None:
    assumptions = assumptions_of()

    def trace(peers: Peers, variant: ReplicaVariant) -> None:
        if variant.index == 0:
            assumptions.exchange("call", variant, "a", None)

    with pytest.raises(TraceError, match="executes merge_call that another replica does not"):
        rounds(assumptions, trace)


def test_a_variant_that_counts_no_examples_has_none() -> None:
    assumptions, totals = assumptions_of([(3,), (5,)]), []

    def trace(peers: Peers, variant: ReplicaVariant) -> None:
        if variant.index == 1:
            totals.append(peers.examples_of_all(5))

    assert rounds(assumptions, trace) == 2
    assert totals == [8, 5]


def test_each_turn_of_a_loop_counts_examples_of_its_own() -> None:
    assumptions, totals = assumptions_of(), []

    def trace(peers: Peers, variant: ReplicaVariant) -> None:
        for examples in (1, 10):
            totals.append(peers.examples_of_all(examples * (variant.index + 1)))

    rounds(assumptions, trace)
    assert totals[-2:] == [3, 30]


def test_what_is_made_once_is_the_first_variants_at_each_place() -> None:
    assumptions = assumptions_of()
    assumptions.start()
    first, second = (Peers(variant, assumptions) for variant in assumptions.variants)
    made = [first.made_once(object), first.made_once(object)]
    assert made[0] is not made[1]
    assert [second.made_once(object), second.made_once(object)] == made


@pytest.fixture(scope="module")
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def ragged(strategy: gd.Strategy, *lengths: int) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.arange(lengths[context.replica_id_in_sync_group], dtype=np.float32)
    )


def test_a_gather_of_what_was_guessed_wrong(strategy: gd.MirroredStrategy) -> None:
    traced = []

    def replica_fn(x: jax.Array) -> Any:
        traced.append(x.shape)
        head = jnp.zeros(2) + jnp.sum(x)  # of 2 as the first replica's argument, on both
        return gd.get_replica_context().all_gather(head, axis=0)

    result = strategy.run(replica_fn, args=(ragged(strategy, 2, 4),))
    assert traced == [(2,), (4,)] * 2
    assert [np.asarray(v).tolist() for v in result.values] == [[1, 1, 6, 6]] * 2


def test_merge_call_with_arrays_of_other_lengths_and_values_that_differ(
    strategy: gd.MirroredStrategy,
) -> None:
    seen = []

    def merge_fn(strategy: gd.Strategy, x: Any, name: Any) -> Any:
        seen.append(name.values)
        return strategy.reduce("SUM", x, axis=0)

    def replica_fn(x: jax.Array) -> Any:
        context = gd.get_replica_context()
        return context.merge_call(merge_fn, args=(x, f"of {x.shape[0]}"))

    total = strategy.run(replica_fn, args=(ragged(strategy, 2, 4),))
    assert float(total) == 7
    assert set(seen) == {("of 2", "of 4")}


def test_padding_that_merge_call_fills_is_in_no_sum(strategy: gd.MirroredStrategy) -> None:
    def replica_fn(x: jax.Array) -> Any:
        plus_one = lambda _, value: value + 1.0  # noqa: E731
        return gd.get_replica_context().merge_call(plus_one, args=(x,))

    result = strategy.run(replica_fn, args=(ragged(strategy, 2, 4),))
    assert [np.asarray(v).tolist() for v in result.values] == [[1, 2], [1, 2, 3, 4]]

    @gd.function
    def sum_of_all(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=0)

    assert float(sum_of_all(ragged(strategy, 2, 4))) == 13
