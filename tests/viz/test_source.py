"""The source in the page: where it opens, what a line costs, and what a search finds in it."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any  # Any: JSON

import pytest

from graphdist.tools.viz import main
from tests.viz.browser import ROOT, browse

STEP = """\"\"\"A step in a project of two files.\"\"\"
import jax
import jax.numpy as jnp
import graphdist as gd
from layers.dense import apply


def make_step(strategy):
    with strategy.scope():
        weights = gd.Variable(jnp.ones((64, 64)), name="weights")

    def replica(x):
        def compute_average_loss(w):
            return jnp.mean(apply(w, x) ** 2)

        loss, gradient = jax.value_and_grad(compute_average_loss)(weights[...])
        weights.assign_sub(gd.get_replica_context().all_reduce("MEAN", gradient))
        return loss

    @gd.function
    def step(x):
        return strategy.reduce("MEAN", strategy.run(replica, args=(x,)), axis=None)

    return step, (gd.PerReplicaSpec((8, 64), jnp.float32, strategy=strategy),)
"""
LAYER = "import jax.numpy as jnp\n\n\ndef apply(w, x):\n    return jnp.tanh(jnp.matmul(x, w))\n"


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def content_of(page: Path) -> Any:
    """Return the JSON in a page."""
    packed = re.search(r'id="program">([^<]*)<', page.read_text("utf-8"))
    assert packed
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    (project / "layers").mkdir(parents=True)
    (project / "pyproject.toml").touch()
    (project / "train.py").write_text(STEP)
    (project / "layers" / "dense.py").write_text(LAYER)
    monkeypatch.syspath_prepend(str(project))
    path = tmp_path / "page.html"
    target = f"{project / 'train.py'}:make_step"
    assert main([target, "--strategy", "mirrored:2", "-o", str(path)]) == 0
    return path


def test_the_page_has_no_absolute_path(page: Path) -> None:
    content = content_of(page)
    assert sorted(content["files"]) == ["layers/dense.py", "train.py"]
    text = json.dumps(content)
    assert str(page.parent) not in text
    assert str(ROOT) not in text


def test_files_of_one_name_keep_their_lines(tmp_path: Path) -> None:
    from graphdist.viz.page import _without_folders

    names = [str(tmp_path / folder / "model.py") for folder in ("a", "b")]
    for name in names:
        Path(name).parent.mkdir()
        (Path(name).parent / "setup.py").touch()
    assert json.loads(_without_folders(json.dumps(names), set(names))) == ["model.py", "b/model.py"]


@pytest.mark.needs("browser")
def test_the_source_opens_at_a_line_with_cost(page: Path) -> None:
    reduced = line_of(STEP, "all_reduce")
    seen = browse("source.mjs", str(page), str(reduced), "compute_average_loss", "matmul", "@weigh")
    assert seen["console"] == []
    assert (seen["tab"], seen["file"]) == ("Source", "train.py")
    paid = min(int(line) for line, (*texts, _) in seen["costs"].items() if "".join(texts))
    assert [paid, STEP.splitlines()[paid - 1]] in seen["visible"]
    assert seen["columns"] == ["sent", "held", "nodes"]  # no time without a topology
    sent, held, nodes = seen["costs"][str(reduced)]
    assert sent == "16.00 KiB"
    assert int(nodes) >= 1
    assert "KiB" in held + "".join(costs[1] for costs in seen["costs"].values())
    assert seen["pressed"]["marked"] == [reduced]
    assert seen["pressed"]["lit"] >= 1
    first = seen["back"]["frames"][0]
    assert seen["back"]["marked"] == [first]
    assert seen["back"]["calls"] >= 1
    found = seen["found"]
    assert any(
        "def compute_average_loss(w)" in text for text in found["compute_average_loss"]["code"]
    )
    assert int(found["compute_average_loss"]["nodes"]) > 5
    assert any("jnp.matmul(x, w))  dense.py:5" in text for text in found["matmul"]["code"])
    assert any("jax.dot_general" in text for text in found["matmul"]["ops"])
    assert int(found["@weigh"]["nodes"]) >= 1
    assert seen["taken"] == [line_of(STEP, "def compute_average_loss")]
