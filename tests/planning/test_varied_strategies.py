"""`--find-plan --vary`: the strategy's options, and XLA's, of the step whose plan is found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graphdist.errors import ArgumentError
from graphdist.planning.found_plan import FoundPlan
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools import compile, viz
from graphdist.tools.compilation import StepOptions, chosen_for
from graphdist.tools.find_plan import PlanOptions, find_plan, parse_varied

pytestmark = pytest.mark.needs("tpu")

PROGRAM = """
from tests.planning import layered_steps


def make_step(strategy, batch=8):
    step, x, _ = layered_steps.make_step(strategy, 128, batch)
    return step, (x,)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "varied_step.py"
    path.write_text(PROGRAM)
    return f"{path}:make_step"


def found(
    program: str, varied: Sequence[str], compilations: int = 0, options: Mapping[str, Any] = {}
) -> FoundPlan:
    path = Path(program).with_name("plan.json")
    chosen = partial(chosen_for, find_topology("v5p:2x2x1"), shard_parameters=False, cores=1)
    return find_plan(
        program,
        chosen,
        StepOptions(compiler=dict(options)),
        PlanOptions(path, None, compilations, parse_varied(varied)),
        lambda line: None,
    )


def test_numbers_of_cores_are_compared(program: str) -> None:
    both = found(program, ["cores=1,2", "batch=8,16"])
    searches = {both.title: both.search, **dict(both.others)}
    assert {name: each.traced.graph.num_cores for name, each in searches.items()} == {
        "cores=1, batch=8": 1,
        "cores=1, batch=16": 1,
        "cores=2, batch=8": 2,
        "cores=2, batch=16": 2,
    }
    assert searches["cores=2, batch=8"].traced.graph.num_replicas == 2


def test_groups_of_sharded_parameters_are_compared(program: str) -> None:
    both = found(program, ["shard_parameters=2,4"])
    assert {both.title, both.others[0][0]} == {"shard_parameters=2", "shard_parameters=4"}
    assert both.search.own_now.peak_bytes != both.others[0][1].own_now.peak_bytes


def test_what_a_strategy_refuses_is_said(program: str) -> None:
    some = found(program, ["cores=1,2", "shard_parameters=4"])
    assert some.title == "cores=1, shard_parameters=4"
    assert "not with cores=2, shard_parameters=4: shard_parameters is 4" in str(some)
    assert list(some.to_json()["refused"]) == ["cores=2, shard_parameters=4"]
    with pytest.raises(ArgumentError, match="shard_parameters is 3"):
        found(program, ["shard_parameters=3"])


def test_plans_are_compiled_with_the_options_that_are_given(program: str) -> None:
    option = "xla_tpu_scoped_vmem_limit_kib"
    plan = found(program, [], 1, {option: 32768})
    assert plan.search.traced.lower().compiler_options[option] == 32768
    assert plan.best is not None
    assert plan.best.compiled is not None
    with pytest.raises(Exception, match="xla_tpu_no_such_option"):
        found(program, [], 1, {"xla_tpu_no_such_option": True})


def test_the_last_line_says_how_to_compile_it(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(program).with_name("plan.json")
    command = [program, "--topology", "v5p:2x2x1", "--find-plan", str(path), "--compilations", "0"]
    picture = path.with_name("choices.svg")
    option = ["--option", "xla_a=1", "--picture", str(picture)]
    assert compile.main([*command, "--vary", "cores=2", *option]) == 0
    assert "the plan" in picture.read_text()
    last = " ".join(capsys.readouterr().out.split("written: ")[1].split())
    assert f"--plan {path} --cores 2 --option xla_a=1, run it with" in last
    written = json.loads(path.read_text())
    assert "residuals" in written
    assert [name for *_, name in written["compared"]["plans"] if "plan" in name] == ["the plan"]
    page = path.with_name("step.json")
    shown = [program, "--topology", "v5p:2x2x1", "--cores", "2", "--plan", str(path)]
    assert viz.main([*shown, "-o", str(page)]) == 0
    assert len(json.loads(page.read_text())["plans"]["rows"]) == len(written["compared"]["plans"])
    for sharded, said in (
        ("True", f"--plan {path} --shard-parameters, run"),
        ("False", f"{path}, run"),
    ):
        assert compile.main([*command, "--vary", f"shard_parameters={sharded}"]) == 0
        assert said in " ".join(capsys.readouterr().out.split("written: ")[1].split())
    assert compile.main([*command, "--vary", "cores=2", "--cores", "2"]) == 2
    assert "--vary and --cores both give cores" in capsys.readouterr().err
