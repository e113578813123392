"""Several processes give what one gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphdist as gd
from tests.multi_worker.launch import Outcome, run
from tests.multi_worker.programs import local_steps
from tests.multi_worker.programs.training import ROWS, train

SHAPES = [(2, 1), (2, 2), (4, 1), (4, 2)]


@pytest.mark.long
@pytest.mark.parametrize(("workers", "devices"), SHAPES)
def test_losses_are_those_of_one_process(workers: int, devices: int) -> None:
    alone = gd.MirroredStrategy([f"cpu:{device}" for device in range(workers * devices)])
    losses, weights, seen = train(alone)
    assert seen == [2] * ROWS
    outcome = run(workers, "training", devices=devices)
    assert outcome.status == 0, outcome.err
    for worker in range(workers):
        (said,) = outcome.said[worker]
        np.testing.assert_allclose(said[0], losses, rtol=1e-5)
        np.testing.assert_allclose(said[1], weights, rtol=1e-5)
        assert said[2] == seen, "a row was left out or seen twice"
        assert said == outcome.said[0][0], "workers differ"


@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 2])
def test_local_steps_of_workers_are_those_of_one_process(devices: int) -> None:
    names = [f"cpu:{device}" for device in range(2 * devices)]
    alone = gd.MirroredStrategy(names, **local_steps.OPTIONS)
    losses, read = local_steps.train(alone)
    outcome = run(2, "local_steps", devices=devices)
    assert outcome.status == 0, outcome.err
    for worker in range(2):
        (said,) = outcome.said[worker]
        np.testing.assert_allclose(said[0], losses, rtol=1e-5)
        np.testing.assert_allclose(said[1], read, rtol=1e-5, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("steps", [3, None])
def test_epochs_in_one_call(steps: int | None) -> None:
    """Workers stack the same steps, however long each of them finds a step to take."""
    outcome = run(2, "epochs", str(steps or 0))
    assert outcome.status == 0, outcome.err
    one_by_one, by_reduce, in_a_function = outcome.said[0]
    assert by_reduce == one_by_one
    assert in_a_function[0] > 150
    assert in_a_function[0] < one_by_one[0], "the loop was not left"
    assert outcome.said[1] == outcome.said[0]


@pytest.mark.long
def test_settings_of_one_thread_hold_for_its_steps() -> None:
    outcome = run(2, "settings")
    assert outcome.status == 0, outcome.err
    ((*sums, nan, disabled, kept),) = outcome.said[0]
    single, double = ["float32", float(np.float32(2 / 3))], ["float64", 2 / 3]
    assert sums == [single, double, single]
    assert nan.startswith("variable 'w' is nan after the step")
    assert disabled.startswith("jax.disable_jit() is on")
    assert kept == 1
    assert outcome.said[1] == outcome.said[0]


def rows_of(steps: Any) -> list[int]:
    return [row for step in steps for part in step for row in part]


def merged(outcome: Outcome, worker: int) -> dict[str, Any]:
    return {name: value for facts in outcome.said[worker] for name, value in facts.items()}


@pytest.mark.long
def test_methods_of_the_strategy() -> None:
    outcome = run(2, "api", devices=2)
    assert outcome.status == 0, outcome.err
    first, second = (merged(outcome, worker) for worker in range(2))
    for facts in (first, second):
        assert (facts["made"], facts["large"], facts["flags"]) == (10.0, 0.0, [False, True])
        assert facts["key"] == [0, 0]
        assert (facts["assigned"], facts["total"]) == (20.0, 4.0)
        assert (facts["replicas"], facts["sum"]) == (4, 6.0)
        assert facts["mean"] == pytest.approx(4 / 6)
        assert facts["gathered"] == [0, 0, 1, 0, 1, 2]
        assert facts["nothing"] == []
        assert facts["first"] == 6
        assert (facts["three"], facts["told"]) == (36, ["ElementByElementWarning"])
    assert (first["local"], second["local"]) == ([0.0, 1.0], [2.0, 3.0])
    assert (first["names"], second["names"]) == (
        ["replica 0", "replica 1"],
        ["replica 2", "replica 3"],
    )
    assert (first["ids"], second["ids"]) == ([0, 1], [2, 3])
    assert (first["contexts"], second["contexts"]) == ([[2, 0]], [[2, 1]])
    check_input(outcome, first, second)


def check_input(outcome: Outcome, first: Any, second: Any) -> None:
    assert first["from_function"] == [[[0, 1], []], [[], []]]
    assert second["from_function"] == [[[0, 1], [2, 3]], [[4, 5], []]]
    assert first["data"] == [[[0], [1]], [[4], [5]], [[8], [9]]]
    assert second["data"] == [[[2], [3]], [[6], [7]], [[], []]]
    assert first["off"] == second["off"]
    assert sorted(rows_of(first["off"])) == list(range(10))
    assert sorted(rows_of(first["shuffled"] + second["shuffled"])) == list(range(10))
    by_file = [facts for worker in range(2) for facts in outcome.said[worker] if "files" in facts]
    of_three = [by_file[0]["files"], by_file[2]["files"]]
    lines = [sorted(rows_of(steps)) for steps in of_three]
    assert lines == [[0, 1, 20, 21, 22, 23], [10, 11, 12]]
    assert sorted(rows_of(by_file[1]["files"] + by_file[3]["files"])) == [0, 1]
    log = [line for line in outcome.out.splitlines() if "LOG AutoShardPolicy" in line]
    assert [line.rpartition(": ")[2] for line in log] == [
        "each reads its own",
        "each reads all and keeps its rows",
    ]
