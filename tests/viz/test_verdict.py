"""The first view of a page: what it says, where its sentences lead, and what it does not show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any  # Any: JSON

import pytest

import graphdist as gd
from tests.ir.real_programs import PROGRAMS
from tests.viz.browser import ROOT, browse
from tests.viz.test_pods import step, written

__all__ = ["step"]  # a fixture


def seen_first(page: Path) -> Any:
    seen = browse("verdict.mjs", str(page))
    assert seen["console"] == []
    assert seen["covered"] == []
    assert seen["opens"]["zoom"] >= 0.7
    assert seen["opens"]["isSeen"]
    for has_room, is_shown in seen["maps"]:
        assert has_room == is_shown
    assert seen["maps"][-1] == [True, True]
    assert seen["cut"] == []
    assert seen["first"] == {"marked": 0, "gone": 0, "changed": 0}
    assert seen["chosen"]["marked"] > 0
    return seen


@pytest.mark.needs("browser")
@pytest.mark.needs("tpu")
def test_the_verdict_of_a_pod_leads_to_what_it_says(step: str, tmp_path: Path) -> None:
    seen = seen_first(written(tmp_path, step, "--topology", "v5e:2x2"))
    for pattern, sentence in zip(
        (
            r"Fits v5e:2x2\n[\d.]+ [KM]iB of the 15.75 GiB of a device, [\d.]+%",
            r"Step [\d.]+ us\npredicted, .+; [\d.]+ us \([\d.]+%\) is communication that nothing",
            r"Largest collective [\d.]+ [KM]iB\n\w+, scanned.py:\d+, by \w+; all \d+ carry .+",
            r"Peak [\d.]+ [KM]iB\n.*[\d.]+ [KM]iB of it \w+\[.+\].*",
            r"Slowest line [\d.]+ us\n[\d.]+%, scanned.py:\d+: \S.+",
            r"Try .+\n.+",
        ),
        seen["sentences"],
        strict=True,
    ):
        assert re.match(pattern, sentence), sentence
    leads = dict(seen["leads"])
    fits, time, collective, peak, slowest = list(leads)[:5]
    assert leads[peak]["tab"] == "memory"
    assert leads[fits]["tab"] == "report"
    assert leads[time]["exposed"]
    assert leads[collective]["op"] == collective.partition("\n")[2].partition(",")[0]
    line, code = re.findall(r"(scanned\.py:\d+): (.+)", slowest)[0]
    assert leads[slowest]["line"] == line or leads[slowest]["op"]
    assert leads[slowest]["tab"] == "source"
    assert code in leads[slowest]["marked"]
    assert code in seen["opens"]["code"]
    assert seen["opens"]["isInView"]


@pytest.mark.needs("browser")
def test_without_a_topology_the_verdict_is_by_the_graph(tmp_path: Path) -> None:
    example = f"{ROOT / 'examples' / 'train_digits.py'}:make_step"
    seen = seen_first(written(tmp_path, example, "--strategy", "mirrored:2"))
    begin = [sentence.partition("\n")[0] for sentence in seen["sentences"]]
    assert begin[:2] == ["Fits? not known", "Largest collective 38.79 KiB"]
    assert re.fullmatch(r"Peak [\d.]+ [KM]iB", begin[2])
    assert re.fullmatch(r"Most computed line [\d.]+ [kMG]FLOP", begin[3])
    assert begin[4] == "Try --topology"


@pytest.mark.needs("browser")
def test_the_verdict_of_a_step_with_servers_is_what_a_worker_requests(tmp_path: Path) -> None:
    lowered = PROGRAMS["train_parameter_server"]().lower()
    page = tmp_path / "page.html"
    page.write_text(gd.viz.render(lowered, "html"), encoding="utf-8")
    seen = browse("verdict.mjs", str(page))
    (request,) = [each for each in seen["sentences"] if each.startswith("Largest request")]
    assert re.search(r"\d+ requests move [\d.]+ [KM]iB a step", request), request
    assert dict(seen["leads"])[request]["tab"] == "collectives"
    assert not [each for each in seen["sentences"] if "nothing of each other" in each]
