"""Texts fit 80 columns, whatever the names: no row breaks in a word, and headings stand out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: JSON

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.program.stages import Lowered
from graphdist.report.amounts import WIDTH, fitted_lines, table, wrapped
from graphdist.report.report_text import sentence_table
from graphdist.report.step_report import Report
from graphdist.report.verdict import Sentence
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.comparisons import compare_topologies, find_largest
from graphdist.tools.compilation import StepOptions, chosen_for, lower_target
from graphdist.tools.compile import main
from graphdist.tools.listings import topology_table
from graphdist.tools.measure import ComparedProfile
from graphdist.tools.profiles import MeasuredCollective, ProfiledStep
from graphdist.tools.regression import compare_reports
from graphdist.viz.program import program_of
from graphdist.viz.text import collectives_table

EXAMPLES = Path(__file__).parents[2] / "examples"
TRANSFORMER = {"size": "10m", "length": 64, "batch": 2}
END = "⟩"
"""The last character of a generated name."""


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    chosen = chosen_for(find_topology("v5e:2x4"), True)
    target = f"{EXAMPLES / 'aot_transformer'}.py:make_step"
    return lower_target(target, chosen, StepOptions(TRANSFORMER))


def long_names(found: Any, lengths: random.Random) -> Any:
    """Return JSON in which each text that is a name is a long one."""
    if isinstance(found, dict):
        return {name: long_names(value, lengths) for name, value in found.items()}
    if isinstance(found, list):
        return [long_names(value, lengths) for value in found]
    if not isinstance(found, str) or not found or found in ("forward", "backward", "recomputed"):
        return found
    return " ".join(f"{word}{'_name' * lengths.randrange(1, 40)}{END}" for word in found.split())


def fits(text: str) -> None:
    """Raise if a line is too long, or a generated name goes on in another line."""
    lines = text.split("\n")
    assert not [line for line in lines if len(line) > WIDTH]
    assert not [word for word in text.split() if "_name" in word and END not in word]


def long_report(lowered: Lowered, seed: int) -> Report:
    found = json.loads(json.dumps(lowered.estimate().to_json()))
    return Report.from_json(long_names(found, random.Random(seed)))


def texts(lowered: Lowered) -> Iterator[str]:
    """Yield the texts of a terminal, with names that are too long for it."""
    first, second = (long_report(lowered, seed) for seed in range(2))
    refused = replace(first, refusal="it was refused", is_compiled=True, available_bytes=1)
    yield from (str(first), str(refused), str(first.timeline))
    explained, name = lowered.explain(), f"{'name_' * 30}{END}"
    steps = (
        replace(each, name=name, declined=(f"{name} {name}: {name}",)) for each in explained.steps
    )
    yield str(replace(explained, name=name, steps=tuple(steps), options=(f"{name} of {name}",)))
    topologies = [find_topology("v5e:16x16", 2), *map(find_topology, ("v5p:2x2x4", "h100:8x8"))]
    yield str(compare_topologies(f"one step{END}", topologies, lambda topology: refused))
    yield str(find_largest(f"{'batch' * 30}=1..64", topologies[0], lambda *_, **__: first))
    yield str(compare_reports("old.json", first, replace(second, target=first.target), 0.05))
    yield topology_table(as_json=False)
    yield collectives_table(program_of(lowered))
    yield repr(gd.viz.placement(gd.Variable(jnp.zeros((2, 3)), name=name)))
    used = [MeasuredCollective(use.became, 2, 1e-3, 1e-3) for use in first.collectives]
    step = ProfiledStep(name, 2, 3, 1.0, 0.5, 0.5, 0.25, tuple(used))
    yield "\n".join(fitted_lines(str(ComparedProfile(step, first)).split("\n")))


@pytest.mark.needs("tpu")
def test_no_row_breaks_in_a_word(lowered: Lowered) -> None:
    for text in texts(lowered):
        fits(text)


@pytest.mark.needs("tpu")
def test_rows_are_indented_and_headings_are_not(lowered: Lowered) -> None:
    text = str(lowered.estimate())
    headings = [line for line in text.split("\n") if line and not line.startswith(" ")]
    assert headings[0].endswith("on v5e:2x4, 8 devices")
    assert "Memory of a device" in headings
    assert "Lines that compute longest" in headings
    assert len(headings) < 12


@pytest.mark.needs("tpu")
def test_words_that_say_nothing_are_not_there(lowered: Lowered) -> None:
    strategy = gd.MirroredStrategy(["cpu:0"])
    alone = gd.function(lambda x: jnp.sum(x @ x))
    with strategy.scope():
        report = alone.trace(jnp.ones((4, 4))).lower().estimate()
    for text in (str(lowered.estimate()), str(report)):
        for word in ("again", "counted", "waits  ", "1 devices", "no line", " 0 B"):
            assert word not in text


Cells = st.text("ab 1_/", max_size=90)


@given(st.lists(st.tuples(Cells, Cells, Cells), min_size=1), st.sets(st.integers(0, 2)))
def test_tables_of_any_cells_fit(rows: list[tuple[str, ...]], left: set[int]) -> None:
    assert max(map(len, table(rows, left))) <= WIDTH


@given(st.lists(st.text("abc", min_size=1, max_size=WIDTH)))
def test_words_are_kept_whole(words: list[str]) -> None:
    lines = wrapped(" ".join(words))
    assert " ".join(lines).split() == words
    assert max(map(len, lines)) <= WIDTH


STEP = """
import jax, jax.numpy as jnp, graphdist as gd

def make_step(strategy, *, {name}=8):
    @gd.function
    def step(x):
        return strategy.run(lambda x: jnp.sum(x @ x.T), args=(x,))
    return step, (gd.PerReplicaSpec(({name}, 64), jnp.float32, strategy=strategy),)
"""
SETTING = "a_setting_with_a_long_name" * 4
COMMANDS: list[list[str]] = [
    ["--fit", f"{SETTING}=1..4"],
    ["--scale", "1,4,16"],
    ["--find-plan", "p.json", "--vary", f"{SETTING}=4,8"],
]


@pytest.mark.needs("tpu")
@pytest.mark.parametrize("options", COMMANDS, ids=lambda options: options[0])
def test_the_tables_of_the_command_line_fit(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("long_names.py").write_text(STEP.format(name=SETTING))
    assert main(["long_names.py:make_step", "--topology", "v5e:2x2", "--quick", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    written = [line for line in lines if line.startswith("written: ")]
    assert max(len(line) for line in lines if line not in written) <= WIDTH
    assert len(lines) > 4


@pytest.mark.parametrize("length", range(30, 120, 7))
def test_the_title_of_a_sentence_is_in_one_line(length: int) -> None:
    code = f"loss({'x' * length}, global_batch_size=8) + {'y' * 20} + {'z' * 20} + {'y' * 20}"
    first, *rest = sentence_table([Sentence("Most computed line", "154 FLOP", code)])
    assert first.startswith("  Most computed line  154 FLOP,")
    assert rest
    assert all(line.startswith(" " * 22) for line in rest)
    assert max(map(len, (first, *rest))) <= WIDTH
