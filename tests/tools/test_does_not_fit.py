"""A step that does not fit: what to do, and the user's lines that hold most."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any  # Any: options of XLA

import pytest

import graphdist as gd
from graphdist.program.stages import Lowered
from graphdist.runtime.compilation import HOW_TO_FIT, refused
from graphdist.tools import compile
from graphdist.tools.chosen_strategy import ChosenStrategy

STEP = """
import jax, jax.numpy as jnp, graphdist as gd

def make_step(strategy, batch=64):
    with strategy.scope():
        w = gd.Variable(jax.ShapeDtypeStruct((8, 8), jnp.float32), name="w")

    @gd.function
    def step(x):
        def replica_fn(x):
            large = jnp.outer(x @ w, x)
            def turn(total, _):
                larger = jax.lax.sort(jnp.outer(large, large))
                return total + larger.sum(), None
            return jax.lax.scan(turn, 0.0, None, length=3)[0]
        return strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=None)

    return step, (gd.PerReplicaSpec((batch, 8), jnp.float32, strategy=strategy),)
"""
LINE = 1 + STEP[: STEP.index("larger = ")].count("\n")
OUT_OF_MEMORY = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 51.37G of 15.75G hbm."
)


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def chosen(*_: object) -> ChosenStrategy:
        return ChosenStrategy("", lambda: gd.MirroredStrategy(["cpu:0", "cpu:1"]))

    def too_large(lowered: Lowered, options: Any = None) -> None:
        error = refused(OUT_OF_MEMORY, lowered.devices)
        assert error is not None
        raise error

    monkeypatch.setattr(compile, "chosen_for", chosen)
    monkeypatch.setattr(Lowered, "compile", too_large)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(STEP)
    return "steps.py:make_step"


@pytest.mark.parametrize(
    "options",
    [
        ["--topology", "v5e:2x2"],
        ["--topology", "v5e:2x2", "--fit", "batch=32..64"],
        ["--topology", "v5e:2x2", "--scale", "4,16"],
        ["--topology", "v5e:2x2", "--scale", "8,32", "--num-slices", "2"],
        ["--compare", "v5e:2x2,v6e:2x2"],
    ],
)
def test_the_hint_and_the_lines_are_printed(
    options: list[str], step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compile.main([step, *options]) == 3
    printed = capsys.readouterr().out
    assert f"hint: {HOW_TO_FIT}" in " ".join(printed.split())
    assert f"Held at the peak, steps.py:{LINE} (step), by the graph" in printed
    batch = 32 if "--fit" in options else 64
    array = re.escape(f"f32[{(8 * batch) ** 2},{(8 * batch) ** 2}] x 2")
    assert re.search(rf"step +{array} +steps\.py:{LINE}$", printed, re.MULTILINE)


def test_json_has_the_lines(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compile.main([step, "--topology", "v5e:2x2", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)["memory"]
    assert found["line"] == found["largest"][0]["line"] == f"steps.py:{LINE}"


def test_nothing_is_written(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["-o", "step.gdx", "--timeline", "step.json"]
    assert compile.main([step, "--topology", "v5e:2x2", *files]) == 3
    assert capsys.readouterr().out.endswith("not written: step.gdx\nnot written: step.json\n")
    assert not Path("step.gdx").exists()
    assert not Path("step.json").exists()
