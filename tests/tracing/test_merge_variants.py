"""Traces of replica variants as one: which work is common, what is padded, which order is refused.

Padding of arguments is nan, which would reach every result that it could reach.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any  # Any: arrays and tracers

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from graphdist.ir.types import PER_REPLICA
from graphdist.tracing.slots import padded
from graphdist.tracing.trace_in_progress import TraceError
from tests.tracing.traces import (
    Float32,
    MergedVariants,
    count,
    gathered,
    largest,
    merged,
    total,
)


def body_of(variants: MergedVariants) -> str:
    """Return the nodes of the graph as text, without its header."""
    lines = str(variants.graph).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("("))
    return dedent("\n".join(lines[start + 1 : -1]))


def test_a_collective_between_two_variants_of_other_shapes() -> None:
    fn = lambda x: [total(jnp.sum(x)) * x]  # noqa: E731
    variants = merged([fn, fn], [(2,), (3,)])
    assert body_of(variants) == dedent(
        """\
        %0 = replica_id() {group_size=2} : i32[] per_replica
        %1 = jax.clamp(0:i32, %0, 1:i32) : i32[] per_replica
        %2 = cond(%1, %x0) : f32[]
          branch_0(%3: f32[3]) {
            %4 = jax.slice(%3) {start_indices=(0,), limit_indices=(2,), strides=none} : f32[2]
            %5 = jax.reduce_sum(%4) {axes=(0,), out_sharding=none} : f32[]
            return %5
          }
          branch_1(%6: f32[3]) {
            %7 = jax.reduce_sum(%6) {axes=(0,), out_sharding=none} : f32[]
            return %7
          }
        %8 = all_reduce(%2) {reducer="sum", group_size=2} : f32[] mirrored
        %9 = jax.clamp(0:i32, %0, 1:i32) : i32[] per_replica
        %10 = cond(%9, %x0, %8) : f32[3]
          branch_0(%11: f32[3], %12: f32[]) {
            %13 = jax.slice(%11) {start_indices=(0,), limit_indices=(2,), strides=none} : f32[2]
            %14 = jax.mul(%12, %13) {out_dtype=none} : f32[2]
            %15 = jax.pad(%14, 0.0:f32) {padding_config=((0, 1, 0),)} : f32[3]
            return %15
          }
          branch_1(%16: f32[3], %17: f32[]) {
            %18 = jax.mul(%17, %16) {out_dtype=none} : f32[3]
            return %18
          }
        return per_replica %10"""
    )
    assert variants.run([[1, 2], [3, 4, 5]])[0] == [[[15, 30]], [[45, 60, 75]]]


def test_work_on_the_same_values_is_done_once_and_stays_mirrored() -> None:
    v = Float32("v")

    def common() -> Any:
        return jnp.exp(v.read()) + np.arange(2, dtype=np.float32)

    variants = merged(
        [lambda x: [total(common()) + jnp.sum(x)], lambda x: [total(common()) - jnp.sum(x)]],
        [(1,), (2,)],
    )
    assert count(variants.graph, "jax.exp") == 1
    assert count(variants.graph, "read") == 1
    (operand,) = next(n for n in variants.graph.nodes if n.op.name == "all_reduce").operands
    assert str(operand.type) == "f32[2] mirrored"
    results, _ = variants.run([[1], [2, 3]], v=[0, 0])
    assert results == [[[3, 5]], [[-3, -1]]]


def test_the_same_work_on_a_padded_argument_is_each_variants_own() -> None:
    variants = merged([lambda x: [jnp.sum(x)]] * 2, [(2,), (3,)])
    assert count(variants.graph, "jax.reduce_sum") == 2
    assert variants.run([[1, 2], [3, 4, 5]])[0] == [[3], [12]]


def test_alike_work_in_another_order_is_found() -> None:
    variants = merged(
        [
            lambda x: [jnp.sin(x) + jnp.cos(x)],
            lambda x: [(lambda c, s: s + c)(jnp.cos(x), jnp.sin(x))],
        ],
        [(2,), (2,)],
    )
    assert [count(variants.graph, f"jax.{name}") for name in ("sin", "cos", "add")] == [1, 1, 1]
    assert count(variants.graph, "cond") == 0


def test_zeros_of_other_signs_are_not_the_same_work() -> None:
    variants = merged([lambda x: [x / 0.0], lambda x: [x / -0.0]], [(), ()])
    assert count(variants.graph, "jax.div") == 2
    assert variants.run([1, 1])[0] == [[np.inf], [-np.inf]]


def test_a_constant_that_is_equal_in_all_variants_is_one_node() -> None:
    def fn(scale: float) -> Callable[[Any], list[Any]]:
        return lambda x: [x * np.array([1, 2], np.float32), x * np.array([scale, 0], np.float32)]

    variants = merged([fn(3), fn(4)], [(2,), (2,)])
    assert count(variants.graph, "constant") == 3
    assert variants.run([[1, 1], [1, 1]])[0] == [[[1, 2], [3, 0]], [[1, 2], [4, 0]]]


def test_values_for_later_share_slots_of_the_largest_shape() -> None:
    def first(x: Any) -> list[Any]:
        kept = x * 2.0
        return [total(jnp.sum(x)) + kept]

    def second(x: Any) -> list[Any]:
        kept, also = x * 3.0, jnp.sin(x[:1])
        return [total(jnp.sum(x)) + kept + also]

    variants = merged([first, second], [(2,), (4,)])
    before, _ = [node for node in variants.graph.nodes if node.op.name == "cond"]
    assert [value.type.shape for value in before.results] == [(), (4,), (1,)]
    one, other = variants.run([[1, 2], [1, 1, 1, 1]])[0]
    assert one == [[9, 11]]
    assert np.allclose(other, [10 + np.sin(1)] * 4)


def test_a_variant_without_a_result_for_a_collective_of_unequal_lengths() -> None:
    def fn(x: Any) -> list[Any]:
        return [gathered(padded(x, (3,)))]

    variants = merged([fn, fn], [(0,), (3,)])
    assert variants.run([[], [1, 2, 3]])[0] == [[[0, 0, 0, 1, 2, 3]]] * 2


def test_a_variable_only_one_variant_reads_is_read_before_the_switch() -> None:
    v = Float32("v", (2,))
    variants = merged([lambda x: [x + v.read()], lambda x: [x]], [(2,), (2,)])
    assert [n.op.name for n in variants.graph.nodes].count("read") == 1
    assert variants.run([[1, 1], [2, 2]], v=[[10, 20]] * 2)[0] == [[[11, 21]], [[2, 2]]]


def test_a_read_is_before_the_assignment_that_follows_it_and_after_the_one_before() -> None:
    v = Float32("v", layout=PER_REPLICA)

    def fn(scale: float) -> Callable[[Any], list[Any]]:
        def replica(x: Any) -> list[Any]:
            before = v.read()
            v.assign(before + scale * jnp.sum(x))
            after = v.read()
            v.assign(after * 2.0)
            return [jnp.stack([before, after, v.read()])]

        return replica

    results, state = merged([fn(1), fn(10)], [(1,), (2,)]).run([[5], [1, 2]], v=[100, 200])
    assert results == [[[100, 105, 210]], [[200, 230, 460]]]
    assert state["v"] == [210, 460]


def test_an_assignment_is_one_node_for_all_variants() -> None:
    v = Float32("v")

    def fn(scale: float) -> Callable[[Any], list[Any]]:
        return lambda x: [(v.assign(total(jnp.sum(x)) * scale), x)[1]]

    variants = merged([fn(1), fn(1)], [(1,), (2,)])
    assert count(variants.graph, "assign") == 1
    assert variants.run([[1], [2, 3]], v=[0, 0])[1] == {"v": [6, 6]}


def test_a_position_at_which_variants_have_other_dtypes_is_several_outputs_of_the_switch() -> None:
    fns = [lambda x: [x, total(jnp.int32(1))], lambda x: [x * 2.0, total(jnp.int32(2))]]
    variants = merged(fns, [(), ()])
    assert variants.run([1, 2])[0] == [[1, 3], [4, 3]]


def test_a_jit_of_each_variant_with_the_same_body_is_the_same_work() -> None:
    variants = merged(
        [lambda x: [jax.jit(lambda y: jnp.sin(y))(x)], lambda x: [jax.jit(jnp.sin)(x)]],
        [(2,), (2,)],
    )
    assert count(variants.graph, "jax.sin") == 1


def test_three_variants() -> None:
    fns = [lambda x, n=n: [x * n, largest(x[0], 3)] for n in (1.0, 2.0, 3.0)]
    variants = merged(fns, [(1,), (2,), (3,)])
    results, _ = variants.run([[7], [5, 5], [1, 2, 3]])
    assert results == [[[7], 7], [[10, 10], 7], [[3, 6, 9], 7]]


def test_gradients_of_merged_variants_are_those_of_each() -> None:
    def fn(power: int) -> Callable[[Any], list[Any]]:
        return lambda x: [jax.grad(lambda y: total(jnp.sum(y**power)))(x)]

    results, _ = merged([fn(2), fn(3)], [(2,), (3,)]).run([[1, 2], [1, 2, 3]])
    # The loss is a value on each of two replicas, and the derivative is of their sum.
    assert results == [[[4, 8]], [[6, 24, 54]]]


def never(x: Any) -> list[Any]:
    return [x]


def once(x: Any) -> list[Any]:
    return [total(x)]


def greatest(x: Any) -> list[Any]:
    return [largest(x)]


def joined(x: Any) -> list[Any]:
    return [gathered(x[None])[0]]


def first_sum(x: Any) -> list[Any]:
    return [total(x) + largest(x)]


def first_max(x: Any) -> list[Any]:
    return [(lambda most: total(x) + most)(largest(x))]


def of_two(x: Any) -> list[Any]:
    return [total(jnp.stack([x, x]))[0]]


def in_a_loop(x: Any) -> list[Any]:
    return [lax.fori_loop(0, 3, lambda i, y: total(y), x)]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (once, never, r"executes all_reduce \(sum\) of f32\[\] that another replica does not"),
        (never, once, r"executes all_reduce \(sum\) of f32\[\] that another replica does not"),
        (once, greatest, r"one executes all_reduce \(sum\) .* another all_reduce \(max\)"),
        (once, joined, r"one executes all_reduce \(sum\) .* another all_gather of f32\[1\]"),
        (first_sum, first_max, r"one executes all_reduce \(sum\) .* another all_reduce \(max\)"),
        (once, of_two, r"of f32\[\] .* of f32\[2\]"),
        (once, in_a_loop, r"one executes all_reduce .* another scan"),
    ],
)
def test_variants_that_do_not_come_to_the_same_points_are_refused(
    first: Callable[[Any], Any], second: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        merged([first, second], [(), ()])


def test_the_part_of_a_variable_that_one_variant_chooses_is_refused() -> None:
    v = Float32("v", (3,))

    def chooses(x: Any) -> list[Any]:
        return [v.part(jnp.argmax(x))]

    with pytest.raises(TraceError, match="at an index that one replica variant computes"):
        merged([chooses, lambda x: [x[0]]], [(2,), (3,)])


Step = tuple[str, tuple[str, ...]]
"""What all variants do together, after what each does to its value."""

LOCAL: dict[str, Callable[[Any], Any]] = {
    "double": lambda x: x * 2.0,
    "negate": lambda x: -x,
    "shift": lambda x: x + 1.0,
    "reverse": lambda x: x[::-1],
}
TOGETHER = ("sum", "max", "assign", "nothing")
steps = st.lists(
    st.tuples(
        st.sampled_from(TOGETHER),
        st.lists(st.sampled_from(sorted(LOCAL)), min_size=3, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=5,
)


def program(replica: int, plan: list[Step], v: Float32) -> Callable[[Any], list[Any]]:
    """Return the function of one replica."""

    def fn(x: Any) -> list[Any]:
        kept = [x]
        for together, local in plan:
            x = LOCAL[local[replica]](x)
            if together == "sum":
                x = x + total(jnp.sum(x), 3)
            elif together == "max":
                kept.append(x)
                x = x * largest(jnp.sum(x), 3)
            elif together == "assign":
                v.assign(v.read() + jnp.sum(x))
            x = x - v.read()
        return [sum(kept), x]

    return fn


def by_hand(plan: list[Step], arrays: list[Any]) -> tuple[list[Any], list[float]]:
    """Return what replicas return that do one step after the other, in float64."""
    xs, v = [np.array(array, np.float64) for array in arrays], [0.0, 0.0, 0.0]
    kept = [x.copy() for x in xs]
    for together, local in plan:
        xs = [LOCAL[name](x) for name, x in zip(local, xs, strict=True)]
        sums = [x.sum() for x in xs]
        if together == "sum":
            xs = [x + sum(sums) for x in xs]
        elif together == "max":
            kept = [before + x for before, x in zip(kept, xs, strict=True)]
            xs = [x * max(sums) for x in xs]
        elif together == "assign":
            v = [before + added for before, added in zip(v, sums, strict=True)]
        xs = [x - own for x, own in zip(xs, v, strict=True)]
    return [[before, x] for before, x in zip(kept, xs, strict=True)], v


@pytest.mark.long
@given(steps, st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_any_variants_compute_what_they_would_one_by_one(
    plan: list[Step], lengths: list[int]
) -> None:
    v = Float32("v", layout=PER_REPLICA)
    arrays = [np.arange(length) / 4 - replica / 2 for replica, length in enumerate(lengths)]
    fns = [program(replica, plan, v) for replica in range(3)]
    results, state = merged(fns, [(length,) for length in lengths]).run(arrays, v=[0, 0, 0])
    expected, variable = by_hand(plan, arrays)
    for own, other in zip(results, expected, strict=True):
        for result, wanted in zip(own, other, strict=True):
            assert np.allclose(result, wanted, rtol=1e-4, atol=1e-3)
    assert np.allclose(state["v"], variable, rtol=1e-4, atol=1e-3)
