"""The text of real programs, before and after each pass, is read back with and without JAX.

Without JAX's operations and the parameters that the text does not hold, as the viewer reads it.
And each operation of JAX in them has a row in the table of operations, or a reason not to have one.
"""

from __future__ import annotations

import pytest

from graphdist.ir import operation_table
from graphdist.ir.analyses import operations
from graphdist.ir.compare import first_difference
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.operation_table import TABLE
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques, print_graph
from graphdist.passes.manager import run_passes
from graphdist.tracing.jax_ops import resolve
from tests.ir.real_programs import PROGRAMS

REASONS = operation_table.__doc__ or ""
"""What says why operations have no row in the table."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_before_and_after_each_pass_are_read_back(name: str) -> None:
    traced = PROGRAMS[name]()
    history = run_passes(traced.graph, traced.pipeline, verifies=False)
    graphs = {id(graph): graph for graph in (traced.graph, *(record.graph for record in history))}
    assert len(graphs) > 3
    for graph in graphs.values():
        text, table = print_graph(graph), opaques(graph)
        read, shown = parse(text, table, resolve), parse(text, PLACEHOLDERS)
        assert first_difference(graph, read) is None
        assert print_graph(read) == text
        assert print_graph(shown) == text
    assert first_difference(graph, parse(text, table)) is None
    for graph in graphs.values():
        of_jax = {name for name in operations(graph) - TABLE.keys() if name.startswith("jax.")}
        unknown = [name for name in of_jax if f"`{name.removeprefix('jax.')}`" not in REASONS]
        assert not unknown, f"without a row in the table of operations, and a reason: {unknown}"
