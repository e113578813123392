"""The lines of the user's program that made a node, sent to another process."""

from __future__ import annotations

import pickle
from pathlib import Path

import jax.numpy as jnp

import graphdist as gd
from graphdist.ir.source import Frame


def test_the_source_of_a_node_can_be_pickled() -> None:
    graph = gd.function(lambda x: jnp.sin(x)).trace(jnp.ones(3)).graph
    source = graph.nodes[-1].source
    assert source.record is not None  # of JAX, which cannot be pickled
    copied = pickle.loads(pickle.dumps(source))
    assert (copied.frames, copied.scope) == (source.frames, source.scope)
    assert copied.frame.text.startswith("graph = gd.function")


def test_the_code_of_a_line_goes_on_to_its_last_bracket(tmp_path: Path) -> None:
    file = tmp_path / "step.py"
    file.write_text(
        "a = conv(\n    x,\n    [1, 1],\n)\nb = 1\nif is_done(a[0]):\nc = f(a,\n      b)\n"
    )
    codes = [Frame(str(file), line, "step").code for line in (1, 5, 6, 7, 99)]
    assert codes == ["a = conv(x, [1, 1],)", "b = 1", "if is_done(a[0]):", "c = f(a, b)", ""]


def test_the_code_of_a_line_without_an_end_stops(tmp_path: Path) -> None:
    file = tmp_path / "step.py"
    file.write_text("a = (\n" + "    b +\n" * 20)
    assert Frame(str(file), 1, "step").code == "a = (b +" + " b +" * 6
