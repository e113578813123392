"""What a reader of the page does: keys, passes, address, search, borders. Everybody can."""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any  # Any: JSON
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import graphdist as gd
from graphdist.ir.analyses import collectives
from graphdist.ir.graph import Graph, Node
from graphdist.tools.chosen_strategy import strategy_named
from graphdist.tools.compilation import StepOptions
from graphdist.tools.viz import main
from graphdist.tools.viz_targets import load_step
from graphdist.viz.graph_diff import diff
from graphdist.viz.model import memory_timeline, model_of
from graphdist.viz.program import ShownProgram, ShownStep
from tests.viz.browser import ROOT, browse
from tests.viz.graphs import chain, hostile, nested

DIGITS = f"{ROOT / 'examples' / 'train_digits.py'}:make_step"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Return the page of a training step on two replicas, with all passes."""
    path = tmp_path / "digits.html"
    assert main([DIGITS, "--strategy", "mirrored:2", "-o", str(path)]) == 0
    return path


def written(shown: Any, folder: Path) -> Path:
    path = folder / "page.html"
    path.write_text(gd.viz.render(shown, "html"), encoding="utf-8")
    return path


def seen_by(script: str, path: Path, *arguments: str) -> Any:
    """Return what a script saw of a page, which logs nothing and requests nothing."""
    seen = browse(script, str(path), *arguments)
    assert seen["console"] == []
    assert set(seen.get("requests", ["file"])) <= {"file", "blob"}
    return seen


@pytest.mark.needs("browser")
def test_keys_work_wherever_the_focus_is(page: Path) -> None:
    seen = seen_by("keys.mjs", page)
    assert len(seen["effects"]) == 18
    for press, changed in seen["effects"].items():
        expected = {"n": "chosen", "p": "chosen", "+": "zoom", "-": "zoom", "c": "open"}
        assert expected.get(press[-1], "x") in changed, press
    assert seen["typed"] == "cnp+-0"
    assert seen["whileTyping"]


def kept_collectives(program: ShownProgram) -> tuple[int, int]:
    """Return how many collectives of the first graph the passes keep, and how many there are."""
    graphs = [graph for graph, _ in groupby(step.graph for step in program.steps)]
    first = collectives(graphs[0])
    now: list[Node] = list(first)
    for before, after in pairwise(graphs):
        partners = diff(before, after).partners
        now = [partners[node] for node in now if node in partners]
    return len(now), len(first)


@pytest.mark.needs("browser")
def test_a_selected_node_is_followed_through_the_passes(page: Path, tmp_path: Path) -> None:
    seen = seen_by("passes.mjs", page, str(tmp_path / "shots"))
    kept, every = kept_collectives(
        load_step(DIGITS, strategy_named("mirrored:2"), StepOptions()).program
    )
    assert (len(seen["kept"]), len(seen["lost"])) == (kept, every - kept)
    assert kept > 0
    for one in seen["kept"]:
        assert (one["op"], one["line"], one["shown"]) == (one["is"], one["isLine"], True)
    for one in seen["lost"]:
        assert re.fullmatch(r"[\w:]+ removed this node\.", one["said"])
    merged = [one["became"] for one in seen["lost"] if "bucket" in one["said"]]
    assert merged
    assert set(merged) == {"pack"}
    assert seen["back"] == every


@pytest.mark.needs("browser")
def test_the_picture_stays_and_shows_changes_in_place(page: Path, tmp_path: Path) -> None:
    seen = seen_by("passes.mjs", page, str(tmp_path / "shots"))
    assert seen["moved"] == []
    assert seen["missing"] == []
    assert seen["camera"]
    assert len(seen["marks"]) > 3
    for marks in seen["marks"]:
        assert (marks["added"], marks["rewired"], marks["removed"]) == (0, 0, 0), marks
    assert any(marks["edges"] for marks in seen["marks"])
    assert seen["pressed"].endswith("removed this node.")


@pytest.mark.needs("browser")
def test_passes_that_changed_nothing_fold(page: Path, tmp_path: Path) -> None:
    seen = seen_by("passes.mjs", page, str(tmp_path / "shots"))
    assert seen["folds"] > 0
    assert seen["unfolded"] > seen["visible"]


@pytest.mark.needs("browser")
def test_no_violation_of_accessibility(page: Path) -> None:
    seen = seen_by("accessibility.mjs", page)
    assert seen["violations"] == []
    assert seen["checked"] > 100


@pytest.mark.needs("browser")
def test_every_live_value_is_a_link_to_its_node(tmp_path: Path) -> None:
    @gd.function
    def step(x: jax.Array, others: list[jax.Array]) -> jax.Array:
        keys, values = lax.sort_key_val(x, jnp.cos(x))
        return jnp.sum(keys @ values) + sum(map(jnp.sum, others))

    graph = step.trace(jnp.ones((64, 64)), [jnp.ones(8)] * 30).graph
    model = model_of(graph)
    values = [entry[0] for entry in memory_timeline(model).live]
    later = {name for record in model.records for name in record.results[1:]}
    assert later & set(values)
    seen = seen_by("memory.mjs", written(graph, tmp_path))
    assert seen["first"] == 20
    assert seen["rows"] == seen["links"] == len(values)
    for name, results in seen["leads"]:
        assert name in results
    types = {cells[0]: (cells[3], cells[4]) for cells in seen["cells"]}
    assert types["%2"] == ("f32[64,64] mirrored", "sort")
    assert seen["chosen"] == [seen["line"]]


@pytest.mark.needs("browser")
def test_a_collective_in_a_loop_counts_once_for_each_trip(tmp_path: Path) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica(x: jax.Array) -> jax.Array:
        context = gd.get_replica_context()
        own = x * (context.replica_id_in_sync_group + 1)

        def turn(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return context.all_reduce("SUM", jnp.sin(carry) * own), None

        return lax.scan(turn, x, None, length=10)[0]

    step = gd.function(lambda x: strategy.run(replica, args=(x,)))
    path = written(step.trace(jnp.ones((256, 256))).lower(), tmp_path)
    seen = browse("browser.mjs", str(path), str(tmp_path / "shots"), "")
    assert seen["bytes"] == ["2.50 MiB"]
    assert "2.50 MiB" in seen["moved"]
    labels = seen_by("labels.mjs", path)
    assert any(re.fullmatch(r"⊞ scan %\d+ x 10", lines[0]) for lines in labels["labels"])


@gd.function
def long_program(x: jax.Array) -> jax.Array:
    """Return a program of many layers, of which one differs, and a loop of a large number."""
    for number in range(16):
        with jax.named_scope(f"layer{number}"):
            x = jnp.tanh(x @ x) + 1.0
            if number == 7:
                x = jnp.sin(x)
    with jax.named_scope("head"):
        scale = jnp.max(x)
        for _ in range(20):
            x = jnp.cos(x) * scale
    x, _ = lax.scan(lambda c, _: (jnp.sin(c) + 1.0, None), x, None, length=12)
    return x


@pytest.fixture
def long_page(tmp_path: Path) -> Path:
    return written(long_program.trace(jnp.ones((4, 4))).graph, tmp_path)


@pytest.mark.needs("browser")
def test_labels_of_groups_are_not_cut(long_page: Path) -> None:
    seen = seen_by("labels.mjs", long_page)
    texts = seen["sizes"]["1"]["texts"]
    (loop,) = [lines[0] for lines in seen["labels"] if lines[0].startswith("⊞ scan")]
    assert re.fullmatch(r"⊞ scan %\d+ x 12", loop)
    assert not any("…" in text for text in texts if "%" in text or "layer" in text)


@pytest.mark.needs("browser")
def test_text_is_never_too_small_to_read(long_page: Path) -> None:
    sizes = seen_by("labels.mjs", long_page)["sizes"]
    drawn = [size["smallest"] for size in sizes.values() if size["texts"]]
    assert len(drawn) >= 4
    assert min(drawn) > 8.99


@pytest.mark.needs("browser")
def test_repeated_layers_fold_and_tell_what_differs(long_page: Path) -> None:
    seen = seen_by("labels.mjs", long_page)
    assert ["⊞ 16 x layer", "49 nodes, 1 differs"] in seen["labels"]
    assert seen["differences"] == [["layer7", ["+1 sin f32[4,4]"]]]


@pytest.mark.needs("browser")
def test_a_group_made_of_a_line_is_labelled_with_its_code(tmp_path: Path) -> None:
    @gd.function
    def step(x: jax.Array) -> jax.Array:
        y = jnp.sin(x) + jnp.cos(x)
        return jnp.exp(y) * jnp.tanh(y)

    seen = seen_by("labels.mjs", written(step.trace(jnp.ones(3)).graph, tmp_path))
    assert [code for _, code in seen["titles"]] == [
        "y = jnp.sin(x) + jnp.cos(x)",
        "return jnp.exp(y) * jnp.tanh(y)",
    ]
    nested_seen = seen_by("labels.mjs", written(nested(), tmp_path))
    lines = (ROOT / "tests" / "viz" / "graphs.py").read_text().splitlines()
    at = next(number for number, text in enumerate(lines, 1) if "_, keys = lax.scan(" in text)
    codes = [code for name, code in nested_seen["titles"] if name == f"graphs.py:{at}"]
    assert codes
    assert all(code.startswith("_, keys = lax.scan(") for code in codes)
    assert all(re.fullmatch(r"test_viewing\.py:\d+, 3 nodes", rows[1]) for rows in seen["labels"])


@pytest.mark.needs("browser")
def test_a_node_that_feeds_all_is_set_aside(long_page: Path) -> None:
    seen = seen_by("labels.mjs", long_page)
    assert seen["aside"] == {"edges": 20, "drawn": 0, "drawnWhenChosen": 20}


def three_steps(last: Graph) -> ShownProgram:
    steps = (ShownStep("trace", chain(60)), ShownStep("first", chain(70)))
    return ShownProgram((*steps, ShownStep("last", last)))


@pytest.mark.needs("browser")
def test_the_address_has_the_state_and_back_returns(tmp_path: Path) -> None:
    seen = seen_by("state.mjs", written(three_steps(chain(80)), tmp_path), str(tmp_path))
    assert seen["first"] == {"pass": "last", "node": None, "tab": "collectives"}
    assert seen["chosen"] == {"pass": "first", "node": "%50", "tab": "memory"}
    assert seen["address"] == "#pass=first&node=%2550&tab=memory"
    assert seen["reopened"] == seen["chosen"]
    assert seen["copied"] == seen["link"]
    assert seen["backOnce"] == {**seen["chosen"], "tab": "collectives"}
    assert seen["backThrice"] == seen["first"]
    assert seen["forward"] == {"pass": "first", "node": None, "tab": "collectives"}
    assert seen["badAddress"] == {"pass": "last", "node": None, "tab": "collectives"}

    assert seen["counted"] == "69"
    assert seen["walk"] == ["%0", "%1", "%2", "%1"]
    assert seen["figure"] == "2 of 69"
    assert seen["next"] == "%2"
    assert seen["byExpression"] == "10"
    assert "no regular expression" in seen["noExpression"]


@pytest.mark.needs("browser")
def test_the_drawing_moves_zooms_and_shows_cards(tmp_path: Path) -> None:
    seen = seen_by("state.mjs", written(three_steps(chain(80)), tmp_path), str(tmp_path))
    assert seen["panned"] == [-30, -50, 1]
    zoom, x, y = seen["zoomed"]
    assert zoom > 1.2
    assert (x, y) == (pytest.approx(0, abs=0.01), pytest.approx(0, abs=0.01))
    assert seen["pinched"] == pytest.approx(2)
    assert seen["card"][0] == seen["card"][1]
    assert seen["cardHidden"]
    first, moved, hidden, again = seen["sizes"]
    assert moved == [first[0] + 100, first[1] + 24]
    assert hidden == [0, 0]
    assert again == moved


@pytest.mark.needs("browser")
def test_the_drawing_is_saved_as_svg_and_png(tmp_path: Path) -> None:
    seen = seen_by("state.mjs", written(three_steps(hostile()), tmp_path), str(tmp_path))
    assert seen["PNG"]["begins"].startswith("\x89PNG")
    assert re.fullmatch(r"chain_\w+\.svg", seen["SVG"]["name"])
    root = ElementTree.parse(seen["SVG"]["path"]).getroot()
    groups = root.findall("{http://www.w3.org/2000/svg}g")
    assert len(groups) == seen["boxes"]
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        *("svg", "defs", "marker", "path", "rect", "text", "polyline", "g", "title")
    }


@pytest.mark.needs("browser")
def test_a_narrow_window_has_room_for_the_drawing(page: Path, tmp_path: Path) -> None:
    seen = seen_by("narrow.mjs", page, str(tmp_path / "shots"))
    for state in ("first", "selected"):
        assert seen[state]["drawing"] >= 0.5
        assert seen[state]["overflow"][0] <= 0  # a phone scrolls down, not to the side
