"""Each format is read by its own tool or schema, hostile names and all."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any  # Any: JSON
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import jsonschema
import pytest
from jax import lax

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.collective_bytes import Exchange
from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.ir.printer import node_lines
from graphdist.report.step_timeline import timeline_of_graph
from graphdist.report.timeline_trace import trace_of
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.viz import perfetto
from graphdist.viz.model import model_of
from graphdist.viz.program import ShownProgram, ShownStep, program_of
from tests.viz.browser import browse
from tests.viz.graphs import HOSTILE, chain, hostile, nested
from tests.viz.schemas import MODEL_EXPLORER, TRACE_EVENTS

GRAPHS = {"plain": lambda: chain(60), "hostile": hostile}
both = pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS.keys())


@pytest.mark.parametrize("format", list(gd.viz.FORMATS))
@both
def test_the_same_program_gives_the_same_bytes(make: Callable[[], Graph], format: str) -> None:
    assert gd.viz.render(make(), format) == gd.viz.render(make(), format)


@both
def test_json_follows_its_schema(make: Callable[[], Graph]) -> None:
    schema = json.loads(files("graphdist.viz").joinpath("document.schema.json").read_text())
    steps = ShownProgram((ShownStep("before", chain(40)), ShownStep("after", make())))
    document = json.loads(gd.viz.render(steps, "json"))
    jsonschema.validate(document, schema)
    assert document["passes"][1]["diff"]["added"]


def line(document: Any, graph: Any, node: Any) -> str:
    """Return the line of a node as the schema says it is made."""
    facts = document["facts"][node["facts"]]
    names = [one.get("results", [one["id"]]) for one in graph["nodes"]]
    operands = [
        one
        if isinstance(one, str)
        else names[one][0]
        if isinstance(one, int)
        else names[one[0]][one[1]]
        for one in node.get("operands", ())
    ]
    results = ", ".join(node.get("results", [node["id"]]))
    parameters = f" {{{facts['parameters']}}}" if "parameters" in facts else ""
    text = f"{results} = {facts['op']}({', '.join(operands)}){parameters}".removeprefix(" = ")
    return text + (f" : {', '.join(facts['types'])}" if "types" in facts else "")


@pytest.mark.parametrize("make", [hostile, nested])
def test_lines_made_of_json_are_those_of_the_text(make: Callable[[], Graph]) -> None:
    graph = make()
    document = json.loads(gd.viz.render(graph, "json"))
    (shown,) = document["graphs"]
    made = [line(document, shown, node) for node in shown["nodes"] if "text" not in node]
    assert made == list(node_lines(graph).values())
    assert [
        model.text(one) for model in [model_of(graph)] for one in model.records if one.node
    ] == made


@pytest.mark.needs("dot")
@both
def test_graphviz_reads_dot(make: Callable[[], Graph]) -> None:
    text = gd.viz.render(make(), "dot")
    drawn = subprocess.run(["dot", "-Tplain"], input=text, capture_output=True, text=True)
    assert drawn.returncode == 0, drawn.stderr[:2000]
    assert drawn.stdout.count("\nnode ") == 62  # the input, 60 nodes, return


def training_step() -> Graph:
    """Return the graph of a training step of twelve unrolled layers with Adam's state."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    names = ("weights", "first", "second")
    with strategy.scope():
        state = {
            name: gd.variables([{part: jnp.zeros((4, 4)) for part in "abcd"}] * 12)
            for name in names
        }

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for number, layer in enumerate(weights):
            with jax.named_scope(f"layer{number}"):
                x = jax.nn.softmax(x @ layer["a"] @ layer["b"]) + jnp.tanh(x @ layer["c"])
                x = x @ layer["d"]
        return jnp.mean(x)

    def replica(x: jax.Array) -> None:
        weights, first, second = (gd.read(state[name]) for name in names)
        grads = gd.get_replica_context().all_reduce("MEAN", jax.grad(loss)(weights, x))
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, grads)
        weights = jax.tree.map(lambda w, m, v: w - m / jnp.sqrt(v + 1.0), weights, first, second)
        for name, value in zip(names, (weights, first, second), strict=True):
            gd.assign(state[name], value)

    return gd.function(lambda x: strategy.run(replica, args=(x,))).trace(jnp.ones((2, 4))).graph


