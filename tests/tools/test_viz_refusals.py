"""What the command says of bad input: each message whole, in `golden/viz_refusals.txt`."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from graphdist.ir.printer import print_graph
from graphdist.runtime.files.artifact import write_artifact
from graphdist.tools.viz import main
from tests.viz.graphs import chain

GOLDEN = Path(__file__).parent / "golden" / "viz_refusals.txt"

STEPS = """import jax
import jax.numpy as jnp


def scaled(values, factor, *, offset=0.0):
    return values * factor + offset


def make_step(strategy):
    def step(x):
        return strategy.reduce("SUM", strategy.run(jnp.sin, args=(x,)), axis=None)

    import graphdist as gd

    return gd.function(step), (jnp.ones(3),)
"""

CASES = {
    "unknown file": ["step.py:make_step"],
    "unknown module": ["stepz:make_step"],
    "unknown function": ["steps.py:scald"],
    "unknown factory": ["steps.py:make_stp"],
    "unknown pass": ["steps.py:make_step", "--pass", "simplfy"],
    "unlike any pass": ["steps.py:make_step", "--pass", "nosuchthing"],
    "unknown pass to compare": ["steps.py:make_step", "--diff", "trace", "bucket"],
    "unknown format": ["chain.gd", "--format", "memraid"],
    "format of a module, for a saved graph": ["chain.gd", "--format", "hlo"],
    "unknown node": ["chain.gd", "--focus", "%500"],
    "negative depth": ["chain.gd", "--focus", "%5", "--depth", "-1"],
    "no regular expression": ["chain.gd", "--filter", "all_reduce("],
    "selection from what is no text": ["chain.gd", "--filter", "all", "--format", "json"],
    "no arguments for a function": ["steps.py:scaled"],
    "too few arguments": ["steps.py:scaled", "--args", "f32[3]"],
    "too many arguments": ["steps.py:scaled", "--args", "f32[3] f32[] f32[]"],
    "arguments that do not fit": ["steps.py:scaled", "--args", "f32[3] f32[4]"],
    "no dtype": ["steps.py:scaled", "--args", "f33[3] f32[]"],
    "no type": ["steps.py:scaled", "--args", "f32[3] 5"],
    "unknown strategy": ["steps.py:make_step", "--strategy", "mirored:2"],
    "no number of replicas": ["steps.py:make_step", "--strategy", "mirrored:two"],
    "unknown operation": ["operation.gd"],
    "text cut short": ["cut.gd"],
    "second graph of two": ["two.gd"],
    "no artifact": ["bomb.gdx"],
    "an artifact without graphs": ["empty.gdx"],
    "no dtype of a value": ["dtype.gd"],
    "values inside each other": ["deep.gd"],
    "a size of too many digits": ["steps.py:scaled", "--args", "f32[" + "9" * 5000 + "]"],
    "too many replicas": ["steps.py:make_step", "--strategy", "mirrored:99999"],
    "no such artifact": ["stepz.gdx"],
    "no such text": ["no/chain"],
    "a folder": ["./"],
    "slices of no topology": ["steps.py:make_step", "--num-slices", "2"],
    "unknown topology": ["steps.py:make_step", "--topology", "v5f:2x2"],
    "a topology with too few chips": ["chain.gd", "--topology", "v5e:1x1", "-o", "chain.json"],
    "output in no folder": ["steps.py:make_step", "-o", "no/step.html"],
    "no program to compare with": ["chain.gd", "--compare", "page.html"],
    "output of no format": ["steps.py:make_step", "-o", "step.png"],
    "no text": ["bytes.gd"],
    "no graph": ["empty.gd"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with files to be asked for, the current one."""
    good = print_graph(chain(60))
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "chain.gd").write_text(good)
    (tmp_path / "operation.gd").write_text(good.replace("all_reduce(", "all_reduced("))
    (tmp_path / "cut.gd").write_text(good[: len(good) // 2])
    (tmp_path / "two.gd").write_text(good + "\n\n" + good.replace("scale(%7)", "scale(%77)"))
    (tmp_path / "bytes.gd").write_bytes(bytes(range(128, 256)))
    (tmp_path / "empty.gd").write_text("# nothing here\n")
    (tmp_path / "page.html").write_text("<!doctype html>\n")
    (tmp_path / "dtype.gd").write_text(good.replace("f32[", "f92["))
    (tmp_path / "deep.gd").write_text(good.replace("factor=", "factor=" + "(" * 5000, 1))
    write_artifact(tmp_path / "empty.gdx", {}, {"report.json": b"{}"})
    with zipfile.ZipFile(tmp_path / "bomb.gdx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graph.txt", bytes(2**25))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [__file__])  # the command's own lines are not the user's
    return tmp_path


def test_bad_input_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], update_golden: bool
) -> None:
    found = []
    for name, arguments in CASES.items():
        assert main(arguments) == 2, name
        said = capsys.readouterr()
        assert said.out == "", name
        assert "Traceback" not in said.err, name
        arguments = [one if len(one) < 100 else f"{one[:10]}.." for one in arguments]
        command = " ".join(f"'{one}'" if " " in one or not one else one for one in arguments)
        found.append(f"# {name}\n$ graphdist-viz {command}\n{said.err}")
    text = "\n".join(found).replace(str(folder), "FOLDER")
    if update_golden:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
