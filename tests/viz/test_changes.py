"""The text of a graph before a pass, beside the text after it: each node once, in one row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphdist.tools.viz import main
from tests.viz.browser import ROOT, browse

DIGITS = f"{ROOT / 'examples' / 'train_digits.py'}:make_step"


@pytest.mark.needs("browser")
def test_the_text_before_a_pass_is_beside_the_text_after_it(tmp_path: Path) -> None:
    for name in ("page.html", "page.json"):
        assert main([DIGITS, "--strategy", "mirrored:2", "-o", str(tmp_path / name)]) == 0
    document = json.loads((tmp_path / "page.json").read_text())
    names = [step["name"] for step in document["passes"]]
    at = names.index("simplify")
    before, after = (
        document["graphs"][document["passes"][each]["graph"]]["nodes"] for each in (at - 1, at)
    )
    difference = document["passes"][at]["diff"]

    seen = browse("changes.mjs", str(tmp_path / "page.html"), "simplify")
    assert seen["console"] == []
    kinds = [row["kind"] for row in seen["rows"]]
    for kind in ("added", "removed", "rewired", "changed"):
        assert kinds.count(kind) == len(difference[kind])
    assert "folded" not in kinds
    assert "folded" in [row["kind"] for row in seen["folded"]]
    assert len(seen["folded"]) < len(seen["rows"])
    for side, nodes in enumerate((before, after)):
        texts = [row["texts"][side] for row in seen["rows"] if row["texts"][side]]
        assert len(texts) == len(nodes)
        names = [text.partition(" = ")[0].partition(":")[0] for text in texts[:-1]]
        assert sorted(names) == sorted(
            ", ".join(node.get("results", [node["id"]])) for node in nodes[:-1]
        )
    for row in seen["rows"]:
        assert all(row["texts"]) == (row["kind"] not in ("added", "removed"))
    assert seen["before"] == {"shown": True, "text": seen["removed"]}