@pytest.mark.needs("dot")
def test_graphviz_ends_on_a_training_step() -> None:
    text = gd.viz.render(training_step(), "dot")
    drawn = subprocess.run(
        ["dot", "-Tplain"], input=text, capture_output=True, text=True, timeout=60
    )
    assert drawn.returncode == 0, drawn.stderr[:2000]
    assert drawn.stdout.count("\nnode ") == len(boxes_of(text))


def boxes_of(dot: str) -> list[str]:
    return [line for line in dot.splitlines() if re.match(r" *[ng]\d+ \[label=", line)]


def test_dot_groups_a_training_step() -> None:
    graph = training_step()
    assert len(walk(graph)) > 1000
    text = gd.viz.render(graph, "dot")
    boxes = boxes_of(text)
    assert 60 < len(boxes) <= 150
    counted = sum(
        int(found[1].replace(",", "")) for found in re.finditer(r"\\n([\d,]+) nodes", text)
    )
    alone = sum(line.lstrip().startswith("n") for line in boxes)
    assert counted + alone == len(model_of(graph).records)


@both
def test_svg_is_xml_with_a_box_a_node(make: Callable[[], Graph]) -> None:
    root = ElementTree.fromstring(gd.viz.render(make(), "svg"))
    groups = root.findall("{http://www.w3.org/2000/svg}g")
    assert len(groups) == 62
    assert not root.findall(".//{http://www.w3.org/2000/svg}img")


@both
def test_mermaid_holds_no_markup_of_the_users(make: Callable[[], Graph]) -> None:
    lines = gd.viz.render(make(), "mermaid").splitlines()
    assert lines[0] == "flowchart TD"
    assert all("<" not in line.replace("<br/>", "") for line in lines)
    assert sum("-->" in line for line in lines) == 61


@pytest.mark.needs("browser")
@both
def test_mermaid_itself_reads_and_draws_it(make: Callable[[], Graph], tmp_path: Path) -> None:
    chart = tmp_path / "chart.mmd"
    chart.write_text(gd.viz.render(make(), "mermaid"))
    seen = browse("mermaid.mjs", str(chart))
    assert seen["kind"] == "flowchart-v2"
    assert len(seen["labels"]) == 62
    assert seen["labels"][-1].startswith("return")
    assert seen["images"] == 0


def test_what_mermaid_would_not_draw_is_refused() -> None:
    add = "  %y = jax.concatenate({}) {{dimension=0}} : f32[3] mirrored\n"
    operands = ", ".join(f"%x{one}" for one in range(250))
    inputs = ", ".join(f"%x{one}: f32[3] mirrored" for one in range(250))
    text = f"graph f on 1 replica, stage spmd\n({inputs}) {{\n{add.format(operands)}"
    text += f"  %z = jax.concatenate({operands}, %y) : f32[3] mirrored\n  return %z\n}}"
    with pytest.raises(gd.ArgumentError, match="at most 500 edges, 'f' takes 502"):
        gd.viz.render(parse(text), "mermaid")


@pytest.mark.needs("browser")
@both
def test_a_browser_draws_the_svg(make: Callable[[], Graph], tmp_path: Path) -> None:
    picture = tmp_path / "graph.svg"
    picture.write_text(gd.viz.render(make(), "svg"))
    seen = browse("picture.mjs", str(picture), str(tmp_path / "graph.png"))
    assert seen["error"] is None
    assert seen["boxes"] == 62
    assert seen["requests"] == ["file"]
    assert seen["empty"] == 0


@pytest.mark.parametrize("format", ["svg", "mermaid"])
def test_large_graphs_are_refused_where_they_cannot_be_read(format: str) -> None:
    with pytest.raises(gd.ArgumentError, match="draws at most 500 nodes, 'chain' has 602"):
        gd.viz.render(chain(600), format)


