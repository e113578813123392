"""A notice that the program will be stopped, in one process."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import graphdist as gd
from graphdist.runtime.processes.step_agreement import StepAgreement
from graphdist.runtime.processes.workers import Workers
from graphdist.train import preemption


class Left(Exception):
    """What the program is left with."""


def leave() -> None:
    raise Left


def handler_of(folder: Path, **options: Any) -> tuple[gd.train.Checkpoint, Any]:
    checkpoint = gd.train.Checkpoint(total=gd.Variable(0))
    config = gd.train.TerminationConfig(**{"exit_fn": leave, **options})
    handler = gd.train.PreemptionCheckpointHandler(None, checkpoint, folder, config)
    return checkpoint, handler


def train(checkpoint: gd.train.Checkpoint, handler: Any, steps: int, stop_in: int = -1) -> None:
    def step(number: int) -> int:
        if number == stop_in:
            os.kill(os.getpid(), signal.SIGTERM)
        checkpoint.total.assign_add(1)
        return number

    for number in range(handler.total_run_calls, steps):
        assert handler.run(step, number) == number


def test_the_step_under_way_is_finished_and_saved(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    checkpoint, handler = handler_of(tmp_path)
    with pytest.raises(Left):
        train(checkpoint, handler, steps=10, stop_in=4)
    assert signal.getsignal(signal.SIGTERM) == before
    assert int(checkpoint.total) == 5

    again, handler = handler_of(tmp_path)
    assert (int(again.total), handler.total_run_calls) == (5, 5)
    train(again, handler, steps=10)
    handler.close()
    assert int(again.total) == 10


def test_between_two_steps_the_next_is_the_last(tmp_path: Path) -> None:
    checkpoint, handler = handler_of(tmp_path)
    train(checkpoint, handler, steps=2)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Left):
        train(checkpoint, handler, steps=10)
    assert handler.total_run_calls == 3


def test_the_exit_code(tmp_path: Path) -> None:
    checkpoint, handler = handler_of(tmp_path, exit_fn=None, exit_code=42)
    with pytest.raises(SystemExit) as caught:
        train(checkpoint, handler, steps=10, stop_in=1)
    assert caught.value.code == 42


def test_a_second_signal_does_what_it_did_before(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        _, handler = handler_of(tmp_path)
        os.kill(os.getpid(), signal.SIGTERM)
        assert not seen
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
        handler.close()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_given_notice_and_a_given_way_to_save(tmp_path: Path) -> None:
    noticed, saved = threading.Event(), []
    checkpoint, handler = handler_of(
        tmp_path, termination_watcher_fn=noticed.wait, save_fn=lambda: saved.append(True)
    )
    train(checkpoint, handler, steps=2)
    noticed.set()
    with pytest.raises(Left):
        train(checkpoint, handler, steps=10**9)
    assert saved == [True]
    assert gd.train.latest_checkpoint(tmp_path) is None


def test_a_watcher_that_fails_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preemption, "_SECONDS_BETWEEN_LOOKS", 0.01)
    looks = iter([OSError("connection reset"), OSError("connection reset"), True])

    def is_noticed() -> bool:
        found = next(looks)
        if isinstance(found, OSError):
            raise found
        return bool(found)

    checkpoint, handler = handler_of(tmp_path, termination_watcher_fn=is_noticed)
    with pytest.raises(Left):
        train(checkpoint, handler, steps=10**9)
    assert [record.message for record in caplog.records if record.exc_info] == [
        "termination_watcher_fn fails; it is asked again"
    ]


def test_the_time_that_is_left_is_used(tmp_path: Path) -> None:
    checkpoint, handler = handler_of(tmp_path, grace_period=0.9)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Left):
        train(checkpoint, handler, steps=10**9)
    assert int(gd.train.load_variable(tmp_path, "total")) == handler.total_run_calls > 1


def test_programs_that_do_not_use_run(tmp_path: Path) -> None:
    checkpoint, handler = handler_of(tmp_path)

    def loop() -> None:
        with handler.watch_preemption_scope():
            for number in range(10):
                handler.save_checkpoint_if_preempted()
                if number == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                checkpoint.total.assign_add(1)

    with pytest.raises(Left):
        loop()
    assert int(checkpoint.total) == 4
    assert int(gd.train.load_variable(tmp_path, "total")) == 4


def test_a_manager_of_ones_own(tmp_path: Path) -> None:
    checkpoint = gd.train.Checkpoint(total=gd.Variable(0))
    manager = gd.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=3)
    handler = gd.train.PreemptionCheckpointHandler(None, manager)
    train(checkpoint, handler, steps=2)
    manager.save()
    handler.close()
    assert gd.train.list_variables(tmp_path) == [("total", [])]
    again = gd.train.Checkpoint(total=gd.Variable(0), total_run_calls=0)
    again.restore(manager.latest_checkpoint).assert_consumed()
    assert again.total_run_calls == 2


class ServerCluster:
    def cluster_spec(self) -> dict[str, list[str]]:
        return {"worker": ["a:1"], "ps": ["b:1"]}


def test_refusals(tmp_path: Path) -> None:
    checkpoint = gd.train.Checkpoint(step=0)
    make = gd.train.PreemptionCheckpointHandler
    with pytest.raises(NotImplementedError, match="parameter servers"):
        make(ServerCluster(), checkpoint, tmp_path)
    with pytest.raises(ValueError, match="no checkpoint_dir"):
        make(None, checkpoint)
    with pytest.raises(ValueError, match="read_only"):
        make(None, gd.train.CheckpointManager(checkpoint, tmp_path, 1, read_only=True))
    with pytest.raises(TypeError, match="checkpoint_or_manager"):
        make(None, "folder")  # type: ignore[arg-type]


class Silent(Workers):
    """One of two workers, the other of which says nothing."""

    count = 2

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        return super().heard(name, min(timeout_seconds, 0.05))


def test_a_worker_that_says_nothing_is_named() -> None:
    agreement = StepAgreement(Silent(), "training", timeout_seconds=0.05)
    agreement.begin_step()
    agreement.request()

    def end_steps() -> None:
        while not agreement.end_step():
            agreement.begin_step()

    with pytest.raises(gd.WorkerTimeoutError, match="worker 1 of 2"):
        end_steps()
