"""The rules of what operations do with slices: an operation is added by adding a rule."""

from __future__ import annotations

import pytest

from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.ops import ALL_REDUCE, REDUCE_SCATTER
from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from graphdist.passes import slice_rules
from graphdist.passes.cuts import Cuts
from graphdist.passes.shard_update import ShardUpdate
from graphdist.passes.slice_gains import Sharding
from graphdist.passes.slice_rules import RULES, UNSLICED, Forms, Need, SliceRule, rule_for
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import check_same_meaning

SHARD_UPDATE = ShardUpdate(Sharding())

MODULE = """graph f on 2 replicas, stage spmd
  variable @m: f32[4,3] mirrored {{synchronization="on_write", aggregation="none", assigned=true}}
(%m: f32[4,3] mirrored = @m, %x: f32[4,3] per_replica) {{
  %g = all_reduce(%x) {{reducer="sum", group_size=2}} : f32[4,3] mirrored
  %n = jax.cumsum(%g) {{axis={axis}, reverse=false}} : f32[4,3] mirrored
  %k = jax.reduce_max(%n) {{axes=(0, 1), out_sharding=none}} : f32[] mirrored
  %h = jax.mul(%g, %k) {{out_dtype=none}} : f32[4,3] mirrored
  %new = jax.add(%m, %h) : f32[4,3] mirrored
  return %new -> @m
}}"""


def graph_along(axis: int) -> Graph:
    graph = parse(MODULE.format(axis=axis), ops=resolve)
    verify(graph, full=True)
    return graph


class Cumulative(SliceRule):
    """Sums along another dimension than that of the cut are sums within a slice."""

    hands_on = True

    def applies(self, node: Node, cuts: Cuts) -> bool:
        return node.params["axis"] != cuts.of(node.results[0].type.shape)

    def need(self, node: Node, operand: Operand, of_result: Need, cuts: Cuts) -> Need:
        return of_result

    def slice(self, node: Node, forms: Forms) -> Operand:
        types = [forms.cuts.slice_type(node.results[0].type)]
        operands = list(map(forms.slice, node.operands))
        add = forms.builder.add
        return add(node.op, operands, node.params, at=node.source, types=types)[0]


@pytest.mark.parametrize(("axis", "is_in_slices"), [(1, True), (0, False)])
def test_an_operation_is_added_by_its_rule(
    monkeypatch: pytest.MonkeyPatch, axis: int, is_in_slices: bool
) -> None:
    before = graph_along(axis)
    assert SHARD_UPDATE(before) is before
    monkeypatch.setattr(slice_rules, "RULES", {**RULES, "jax.cumsum": Cumulative()})
    after = SHARD_UPDATE(before)
    verify(after, full=True)
    assert any(node.op is REDUCE_SCATTER for node in after.nodes) == is_in_slices
    assert (after.variables[0].sharded_along == 0) == is_in_slices
    check_same_meaning(before, after, "cumulative", to_the_bit=False)
    assert SHARD_UPDATE(after) is after


def test_an_operation_without_a_rule_takes_all_of_its_operands() -> None:
    graph = graph_along(1)
    cumulative = graph.nodes[1]
    assert rule_for(cumulative, Cuts(2)) is UNSLICED
    assert ShardUpdate(Sharding()).declined(graph) == [
        f"m: its gradient: jax.cumsum at {cumulative.source} needs all of it"
    ]


def test_the_greatest_need_counts() -> None:
    assert max(Need.SLICES, Need.EITHER) is Need.SLICES
    assert max(Need.SLICES, Need.FULL, Need.NOTHING) is Need.FULL
    assert not Need.NOTHING


def test_what_is_no_sum_is_not_scattered() -> None:
    maximum = next(
        node
        for node in parse(MODULE.format(axis=1).replace('"sum"', '"max"'), ops=resolve).nodes
        if node.op is ALL_REDUCE
    )
    assert rule_for(maximum, Cuts(2)) is UNSLICED
