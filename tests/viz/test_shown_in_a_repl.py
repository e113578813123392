"""What a REPL and a notebook show of an object: tables and sentences, and the cells of lines."""

from __future__ import annotations

import builtins
import linecache
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.program.stages import Lowered
from graphdist.report.step_timeline import timeline_of_graph
from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.line_labels import Labels, phase_and_line
from graphdist.runtime.targets.topologies import find_topology
from tests.aot.steps import make_step


@pytest.fixture
def lowered() -> Lowered:
    step, _, batch = make_step(gd.MirroredStrategy(["cpu:0", "cpu:1"]))
    return step.trace(batch, 0.1).lower()


def test_reports_are_shown_as_they_are_printed(lowered: Lowered) -> None:
    report, explanation = lowered.estimate(), lowered.explain()
    assert repr(report).splitlines()[0] == "step on cpu:0, cpu:1, 2 devices"
    for sentence in report.verdict:
        assert sentence.title in repr(report)
        assert sentence.figure in repr(report)
    assert repr(explanation).startswith("step on cpu:0, cpu:1: ")
    assert "lower_cross_replica" in repr(explanation)
    timeline = timeline_of_graph(lowered.graph, find_topology("v5e:2x2"))
    assert repr(timeline).startswith("PREDICTED, no measurement: ")
    for shown in (report, explanation, timeline):
        assert repr(shown) == str(shown)


def test_collectives_are_shown_a_line_each(lowered: Lowered) -> None:
    collectives = lowered.collectives
    assert repr(collectives).splitlines() == [str(each) for each in collectives]
    assert repr(collectives[0]).startswith("all_reduce mean ")
    alone = gd.function(lambda x: 2 * x).trace(jnp.ones(3)).lower()
    assert repr(alone.collectives) == "no collectives"


def test_a_placement_is_shown_as_a_table() -> None:
    table = gd.viz.placement(gd.Variable(jnp.zeros((2, 3)), name="w"))
    assert repr(table) == str(table)
    assert len(repr(table).splitlines()) == 3


def objects() -> Iterator[Any]:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    yield from (strategy, strategy.devices, strategy.extended)
    dataset = strategy.experimental_distribute_dataset(gd.data.Dataset.range(4).batch(2))
    yield from (dataset, iter(dataset), next(iter(dataset)))
    contexts: list[Any] = []
    strategy.run(lambda: contexts.append(gd.get_replica_context()))
    yield from contexts


def test_no_object_is_shown_by_its_address() -> None:
    shown = list(map(repr, objects()))
    assert shown[1] == "<Devices cpu:0, cpu:1>"
    spec = "PerReplicaSpec(shape=(None,), dtype=int32)"
    assert shown[3] == f"<DistributedDataset of {spec} on cpu:0, cpu:1>"
    assert not [text for text in shown if " object at 0x" in text]


def test_lines_of_a_notebook_are_named_by_their_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    file, code = "/tmp/ipykernel_1/3520084707.py", "def double(x):\n    return 2 * x\n"
    cells = {file: ("Cell", "In[357]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(linecache.cache, file, (len(code), None, code.splitlines(True), file))
    namespace: dict[str, Any] = {}
    exec(compile(code, file, "exec"), namespace)  # as IPython runs a cell
    lowered = gd.function(namespace["double"]).trace(jnp.ones(3)).lower()
    (node,) = lowered.graph.nodes
    assert str(node.source) == "In[357]:2"
    assert node.source.frame is not None
    assert node.source.frame.text == "return 2 * x"
    phase, line = phase_and_line(node.source)
    module = CompiledModule(
        "ENTRY %main (x: f32[3]) -> f32[3] {\n  %x = f32[3]{0} parameter(0)\n"
        f'  ROOT %y = f32[3]{{0}} negate(%x), metadata={{op_name="jit(f)/{phase}({line})/mul"}}\n}}'
    )
    assert Labels(module).of(module[module.entry][-1]) == ("step", "In[357]:2")
