"""The predicted timeline of a compiled step: its sums, lines, texts and traces."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.program.stages import Compiled
from graphdist.report.amounts import size_text
from graphdist.report.step_memory import UNSEEN
from graphdist.report.step_report import Report
from graphdist.report.step_timeline import StepTimeline, timeline_of
from graphdist.report.timeline_trace import trace_of
from graphdist.runtime.module.instructions import CompiledModule, Instruction
from graphdist.runtime.module.line_labels import places_of
from graphdist.runtime.targets.topologies import find_topology
from graphdist.runtime.timing.lanes import all_events
from graphdist.tools.compile import main
from tests.aot.steps import make_step

SMALL = """
import jax, jax.numpy as jnp, graphdist as gd

def make_step(strategy, layers: int = 4):
    with strategy.scope():
        w = gd.Variable(jax.ShapeDtypeStruct((layers, 256, 256), jnp.float32), name="w")

    @gd.function
    def step(x):
        def loss_fn(w, x):
            @jax.checkpoint
            def layer(x, w):
                return jnp.tanh(x @ w), None
            x, _ = jax.lax.scan(layer, x, w)
            return jnp.mean(x * x)

        def replica_fn(x):
            loss, grad = jax.value_and_grad(loss_fn)(w[...], x)
            w.assign_sub(gd.get_replica_context().all_reduce("MEAN", grad))
            return loss
        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    return step, (gd.PerReplicaSpec((64, 256), jnp.float32, strategy=strategy),)
