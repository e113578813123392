"""The command: what it prints, and what it says of bad input."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import jax
import pytest

import graphdist as gd
from graphdist.ir.parser import parse
from graphdist.ir.printer import print_graph
from graphdist.runtime.files.artifact import write_artifact
from graphdist.tools import viz_targets
from graphdist.tools.viz import main
from graphdist.viz.program import ShownProgram, ShownStep, with_run_numbers
from tests.viz.graphs import chain

DIGITS = "examples/train_digits.py:make_step"


@pytest.fixture(autouse=True)
def devices_are_there() -> None:
    """Start JAX: before that the command sets how many devices there are, also for other tests."""
    jax.devices()


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "chain.gd"
    path.write_text(print_graph(chain(60)))
    return str(path)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    return found.err


def test_a_saved_graph_prints_as_it_is(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, saved) == Path(saved).read_text() + "\n"


def test_an_artifact_shows_its_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.gdx"
    write_artifact(path, {}, {"graph.txt": print_graph(chain(3)).encode()})
    assert output(capsys, str(path)).startswith("graph chain on 4 replicas, stage spmd\n")


def test_parameters_that_text_does_not_hold_take_no_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chain.gd"
    text = print_graph(chain(3))
    of_jax = text.replace("scale(%x) {factor=0.5}", "jax.gather(%x) {mode=<400000000: x>}", 1)
    path.write_text(of_jax)
    tracemalloc.start()
    try:
        assert "mode=<0: x>" in output(capsys, str(path))
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_texts_that_are_too_long_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viz_targets, "_MOST_CHARACTERS", 100)
    path = tmp_path / "chain.gd"
    path.write_text(print_graph(chain(3)))
    assert "the limit is 100" in refusal(capsys, str(path))
    write_artifact(tmp_path / "step.gdx", {}, {"graph.txt": path.read_bytes()})
    assert "the limit is 100" in refusal(capsys, str(tmp_path / "step.gdx"))


def test_many_graphs_are_read_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "many.gd"
    graph = "graph a on 1 replica, stage spmd\n() {\nreturn\n}\n"
    path.write_text(graph * 5000 + graph.replace("return", "retrun"))
    assert "line 20003, column 1" in refusal(capsys, str(path))


def test_focus_and_filter_choose_nodes(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    focused = output(capsys, saved, "--focus", "%50", "--depth", "1")
    assert focused.count("scale(") == 2
    assert focused.count("all_reduce(") == 1
    assert "  ... 49 nodes\n" not in output(capsys, saved, "--filter", "all_reduce").splitlines()
    assert output(capsys, saved, "--filter", "all_reduce").count(" = ") == 1


def test_a_filter_that_nothing_matches(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = output(capsys, saved, "--filter", "zzzzz")
    count = parse(Path(saved).read_text()).num_nodes  # as the page has it: inputs are no nodes
    assert found == f"nothing of {count} nodes matches --filter 'zzzzz'\n"
    focused = output(capsys, saved, "--filter", "zzzzz", "--focus", "%5")
    assert focused == "nothing around %5 matches --filter 'zzzzz'\n"


@pytest.mark.parametrize(("form", "box"), [("dot", "[label="), ("svg", "<g"), ("mermaid", "[")])
def test_focus_and_filter_choose_the_nodes_of_a_drawing(
    form: str, box: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.gd"
    path.write_text(print_graph(chain(700)))
    drawn = output(capsys, str(path), "--format", form, "--focus", "%50", "--depth", "1")
    assert [f"%{number}" in drawn for number in (47, 49, 50, 51, 52)] == [False, *[True] * 3, False]
    assert "all_reduce" in drawn
    assert drawn.count("->") in (0, 2)
    found = output(capsys, str(path), "--format", form, "--filter", "all_reduce")
    assert found.count("all_reduce") >= 7
    assert "scale" not in found.replace(".scale", "").replace("= scale(", "")


@pytest.mark.parametrize("form", ["svg", "mermaid"])
def test_a_drawing_that_is_too_large_is_refused_with_a_way_that_works(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.gd"
    path.write_text(print_graph(chain(700)))
    assert "--focus NODE" in refusal(capsys, str(path), "--format", form)
    assert main([str(path), "--format", form, "--focus", "%5"]) == 0


LOOP = """import jax.numpy as jnp
from jax import lax

import graphdist as gd


def make_step(strategy):
    def replica(x):
        context = gd.get_replica_context()
        own = x * (context.replica_id_in_sync_group + 1)

        def summed(value):
            return context.all_reduce("SUM", jnp.sin(value) * own)

        def turn(carry, _):
            carry, _ = lax.scan(lambda c, _: (summed(c), None), carry, None, length=2)
            return summed(carry), None

        carry, _ = lax.scan(turn, jnp.ones_like(x), None, length=10)
        return summed(carry)

    step = gd.function(lambda x: strategy.run(replica, args=(x,)))
    return step, (jnp.ones((256, 256)),)
