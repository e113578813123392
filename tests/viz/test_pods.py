"""The page of a step compiled for chips that are not here: report, times, timeline, colours."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: JSON

import jsonschema
import pytest

from graphdist.ir.printer import print_graph
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.viz import main
from graphdist.viz.document import program_document
from graphdist.viz.model import models_of
from graphdist.viz.program import ShownProgram, ShownStep
from tests.viz.browser import ROOT, browse
from tests.viz.graphs import chain, nested

STEP = """
import jax
import jax.numpy as jnp
import graphdist as gd


def make_step(strategy, width=256, layers=4):
    with strategy.scope():
        weights = gd.Variable(jax.ShapeDtypeStruct((layers, width, width), jnp.float32), name="w")

    def loss_of(w, x):
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)
        return jnp.mean(x * x) + jnp.mean(jnp.abs(x))

    def replica(x):
        loss, gradient = jax.value_and_grad(loss_of)(weights[...], x)
        gradient = gd.get_replica_context().all_reduce("MEAN", gradient)
        weights.assign_sub(0.1 * gradient)
        return loss

    @gd.function
    def step(x):
        return strategy.reduce("MEAN", strategy.run(replica, args=(x,)), axis=None)

    return step, (gd.PerReplicaSpec((8, width), jnp.float32, strategy=strategy),)
