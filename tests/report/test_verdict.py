"""What the verdict says of a step, and what it suggests: by the prices of report and passes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import graphdist as gd
from graphdist.program.stages import Lowered
from graphdist.report.amounts import size_text, time_text
from graphdist.report.step_report import Report
from graphdist.report.step_timeline import LineTime
from graphdist.report.verdict import Sentence, verdict_of, verdict_of_graph
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.compilation import StepOptions, chosen_for, lower_target
from tests.ir.real_programs import PROGRAMS

EXAMPLE = f"{Path(__file__).parents[2] / 'examples' / 'aot_transformer.py'}:make_step"
GIB = 2**30


def lowered_for(*, shards: bool) -> Lowered:
    chosen = chosen_for(find_topology("v5e:2x4"), shards)
    settings = {"size": "10m", "length": 64, "batch": 2}
    return lower_target(EXAMPLE, chosen, StepOptions(settings))


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    return lowered_for(shards=False)


def sentences(lowered: Lowered, **changed: Any) -> dict[str, Sentence]:
    report = replace(lowered.estimate(), **changed)
    return {each.title: each for each in verdict_of(report, lowered.graph, lowered.explain)}


@pytest.mark.needs("tpu")
def test_it_says_the_numbers_of_the_report(lowered: Lowered) -> None:
    report, found = lowered.estimate(), sentences(lowered)
    assert list(found.values()) == list(report.verdict)
    assert list(found) == [
        *("Fits?", "Step", "Largest collective", "Peak", "Slowest line", "Try"),
    ]
    timeline, memory = report.timeline, report.memory
    assert timeline is not None
    assert memory is not None
    assert found["Step"].figure == time_text(timeline.seconds)
    assert f"{time_text(timeline.exposed)} (" in found["Step"].text
    assert found["Peak"].figure == size_text(report.needed_bytes)
    assert f"{size_text(memory.largest[0].bytes)} of it {memory.largest[0].type}" in str(
        found["Peak"]
    )
    largest = max(report.collectives, key=lambda use: use.bytes_a_step)
    assert found["Largest collective"].figure == size_text(largest.bytes_a_step)
    line = found["Slowest line"].leads.removeprefix("line ")
    spent = sum(each.seconds for each in timeline.lines if each.line == line)
    assert found["Slowest line"].figure == time_text(spent)
    code = Path(EXAMPLE.partition(":")[0]).read_text().splitlines()[int(line.split(":")[1]) - 1]
    assert found["Slowest line"].text.endswith(f"{line}: {code.strip()}")


@pytest.mark.needs("tpu")
def test_a_report_keeps_its_verdict_in_json(lowered: Lowered) -> None:
    report = lowered.estimate()
    assert Report.from_json(report.to_json()).verdict == report.verdict
    earlier = {name: value for name, value in report.to_json().items() if name != "verdict"}
    assert Report.from_json(earlier).verdict == ()


@pytest.mark.needs("tpu")
def test_what_does_not_fit_is_told_what_would_save_most(lowered: Lowered) -> None:
    found = sentences(lowered, available_bytes=1)
    assert found["Does not fit"].kind == "refused"
    assert "too much" in found["Does not fit"].text
    # The compiler may refuse a step without saying how much it needs.
    said = str(sentences(lowered, refusal="more than a device has")["Does not fit"])
    assert "more than a device has; by its graph it needs " in said
    assert said.count("by its graph") == 1
    assert "too much" not in said
    sharded = lowered_for(shards=True)
    assert "--shard-parameters" not in sentences(sharded, available_bytes=1)["Try"].text
    stored = replace(lowered.estimate().variables, held_bytes=8 * GIB, full_bytes=8 * GIB)
    found = sentences(lowered, available_bytes=1, variables=stored)
    assert found["Try"].figure == "7.00 GiB less"
    assert "--shard-parameters" in found["Try"].text


@pytest.mark.needs("tpu")
def test_the_largest_price_is_suggested(lowered: Lowered) -> None:
    timeline = lowered.estimate().timeline
    assert timeline is not None
    step = replace(timeline, seconds=1.0, compute=1.0, exposed=0.0, lines=())
    found = sentences(lowered, timeline=replace(step, exposed=0.3, compute=0.7))
    assert found["Try"].figure == "up to 300.00 ms less"
    assert "communication" in found["Try"].text
    lines = (LineTime("a.py:1", "forward", 0.5), LineTime("a.py:2", "recomputed", 0.4))
    found = sentences(lowered, timeline=replace(step, lines=lines))
    assert (found["Try"].figure, found["Try"].leads) == ("up to 400.00 ms less", "line a.py:2")
    full = lowered.estimate().needed_bytes
    assert sentences(lowered, timeline=step)["Try"].figure == "a larger batch"
    nothing = sentences(lowered, timeline=step, available_bytes=full)
    assert nothing["Try"].figure == "nothing more"


@pytest.mark.parametrize("name", ["train_digits", "train_parameter_server"])
def test_a_graph_alone_has_a_verdict(name: str) -> None:
    stage = PROGRAMS[name]().lower()
    found = {each.title: each for each in verdict_of_graph(stage.graph, stage.server_requests)}
    assert found["Fits?"].figure == "not known"
    assert ("Largest request" in found) == bool(stage.server_requests)
    assert found["Most computed line"].figure.endswith("FLOP")
    assert found["Try"].figure == "--topology"


def test_a_step_of_one_replica_says_that_it_exchanges_nothing() -> None:
    graph = gd.function(lambda x: x + 1).trace(1.0).lower().graph
    found = {each.title: each for each in verdict_of_graph(graph)}
    assert found["Collectives"].figure == "none"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of Linux")
def test_large_temporaries_on_cpus_suggest_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = gd.function(lambda x: x + 1).trace(1.0).lower()
    report = lowered.compile().report()

    def suggested(temporaries: int) -> str:
        changed = replace(report, temp_bytes=temporaries)
        return verdict_of(changed, lowered.graph, lowered.explain)[-1].figure

    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    assert suggested(2**25 - 1) == "--topology"
    assert suggested(2**26) == "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert suggested(2**26) == "--topology"
