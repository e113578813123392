"""State in slices over the replicas of all workers: its values, reads, checkpoints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.flax import load_file

import graphdist as gd
from tests.multi_worker.launch import run
from tests.multi_worker.programs.sliced import (
    FEATURES,
    LARGE,
    UNITS,
    curved_loss,
    exact_loss,
    train,
    train_large,
)
from tests.multi_worker.test_faults import errors_of

SHAPES = [(2, 1), (2, 2), (4, 1)]


def numbers_of(losses: list[str]) -> list[float]:
    return [float.fromhex(loss) for loss in losses]


@pytest.mark.long
@pytest.mark.parametrize(("workers", "devices"), SHAPES)
def test_losses_are_those_of_full_state_and_of_one_process(workers: int, devices: int) -> None:
    replicas = workers * devices
    devices_here = [f"cpu:{number}" for number in range(replicas)]
    alone = gd.MirroredStrategy(devices_here, shard_update=True)
    outcome = run(workers, "sliced", "losses", devices=devices)
    assert outcome.status == 0, outcome.err
    said = outcome.said[0]
    assert [outcome.said[worker] for worker in range(workers)] == [said] * workers
    for number, loss_fn in enumerate((exact_loss, curved_loss)):
        sliced, full = said[number], said[number + 2]
        assert sliced["held"] == [FEATURES * UNITS // replicas]
        assert full["held"] == [FEATURES * UNITS]
        _, losses = train(alone, loss_fn)
        if loss_fn is exact_loss:
            assert (sliced["losses"], sliced["slot"]) == (full["losses"], full["slot"])
        if loss_fn is exact_loss or replicas == 2:
            assert sliced["losses"] == losses
            continue
        # Gloo adds more than two in another order than one process.
        for others in (full["losses"], losses):
            np.testing.assert_allclose(numbers_of(sliced["losses"]), numbers_of(others), rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("workers", "devices"), SHAPES[1:])
def test_methods_of_a_variable(workers: int, devices: int) -> None:
    outcome = run(workers, "sliced", "values", devices=devices)
    assert outcome.status == 0, outcome.err
    for worker in range(workers):
        (facts,) = outcome.said[worker]
        assert facts["right"] == [True] * 4
        assert facts["values"] == [True] * devices
        assert facts["item"]
        assert facts["total"]
        for text in facts["shown"]:
            assert re.fullmatch(
                r"<Variable '0_(mu|nu)_w' f32\[16,8\] sharded\(0\) on cpu:0, .*, "
                rf"sharded over {workers} workers>",
                text,
            )


@pytest.mark.long
def test_a_worker_that_does_not_read_is_named() -> None:
    limit = {"GRAPHDIST_WORKER_START_SECONDS": "6"}
    outcome = run(2, "sliced", "alone", devices=2, variables=limit)
    assert outcome.status == 1
    error = errors_of(outcome, 0)
    assert re.search(
        r"CollectiveTimeoutError: reading variable '\w+', which is sharded over all workers, "
        r"waits for worker 1 \(.*\), which did not come within 6 s",
        error,
    )
    assert "sliced.py:" in error
    assert "let all workers do it" in error


@pytest.mark.long
def test_workers_that_read_different_variables_are_named() -> None:
    outcome = run(2, "sliced", "others", devices=2)
    assert outcome.status == 1
    for worker in range(2):
        assert re.search(
            r"WorkerError: worker 0 \(.*\) is at reading variable '0_mu_w', .* worker 1 \(.*\) is "
            r"at reading variable '0_nu_w'",
            errors_of(outcome, worker),
        )


@pytest.mark.long
def test_a_checkpoint_holds_each_byte_once_and_fits_any_workers(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    outcome = run(2, "sliced", "save", str(path), devices=2)
    assert outcome.status == 0, outcome.err
    assert outcome.said == {worker: [{"alike": True, "along": 0}] for worker in range(2)}
    index = json.loads((path / "index.json").read_text())
    sliced = [record for record in index["arrays"].values() if "slices" in record]
    assert [[one["part"] for one in record["slices"]] for record in sliced] == [[0, 1]] * 2
    chunks = [file for file in path.rglob("*") if re.fullmatch(r"[0-9.]+", file.name)]
    sizes = sum(file.stat().st_size for file in chunks if file.is_file())
    with np.load(tmp_path / "ckpt-0.npz") as saved:
        arrays: list[Any] = list(saved.values())
    assert sizes == sum(array.nbytes for array in arrays)

    for workers, devices in ((1, 1), (1, 2), (4, 1), (2, 1)):
        outcome = run(workers, "sliced", "restore", str(path), devices=devices)
        assert outcome.status == 0, outcome.err
        along = 0 if workers > 1 else None
        expected = [{"alike": True, "along": None}, {"alike": True, "along": along}]
        assert outcome.said == dict.fromkeys(range(workers), expected)

    with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        slot = gd.Variable(np.zeros((FEATURES, UNITS), np.float32))
    name = next(name for name, record in index["arrays"].items() if "slices" in record)
    tree: Any = slot
    for key in reversed(name.split("/")):
        tree = {key: tree}
    gd.train.Checkpoint(**tree).read(path).expect_partial()
    assert any(np.array_equal(slot, array) for array in arrays)
    assert np.asarray(slot).any()


@pytest.mark.long
@pytest.mark.parametrize(("workers", "devices"), SHAPES[1:])
def test_other_programs_read_what_several_workers_export(
    workers: int, devices: int, tmp_path: Path
) -> None:
    outcome = run(workers, "sliced", "foreign", str(tmp_path), devices=devices)
    assert outcome.status == 0, outcome.err
    expected = [{"share": 1 / workers, "alike": True}] * 2
    assert outcome.said == dict.fromkeys(range(workers), expected)
    values = np.arange(LARGE[0] * LARGE[1], dtype=np.float32).reshape(LARGE)
    saved = load_file(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(saved["w"], values.T)
    assert int(saved["n"]) == 1
    restored = ocp.StandardCheckpointer().restore(tmp_path / "orbax")
    np.testing.assert_array_equal(restored["params"]["large"], values)
    assert restored["params"]["small"].tolist() == [0, 1, 2]
    chunks = list((tmp_path / "orbax" / "params.large").iterdir())
    assert len(chunks) == 1 + workers * devices
    assert {file.name for file in tmp_path.iterdir()} == {"orbax", "w.safetensors"}


@pytest.mark.long
def test_a_slice_that_one_worker_cannot_read_stops_all(tmp_path: Path) -> None:
    outcome = run(2, "sliced", "damaged", str(tmp_path / "ckpt"), devices=2)
    assert outcome.status == 0, outcome.err
    first, second = (outcome.said[worker][0]["said"] for worker in range(2))
    assert "its checksum is" in second
    assert first == f"worker 1: {second}"


@pytest.mark.long
def test_a_backup_goes_on_with_other_workers(tmp_path: Path) -> None:
    whole = run(2, "sliced", "backup", str(tmp_path / "whole"), "99", devices=2)
    assert whole.status == 0, whole.err
    (expected,) = whole.said[0]
    assert expected["along"] == 0
    first = run(2, "sliced", "backup", str(tmp_path / "ended"), "6", devices=2)
    assert first.status == 0, first.err
    made = first.said[1][0]["losses"]
    assert made == expected["losses"][: len(made)]
    again = run(4, "sliced", "backup", str(tmp_path / "ended"), "99")
    assert again.status == 0, again.err
    rest = again.said[3][0]["losses"]
    np.testing.assert_allclose(numbers_of(made + rest), numbers_of(expected["losses"]), rtol=1e-5)


@pytest.mark.long
def test_a_preempted_job_goes_on(tmp_path: Path) -> None:
    whole = run(2, "sliced", "preempted", str(tmp_path / "whole"), "99", devices=2)
    assert whole.status == 0, whole.err
    expected = [fact["losses"] for fact in whole.said[0]]
    first = run(2, "sliced", "preempted", str(tmp_path / "ended"), "4", devices=2)
    assert first.status == 143, first.err
    again = run(2, "sliced", "preempted", str(tmp_path / "ended"), "99", devices=2)
    assert again.status == 0, again.err
    for worker in range(2):
        made = [fact["losses"] for fact in (*first.said[worker], *again.said[worker])]
        assert made in (expected, [loss for loss in expected if loss in made])
        assert len(made) >= len(expected) - 1  # the step of the signal may go unsaid


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "devices", "group", "share"),
    [(2, 2, 4, 1 / 2), (4, 1, 4, 1 / 4), (2, 2, 2, 1), (4, 1, 2, 1 / 2)],
)
def test_parameters_are_made_in_slices(
    workers: int, devices: int, group: int, share: float, tmp_path: Path
) -> None:
    here = [f"cpu:{number}" for number in range(workers * devices)]
    _, expected = train_large(gd.MirroredStrategy(here, shard_parameters=group), 0)
    path = tmp_path / "ckpt"
    outcome = run(workers, "sliced", "parameters", str(path), str(group), devices=devices)
    assert outcome.status == 0, outcome.err
    for worker in range(workers):
        (said,) = outcome.said[worker]
        assert said["along"] == expected["along"]
        assert said["losses"] == expected["losses"]
        assert said["sums"] == expected["sums"]
        assert said["restored"] == said["sums"]["called"]
        assert said["held"].pop("small") == devices
        assert set(said["held"].values()) == {share}
        assert said["copied"] == share
        assert (f"sharded over {workers} workers" in said["shown"]) == (share < 1)
    with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        called = gd.Variable(np.zeros(LARGE, np.float32))
    gd.train.Checkpoint(called=called).read(tmp_path / "ckpt").expect_partial()
    assert float(np.asarray(called, np.float64).sum()) == expected["sums"]["called"]


@pytest.mark.long
def test_an_initial_value_that_depends_on_the_worker_is_refused() -> None:
    outcome = run(2, "sliced", "seeds", devices=2)
    assert outcome.status == 1
    for worker in range(2):
        assert re.search(
            r"WorkerError: the initial value of variable 'w' is made by other operations on "
            r"worker 1 \(.*\) than on worker 0 ",
            errors_of(outcome, worker),
        )
