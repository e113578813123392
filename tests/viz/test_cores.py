"""How the cores of a replica hold values, on the page and in JSON."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest

import graphdist as gd
from graphdist.ir.parser import parse
from graphdist.viz import render
from graphdist.viz.program import ShownProgram, ShownStep
from graphdist.viz.text import collectives_table
from tests.cores.training import strategy_on
from tests.viz.browser import browse


def lowered(cores: int) -> Any:
    strategy = strategy_on(2, cores)
    asked = ("sharded", None) if cores > 1 else None
    with strategy.scope():
        weights = gd.Variable(np.ones((4, 8), "f"), name="weights", cores=asked)

    @gd.function
    def step(x: Any) -> Any:
        return strategy.run(lambda x: jnp.tanh(x @ weights.value() + 1), args=(x,))

    return step.trace(np.ones((2, 4), "f")).lower()


def test_nodes_of_a_split_graph_say_how_cores_hold_their_results() -> None:
    document = json.loads(render(lowered(2), "json"))
    schema = json.loads((files("graphdist.viz") / "document.schema.json").read_text("utf-8"))
    jsonschema.validate(document, schema)
    assert document["cores"] == 2
    facts = document["facts"]
    graph = document["graphs"][document["passes"][-1]["graph"]]
    said = {facts[node["facts"]]["op"]: node.get("cores") for node in graph["nodes"]}
    assert said["variable"] == "sharded(0)"
    assert said["jax.dot_general"] == "partial(sum)"
    assert said["all_reduce_over_cores"] == said["jax.tanh"] == "mirrored"


def test_nodes_of_a_graph_that_is_not_split_say_nothing() -> None:
    document = json.loads(render(lowered(1), "json"))
    assert "cores" not in document
    assert not any("cores" in node for graph in document["graphs"] for node in graph["nodes"])
    split = json.loads(render(lowered(2), "json"))
    traced = split["graphs"][split["passes"][0]["graph"]]
    assert not any("cores" in node for node in traced["nodes"])


@pytest.mark.needs("browser")
def test_the_page_colours_boxes_by_what_cores_hold(tmp_path: Path) -> None:
    page = tmp_path / "step.html"
    page.write_text(render(lowered(2), "html"), encoding="utf-8")
    seen = browse("cores.mjs", str(page))
    assert seen["console"] == []
    assert "2 replicas of 2 cores" in seen["head"]
    assert {"mirrored", "sharded", "partial"} <= set(seen["legend"])
    assert ["Over cores", "partial(sum)"] in seen["rows"]
    assert seen["map"] == [True, False]  # a low window shows the facts of a node instead


def test_the_table_of_collectives_says_over_whom_they_are() -> None:
    lines = collectives_table(ShownProgram((ShownStep("last", lowered(2).graph),))).splitlines()
    assert lines[0].split()[:3] == ["kind", "bytes", "times"]
    assert lines[1].split()[:4] == ["all_reduce", "sum", "64", "1"]
    assert lines[-1] == "1 collective over 2 cores, 64 bytes per replica"


def test_text_with_lines_says_how_cores_hold_results_and_is_read_back() -> None:
    graph = lowered(2).graph
    text = render(graph, "text")
    product = next(line for line in text.splitlines() if "jax.dot_general(" in line)
    assert product.endswith("  # cores: partial(sum)")
    assert str(parse(text)) == str(graph)
    assert "# cores" not in str(graph)
    assert "# cores" not in render(lowered(1).graph, "text")
