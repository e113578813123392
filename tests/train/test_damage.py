"""What is damaged is found and named, and the checkpoint before it is restored."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime.files.checkpoint_index import INDEX, Index, sealed
from graphdist.runtime.processes.workers import Workers, set_workers
from tests.train.subjects import FORMAT_1, files_of, objects, refusal


def test_every_bit_that_is_turned_is_found(path: Path) -> None:
    turned = 0
    names = {"0.0": "'", "0": "'", ".zarray": "'"}
    for file in files_of(path):
        content = file.read_bytes()
        is_index = file.name == INDEX
        for place in range(0, len(content), 41 if is_index else 7):
            changed = bytearray(content)
            changed[place] ^= 1 << place % 8
            file.write_bytes(changed)
            said = refusal(path)
            assert "index" in said or str(file.relative_to(path)) in said
            assert is_index or f"array {names[file.name]}" in said
            turned += 1
        file.write_bytes(content)
    assert turned > 100
    gd.train.Checkpoint(**objects()).restore(path).assert_consumed()


def test_every_length_of_the_index(path: Path) -> None:
    content = (path / INDEX).read_bytes()
    for length in range(len(content)):
        (path / INDEX).write_bytes(content[:length])
        assert gd.train.latest_checkpoint(path.parent) is None
    refusal(path)
    (path / INDEX).write_bytes(content + b"\n")
    refusal(path)


def test_a_file_in_the_place_of_another(path: Path) -> None:
    index = json.loads((path / INDEX).read_text())
    first, second = (
        path / "part-0" / index["arrays"][name]["file"] / "0.0" for name in ("w", "others/0")
    )
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    said = refusal(path)
    assert "'w'" in said
    assert str(first.relative_to(path)) in said
    assert "checksum" in said
    second.write_bytes(contents[0])
    refusal(path)
    first.write_bytes(contents[0])
    assert "'others/0'" in refusal(path)


def test_a_file_of_another_checkpoint(path: Path) -> None:
    other = gd.train.Checkpoint(**objects(4))
    other.write(path.with_name("ckpt-2"))
    other.sync()
    shutil.copytree(path / "part-0", path.with_name("ckpt-2") / "part-0", dirs_exist_ok=True)
    assert "checksum" in refusal(path.with_name("ckpt-2"))


@pytest.mark.parametrize("name", ["0", "0.0", ".zarray", INDEX])
def test_what_is_not_a_file(path: Path, name: str) -> None:
    """A pipe is not waited for, and a folder not read."""
    for put in (os.mkfifo, os.mkdir):
        file = next(file for file in files_of(path) if file.name == name)
        file.unlink()
        put(file)
        assert gd.train.latest_checkpoint(path.parent) is None
        refusal(path)
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        file.write_text("")


# What is done then.


def saved_three(folder: Path) -> gd.train.CheckpointManager:
    """Save three checkpoints."""
    manager = gd.train.CheckpointManager(gd.train.Checkpoint(**objects()), folder, max_to_keep=3)
    for step in (1, 2, 3):
        for name, value in objects(step).items():
            setattr(manager.checkpoint, name, value)
        manager.save()
    manager.sync()
    return manager


def cut_short(path: Path) -> None:
    file = next(file for file in files_of(path) if file.name == "0.0")
    os.truncate(file, 5)


def turned(path: Path) -> None:
    file = next(file for file in files_of(path) if file.name == "0.0")
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def without_index(path: Path) -> None:
    (path / INDEX).unlink()


def cut_index(path: Path) -> None:
    os.truncate(path / INDEX, 100)


@pytest.mark.parametrize("damage", [cut_short, turned, without_index, cut_index])
def test_the_checkpoint_before_is_restored(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    saved_three(tmp_path)
    damage(tmp_path / "ckpt-3")
    again = gd.train.CheckpointManager(gd.train.Checkpoint(**objects()), tmp_path, 3)
    with caplog.at_level(logging.WARNING, "graphdist"):
        assert again.restore_or_initialize() == str(tmp_path / "ckpt-2")
    assert (again.checkpoint.step, again.checkpoint.w.max()) == (2, 2)
    assert f"checkpoint {tmp_path / 'ckpt-3'} is" in caplog.text
    assert "passed over" in caplog.text
    if damage is not turned:  # which only reading finds
        assert gd.train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-2")
        assert again.latest_checkpoint == str(tmp_path / "ckpt-2")
    refusal(tmp_path / "ckpt-3")


def test_all_damaged(tmp_path: Path) -> None:
    manager = saved_three(tmp_path)
    for number in (1, 2, 3):
        (turned if number < 3 else cut_short)(tmp_path / f"ckpt-{number}")
    begun: list[bool] = []
    again = gd.train.CheckpointManager(
        manager.checkpoint, tmp_path, 3, init_fn=lambda: begun.append(True)
    )
    with pytest.raises(gd.UnreadableCheckpointError, match="ckpt-1, ckpt-2, ckpt-3 are damaged"):
        again.restore_or_initialize()
    assert not begun


def test_good_ones_are_not_removed_for_damaged_ones(tmp_path: Path) -> None:
    manager = saved_three(tmp_path)
    cut_short(tmp_path / "ckpt-2")
    cut_index(tmp_path / "ckpt-3")
    manager.save()
    manager.save()
    assert [Path(path).name for path in manager.checkpoints] == ["ckpt-1", "ckpt-4", "ckpt-5"]


def test_a_backup_and_a_handler_go_back(tmp_path: Path) -> None:
    def train(epochs: int) -> list[int]:
        checkpoint = gd.train.Checkpoint(w=np.zeros(5))
        backup = gd.train.BackupAndRestore(checkpoint, tmp_path, delete_checkpoint=False)
        return list(backup.epochs(epochs))

    assert train(2) == [0, 1]
    copy = tmp_path / "backup-1"
    shutil.copytree(tmp_path / "backup-2", copy)
    index = json.loads((copy / INDEX).read_text())
    progress = [{**index["states"]["backup"][0], "epoch": 0}]
    (copy / INDEX).write_bytes(sealed({**index, "sequence": 1, "states": {"backup": progress}}))
    (tmp_path / "backup-2" / "part-0" / "0" / "0").write_bytes(b"1" * 40)
    assert train(2) == [1]

    manager = saved_three(tmp_path / "handled")
    turned(tmp_path / "handled" / "ckpt-3")
    handler = gd.train.PreemptionCheckpointHandler(None, manager)
    assert manager.checkpoint.step == 2
    handler.close()


class Second(Workers):
    """The first of two workers, the second of which says what is in a table of words of names."""

    count = 2

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__()
        self._answers = answers

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        if not name.endswith("/1"):
            return super().heard(name, timeout_seconds)
        (said,) = (said for number, said in self._answers.items() if f"/{number}/" in name)
        return said


def test_workers_go_back_alike(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from graphdist.train import manager as module

    saved_three(tmp_path)
    again = gd.train.CheckpointManager(gd.train.Checkpoint(**objects()), tmp_path, 3)
    start = next(module._restores) + 1
    unreadable, good = '[null, "damaged", true]', '[null, "", false]'
    any_latest = '["?", []]'
    answers = [any_latest, unreadable, any_latest, good]
    before = set_workers(Second({str(start + i): said for i, said in enumerate(answers)}))
    try:
        assert again.restore_or_initialize() == str(tmp_path / "ckpt-2")
    finally:
        set_workers(before)
    assert "ckpt-3 is passed over: worker 1: damaged" in caplog.text
    assert again.checkpoint.w.max() == 2


# Older checkpoints.


def test_format_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ckpt-1"
    shutil.copytree(FORMAT_1, path)
    w, half = gd.Variable(np.zeros((2, 3), "f")), gd.Variable(np.zeros(3, "bfloat16"))
    mean = gd.metrics.Mean()
    iterator = iter(gd.data.Dataset.range(10))
    checkpoint = gd.train.Checkpoint(
        params={"w": w, "half": half},
        ema={"w": w},
        mean=mean,
        key=jax.random.key(0),
        turned=np.zeros((3, 2), int),
        empty=np.zeros((0, 2)),
        number=np.int16(0),
        step=0,
        rate=0.0,
        name="",
        iterator=iterator,
    )
    assert gd.train.latest_checkpoint(tmp_path) == str(path)
    checkpoint.restore(path).assert_consumed()
    assert w.read_value().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert half.read_value().tolist() == [1, 1, 1]
    assert float(mean.result()) == 2.0
    assert bool(checkpoint.key == jax.random.key(7))
    assert checkpoint.turned.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (checkpoint.number, checkpoint.step, checkpoint.rate) == (5, 41, 0.5)
    assert (checkpoint.name, checkpoint.save_counter, int(next(iterator))) == ("run", 1, 2)
    checkpoint.save(tmp_path / "ckpt")
    assert gd.train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-2")


def test_an_index_says_what_was_written(path: Path) -> None:
    content = json.loads((path / INDEX).read_text())
    index = Index.of(content)
    assert [file.num_bytes for file in index.arrays["w"].slices] == [48]
    assert [file.crc32 for file in index.arrays["empty"].slices] == [None]
    assert [(path / file.chunk).stat().st_size for file in index.arrays["w"].slices] == [48]
    assert sealed(content) == (path / INDEX).read_bytes()
    assert not list(path.rglob("report.json"))