"""


def test_a_collective_in_a_loop_counts_once_for_each_trip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    target = f"{tmp_path / 'loop.py'}:make_step"
    table = output(capsys, target, "--strategy", "mirrored:2", "--collectives").splitlines()
    assert table[0].split()[:3] == ["kind", "bytes", "times"]
    assert [line.split()[2:4] for line in table[1:-1]] == [
        ["5,242,880", "20"],
        ["2,621,440", "10"],
        ["262,144", "1"],
    ]
    assert table[-1] == f"3 collectives over 2 replicas, {31 * 262_144:,} bytes per replica"


def test_collectives_are_a_table(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = output(capsys, saved, "--collectives")
    assert table.splitlines()[-1] == "1 collective over 4 replicas, 256 bytes per replica"


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.svg", "<svg"), ("a.html", "<!doctype html>"), ("a.dot", "digraph"), ("a.txt", "graph ")],
)
def test_a_file_has_the_format_its_name_ends_in(
    saved: str, name: str, begins: str, tmp_path: Path
) -> None:
    assert main([saved, "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_text().startswith(begins)


def test_a_format_that_is_named_is_taken_whatever_the_file_is_called(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.svg"
    assert main([saved, "--format", "text", "-o", str(path)]) == 0
    assert path.read_text() == Path(saved).read_text() + "\n"
    refused = refusal(capsys, saved, "--open", "--format", "svg")
    assert refused.startswith("graphdist-viz: --open shows a page, not svg\n")


def test_a_step_of_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    two = (DIGITS, "--strategy", "mirrored:2")
    assert re.search(r"train_digits.py:\d+: grads = gd", output(capsys, *two, "--sources"))
    change = output(capsys, *two, "--diff", "simplify", "bucket_collectives")
    assert re.search(r"(?m)^\+ %\d+ = pack\(", change)
    assert "did you mean simplify?" in refusal(capsys, *two, "--pass", "simplfy")


ROW = """graph f on 1 replica, stage spmd
(%x: f32[3] mirrored) {
  %y = jax.neg(%x) : f32[3] mirrored
  return %y
}"""


def test_each_run_of_a_pass_has_a_name() -> None:
    graphs = [parse(ROW.replace("neg", op)) for op in ("neg", "exp", "sin")]
    steps = tuple(map(ShownStep, ("clean", "fold", "clean"), graphs))
    program = ShownProgram(with_run_numbers(steps))
    assert [step.name for step in program.steps] == ["clean:1", "fold", "clean:2"]
    assert [program.step(name).graph for name in ("clean:1", "clean:2")] == graphs[::2]
    assert program.step("clean").graph is graphs[2]
    assert program.step("clean", first=True).graph is graphs[0]
    with pytest.raises(gd.ArgumentError, match="did you mean clean:1 or clean:2"):
        program.step("clean:3")


def test_a_difference_begins_at_the_first_run_of_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    two = (DIGITS, "--strategy", "mirrored:2")
    change = output(capsys, *two, "--diff", "delay_reductions", "place_conversions")
    assert change.startswith("# delay_reductions:1 to place_conversions: ")
    change = output(capsys, *two, "--diff", "trace", "eliminate_dead_code")
    assert change.startswith("# trace to eliminate_dead_code:2: ")
    page = output(capsys, *two, "--pass", "delay_reductions:2")
    assert page == output(capsys, *two, "--pass", "delay_reductions")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "dog"], "did you mean dot?"),
        (["--focus", "%5x"], "there is no node '%5x'"),
        (["--filter", "("], "no regular expression"),
        (["--format", "stablehlo"], "stablehlo needs a function, a saved graph has none"),
        (
            ["--format", "json", "--focus", "%5"],
            "--format json has no use for --focus, which is for text, dot, svg, mermaid",
        ),
        (
            ["--format", "svg", "--collectives"],
            "--format svg has no use for --collectives, which is for text",
        ),
        (["--format", "perfetto", "--topology", "v5f:2x2"], "v5f"),
    ],
)
def test_bad_options_are_refused(
    saved: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(capsys, saved, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jax.numpy:sinn"], "did you mean"),
        (["jax.numpy:where"], "jax.numpy:where takes condition; no arguments are given"),
        (["jax.numpy:matmul", "--args", "f32[2] f32[3]"], "jax.numpy:matmul raised TypeError"),
        (["jax.numpy:sin", "--args", "f99[3]"], "'f99' is no dtype"),
        (["jax.numpy:sin", "--args", "f32"], "does not begin with a type"),
        (
            [DIGITS, "--strategy", "mirored:2"],
            "did you mean mirrored? NAME is one of default, one_",
        ),
        (["no_such.gd"], "there is no file no_such.gd"),
    ],
)
def test_bad_targets_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(capsys, *arguments)


def test_bad_text_is_refused_with_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.gd"
    path.write_text(print_graph(chain(2)).replace("scale(%0)", "scale(%9)"))
    message = refusal(capsys, str(path))
    assert "line 4, column 14: %9 is not defined" in message
    assert " ^" in message