def spans_of(graph: Graph, topology: Topology | None = None) -> list[dict[str, Any]]:
    """Return the bars of a graph's timeline."""
    program = replace(program_of(graph), topology=topology)
    trace = json.loads(perfetto.render(program))
    jsonschema.validate(trace, TRACE_EVENTS)
    assert {one["ph"] for one in trace["traceEvents"]} == {"X", "M", "C"}
    return [one for one in trace["traceEvents"] if one["ph"] == "X"]


def multiplied() -> Graph:
    @gd.function
    def step(x: jax.Array) -> jax.Array:
        y = jnp.sort(x @ x)
        return lax.scan(lambda c, _: (c @ c, None), y, None, length=10)[0]

    return step.trace(jax.ShapeDtypeStruct((4096, 4096), "bfloat16")).graph


def test_perfetto_bars_are_those_of_the_predicted_timeline() -> None:
    graph, topology = multiplied(), find_topology("v5e:1x1")
    spans, timeline = spans_of(graph), timeline_of_graph(graph, topology)
    first, *inside = [one for one in spans if one["name"] == "jax.dot_general"]
    rates = ChipRates.of(topology)
    expected = rates.products("bf16", 2 * 4096**3) * rates.timing.slowdown
    assert first["dur"] == pytest.approx(1e6 * expected, rel=1e-3)
    assert [one["dur"] for one in inside] == pytest.approx([first["dur"]] * 10)
    end = max(one["ts"] + one["dur"] for one in spans)
    assert end == pytest.approx(1e6 * timeline.seconds, rel=1e-3)
    faster = spans_of(graph, find_topology("v5p:2x2x1"))
    assert max(one["dur"] for one in faster) < first["dur"] * 10 / 2


def test_the_trace_of_a_report_is_that_of_its_timeline() -> None:
    program = program_of(chain(60))
    timeline = timeline_of_graph(multiplied(), find_topology("v5e:1x1"))
    report = gd.function(jnp.sin).trace(jnp.ones(3)).lower().estimate()
    shown = replace(program, report=replace(report, timeline=timeline))
    events = json.loads(perfetto.render(shown))["traceEvents"]
    assert events[1:] == json.loads(json.dumps(trace_of(timeline, "")))["traceEvents"][1:]


def test_perfetto_bars_of_collectives_are_those_of_the_interconnect() -> None:
    graph, topology = chain(60), find_topology("v5e:2x2")
    (span,) = [one for one in spans_of(graph, topology) if one["name"] == "all_reduce"]
    expected = ChipRates.of(topology).collective(Exchange("all_reduce", 256, range(4)))
    assert span["dur"] == pytest.approx(1e6 * expected)


@both
def test_model_explorer_edges_have_both_ends(make: Callable[[], Graph]) -> None:
    collection: Any = json.loads(gd.viz.render(make(), "model-explorer"))
    jsonschema.validate(collection, MODEL_EXPLORER)
    (graph,) = collection["graphs"]
    known = {node["id"] for node in graph["nodes"]}
    assert len(known) == 62
    for node in graph["nodes"]:
        assert {"id", "label", "namespace", "attrs", "incomingEdges"} <= node.keys()
        assert all(isinstance(one["value"], str) for one in node["attrs"])
        assert {edge["sourceNodeId"] for edge in node["incomingEdges"]} <= known
    (overlays,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    for overlay in overlays["overlays"]:
        for edge in overlay["edges"]:
            assert {edge["sourceNodeId"], edge["targetNodeId"]} <= known


def test_the_page_holds_nothing_of_the_user_as_html() -> None:
    page = gd.viz.render(hostile(), "html")
    assert HOSTILE not in page
    assert "onerror" not in page
    assert page.count("</script>") == 2
    assert "http://" not in page.replace("http://www.w3.org/", "")


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in gd.viz.render(hostile(), "text")


def test_the_page_of_ten_thousand_nodes_is_small() -> None:
    assert len(gd.viz.render(chain(10_000), "html")) < 5_000_000


def test_unknown_formats_are_refused_with_the_nearest() -> None:
    with pytest.raises(gd.ArgumentError, match="did you mean html"):
        gd.viz.render(chain(1), "htm")
