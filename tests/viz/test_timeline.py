"""The timeline in the page: its axis, names, sums, two programs, on paper and on a phone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any  # Any: JSON

import jsonschema
import pytest

from graphdist.report.amounts import size_text
from graphdist.tools.viz import main
from tests.viz.browser import ROOT, browse
from tests.viz.test_pods import step, written

__all__ = ["step"]  # a fixture

_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


def microseconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * _UNITS[unit]


def seen_of(page: Path) -> Any:
    seen = browse("timeline.mjs", str(page))
    assert seen["console"] == []
    assert set(seen["requests"]) == {"file"}
    return seen


@pytest.mark.needs("browser")
@pytest.mark.needs("tpu")
def test_the_timeline_has_an_axis_names_and_sums(step: str, tmp_path: Path) -> None:
    seen = seen_of(written(tmp_path, step, "--topology", "v5e:2x2"))
    axis = [text for text, _, y, _ in seen["written"] if y == 12]
    assert axis[0] == "0"
    times = list(map(microseconds, axis[1:]))
    assert len(times) >= 3
    assert times == pytest.approx([times[0] * number for number in range(1, len(times) + 1)])
    assert max(right for _, _, y, right in seen["written"] if y == 12) <= 1280
    names = [text for text, x, y, _ in seen["written"] if y > 12 and x > 104]
    assert names
    assert len([text for text, x, y, _ in seen["closer"] if y > 12 and x > 104]) > 0

    (begin, end), whole = seen["selected"]
    assert (begin / whole, end / whole) == (
        pytest.approx(0.3, abs=0.01),
        pytest.approx(0.7, abs=0.01),
    )
    assert seen["near"] == [True, True]
    length = re.match(r"([\d.]+ \w+), from [\d.]+ \w+$", seen["card"][0])
    assert length
    assert microseconds(length[1]) == pytest.approx(end - begin, rel=0.01)
    compute = re.search(
        r"compute ([\d.]+ \w+), ([\d.]+ \w+) of it at scanned\.py:", seen["card"][1]
    )
    assert compute
    assert microseconds(compute[2]) <= microseconds(compute[1])
    assert microseconds(compute[1]) == pytest.approx(seen["computes"], rel=0.01)
    assert seen["said"].startswith(seen["card"][0])
    memory = seen["memory"]
    total, *parts = memory["card"]
    assert total == f"{size_text(memory['peak'])} held, at most {size_text(memory['peak'])}"
    sizes = [re.match(r"(?:▸ )?(-?[\d.]+) (\w+)  (.+)", part) for part in parts]
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20}
    summed = sum(float(size[1]) * units[size[2]] for size in sizes if size)
    assert summed == pytest.approx(memory["peak"], rel=0.01)
    assert {size[3] for size in sizes if size} <= set(memory["lines"])
    assert memory["line"] == memory["of"]
    zoom, left = seen["zoomed"]
    assert zoom == pytest.approx(whole / (end - begin), rel=0.01)
    assert left == pytest.approx(begin, rel=0.01)


@pytest.mark.needs("browser")
@pytest.mark.needs("tpu")
def test_paper_and_a_phone_show_the_whole(step: str, tmp_path: Path) -> None:
    seen = seen_of(written(tmp_path, step, "--topology", "v5e:2x2"))
    paper = seen["paper"]
    assert (paper["whole"], paper["rows"], paper["cut"], paper["tools"]) == (
        True,
        True,
        False,
        False,
    )
    phone = seen["phone"]
    assert (phone["overflow"], phone["wide"]) == (0, 0)
    assert phone["lanes"] > 350


@pytest.mark.needs("browser")
@pytest.mark.needs("tpu")
def test_two_programs_have_two_timelines_over_one_axis(step: str, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    arguments = step, "--topology", "v5e:2x2"
    assert main([*arguments, "-o", str(old)]) == 0
    compared = "--set", "layers=6", "--compare", str(old)
    seen = seen_of(written(tmp_path, *arguments, *compared))
    first, *others = seen["rows"]
    assert re.fullmatch(r"old\.json: [\d.]+ \w+", first)
    (second,) = (title for title in others if title.startswith("now: "))
    assert microseconds(second[5:]) > microseconds(first[10:])  # more layers
    assert others.count("compute") == 2
    assert [text.partition(":")[0] for text in seen["card"][1:]] == ["old.json", "now"]
    document = tmp_path / "new.json"
    assert main([*arguments, *compared, "-o", str(document)]) == 0
    schema = json.loads((ROOT / "graphdist/viz/document.schema.json").read_text())
    content = json.loads(document.read_text())
    jsonschema.validate(content, schema)
    assert content["earlier"]["lanes"]


def test_names_in_the_timeline_can_be_read() -> None:
    style = (ROOT / "graphdist/viz/web/src/style.css").read_text()
    light, dark = style.split("prefers-color-scheme: dark")[:2]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", light))

    def light_of(name: str) -> float:
        """Return the relative luminance, as WCAG defines it."""
        shares = [int(colours[name][at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [((x + 0.055) / 1.055) ** 2.4 if x > 0.04 else x / 12.92 for x in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    slices = "lane-compute", "lane-exposed", "lane-copies", "collective-line"
    pairs = [("on-lane", each) for each in slices] + [("surface", "rewired-line"), ("text", "line")]
    pairs += [("text", f"kind-{number}") for number in range(1, 9)]
    for theme in ("", dark):
        colours |= dict(re.findall(r"--([\w-]+): (#\w{6})", theme))
        for pair in pairs:
            least, most = sorted(map(light_of, pair))
            assert (most + 0.05) / (least + 0.05) >= 4.5, pair
