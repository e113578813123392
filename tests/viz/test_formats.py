"""Each format is read by its own tool or schema, hostile names and all."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any  # Any: JSON
from xml.etree import ElementTree

import pytest

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.ir.printer import node_lines
from graphdist.viz.model import model_of
from graphdist.viz.program import ShownProgram, ShownStep
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
    jsonschema = pytest.importorskip("jsonschema")
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


@both
def test_graphviz_reads_dot(make: Callable[[], Graph]) -> None:
    if shutil.which("dot") is None:
        pytest.skip("graphviz is not installed")
    text = gd.viz.render(make(), "dot")
    drawn = subprocess.run(["dot", "-Tplain"], input=text, capture_output=True, text=True)
    assert drawn.returncode == 0, drawn.stderr[:2000]
    assert drawn.stdout.count("\nnode ") == 62  # the input, 60 nodes, return


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


@pytest.mark.slow
@both
def test_mermaid_itself_reads_and_draws_it(make: Callable[[], Graph], tmp_path: Path) -> None:
    chart = tmp_path / "chart.mmd"
    chart.write_text(gd.viz.render(make(), "mermaid"))
    seen = browse("mermaid.mjs", str(chart), needs="mermaid")
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


@pytest.mark.slow
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


@both
def test_perfetto_events_follow_one_another(make: Callable[[], Graph]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    trace = json.loads(gd.viz.render(make(), "perfetto"))
    jsonschema.validate(trace, TRACE_EVENTS)
    events = trace["traceEvents"]
    spans = [one for one in events if one["ph"] == "X"]
    assert len(spans) == 60
    assert {one["ph"] for one in events} == {"X", "M", "C"}
    for one, other in pairwise(spans):
        assert one["dur"] >= 1
        assert one["ts"] + one["dur"] == other["ts"]
    assert [one["tid"] for one in spans if one["cat"] == "collective"] == [2]


@both
def test_model_explorer_edges_have_both_ends(make: Callable[[], Graph]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
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
