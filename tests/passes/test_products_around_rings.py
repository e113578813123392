"""`products_around_rings` with rings of more cores than a case of its golden file has nodes for."""

from __future__ import annotations

import numpy as np
import pytest

from graphdist.ir.analyses import operations
from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from graphdist.passes.order.products_around_rings import ProductsAroundRings
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import Trial, check_outcome, close

_DOT = (
    "precision=none, preferred_element_type=dtype<f32>, out_sharding=none, "
    "dimension_numbers=(((1,), (0,)), ((), ()))"
)


def _step(cores: int) -> Graph:
    """Return a gathered product, which is added up with another and reduced to shards."""
    rows, width = 2 * cores, 3 * cores
    text = f"""
graph f on 2 replicas split over {cores} cores, stage spmd
(%x: f32[{rows},3] per_replica, %ws: f32[{width},{4 * cores}] per_replica, \
%v: f32[4,5] per_replica) {{
  %w = slice_of_core(%ws) {{axis=1, num_cores={cores}}} : f32[{width},4] per_replica
  %g = all_gather_over_cores(%x) {{axis=1, num_cores={cores}}} : f32[{rows},{width}] per_replica
  %h = jax.dot_general(%g, %w) {{{_DOT}}} : f32[{rows},4] per_replica
  %y = jax.dot_general(%h, %v) {{{_DOT}}} : f32[{rows},5] per_replica
  %u = jax.dot_general(%h, %v) {{{_DOT}}} : f32[{rows},5] per_replica
  %z = jax.add(%y, %u) : f32[{rows},5] per_replica
  %s = reduce_scatter_over_cores(%z) {{axis=0, num_cores={cores}}} : f32[2,5] per_replica
  %r = all_gather_over_cores(%s) {{axis=0, num_cores={cores}}} : f32[{rows},5] per_replica
  return per_replica %r
}}"""
    return parse(text.strip(), ops=resolve)


@pytest.mark.parametrize("cores", [2, 3, 4, 5, 8])
def test_shards_go_around_rings_of_any_length(cores: int) -> None:
    before = _step(cores)
    after = ProductsAroundRings(smallest=1)(before)
    verify(after, full=True)
    assert "reduce_scatter_over_cores" not in operations(after)
    (gather,) = [node for node in after.nodes if node.op.name == "all_gather_over_cores"]
    assert gather.results[0] in after.outputs
    trial = Trial.at_random(before, np.random.default_rng(cores))
    check_outcome(trial.outcome(before), trial.outcome(after), close)
    assert ProductsAroundRings(smallest=1)(after) is after


def test_a_product_of_two_gathered_values_is_left_alone() -> None:
    graph = parse(
        f"""
graph f on 2 replicas split over 2 cores, stage spmd
(%x: f32[2,6] per_replica, %w: f32[6,4] mirrored, %v: f32[6,5] mirrored) {{
  %g = all_gather_over_cores(%x) {{axis=0, num_cores=2}} : f32[4,6] per_replica
  %s = slice_of_core(%w) {{axis=1, num_cores=2}} : f32[6,2] mirrored
  %h = all_gather_over_cores(%s) {{axis=1, num_cores=2}} : f32[6,4] mirrored
  %y = jax.dot_general(%g, %h) {{{_DOT}}} : f32[4,4] per_replica
  %u = jax.dot_general(%g, %v) {{{_DOT}}} : f32[4,5] per_replica
  %z = jax.add(%y, %y) : f32[4,4] per_replica
  return per_replica %z, per_replica %u
}}""".strip(),
        ops=resolve,
    )
    assert ProductsAroundRings(smallest=1)(graph) is graph
