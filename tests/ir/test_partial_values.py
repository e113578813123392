"""Partial values: what makes them, what may be computed of terms, and what their reduction is."""

from __future__ import annotations

import numpy as np
import pytest

from graphdist.ir.errors import ParseError
from graphdist.ir.interpreter import interpret
from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from graphdist.runtime.bind_primitive import evaluate_jax_node
from graphdist.tracing.jax_ops import resolve

PROGRAM = """graph f on 2 replicas, stage spmd
(%x: f32[2] per_replica, %w: f32[2] mirrored) {{
  %t = to_partial(%x) {{reducer="{reducer}", group_size=2}} : f32[2] partial({reducer})
  %u = to_partial(%w) {{reducer="{reducer}", group_size=2}} : f32[2] partial({reducer})
  {node}
  %z = all_reduce(%y) {{reducer="{reducer}", group_size=2}} : f32[2] mirrored
  return %z
}}"""
LINEAR = {
    "%y = jax.add(%t, %u)": lambda x, w: x + w,
    "%y = jax.sub(%u, %t)": lambda x, w: w - x,
    "%y = jax.mul(%t, %w) {out_dtype=none}": lambda x, w: x * w,
    "%y = jax.div(%t, 4.0:f32)": lambda x, w: x / 4,
    "%y = jax.add(%t, 0.0:f32)": lambda x, w: x,
    "%y = jax.rev(%t) {dimensions=(0,)}": lambda x, w: x[::-1],
    "%y = scale(%t) {factor=3.0}": lambda x, w: 3 * x,
}
NOT_LINEAR = [
    "%y = jax.mul(%t, %t) {out_dtype=none}",
    "%y = jax.mul(%t, %x) {out_dtype=none}",
    "%y = jax.add(%t, %w)",
    "%y = jax.add(%t, 1.0:f32)",
    "%y = jax.div(%w, %t)",
    "%y = jax.exp(%t) {accuracy=none}",
    "%y = jax.max(%t, 0.0:f32)",
    "%y = jax.bitcast_convert_type(%t) {new_dtype=dtype<i32>}",
]


@pytest.mark.parametrize("reducer", ["sum", "mean"])
@pytest.mark.parametrize("node", LINEAR)
def test_of_terms_the_reduction_is_the_value(node: str, reducer: str) -> None:
    text = PROGRAM.format(node=f"{node} : f32[2] partial({reducer})", reducer=reducer)
    graph = parse(text, ops=resolve)
    verify(graph, full=True)
    assert parse(str(graph), ops=resolve).nodes[2].results[0].type == graph.nodes[2].results[0].type
    of_replicas = [np.array(values, np.float32) for values in ([1, 2], [5, 8])]
    w = np.array([3, 4], np.float32)
    x = sum(of_replicas) if reducer == "sum" else np.mean(of_replicas, axis=0)
    (held,) = interpret(graph, [of_replicas, [w, w]], evaluate_jax_node).outputs
    for array in held:
        np.testing.assert_array_equal(array, LINEAR[node](x, w))


@pytest.mark.parametrize("node", NOT_LINEAR)
def test_what_is_not_linear_takes_no_terms(node: str) -> None:
    text = PROGRAM.format(node=f"{node} : f32[2] partial(sum)", reducer="sum")
    with pytest.raises(ParseError, match="is not linear in partial operands: reduce them"):
        parse(text, ops=resolve)


def test_terms_are_reduced_as_they_are_meant() -> None:
    node = '%y = to_partial(%x) {reducer="mean", group_size=2} : f32[2] partial(mean)'
    message = r"all_reduce by sum of f32\[2\] partial\(mean\), whose terms are for mean"
    with pytest.raises(ParseError, match=message):
        parse(PROGRAM.format(node=node, reducer="sum"), ops=resolve)


@pytest.mark.parametrize(
    ("operand", "reducer", "message"),
    [
        ("x", "max", "to_partial is by sum or mean, not by 'max'"),
        ("t", "sum", r"to_partial of f32\[2\] partial\(sum\): it takes mirrored and per-replica"),
    ],
)
def test_what_cannot_be_partial_is_refused(operand: str, reducer: str, message: str) -> None:
    node = (
        f'%y = to_partial(%{operand}) {{reducer="{reducer}", group_size=2}} : f32[2] partial(sum)'
    )
    with pytest.raises(ParseError, match=message):
        parse(PROGRAM.format(node=node, reducer="sum"), ops=resolve)


def test_a_value_is_partial_for_a_sum_or_a_mean() -> None:
    node = '%y = to_partial(%x) {reducer="max", group_size=2} : f32[2] partial(max)'
    with pytest.raises(ParseError, match="partial for a sum or a mean, not for 'max'"):
        parse(PROGRAM.format(node=node, reducer="sum"), ops=resolve)


def test_a_carry_that_is_partial_takes_terms_alone() -> None:
    text = """graph f on 2 replicas, stage spmd
    (%c: f32[] mirrored, %x: f32[3] per_replica) {
      %d = scan(%c, %x) {length=3, reverse=false, num_consts=0, num_carry=1} : f32[] partial(sum)
        body(%total: f32[] partial(sum), %row: f32[] per_replica) {
          %t = to_partial(%row) {reducer="sum", group_size=2} : f32[] partial(sum)
          %new = jax.add(%total, %t) : f32[] partial(sum)
          return %new
        }
      %e = all_reduce(%d) {reducer="sum", group_size=2} : f32[] mirrored
      return %e
    }"""
    with pytest.raises(ParseError, match=r"operand 0 is f32\[\] mirrored, its body takes f32"):
        parse(text, ops=resolve)
