"""Simplified, a random graph is never larger; that it means the same is in `test_passes.py`."""

from __future__ import annotations

from hypothesis import given

from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph
from graphdist.passes.cleanup.simplify import simplify
from tests.properties.arithmetic_graphs import arithmetic_graphs


@given(arithmetic_graphs())
def test_no_graph_becomes_larger(graph: Graph) -> None:
    assert len(walk(simplify(graph))) <= len(walk(graph))
