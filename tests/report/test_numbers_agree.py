"""Each number that two places show is one number: page, report, trace, comparison, explanation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import graphdist as gd
from graphdist.ir.live_memory import live_memory
from graphdist.program.stages import Lowered
from graphdist.report.amounts import size_text, time_text
from graphdist.report.step_report import Report
from graphdist.report.timeline_trace import trace_of
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.compilation import StepOptions, chosen_for, lower_target
from graphdist.viz.comparison import comparison_of
from graphdist.viz.document import compared, program_document, read_document
from graphdist.viz.page import figures_of, report_note
from graphdist.viz.program import ShownProgram, program_of
from graphdist.viz.text import collectives_table
from tests.ir.real_programs import PROGRAMS
from tests.viz.test_pods import validated

EXAMPLES = Path(__file__).parents[2] / "examples"
TRANSFORMER = {"size": "10m", "length": 64, "batch": 2}


def ahead_of_time(name: str, settings: dict[str, Any], *, shards: bool) -> Lowered:
    chosen = chosen_for(find_topology("v5e:2x2"), shards)
    return lower_target(f"{EXAMPLES / name}.py:make_step", chosen, StepOptions(settings))


def compiled(lowered: Lowered) -> Report:
    found = lowered.compile()
    assert found.memory.peak_bytes == found.report().needed_bytes
    return found.report()


Case = tuple[Lowered, Report]


def with_report(lowered: Lowered, compiles: bool = False) -> Case:
    return lowered, compiled(lowered) if compiles else lowered.estimate()


NOT_COMPILED = ("recurrent with local steps", "stack in slices on TPUs", "classifier of Keras")


def digits(compiles: bool) -> Case:
    return with_report(ahead_of_time("train_digits", {}, shards=False), compiles)


def transformer(compiles: bool) -> Case:
    return with_report(ahead_of_time("aot_transformer", TRANSFORMER, shards=True), compiles)


def shown(lowered: Lowered, report: Report) -> ShownProgram:
    return replace(program_of(lowered), topology=lowered.devices.topology, report=report)


def check(lowered: Lowered, report: Report) -> None:
    program = shown(lowered, report)
    saved = gd.viz.render(program, "json")
    document = json.loads(saved)
    both = compared(program, read_document(saved, "old.json"), "old.json")
    figures = {figure.name: figure.after for figure in comparison_of(both).figures}
    check_peaks(lowered, report, document, figures)
    check_counts(lowered, report, document, figures)
    check_seconds(report, document, figures)
    columns = figures_of(program)
    assert columns[1:3] == (f"{figures['nodes']:,}", f"{figures['collectives']:,}")
    assert columns[3] == size_text(figures["bytes of collectives"])
    assert columns[4] == size_text(figures["peak by the graph"])
    if report.timeline:
        assert time_text(report.timeline.seconds) in report_note(program)
        assert time_text(report.timeline.seconds) in str(report)


def last_graph(document: dict[str, Any]) -> dict[str, Any]:
    """Return the graph after the last pass; graphs of servers come after it."""
    found: dict[str, Any] = document["graphs"][
        document["passes"][document.get("shown", -1)]["graph"]
    ]
    return found


def check_peaks(
    lowered: Lowered, report: Report, document: dict[str, Any], figures: dict[str, float]
) -> None:
    peak, counted = report.needed_bytes, live_memory(lowered.graph).peak
    assert document["report"]["memory"]["peak"] == peak
    if report.memory:
        assert sum(held.bytes for held in report.memory.largest) == report.memory.peak_bytes == peak
        assert sum(row[0] for row in document["report"]["held"]["largest"]) == peak
    else:
        assert report.is_compiled
        assert report.timeline is None  # the graph's count is that of TPUs
    assert re.search(rf"^  peak +{re.escape(size_text(peak))}$", str(report), re.MULTILINE)
    graph = last_graph(document)
    assert graph["memory"]["peak"] == figures["peak by the graph"] == counted
    assert sum(row[1] for row in graph["memory"]["live"]) == counted
    if report.parts:
        assert report.parts.total == counted
    if not report.is_compiled:
        assert peak == counted
    if report.timeline:
        assert figures["peak as compiled"] == peak
        events = trace_of(report.timeline, "step")["traceEvents"]
        held = [event["args"]["MiB"] for event in events if event["name"] == "memory"]
        # What takes no time is no event: of a module the last bytes are missing, of a graph more.
        least = 0.99 * peak if report.timeline.is_compiled else 0
        assert least <= max(held) * 2**20 <= peak
        moments = document["report"]["memory_by_line"]["moments"]
        assert least <= max(sum(parts) for _, *parts in moments) <= peak


def check_counts(
    lowered: Lowered, report: Report, document: dict[str, Any], figures: dict[str, float]
) -> None:
    measure = lowered.explain().steps[-1].after
    assert f", {measure.nodes} nodes, " in repr(lowered)
    assert figures["nodes"] == measure.nodes
    assert figures["collectives"] == len(lowered.collectives) == len(report.collectives)
    moved = sum(report.collective_bytes.values())
    assert figures["bytes of collectives"] == moved
    if moved:
        assert f"{moved:,} bytes" in collectives_table(program_of(lowered))
        assert size_text(moved) in str(report)
    of_page = document["report"]["collectives"]
    assert sum(use["bytes"] for use in of_page) == moved


def check_seconds(report: Report, document: dict[str, Any], figures: dict[str, float]) -> None:
    timeline = report.timeline
    if timeline is None:
        return
    assert document["report"]["time"]["step"] == figures["predicted step"] == timeline.seconds
    graph = last_graph(document)
    nodes = [graph["nodes"][position] for position in graph["collectives"]]
    seconds = [
        document["facts"][node["facts"]].get("seconds", 0) * node.get("times", 1) for node in nodes
    ]
    assert seconds == pytest.approx([use.seconds for use in report.collectives], rel=1e-3)
    of_timeline = {each.name: each for each in timeline.collectives}
    if timeline.is_compiled:
        names = {use.became.partition(",")[0] for use in report.collectives} & of_timeline.keys()
        for name in names:
            uses = [use for use in report.collectives if use.became.partition(",")[0] == name]
            runs = [each.seconds for each in timeline.collectives if each.name == name]
            assert sum(use.seconds for use in uses) == pytest.approx(sum(runs))
        assert names
    else:
        assert sum(seconds) == pytest.approx(
            sum(each.seconds for each in timeline.collectives), rel=1e-3
        )


@pytest.mark.parametrize("name", NOT_COMPILED)
def test_numbers_agree_of_steps_that_are_not_compiled(name: str) -> None:
    check(*with_report(PROGRAMS[name]().lower()))


def test_numbers_agree_of_a_step_compiled_for_cpus() -> None:
    check(*with_report(PROGRAMS["train_digits"]().lower(), compiles=True))


@pytest.mark.needs("tpu")
@pytest.mark.parametrize("case", [digits, transformer])
def test_numbers_agree_ahead_of_time(case: Callable[[bool], Case]) -> None:
    check(*case(False))


@pytest.mark.parametrize("name", ["train_parameter_server", "recommender on servers"])
def test_what_a_worker_reads_and_sends_is_shown_everywhere(name: str) -> None:
    lowered = PROGRAMS[name]().lower()
    report, cut = lowered.estimate(), lowered.cut
    assert cut is not None
    check(lowered, report)
    moved = sum(request.bytes for request in report.servers)
    assert cut.bytes_read < moved <= cut.bytes_read + cut.bytes_written
    assert lowered.explain().steps[-1].after.moved == moved
    total = next(line for line in str(report).splitlines() if line.startswith("parameter servers"))
    assert f" {size_text(cut.bytes_read)} a step" in total
    for text in (str(lowered.explain()), collectives_table(program_of(lowered))):
        assert total in text
        for request in report.servers:
            assert str(request) in " ".join(text.split())
    document = json.loads(json.dumps(program_document(program_of(lowered))))
    validated(document)
    assert [each["bytes"] for each in document["servers"]] == [
        request.bytes for request in report.servers
    ]


@pytest.mark.long
@pytest.mark.needs("tpu")
@pytest.mark.parametrize("case", [digits, transformer])
def test_numbers_agree_of_steps_compiled_for_tpus(case: Callable[[bool], Case]) -> None:
    check(*case(True))
