"""What `save` returned is on the disk when the process ends; a fork waits for no parent."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import graphdist as gd
from graphdist.train import checkpoint as checkpoints
from graphdist.train import writing
from tests.train.processes import finished, start


def restored(path: Path) -> None:
    checkpoint = gd.train.Checkpoint(array=np.zeros(300_000), step=0)
    checkpoint.restore(path).assert_consumed()
    assert checkpoint.step == checkpoint.array.min() == 1


@pytest.mark.long
def test_every_ending(tmp_path: Path) -> None:
    said = finished(start("save_in_every_ending", tmp_path))
    names = ["daemon", "early", "late", "pool", "thread"]
    assert sorted(said) == sorted([*names, "restored", "end"])
    assert sorted(os.listdir(tmp_path)) == names, "no remains, and no file of a writer"
    for name in names:
        restored(tmp_path / name)


@pytest.mark.long
def test_a_daemon_that_never_stops(tmp_path: Path) -> None:
    assert finished(start("save_for_ever_on_a_daemon", tmp_path)) == []
    gd.train.Checkpoint(array=np.zeros(100_000)).restore(tmp_path / "ckpt").assert_consumed()
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


@pytest.mark.long
def test_forks(tmp_path: Path) -> None:
    said = finished(start("fork_in_a_write", tmp_path))
    assert said == ["first-1", "child", "first-1", "fork", "0 7"]
    assert sorted(os.listdir(tmp_path)) == ["child", "first-1", "fork", "second-2"]


@pytest.mark.long
def test_names_in_a_process_of_ascii(tmp_path: Path) -> None:
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    encoding, *said = finished(start("save_under_names_in_bytes", tmp_path, **ascii_alone))
    assert encoding == "ascii"
    assert said[:2] == ["1 '\\xfc'"] * 2
    assert "names of files are encoded in ascii here, which lacks '\\\\xfc'" in said[2]


@pytest.fixture
def main_thread_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "is_python_ending", lambda: True)


def test_a_write_at_the_end_raises_itself(
    tmp_path: Path, main_thread_is_over: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise gd.CheckpointError("broken")

    checkpoint = gd.train.Checkpoint(step=1)
    checkpoint.save(tmp_path / "ckpt")
    assert (tmp_path / "ckpt-1").exists(), "before `save` returned"
    monkeypatch.setattr(checkpoints, "write_checkpoint", fail)
    with pytest.raises(gd.CheckpointError, match="broken") as caught:
        checkpoint.save(tmp_path / "ckpt")
    assert "test_endings.py" in str(caught.value)
    checkpoint.sync()


def test_a_system_without_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    checkpoint = gd.train.Checkpoint(array=np.ones(300_000), step=1)
    checkpoint.save(tmp_path / "ckpt")
    restored(tmp_path / "ckpt-1")


def test_no_thread_begins_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, refused = gd.train.Checkpoint(step=1), []

    def save() -> None:
        try:
            checkpoint.write(tmp_path / "ckpt")
        except gd.CheckpointError as error:
            refused.append(error.what)

    monkeypatch.setattr(writing, "_is_over", True)
    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    thread.join()
    assert "does not wait for this thread" in refused[0]
    assert os.listdir(tmp_path) == []
    checkpoint.write(tmp_path / "ckpt")  # functions at exit, on the main thread
    checkpoint.sync()


def test_a_failure_that_nobody_asks_for_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("broken")

    checkpoint = gd.train.Checkpoint(step=1)
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "graphdist"):
        patch.setattr(checkpoints, "write_checkpoint", fail)
        patch.setattr(writing, "_is_over", False)
        checkpoint.write(tmp_path / "ckpt")
        for _ in range(2):
            writing._end()
    assert caplog.text.count("was not written") == 1
    with pytest.raises(OSError, match="broken"):
        checkpoint.sync()
