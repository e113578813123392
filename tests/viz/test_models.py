"""The pages of models as people write them: all of a page works, and groups are the model's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: JSON

import pytest

import graphdist as gd
from tests.viz import models
from tests.viz.browser import browse

MODELS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "haiku": (models.named_by_haiku, {"3 x encoder", "norm"}),
    "unrolled": (models.unrolled, {"16 x layer"}),
    "scanned": (models.scanned, {"x 16"}),
    "mixture": (models.mixture, {"router", "experts"}),
}
"""By name a model, and parts of the titles of its groups."""


@pytest.mark.long
@pytest.mark.needs("browser")
@pytest.mark.parametrize("name", MODELS)
def test_the_page_of_a_model(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    make, titles = MODELS[name]
    page = tmp_path / f"{name}.html"
    page.write_text(gd.viz.render(make(), "html"), encoding="utf-8")
    used = browse("browser.mjs", str(page), str(tmp_path / "shots"), "")
    assert used["console"] == []
    assert used["requests"] == ["file"]
    assert used["opened"] > used["boxes"] == used["closed"]
    assert used["selected"] == "all_reduce"
    assert used["sorted"] == "descending"
    assert used["live"] > 0

    frames = browse("frames.mjs", str(page))
    assert frames["console"] == []
    assert (frames["closedGroups"], frames["missing"], frames["overlaps"]) == (0, 0, 0)
    record_property("frames", frames["closed"])
    for title in titles:
        assert any(title in shown for shown in frames["titles"]), (title, frames["titles"])


@pytest.mark.long
@pytest.mark.needs("browser")
@pytest.mark.parametrize("name", MODELS)
def test_the_picture_of_a_model_stays_through_the_passes(name: str, tmp_path: Path) -> None:
    make, _ = MODELS[name]
    page = tmp_path / f"{name}.html"
    page.write_text(gd.viz.render(make(), "html"), encoding="utf-8")
    seen = browse("passes.mjs", str(page), str(tmp_path / "shots"))
    assert seen["console"] == []
    assert (seen["moved"], seen["missing"]) == ([], [])
    assert seen["kept"]
    for node in seen["kept"]:
        assert (node["op"], node["line"], node["shown"]) == (node["is"], node["isLine"], True)
