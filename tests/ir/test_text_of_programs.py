"""The text of real programs, before and after each pass, is read back with and without JAX.

Without JAX's operations and the parameters that the text does not hold, as the viewer reads it.
And each operation of JAX in them has a row in the table of operations, or a reason not to have one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from graphdist.ir import operation_table
from graphdist.ir.analyses import operations
from graphdist.ir.compare import first_difference
from graphdist.ir.graph import Graph
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.operation_table import TABLE
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques, print_graph
from graphdist.passes.manager import PassRecord, run_passes
from graphdist.program.stages import Lowered, Traced
from graphdist.tools.truth.runs import MODULES, ROOT, lowered_run, read_table
from graphdist.tools.truth.runs import TABLE as TABLE_OF_RUNS
from graphdist.tracing.jax_ops import resolve
from tests.ir.real_programs import PROGRAMS
from tests.report.counted_steps import compiled_peaks

REASONS = operation_table.__doc__ or ""
"""What says why operations have no row in the table."""


def graphs_of(traced: Traced, history: Sequence[PassRecord]) -> list[Graph]:
    """Return the graphs before and after each pass, each once."""
    graphs = (traced.graph, *(record.graph for record in history))
    return list({id(graph): graph for graph in graphs}.values())


def check_text(graph: Graph) -> None:
    text, table = print_graph(graph), opaques(graph)
    read, shown = parse(text, table, resolve), parse(text, PLACEHOLDERS)
    assert first_difference(graph, read) is None
    assert print_graph(read) == text
    assert print_graph(shown) == text


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_before_and_after_each_pass_are_read_back(name: str) -> None:
    traced = PROGRAMS[name]()
    graphs = graphs_of(traced, run_passes(traced.graph, traced.pipeline, verifies=False))
    assert len(graphs) > 3
    for graph in graphs:
        check_text(graph)
        of_jax = {name for name in operations(graph) - TABLE.keys() if name.startswith("jax.")}
        unknown = [name for name in of_jax if f"`{name.removeprefix('jax.')}`" not in REASONS]
        assert not unknown, f"without a row in the table of operations, and a reason: {unknown}"
    last = graphs[-1]
    assert first_difference(last, parse(print_graph(last), opaques(last))) is None


PEAKS = {f"peak {number}": (peak.lowered, "tpu") for number, peak in enumerate(compiled_peaks())}
RUNS = {
    f"row {run.row}": (partial(lowered_run, run), run.chip.platform)
    for run in read_table(ROOT / TABLE_OF_RUNS)
    if (ROOT / MODULES / f"row{run.row}.json.xz").exists()
}
KEPT = [
    pytest.param(lower, id=name, marks=pytest.mark.needs(platform.replace("gpu", "cuda")))
    for name, (lower, platform) in (PEAKS | RUNS).items()
]


@pytest.mark.long
@pytest.mark.parametrize("lower", KEPT)
def test_graphs_of_kept_programs_are_read_back(lower: Callable[[], Lowered]) -> None:
    lowered = lower()
    graphs = graphs_of(lowered.traced, lowered.history)
    assert len(graphs) > 3
    for graph in graphs:
        check_text(graph)
