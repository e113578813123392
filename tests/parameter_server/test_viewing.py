"""The viewer shows both halves of a step, with the bytes between."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from graphdist.tools.chosen_strategy import DEFAULT
from graphdist.tools.compilation import StepOptions
from graphdist.tools.viz_targets import load_step
from graphdist.viz.formats import render

STEP = """
import jax, jax.numpy as jnp
import graphdist as gd

strategy = gd.ParameterServerStrategy(num_workers=1, num_servers=2)
with strategy.scope():
    w, table = gd.Variable(jnp.ones(3), name="w"), gd.Variable(jnp.ones((50, 3)), name="table")


@gd.function
def step(rows):
    found = gd.nn.embedding_lookup(table, rows)
    loss, gradient = jax.value_and_grad(lambda w: jnp.sum(found @ w))(w.read_value())
    w.assign_sub(gradient, read_value=False)
    return loss


def make_step(_):
    return step, (jax.ShapeDtypeStruct((4,), "int32"),)
"""


@pytest.mark.long
def test_the_last_stage_has_both_halves(tmp_path: Path) -> None:
    file = tmp_path / "step_on_servers.py"
    file.write_text(STEP)
    target = load_step(f"{file}:make_step", DEFAULT, StepOptions())
    try:
        document = json.loads(render(target.program, "json"))
        assert "cut_updates" in [step["name"] for step in document["passes"]]
        last = document["graphs"][document["passes"][-1]["graph"]]["nodes"]
        facts = [document["facts"][node["facts"]] for node in last]
        pulls = [found for found in facts if found["op"] == "pull"]
        assert ["bytes=12, server=0" in found["parameters"] for found in pulls].count(True) == 1
        assert ["bytes=48, server=1" in found["parameters"] for found in pulls].count(True) == 1
        (push,) = [number for number, found in enumerate(facts) if found["op"] == "push"]
        assert "bytes=12, server=0" in facts[push]["parameters"]
        inside = [
            found for found, node in zip(facts, last, strict=True) if node.get("parent") == push
        ]
        assert [found["op"] for found in inside] == ["input", "input", "jax.neg", "jax.add"]
        assert "html" in render(target.program, "html")[:100]
    finally:
        sys.modules["graphdist_target_step_on_servers"].strategy.shutdown()
