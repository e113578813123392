"""Two programs compared: their text, their page, and the reading of files that may be anybody's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: JSON

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import graphdist as gd
from graphdist.errors import ArgumentError
from graphdist.ir.graph import Graph
from graphdist.ir.printer import print_graph
from graphdist.tools.viz import main
from graphdist.viz.comparison import comparison_of
from graphdist.viz.document import SavedProgram, as_saved, compared, program_document, read_document
from graphdist.viz.graph_diff import diff
from graphdist.viz.model import model_of
from graphdist.viz.program import ShownProgram, ShownStep, program_of
from tests.ir.real_programs import PROGRAMS
from tests.viz.browser import browse
from tests.viz.graphs import HOSTILE, blocks, chain, hostile, nested
from tests.viz.models import scanned
from tests.viz.test_pods import validated


def saved(graph: Graph) -> SavedProgram:
    return read_document(gd.viz.render(graph, "json"), "old.json")


def of(before: Graph, after: Graph) -> ShownProgram:
    return compared(ShownProgram((ShownStep("graph", after),)), saved(before), "old.json")


def convolution() -> Graph:
    @gd.function
    def step(images: jax.Array, weights: jax.Array) -> jax.Array:
        return lax.conv(images, weights, (1, 1), "SAME")

    return step.trace(jnp.ones((1, 2, 8, 8)), jnp.ones((4, 2, 3, 3))).graph


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: chain(160), nested, hostile, lambda: blocks(600), convolution),
        lambda: scanned().graph,  # computed again backward, behind a barrier
    ],
)
def test_a_program_is_read_as_it_was_written(make: Callable[[], Graph]) -> None:
    graph = make()
    read, through_text = saved(graph)[0], as_saved(graph)
    assert print_graph(read) == print_graph(through_text)
    for one, other in zip(model_of(read).records, model_of(graph).records, strict=True):
        assert one.facts.frames == other.facts.frames
        assert (one.facts.scope, one.facts.origin) == (other.facts.scope, other.facts.origin)
    assert not diff(read, through_text)


def test_equal_programs_have_no_difference() -> None:
    found = comparison_of(of(nested(), nested()))
    assert all(figure.before == figure.after for figure in found.figures)
    assert found.lines == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_no_difference_from_themselves_as_saved(name: str) -> None:
    program = program_of(PROGRAMS[name]().lower())
    both = compared(program, read_document(gd.viz.render(program, "json"), "old.json"), "old.json")
    before, after = (step.graph for step in both.steps)
    assert not diff(before, after)
    found = comparison_of(both)
    assert all(figure.before == figure.after for figure in found.figures)
    assert {each.state for each in found.collectives} <= {"kept"}
    assert found.lines == []


def test_figures_collectives_and_lines_of_two_programs() -> None:
    found = comparison_of(of(chain(160), chain(360)))
    figures = {figure.name: (figure.before, figure.after) for figure in found.figures}
    assert figures["nodes"] == (160, 360)
    assert figures["collectives"] == (2, 4)  # one in a hundred nodes, from the 50th on
    assert figures["bytes of collectives"][1] == 2 * figures["bytes of collectives"][0]
    states = [each.state for each in found.collectives]
    assert states == ["added", "added", "kept", "kept"]
    assert sum(line.added for line in found.lines) == 200
    assert {line.place for line in found.lines} == {f"step.py:{number}" for number in range(1, 8)}
    text = str(comparison_of(of(chain(360), chain(160))))
    assert "nodes                  360 -> 160 (-55.6%)" in text
    assert text.count("\n- all_reduce sum") == 2
    assert text.count("\n= all_reduce sum") == 2


def test_the_document_of_a_comparison_follows_the_schema() -> None:
    document = program_document(of(chain(160), chain(360)))
    assert document["comparison"]["names"] == ("old.json", "now")
    validated(json.loads(json.dumps(document)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda document: "{", "is no JSON"),
        (lambda document: "[" * 100_000, "is no JSON"),
        (lambda document: "[]", "not a graphdist.program"),
        (lambda document: json.dumps({**document, "version": 3}), "its version is 3, not 4"),
        (lambda document: json.dumps({**document, "facts": []}), "are not those of its text"),
        (lambda document: json.dumps({**document, "sources": [["x"]]}), "not those of its text"),
        (lambda document: json.dumps({**document, "graphs": "no"}), "are not those of its text"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    change: Callable[[dict[str, Any]], str], said: str
) -> None:
    document = json.loads(gd.viz.render(chain(3), "json"))
    with pytest.raises(ArgumentError, match=said):
        read_document(change(document), "old.json")


def test_reports_that_say_nothing_are_left_out() -> None:
    program = of(chain(3), chain(4))
    for report in ({}, {"memory": 3, "time": None}, {"memory": {"peak": "x"}, "time": {"step": 1}}):
        odd = compared(program, (chain(3), report), "old.json")
        assert "predicted step" not in str(comparison_of(odd))


def test_the_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size in (160, 360):
        (tmp_path / f"{size}.gd").write_text(print_graph(chain(size)))
    old = str(tmp_path / "old.json")
    assert main([str(tmp_path / "160.gd"), "-o", old]) == 0
    for earlier in (old, str(tmp_path / "160.gd")):
        assert main([str(tmp_path / "360.gd"), "--compare", earlier]) == 0
        said = capsys.readouterr().out
        assert "collectives            2 -> 4 (+100.0%)" in said
        assert "200 added, 0 removed" in said
    assert main([str(tmp_path / "360.gd"), "--compare", old, "--format", "dot"]) == 2
    assert (
        "--format dot has no use for --compare, which is for text, html, json"
        in capsys.readouterr().err
    )
    assert main([str(tmp_path / "360.gd"), "--compare", str(tmp_path / "no.json")]) == 2
    assert "no.json" in capsys.readouterr().err


@pytest.mark.long
def test_the_command_compares_an_example_with_itself_and_with_another_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[2] / "examples" / "aot_transformer.py"
    settings = ("--strategy", "mirrored:2")
    command, old = [f"{example}:make_step", *settings], str(tmp_path / "old.json")
    assert main([*command, "-o", old]) == 0
    assert main([*command, "--compare", old]) == 0
    assert "0 added, 0 removed, 0 rewired, 0 changed" in capsys.readouterr().out
    changed = ("--set", "recompute=none", "-o", str(tmp_path / "changes.json"))
    assert main([*command, "--compare", old, *changed]) == 0
    compared = json.loads((tmp_path / "changes.json").read_text())["comparison"]
    assert compared["lines"]


def seen_of(path: Path, *kind: str) -> Any:
    seen = browse("comparison.mjs", str(path), *kind)
    assert seen["console"] == []
    assert set(seen["requests"]) <= {"file"}
    assert seen["shown"] == [True, True]
    for now, before in seen["cameras"]:
        assert now == before
    assert len({tuple(now) for now, _ in seen["cameras"]}) == 3
    assert seen["places"]["both"] > 0
    assert seen["places"]["moved"] == 0
    assert seen["pressed"]["selected"]
    return seen


@pytest.mark.needs("browser")
def test_two_programs_are_shown_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(gd.viz.render(of(chain(360), chain(160)), "html"))
    seen = seen_of(path, "compared")
    assert (seen["tab"], seen["besideAtFirst"]) == ("Comparison", True)
    assert "nodes\t360\t160\t-55.6%" in seen["figures"]
    assert " 160 nodes " in seen["head"]
    assert len(seen["lines"]) == 7
    assert [row.split("\t")[0] for row in seen["collectives"]] == ["\u2212", "\u2212", "=", "="]
    assert sorted(seen["captions"]) == ["now", "old.json"]
    assert seen["pressed"]["lost"] == "now removed this node."
    assert [op for op, _ in seen["led"]] == ["all_reduce"] * 4
    assert [shown for _, shown in seen["led"]] == [[True, True]] * 2 + [[False, True]] * 2
    assert seen["hidden"][0] is False
    assert "beside=no" in seen["hidden"][1]
    assert seen["back"]


def test_paired_nodes_of_two_programs_are_at_one_place_though_lines_moved() -> None:
    moved = chain(60, file="other.py")
    document = program_document(of(chain(60), moved))
    old, new = (graph["nodes"] for graph in document["graphs"])
    assert [node["identity"] for node in old] == [node["identity"] for node in new]


@pytest.mark.needs("browser")
def test_a_comparison_of_hostile_names_is_text(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    program = compared(ShownProgram((ShownStep("graph", hostile()),)), saved(chain(60)), HOSTILE)
    path.write_text(gd.viz.render(program, "html"), encoding="utf-8")
    seen = browse("comparison.mjs", str(path), "compared")
    assert seen["console"] == []
    assert set(seen["requests"]) == {"file"}
    assert seen["images"] == 0
    assert any("<img" in caption for caption in seen["captions"])
    assert not any("\u202e" in text for text in [*seen["captions"], *seen["lines"]])


@pytest.mark.needs("browser")
def test_no_violation_of_accessibility_in_a_comparison(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(gd.viz.render(of(chain(360), chain(160)), "html"))
    seen = browse("accessibility.mjs", str(path))
    assert seen["violations"] == []
    assert seen["console"] == []


@pytest.mark.needs("browser")
def test_the_graph_before_a_pass_is_shown_beside_it(tmp_path: Path) -> None:
    steps = ShownStep("trace", blocks(1_000)), ShownStep("pass", blocks(1_100))
    path = tmp_path / "page.html"
    path.write_text(gd.viz.render(ShownProgram(steps), "html"))
    seen = seen_of(path)
    assert (seen["tab"], seen["besideAtFirst"]) == ("Collectives", False)
    assert seen["opened"] == [False, False]
    assert "beside=yes" in seen["address"]
    assert "beside" not in seen["hidden"][1]
    assert seen["back"]
