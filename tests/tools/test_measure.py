"""`python -m graphdist.tools.measure`: a step that runs here, beside its prediction."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.tools.measure import MeasuredStep, fill_declared, main

STEP = """
import jax, jax.numpy as jnp, graphdist as gd

def make_step(strategy, width=8):
    with strategy.scope():
        kernel = gd.variables(jax.ShapeDtypeStruct((width, width), jnp.float32))
        count = gd.Variable(0)

    @gd.function
    def step(batch, scale, words, key):
        def replica(batch, words):
            kernel.assign_sub(scale * gd.get_replica_context().all_reduce("MEAN", batch.T @ batch))
            count.assign_add(1)
            return kernel[words].sum() + jax.random.normal(key)
        return strategy.reduce("SUM", strategy.run(replica, (batch, words)), axis=None)

    batch = gd.PerReplicaSpec((4, width), jnp.float32)
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    return step, (batch, 0.5, gd.PerReplicaSpec((3,), jnp.int32), key)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "step.py"
    path.write_text(STEP)
    return f"{path}:make_step"


@pytest.mark.long
def test_a_step_is_measured(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([target, "--steps", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] > 0
    assert (found["devices"], found["steps"]) == (8, 2)
    assert found["peak_bytes"] is found["predicted_seconds"] is None
    assert main([target, "--steps", "1", "--shard-parameters"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "8 x cpu, the median of 1 steps"
    assert re.fullmatch(r" +step +[\d.]+ [mu]?s", second)


@pytest.mark.needs("tpu")
@pytest.mark.long
def test_the_prediction_stands_beside_it(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([target, "--topology", "v5e:2x4", "--set", "width=128", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["predicted_seconds"] < 1
    assert found["predicted_bytes"] > 128 * 128 * 4


def test_errors_of_what_is_predicted() -> None:
    shown = str(MeasuredStep("H200", 1, 10, 0.2, 3 * 2**30, 0.21, 3 * 2**30))
    assert shown.splitlines() == [
        "1 x H200, the median of 10 steps",
        "  step       200.00 ms measured   210.00 ms predicted  +5.0%",
        "  memory      3.00 GiB measured    3.00 GiB predicted  +0.0%",
    ]


def test_declared_variables_get_values_and_others_keep_theirs() -> None:
    with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        declared = gd.variables(
            {"kernel": jax.ShapeDtypeStruct((64,), jnp.float32)}
            | {"word": jax.ShapeDtypeStruct((64,), jnp.int32)}
        )
        own = gd.Variable(np.float32(7))
    fill_declared([*declared.values(), own], 3)
    kernel, words = (np.asarray(variable) for variable in declared.values())
    assert 0 <= kernel.min() < kernel.max() <= 0.02
    assert set(words) == {0, 1, 2}
    assert float(own) == 7


def test_mistakes(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, what in (
        (["none.py:make_step"], "there is no file none.py"),
        ([target, "--steps", "0"], "--steps is below 1"),
        ([target, "--integers-below", "0"], "--integers-below is below 1"),
        ([target, "--topology", "h300:1x1"], "unknown topology 'h300:1x1'"),
        ([target, "--topology", "v5e:2x2"], "v5e:2x2 has 4 devices, this machine has 8"),
        ([target, "--set", "depth=1"], "takes no setting 'depth'"),
    ):
        assert main(wrong) == 2
        assert what in capsys.readouterr().err
