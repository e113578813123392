"""The plans that a search compared, in the file of a plan and on the page of its step."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import graphdist as gd
from graphdist.errors import PlanError
from graphdist.passes.compared_plans import FOUND, OWN, ComparedPlan, ComparedPlans
from graphdist.passes.plans import Plan
from tests.viz.browser import browse

QUERY_KEPT = Plan.from_json('{"residuals": {"query": "device"}}')
COMPARED = ComparedPlans(
    8 << 30,
    (
        ComparedPlan(0.5, 2 << 30, name=OWN),
        ComparedPlan(0.45, 9 << 30),
        ComparedPlan(0.375, 6 << 30, is_compiled=True, name=FOUND),
    ),
    ((2 << 30, 0.5), (6 << 30, 0.36), (9 << 30, 0.35)),
)


def stage(plan: Plan) -> Any:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    step = gd.function(lambda x: strategy.run(lambda x: (x * 2).sum(), args=(x,)), plan=plan)
    return step.trace(np.ones((4, 2), np.float32))


def test_they_stand_on_the_last_line_of_the_plan() -> None:
    text = replace(QUERY_KEPT, compared=COMPARED).to_json()
    *edited, last, end = text.splitlines()
    assert (last[:14], end) == ('  "compared": ', "}")
    assert "\n".join(edited).rstrip(",") + "\n}" == QUERY_KEPT.to_json()
    read = Plan.from_json(text)
    assert read.compared == COMPARED
    assert read == QUERY_KEPT  # they choose nothing


@pytest.mark.parametrize(
    "compared",
    [
        None,
        [],
        {"memory_bytes": 8},
        {"memory_bytes": "8", "plans": [], "frontier": []},
        {"memory_bytes": 8, "plans": [[1.0, 8, 1, ""]], "frontier": []},
        {"memory_bytes": 8, "plans": [[1.0, 8.5, True, ""]], "frontier": []},
        {"memory_bytes": 8, "plans": [[float("nan"), 8, True, ""]], "frontier": []},
        {"memory_bytes": 8, "plans": [[1.0, 8, True, "<script>"]], "frontier": []},
        {"memory_bytes": 8, "plans": [[1.0, 8, True]], "frontier": []},
        {"memory_bytes": 8, "plans": [], "frontier": [[8, -1.0]]},
    ],
)
def test_what_no_search_wrote_is_refused(compared: Any) -> None:
    with pytest.raises(PlanError, match="`compared` is not what a search for a plan writes"):
        Plan.from_json(json.dumps({"residuals": {}, "compared": compared}))


@pytest.mark.parametrize("ends_at", ["trace", "lower", "compile"])
def test_each_stage_of_a_step_shows_them(ends_at: str) -> None:
    shown = stage(Plan(compared=COMPARED))
    for name in ("lower", "compile"):
        shown = getattr(shown, name)() if ends_at in (name, "compile") else shown
    schema = json.loads(files("graphdist.viz").joinpath("document.schema.json").read_text())
    document = json.loads(gd.viz.render(shown, "json"))
    jsonschema.validate(document, schema)
    plans = document["plans"]
    assert plans["memory"] == 8 << 30
    assert plans["rows"] == [
        [OWN, 0.5, 2 << 30, False],
        [FOUND, 0.375, 6 << 30, True],
        ["", 0.45, 9 << 30, False],
    ]
    assert plans["picture"].count("<circle") == 3


def test_a_step_with_another_plan_has_none() -> None:
    assert "plans" not in json.loads(gd.viz.render(stage(Plan()).lower(), "json"))


@pytest.mark.needs("browser")
def test_the_page_draws_and_lists_them(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(gd.viz.render(stage(Plan(compared=COMPARED)).lower(), "html"), encoding="utf-8")
    seen = browse("plans.mjs", str(page))
    assert seen["console"] == []
    assert seen["tabs"][-1] == "Plans"
    assert seen["picture"] == [640, 320, True]
    assert seen["caption"] == "Plans for 8.00 GiB, as the search predicted them"
    assert seen["rows"] == [
        ["the program's own", "500.00 ms", "2.00 GiB", "by its graph"],
        ["the plan", "375.00 ms", "6.00 GiB", "compiled"],
        ["", "450.00 ms", "9.00 GiB", "by its graph"],
    ]
