"""The viewer shows all graphs of a step, with the bytes between them."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
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
def test_all_graphs_of_a_step_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "step_on_servers.py"
    file.write_text(STEP)
    target = load_step(f"{file}:make_step", DEFAULT, StepOptions())
    try:
        document = json.loads(render(target.program, "json"))
        schema = files("graphdist.viz").joinpath("document.schema.json").read_text()
        jsonschema.validate(document, json.loads(schema))
        names = [step["name"] for step in document["passes"]]
        assert "cut_updates" in names
        assert names[document["shown"] + 1 :] == ["step_rows", "update_w"]

        def nodes(number: int) -> list[tuple[str, int]]:
            shown = document["graphs"][document["passes"][number]["graph"]]["nodes"]
            facts = [document["facts"][node["facts"]] for node in shown]
            return [(found["op"], found.get("bytes", 0)) for found in facts]

        # The rows, then the variable and the rows of the table, then the variable and its gradient.
        assert [size for op, size in nodes(document["shown"]) if op == "input"] == [16, 12, 48]
        assert nodes(-2)[0] == ("input", 16)
        assert nodes(-1)[:2] == [("variable", 12), ("input", 12)]
        assert [op for op, _ in nodes(-1)[2:-1]] == ["jax.neg", "jax.add"]
        text = render(target.program)
        assert "\n# beside it: update_w\ngraph update_w on 1 replica, stage spmd\n" in text
        assert text.startswith("# after ")
        assert "jax.add" in render(target.program.only("update_w"))
        assert "html" in render(target.program, "html")[:100]
    finally:
        sys.modules["graphdist_target_step_on_servers"].strategy.shutdown()