"""


@cache
def compiled() -> Compiled:
    strategy = gd.TPUStrategy(topology="v5e:2x2")
    step, _, batch = make_step(strategy, batch=16, width=128)
    found: Compiled = step.trace(batch, 0.1).lower().compile()
    return found


@pytest.mark.needs("tpu")
def test_parts_add_up_to_the_step() -> None:
    timeline = compiled().timeline
    parts = timeline.compute + timeline.exposed + timeline.idle
    assert timeline.seconds == timeline.step == pytest.approx(parts)
    assert timeline.low < timeline.seconds < timeline.high
    assert sum(line.seconds for line in timeline.lines) == pytest.approx(timeline.compute)
    exposed = sum(collective.exposed for collective in timeline.collectives)
    assert exposed == pytest.approx(timeline.exposed)
    assert 0 < timeline.utilization < 1
    assert timeline.bottleneck in ("compute", "exposed", "idle")


@pytest.mark.needs("tpu")
def test_lines_are_the_users() -> None:
    timeline = compiled().timeline
    phases = {line.phase for line in timeline.lines if line.line.startswith("steps.py:")}
    assert {"forward", "backward", "step"} <= phases
    assert all(each.line.startswith("steps.py:") for each in timeline.collectives)


@pytest.mark.needs("tpu")
def test_a_report_has_it_as_text_and_json() -> None:
    report = compiled().report()
    assert report.timeline is not None
    assert "PREDICTED, no measurement" in str(report)
    assert "ESTIMATE" not in str(report)
    read = json.loads(json.dumps(report.to_json()))
    assert read["timeline"]["seconds"] == report.timeline.seconds
    assert read["timeline"]["lines"][0]["line"] == report.timeline.lines[0].line
    again = Report.from_json(read)
    assert str(again) == str(report)
    assert json.loads(json.dumps(again.to_json())) == read


@pytest.mark.needs("tpu")
def test_why_there_is_none() -> None:
    report = compiled().report()
    text, graph = compiled().as_text("hlo"), compiled().graph
    topology = find_topology("v5e:2x2")
    held: dict[Instruction, dict[str, int]] = {}
    without = text.replace("estimated_cycles", "other")
    assert "how many cycles" in str(timeline_of(CompiledModule(without), graph, topology, held))
    assert "cannot be read" in str(timeline_of(CompiledModule("no module"), graph, topology, held))
    assert isinstance(timeline_of(CompiledModule(text), graph, topology, held), StepTimeline)
    assert report.no_timeline == ""


@pytest.mark.needs("tpu")
def test_what_the_compiler_repeats_for_want_of_memory_is_said() -> None:
    text, graph = compiled().as_text("hlo"), compiled().graph
    timeline = compiled().timeline
    assert timeline.repeated == 0
    assert "repeats" not in str(timeline)
    assert timeline.events is not None
    events = timeline.events.turn.events
    longest = max(
        (e for e in events if not e.collective and e.body is None), key=lambda e: e.seconds
    )
    name = re.escape(longest.work.name)
    with_repeated = CompiledModule(
        re.sub(rf"%{name}(?![\w.-])", f"%{longest.work.name}.remat", text)
    )
    found = timeline_of(with_repeated, graph, find_topology("v5e:2x2"), {})
    assert isinstance(found, StepTimeline)
    assert found.repeated == pytest.approx(longest.seconds)
    assert "of it the compiler repeats, since it lacks memory" in str(found)


@pytest.mark.needs("tpu")
def test_the_memory_of_a_step_and_the_lines_that_hold_it() -> None:
    timeline, report = compiled().timeline, compiled().report()
    memory = report.memory
    assert memory is not None
    assert memory.peak_bytes == report.needed_bytes == compiled().memory.peak_bytes
    assert timeline.events is not None
    assert max(sum(held.values()) for held in timeline.events.held.values()) == memory.peak_bytes
    assert sum(held.bytes for held in memory.largest) == memory.peak_bytes
    assert memory.largest[-1].type == UNSEEN
    assert re.search(
        rf"  {size_text(memory.largest[-1].bytes)} +{UNSEEN}$", str(report), re.MULTILINE
    )
    assert "argument" in {held.phase for held in memory.largest}
    assert "Held at the peak, " in str(report)
    read = json.loads(json.dumps(report.to_json()))["memory"]
    assert read["peak_bytes"] == memory.peak_bytes
    counters = [
        each for each in trace_of(timeline, "step")["traceEvents"] if each["name"] == "memory"
    ]
    assert counters
    assert max(each["args"]["MiB"] for each in counters) == memory.peak_bytes / 2**20


def test_a_step_for_devices_that_are_here_has_none() -> None:
    here = gd.function(lambda x: x + 1).trace(1.0).lower().compile()
    with pytest.raises(gd.ArgumentError, match="was not compiled for a topology"):
        _ = here.timeline


def slices_of(trace: Any) -> list[Any]:
    return [each for each in trace["traceEvents"] if each["ph"] == "X"]


@pytest.mark.needs("tpu")
def test_a_trace_shows_each_turn_of_loops(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    target, written = f"{tmp_path}/small.py:make_step", tmp_path / "step.json"
    options = ["--topology", "v5e:2x2", "--set", "layers=6", "--timeline", str(written)]
    assert main([target, *options, "--quiet"]) == 0
    trace = json.loads(written.read_text())
    turns = [each["name"] for each in slices_of(trace) if ", turn " in each["name"]]
    assert sum(name.endswith("of 6") for name in turns) >= 6
    names = {each["args"]["name"] for each in trace["traceEvents"] if each["ph"] == "M"}
    assert {"compute (predicted)", "links (predicted)"} <= names
    again = [each for each in slices_of(trace) if each["args"].get("phase") == "recomputed"]
    assert any(each["args"]["line"] == "small.py:13" for each in again)
    assert all(each["args"]["compiler's cycles"] > 0 for each in again)


@pytest.mark.needs("tpu")
def test_a_trace_ends_with_the_step() -> None:
    timeline = compiled().timeline
    assert timeline.events is not None
    trace = slices_of(trace_of(timeline, "step"))
    last = max(each["ts"] + each["dur"] for each in trace) / 1e6
    assert last == pytest.approx(timeline.seconds, rel=1e-3)
    assert len(trace) >= sum(
        1 for event, _ in all_events(timeline.events.turn) if event.body is None
    )


@pytest.mark.needs("tpu")
def test_a_path_that_cannot_be_written_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    nowhere = str(tmp_path / "none" / "step.json")
    target = f"{tmp_path}/small.py:make_step"
    assert main([target, "--topology", "v5e:2x2", "--timeline", nowhere]) == 2
    assert "none" in capsys.readouterr().err


def test_nodes_of_a_loop_have_its_phase() -> None:
    @gd.function
    def step(w: Any) -> Any:
        def loss(w: Any) -> Any:
            last, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c * w), None), w, None, length=3)
            return jnp.sum(last)

        return jax.grad(loss)(w)

    graph = step.trace(jnp.ones(4)).lower().graph
    places = places_of(graph)
    loops = [node for node in graph.nodes if node.op.name == "scan"]
    phases = [{places[node][0] for node in loop.graphs[0].nodes} for loop in loops]
    assert phases == [{"forward"}, {"backward"}]
