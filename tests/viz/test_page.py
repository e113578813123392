"""The page in a real browser: used as its reader would, offline, without an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: JSON

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.ir.printer import node_lines
from graphdist.passes import pipeline
from graphdist.tools.viz import main
from graphdist.viz.program import ShownProgram, ShownStep
from tests.viz.browser import ROOT, browse
from tests.viz.graphs import blocks, chain, hostile, nested


def use(page: Path, line: int | None = None) -> Any:
    """Return what a reader of the page saw."""
    seen = browse("browser.mjs", str(page), str(page.parent / "shots"), str(line or ""))
    assert seen["console"] == []
    assert seen["requests"] == ["file"]
    assert seen["images"] == 0
    return seen


@pytest.mark.needs("browser")
def test_the_step_of_an_example(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    example = ROOT / "examples" / "train_digits.py"
    arguments = [f"{example}:make_step", "--strategy", "mirrored:2", "--format", "html"]
    assert main([*arguments, "-o", str(page)]) == 0
    line = next(
        number
        for number, text in enumerate(example.read_text().splitlines(), 1)
        if "all_reduce" in text
    )
    seen = use(page, line)
    assert seen["passes"] == 1 + len(pipeline("cpu"))  # and the trace
    assert "logical" in seen["firstStage"]
    assert seen["lastPass"] == pipeline("cpu")[-1].name
    assert seen["opened"] > seen["boxes"] == seen["closed"]
    assert seen["selected"] == "all_reduce"
    assert "mirrored" in seen["facts"]
    assert (seen["byKind"], seen["sorted"]) == ("ascending", "descending")
    assert seen["bytes"] == ["38.79 KiB"]
    assert seen["lineNodes"] >= 3  # pack, all_reduce, unpack
    assert seen["live"] > 10
    assert seen["changes"] > 3
    assert "removed" in seen["marked"]


@pytest.mark.needs("browser")
def test_ten_thousand_nodes(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    before, after = chain(9_000), chain(10_000)
    program = ShownProgram((ShownStep("before", before), ShownStep("after", after)))
    page.write_text(gd.viz.render(program, "html"))
    seen = use(page)
    assert seen["boxes"] < 100
    assert seen["found"] == 50
    assert len(seen["bytes"]) == 100
    assert seen["lastPass"] == "after"


@pytest.mark.needs("browser")
def test_hostile_text_is_text(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(gd.viz.render(hostile(), "html"), encoding="utf-8")
    assert use(page)["selected"] == "all_reduce"
    seen = browse("labels.mjs", str(page))
    shown = [*seen["texts"], *(text for size in seen["sizes"].values() for text in size["texts"])]
    assert any("\\u202e" in text for text in shown)
    assert not any("\u202e" in text or "\x1b" in text for text in shown)


@pytest.mark.needs("browser")
def test_the_lines_are_those_of_the_text(tmp_path: Path) -> None:
    graph = nested()
    page = tmp_path / "page.html"
    page.write_text(gd.viz.render(graph, "html"), encoding="utf-8")
    seen = browse("expansion.mjs", str(page), str(page.parent / "shots"))
    assert seen["console"] == []
    assert len(seen["lines"]) > 20
    assert set(node_lines(graph).values()) <= set(seen["lines"])


def expand(page: Path) -> Any:
    """Return what opening groups within groups did, by pointer and by keyboard."""
    seen = browse("expansion.mjs", str(page), str(page.parent / "shots"))
    assert seen["console"] == []
    for click in seen["clicks"]:
        assert click["after"] > click["before"], click
    for key in seen["keys"]:
        assert key["after"] > key["before"] == key["closed"], key
    assert seen["keys"]
    return seen


@pytest.mark.needs("browser")
def test_groups_open_within_groups_of_ten_thousand_nodes(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(gd.viz.render(blocks(10_000), "html"))
    seen = expand(page)
    names = [click["name"] for click in seen["clicks"]]
    assert names[0] == "model / 20 x stage"
    assert re.fullmatch(r"stage\d+ / 10 x block", names[1])
    assert re.fullmatch(r"block\d", names[2])
    assert names[3] == "attention"
    assert [click["size"] for click in seen["clicks"]] == [10_000, 500, 50, 25]
    assert seen["clicks"][-1]["after"] - seen["clicks"][-1]["before"] == 24
    assert len(seen["keys"]) == 3


@pytest.mark.long
@pytest.mark.needs("browser")
def test_groups_of_one_long_scope_open_in_parts(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(gd.viz.render(chain(100_000), "html"))
    seen = expand(page)
    assert seen["collapsed"] < 20
    assert [click["size"] for click in seen["clicks"]] == [14286, 3600, 60]


@pytest.mark.needs("browser")
def test_long_tables_and_open_groups_cost_little(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    page = tmp_path / "page.html"
    steps = [ShownStep(f"pass {size}", blocks(size, communicates=True)) for size in (9_000, 10_000)]
    text = gd.viz.render(ShownProgram(tuple(steps)), "html")
    page.write_text(text)
    assert len(text) < 5_000_000
    seen = browse("frames.mjs", str(page))
    assert seen["console"] == []
    for state in ("closed", "open"):  # timings are recorded, and not judged
        record_property(f"frames {state}", seen[state])
    record_property("opening all", seen["openAll"])
    assert seen["rows"] < seen["allRows"] == 100
    assert (seen["closedGroups"], seen["missing"], seen["overlaps"]) == (0, 0, 0)
    assert len(seen["shapes"]) == 4
    assert len(set(seen["shapes"])) == 1
    assert seen["collapsed"] == seen["closed"]["boxes"]


@pytest.mark.needs("browser")
@pytest.mark.parametrize("graph", [blocks(20_000), chain(20_000)], ids=["blocks", "chain"])
def test_all_of_twenty_thousand_nodes_is_opened_fitted_and_zoomed(
    graph: Graph, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text(gd.viz.render(graph, "html"))
    seen = browse("whole.mjs", str(page))
    assert seen["console"] == []
    assert seen["opened"]["boxes"] == 20_002  # and the input, and `return`
    assert seen["lost"]["painted"] == 0
    for state in ("opened", "fitted"):
        assert seen[state]["outside"] == 0
        assert seen[state]["painted"] > 0.05
    assert min(seen["zoomed"]) > 0.05


@pytest.mark.needs("browser")
def test_named_scopes_are_groups_on_the_page(tmp_path: Path) -> None:
    @gd.function
    def step(x: jax.Array) -> jax.Array:
        with jax.named_scope("encoder"), jax.named_scope("layer0"):
            x = jnp.tanh(jnp.sin(x))
        with jax.named_scope("encoder"), jax.named_scope("layer1"):
            x = jnp.exp(jnp.cos(x))
        with jax.named_scope("head"):
            return jnp.sum(jnp.abs(x) + 1.0)

    page = tmp_path / "page.html"
    page.write_text(gd.viz.render(step.trace(jnp.ones(3)).lower(), "html"))
    seen = expand(page)
    assert [click["name"] for click in seen["clicks"]][:2] == ["encoder", "layer0"]
    assert [key["name"] for key in seen["keys"]] == ["encoder", "layer0", "layer1"]