"""


@pytest.fixture
def step(tmp_path: Path) -> str:
    (tmp_path / "scanned.py").write_text(STEP)
    return f"{tmp_path / 'scanned.py'}:make_step"


def written(tmp_path: Path, *arguments: str) -> Path:
    path = tmp_path / "page.html"
    assert main([*arguments, "-o", str(path)]) == 0
    return path


def seen_of(path: Path) -> Any:
    seen = browse("pods.mjs", str(path))
    assert seen["console"] == []
    assert set(seen["requests"]) <= {"file", "blob"}
    return seen


@pytest.mark.needs("browser")
@pytest.mark.needs("tpu")
def test_the_report_of_a_pod_is_in_the_page(step: str, tmp_path: Path) -> None:
    seen = seen_of(written(tmp_path, step, "--topology", "v5e:2x2"))
    assert seen["tabs"][-1] == "Report"
    assert re.search(r"step\t[\d.]+ us\t[\d.]+ us to [\d.]+ us, ", seen["report"])
    assert re.search(r"Collectives, and what the compiler made of them: \d", seen["report"])
    assert "Lines that compute longest" in seen["captions"]
    assert "scanned.py:" in seen["report"]
    assert re.search(r"the model's own operations reach [\d.]+% of the peak", seen["report"])
    assert re.search(r"operations\t[\d.]+ [KMG]FLOP\tper device", seen["report"])
    peak = re.search(r"peak\t([\d.]+ [KMG]iB)\t", seen["report"])
    assert peak
    compiled, *counted = seen["memory"]
    assert compiled.startswith(f"Held at the peak of {peak[1]}, compiled")
    assert counted == ["Counted on the graph, before XLA", "Live at the peak"]


@pytest.mark.needs("browser")
@pytest.mark.needs("tpu")
def test_collectives_are_sorted_by_estimated_time(step: str, tmp_path: Path) -> None:
    seen = seen_of(written(tmp_path, step, "--topology", "v5e:2x2"))
    assert seen["sorted"] == "Time ▼"
    assert len(seen["shown"]) == len(seen["times"]) > 1
    assert min(seen["times"]) > 0

    def seconds(text: str) -> float:
        number, unit = text.split()
        return float(number) * {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]

    shown = [seconds(text) for text in seen["shown"]]
    assert shown == sorted(shown, reverse=True)
    assert shown == pytest.approx(sorted(seen["times"], reverse=True), rel=0.01)
    line, tab, shown_in_the_timeline = seen["source"]
    assert tab == "collectives"
    assert shown_in_the_timeline == line


@pytest.mark.needs("browser")
@pytest.mark.needs("tpu")
def test_the_timeline_leads_to_nodes_and_nodes_to_the_timeline(step: str, tmp_path: Path) -> None:
    seen = seen_of(written(tmp_path, step, "--topology", "v5e:2x2"))
    assert re.match(r"Predicted, no measurement: [\d.]+ us per step, [\d.]+ us to", seen["note"])
    pressed = seen["pressed"]
    assert pressed["line"] in seen["hovered"]
    assert pressed["title"] == pressed["line"]
    assert pressed["listed"][1:] == pressed["nodes"] or pressed["listed"] == pressed["nodes"]
    assert pressed["highlighted"] == pressed["boxes"] > 0
    assert seen["followed"] == [pressed["line"], True]
    assert seen["laneOfNode"]
    zoomed, title, _ = seen["walked"]
    assert zoomed
    assert seen["said"].startswith(title)


@pytest.mark.needs("browser")
@pytest.mark.needs("tpu")
def test_boxes_are_coloured_by_figures_and_kinds(step: str, tmp_path: Path) -> None:
    seen = seen_of(written(tmp_path, step, "--topology", "v5e:2x2"))
    assert seen["colourings"][1:] == ["bytes", "time", "memory", "distribution", "pass"]
    for name, colours in seen["colours"].items():
        assert len(colours["used"]) > 1, name
        assert colours["said"], name
        assert f"colour={name}" in colours["hash"]
    assert "heat-4" in seen["colours"]["time"]["used"]
    assert {"mirrored", "per_replica"} <= set(seen["colours"]["distribution"]["legend"])
    assert "the program" in seen["colours"]["pass"]["legend"]
    assert seen["restored"] == ["time", "time", True]
    assert seen["plain"] == [True, True]


@pytest.mark.needs("browser")
@pytest.mark.needs("tpu")
def test_no_violation_of_accessibility_with_report_and_timeline(step: str, tmp_path: Path) -> None:
    path = written(tmp_path, step, "--topology", "v5e:2x2")
    seen = browse("accessibility.mjs", str(path))
    assert seen["violations"] == []
    assert seen["console"] == []


@pytest.mark.needs("browser")
@pytest.mark.needs("tpu")
def test_a_narrow_window_has_room_for_the_drawing_above_the_timeline(
    step: str, tmp_path: Path
) -> None:
    path = written(tmp_path, step, "--topology", "v5e:2x2")
    seen = browse("narrow.mjs", str(path), str(tmp_path / "shots"))
    for state in ("first", "selected"):
        assert seen[state]["drawing"] >= 0.5
        assert seen[state]["overflow"][0] <= 0


@pytest.mark.needs("browser")
def test_a_saved_graph_has_times_of_a_topology_and_no_report(tmp_path: Path) -> None:
    saved = tmp_path / "chain.gd"
    saved.write_text(print_graph(chain(120)))
    seen = seen_of(written(tmp_path, str(saved), "--topology", "v5e:2x2"))
    assert seen["sorted"] == "Time ▼"
    assert "Report" not in seen["tabs"]


@pytest.mark.needs("browser")
def test_a_page_without_a_topology_sorts_by_bytes_and_has_no_times(tmp_path: Path) -> None:
    saved = tmp_path / "chain.gd"
    saved.write_text(print_graph(chain(120)))
    seen = seen_of(written(tmp_path, str(saved)))
    assert seen["sorted"] == "Bytes ▼"
    assert seen["shown"] == []
    assert "time" not in seen["colourings"]


@pytest.mark.needs("tpu")
def test_settings_and_slices_of_parameters_reach_the_step(step: str, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    options = ["--topology", "v5e:2x2", "--set", "width=128", "--shard-parameters", "-o", str(path)]
    assert main([step, *options]) == 0
    document = json.loads(path.read_text())
    validated(document)
    assert document["replicas"] == 4
    kinds = {use["kind"].split()[0] for use in document["report"]["collectives"]}
    assert kinds & {"reduce_scatter", "all_gather"}
    types = {kind for facts in document["facts"] for kind in facts.get("types", ())}
    assert any("128" in kind for kind in types)
    assert not any("256" in kind for kind in types)


@pytest.mark.needs("tpu")
def test_a_function_of_given_types_is_compiled_for_a_topology(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def scaled(values, factor):\n    return values * factor\n")
    path = tmp_path / "step.json"
    options = ["--topology", "v5e:2x2", "--args", "f32[3] f32[]", "-o", str(path)]
    assert main([f"{tmp_path / 'steps.py'}:scaled", *options]) == 0
    document = json.loads(path.read_text())
    assert (document["name"], document["report"]["fits"]) == ("scaled", True)


@pytest.mark.needs("tpu")
def test_a_step_that_does_not_fit_says_so(step: str, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    large = ["--set", "width=32768", "--set", "layers=8"]
    assert main([step, "--topology", "v5e:2x2", *large, "-o", str(path)]) == 0
    document = json.loads(path.read_text())
    validated(document)
    assert document["report"]["fits"] is False
    assert document["verdict"][0]["title"] == "Does not fit"
    assert document["report"]["time"]["by"].endswith("since the compiler refused the program")
    assert document["report"]["lanes"]


def validated(document: Any) -> None:
    folder = ROOT / "graphdist" / "viz"
    jsonschema.validate(document, json.loads((folder / "document.schema.json").read_text()))


def test_a_loop_has_no_time_and_its_nodes_have_theirs() -> None:
    topology = find_topology("v5e:2x2")
    graph = nested()
    plain, timed = models_of([graph])[graph], models_of([graph], topology)[graph]
    assert not any(record.facts.seconds for record in plain.records)
    loops = [record for record in timed.records if record.node and record.node.graphs]
    assert len(loops) >= 2
    assert not any(record.facts.seconds for record in loops)
    assert any(record.facts.seconds for record in timed.records if record.parent >= 0)


def test_a_program_without_a_report_has_none_in_its_document() -> None:
    program = ShownProgram((ShownStep("graph", chain(3)),))
    assert {"report", "topology"}.isdisjoint(program_document(program))
    with_chips = replace(program, topology=find_topology("v5e:2x2"))
    assert program_document(with_chips)["topology"] == "v5e:2x2"
    assert with_chips.only("last").topology == with_chips.topology


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, as the accessibility guidelines define it."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_on_every_colour_can_be_read_in_both_themes() -> None:
    style = (ROOT / "graphdist" / "viz" / "web" / "src" / "style.css").read_text()
    light, _, dark = style.partition("@media screen and (prefers-color-scheme: dark)")
    for theme in (light, dark.partition("\n}\n")[0]):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", theme))
        grounds = [name for name in colours if re.fullmatch(r"(heat|kind)-\d", name)]
        assert len(grounds) == 12
        for name in grounds:
            assert contrast(colours["text"], colours[name]) >= 4.5, name
