"""Every pair of options of every console tool: both have an effect, or the pair is refused.

Each option has an example here, and a test compares its parser with the examples: a new option
needs one, and is then tried with all others. What a command does is its status, what it prints and
writes, and what it asks of compilers, workers and measurements, which are replaced. An option has
an effect if the command does something else without it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias  # Any: what is recorded of calls

import jax
import pytest

from graphdist.ir.printer import print_graph
from graphdist.tools import viz
from graphdist.tools.truth.runs import ROOT, TABLE
from tests.tools.command_lines import TOOLS, Tool
from tests.tools.replaced import report
from tests.viz.graphs import chain

Capture: TypeAlias = pytest.CaptureFixture[str]

STEPS = """
import jax.numpy as jnp
import graphdist as gd

def make_step(strategy, size=3):
    def replica_fn(x):
        jnp.sin(x)  # left out by a pass
        context = gd.get_replica_context()
        x = jnp.exp(x * context.replica_id_in_sync_group)
        x = jnp.tanh(x)
        x = jnp.cos(x)
        x = jnp.sin(x)
        return jnp.log(context.all_reduce("SUM", x))
    def step(x):
        return strategy.reduce("SUM", strategy.run(replica_fn, args=(x,)), axis=None)
    return gd.function(step), (jnp.ones(size),)

def double(x):
    jnp.sin(x)
    return jnp.exp(x * 2) + 1
"""


PAIRS = [
    pytest.param(name, tried, id=f"{name}: {tried}")
    for name, tool in TOOLS.items()
    for tried in tool.examples
]


@dataclass
class Place:
    """A folder with the files that commands name, and what commands did there."""

    folder: Path
    known: dict[tuple[str, ...], Outcome] = field(default_factory=dict)

    def outcome(self, tool: Tool, names: frozenset[str], capsys: Capture) -> Outcome:
        """Return what a command does; a command that is known is not run again."""
        command = tool.command(names)
        if command not in self.known:
            self.known[command] = self._run(tool, command, capsys)
        return self.known[command]

    def _run(self, tool: Tool, command: tuple[str, ...], capsys: Capture) -> Outcome:
        seen: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            tool.replaced(patch, seen)
            try:
                status = tool.main(list(command))
            except SystemExit as ended:
                status = int(ended.code or 0)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Outcome(status, said.out, said.err, seen, self._written())

    def _written(self) -> dict[str, bytes]:
        paths = sorted(path for path in self.folder.rglob("out*") if path.parent == self.folder)
        files = [file for path in paths for file in (path, *path.rglob("*")) if file.is_file()]
        written = {str(file.relative_to(self.folder)): file.read_bytes() for file in files}
        for path in paths:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return written


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    status: int
    out: str
    err: str
    seen: list[Any]
    written: dict[str, bytes]

    def differs(self, other: Outcome) -> bool:
        """Return whether another command did something else; messages are no matter."""
        return replace(self, err="") != replace(other, err="")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    jax.devices()  # before that a command sets how many devices there are, also for other tests
    found = {name: Place(tmp_path_factory.mktemp("tool")) for name in TOOLS}
    for name, place in found.items():
        (place.folder / "steps.py").write_text(STEPS)
        two = (print_graph(chain(length)) for length in (40, 60))
        (place.folder / "chain.gd").write_text("\n\n".join(two))
        table = json.loads((ROOT / TABLE).read_text())
        (place.folder / "table.json").write_text(json.dumps({**table, "rows": table["rows"][:-4]}))
        (place.folder / "figures.jsonl").touch()
        (place.folder / "plan.json").write_text('{"residuals": {"query": "device"}}')
        (place.folder / "profile").mkdir()
        old = place.folder / "old.json"
        if name == "compile":
            old.write_text(json.dumps(report(needed_bytes=6).to_json()))
        else:
            assert viz.main([str(place.folder / "chain.gd"), "-o", str(old)]) == 0
    return found


@pytest.mark.parametrize("name", TOOLS)
def test_each_option_has_an_example(name: str) -> None:
    tool = TOOLS[name]
    options = vars(tool.parser().parse_known_args(["-n", "1"] if name == "run" else ["x"])[0])
    always = {"target", "program", *tool.base}
    assert options.keys() - always == {each.option for each in tool.examples.values()} - always


@pytest.mark.parametrize(("name", "tried"), PAIRS)
def test_an_option_beside_each_other_has_an_effect_or_is_refused(
    name: str, tried: str, places: dict[str, Place], capsys: Capture
) -> None:
    tool, place = TOOLS[name], places[name]
    others = list(tool.examples)
    for other in others[others.index(tried) + 1 :]:
        pair = frozenset({tried, other})
        is_one_option = tool.examples[tried].option == tool.examples[other].option
        if not is_one_option and pair not in tool.says_the_same:
            check(tool, place, pair, capsys)


@pytest.mark.parametrize(("name", "tried"), PAIRS)
def test_an_option_alone_has_an_effect_or_is_refused(
    name: str, tried: str, places: dict[str, Place], capsys: Capture
) -> None:
    tool, place = TOOLS[name], places[name]
    check(tool, place, frozenset({tried}), capsys)
    for needed in tool.examples[tried].needs:
        without = place.outcome(tool, tool.closure(frozenset({tried})) - {needed}, capsys)
        assert without.status == 2
        assert_named(tool, {tried, needed}, without, tried)


def check(tool: Tool, place: Place, tried: frozenset[str], capsys: Capture) -> None:
    """Check that a command does something else without each of these, or is refused."""
    names = tool.closure(tried)
    outcome, command = place.outcome(tool, names, capsys), tool.command(names)
    if outcome.status == 2:
        return assert_named(tool, tried, outcome, command)
    for each in tried:
        others = names - {each}
        is_needed = tool.closure(others) != others
        if not is_needed and sorted(tool.command(others)) != sorted(command):
            without = place.outcome(tool, others, capsys)
            assert outcome.differs(without), f"{command}: {each} has no effect"


def assert_named(tool: Tool, tried: Collection[str], outcome: Outcome, command: object) -> None:
    """Check that a refusal names these options; of a saved graph one, and the graph."""
    assert outcome.out == "", command
    named = [each for each in tried if tool.names(outcome.err, each)]
    is_of_target = any(said in outcome.err for said in ("a saved graph", "not of chain.gd"))
    assert len(named) == len(tried) or (named and is_of_target), (command, outcome.err)
