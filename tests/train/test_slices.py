"""Arrays of a checkpoint in several files, each a slice that another worker wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.runtime.files.checkpoint_disk import DiskFiles
from graphdist.runtime.processes.workers import Workers, set_workers
from graphdist.runtime.spans import Span
from graphdist.train import index as train_index
from graphdist.train.index import SavedCheckpoint
from graphdist.train.leaves import ArrayEntry
from graphdist.train.status import read_by_all
from tests.train.subjects import put_in_slices, refusal

SHAPE = (4, 6)
VALUES = np.arange(24, dtype=np.float32).reshape(SHAPE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of checkpoints: in one file, and in slices along each dimension."""
    folder = tmp_path_factory.mktemp("slices")
    for name, along, sizes in (("full", 0, []), ("rows", 0, [1, 2, 1]), ("columns", 1, [2, 4])):
        checkpoint = gd.train.Checkpoint(w=VALUES)
        checkpoint.write(folder / name)
        checkpoint.sync()
        if sizes:
            put_in_slices(folder / name, "w", along, sizes)
    return folder


spans = st.builds(
    lambda along, bounds: Span(along, min(bounds), max(bounds) + 1),
    st.shared(st.integers(0, 1), key="along"),
    st.shared(st.integers(0, 1), key="along").flatmap(
        lambda along: st.tuples(*[st.integers(0, SHAPE[along] - 1)] * 2)
    ),
)


@given(st.sampled_from(["full", "rows", "columns"]), st.none() | spans)
def test_any_span_is_read_from_any_slices(folder: Path, name: str, span: Span | None) -> None:
    saved = SavedCheckpoint(name, DiskFiles(folder / name))
    (read,) = saved.read(["w"], [span])
    np.testing.assert_array_equal(read, VALUES if span is None else VALUES[span.index])
    assert read.base is None or read.base.size == read.size, "it keeps more in memory"


@pytest.mark.parametrize(
    ("shape", "files"), [((7, 3), 4), ((1, 21), 3), ((2, 11), 3), ((1, 1), 1), ((), 1), ((0, 9), 0)]
)
def test_a_large_array_is_saved_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], files: int
) -> None:
    monkeypatch.setattr(train_index, "MOST_BYTES_IN_A_FILE", 28 if shape == (7, 3) else 32)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    gd.train.Checkpoint(w=values, v=gd.Variable(values)).write(tmp_path / "large")
    found = gd.train.Checkpoint(w=np.zeros_like(values), v=gd.Variable(np.zeros_like(values)))
    found.restore(tmp_path / "large").assert_consumed()
    np.testing.assert_array_equal(found.w, values)
    np.testing.assert_array_equal(found.v.read_value(), values)
    saved = SavedCheckpoint("large", DiskFiles(tmp_path / "large"))
    assert len([file for file in saved.arrays["w"].slices if file.num_bytes]) == files


@pytest.mark.parametrize("name", ["rows", "columns"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_one_process_restores_slices(folder: Path, name: str, replicas: int) -> None:
    with gd.MirroredStrategy([f"cpu:{number}" for number in range(replicas)]).scope():
        w = gd.Variable(np.zeros(SHAPE, np.float32))
    gd.train.Checkpoint(w=w).restore(folder / name).assert_consumed()
    np.testing.assert_array_equal(w.read_value(), VALUES)
    assert gd.train.list_variables(folder / name) == [("w", [4, 6])]
    np.testing.assert_array_equal(gd.train.load_variable(folder / name, "w"), VALUES)


def test_a_lost_slice_is_damage(path: Path) -> None:
    put_in_slices(path, "w", 0, [1, 3])
    (path / "part-1" / "100" / "0.0").unlink()
    assert "array 'w' of checkpoint" in refusal(path)
    assert gd.train.latest_checkpoint(path.parent) is None


def test_a_changed_slice_is_damage(path: Path) -> None:
    put_in_slices(path, "w", 0, [1, 3])
    file = path / "part-1" / "100" / "0.0"
    file.write_bytes(bytes([1, *file.read_bytes()[1:]]))
    assert "checksum" in refusal(path)


def test_a_file_of_another_slice_is_damage(path: Path) -> None:
    put_in_slices(path, "others/0", 0, [2, 2])
    first, second = (path / f"part-{part}" / "100" / "0.0" for part in (0, 1))
    second.write_bytes(bytes([1, *first.read_bytes()[1:]]))
    assert "part-1/100" in refusal(path)


class TwoWorkers(Workers):
    """The first of two workers; the other has said something already."""

    count = 2

    def __init__(self, other_says: str) -> None:
        super().__init__()
        self._other_says, self.said = other_says, dict[str, str]()

    def publish(self, name: str, value: str) -> None:
        super().publish(name, value)
        self.said[name] = value

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        is_other = name.endswith("/1")
        return self._other_says if is_other else super().heard(name, timeout_seconds)


@pytest.mark.parametrize("failure", ["", "array 'w' cannot be read: part-1/0: it is gone"])
def test_workers_that_read_slices_succeed_or_fail_together(folder: Path, failure: str) -> None:
    saved = SavedCheckpoint("rows", DiskFiles(folder / "rows"))
    in_slices = gd.Variable(VALUES).stored
    entry = ArrayEntry("w", "float32", SHAPE, lambda: VALUES, lambda array: None, slices=in_slices)
    for said, outcome in (
        ([saved.index.seal, failure, bool(failure)], failure),
        (["00000000", "", False], "its checkpoint rows is another save"),
    ):
        before = set_workers(TwoWorkers(json.dumps(said)))
        try:
            if outcome:
                with pytest.raises(gd.UnreadableCheckpointError, match=f"worker 1: {outcome}"):
                    read_by_all(saved, [(entry, "w")], lambda: 3)
            else:
                assert read_by_all(saved, [(entry, "w")], lambda: 3) == 3
        finally:
            set_workers(before)


def test_a_worker_that_cannot_read_tells_the_others(folder: Path) -> None:
    saved = SavedCheckpoint("rows", DiskFiles(folder / "rows"))
    in_slices = gd.Variable(VALUES).stored
    entry = ArrayEntry("w", "float32", SHAPE, lambda: VALUES, lambda array: None, slices=in_slices)
    workers = TwoWorkers(json.dumps([saved.index.seal, "", False]))

    def read() -> None:
        raise gd.UnreadableCheckpointError("it is gone")

    before = set_workers(workers)
    try:
        with pytest.raises(gd.UnreadableCheckpointError, match="it is gone"):
            read_by_all(saved, [(entry, "w")], read)
    finally:
        set_workers(before)
    assert [json.loads(text) for text in workers.said.values()] == [[None, "it is gone", True]]
