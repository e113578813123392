"""`gd.train.load` and `gd.train.export` in buckets: the arrays, what is interrupted, and damage."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file

import graphdist as gd
from graphdist.runtime.files import checkpoint_lock, foreign_folders
from graphdist.runtime.files.bucket_objects import BucketObjects
from graphdist.runtime.files.foreign_folders import FolderInBucket
from graphdist.runtime.files.locked_export import LockedExport
from graphdist.runtime.files.orbax_folders import OrbaxArray
from tests.train.processes import finished, start
from tests.train.test_buckets import _variables, broken_off, folder, keys_in, objects_in, served
from tests.train.test_loading import sharded
from tests.train.test_orbax import WAYS, plain, tree

__all__ = ["folder", "served"]
W = np.arange(24, dtype=np.float32).reshape(4, 6)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:orbax", "ignore::DeprecationWarning")


def copied_to(path: Path, address: str) -> Path:
    """Copy the objects below an address to a folder on the disk."""
    for key in keys_in(address):
        file = path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(objects_in(address).content(key))
    return path


def copied_from(path: Path, address: str) -> None:
    """Copy the files of a folder on the disk to objects."""
    for file in path.rglob("*"):
        if file.is_file():
            objects_in(address).write(str(file.relative_to(path)), file.read_bytes())


@pytest.mark.parametrize("way", ["standard", "folders", "zarr3"])
def test_what_orbax_saved_is_loaded(folder: str, tmp_path: Path, way: str) -> None:
    copied_from(WAYS[way](tmp_path / "saved", tree()), f"{folder}/saved")
    zeros = jax.tree.map(lambda leaf: leaf * 0 if hasattr(leaf, "dtype") else type(leaf)(), tree())
    loaded = gd.train.load(f"{folder}/saved", zeros).assert_consumed().tree
    assert plain(loaded) == plain(tree())
    assert {*gd.train.load(f"{folder}/saved/")} == {*gd.train.load(tmp_path / "saved")}


def test_orbax_restores_what_is_exported(folder: str, tmp_path: Path) -> None:
    variables = {"rows": sharded(W, 0), "columns": sharded(W, 1), "full": gd.Variable(W)}
    gd.train.export(f"{folder}/params", {"params": variables, "tree": tree()})
    assert "commit_success.txt" in keys_in(f"{folder}/params")
    assert not [key for key in keys_in(folder) if key.startswith(".") or "/." in key[7:8]]
    restored = ocp.StandardCheckpointer().restore(copied_to(tmp_path / "p", f"{folder}/params"))
    assert plain(restored["tree"]) == plain(tree())
    for array in restored["params"].values():
        np.testing.assert_array_equal(array, W)
    again = {"rows": sharded(np.zeros_like(W), 1)}
    gd.train.load(f"{folder}/params", {"params": again}).expect_partial()
    np.testing.assert_array_equal(again["rows"], W)


@pytest.mark.parametrize("most", [None, 50])
def test_files_of_hugging_face_go_there_and_back(
    folder: str, tmp_path: Path, most: int | None
) -> None:
    names = {"w": [gd.train.Transposed(f"layers.{i}.weight") for i in range(4)]}
    stacked = np.arange(48, dtype=np.float32).reshape(4, 2, 6)
    for number, dimension in enumerate((0, 1, 2)):
        address = f"{folder}/{number}"
        objects = {"w": sharded(stacked, dimension), "empty": np.zeros((0, 2)), "b": jnp.ones(3)}
        gd.train.export(address, objects, "safetensors", names=names, max_shard_bytes=most)
        files = [key for key in keys_in(address) if key.endswith(".safetensors")]
        assert len(files) == (1 if most is None else 5)
        assert len(keys_in(address)) == len(files) + (most is not None), "nothing else is left"
        again = {**objects, "w": sharded(np.zeros_like(stacked), dimension)}
        loaded = gd.train.load(address, again, names).assert_consumed().tree
        np.testing.assert_array_equal(loaded["w"], stacked)
        for file in copied_to(tmp_path / str(number), address).glob("*.safetensors"):
            for name, array in load_file(file).items():
                np.testing.assert_array_equal(array, gd.train.load(address)[name])


def test_one_file(folder: str) -> None:
    path = f"{folder}/w.safetensors"
    gd.train.export(path, {"w": W, "n": 3})
    array = gd.train.load(path)["w"]
    np.testing.assert_array_equal(array[1:3, 2:], W[1:3, 2:])
    assert keys_in(folder) == ["w.safetensors"]
    with pytest.raises(gd.CheckpointError, match="exists already, and is not replaced"):
        gd.train.export(path, {"w": W})
    assert gd.train.load(path, {"n": 0}).expect_partial().tree["n"] == 3


def test_parts_are_read_by_ranges(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderInBucket, "least_run", 48)
    monkeypatch.setattr(FolderInBucket, "block", 100)
    monkeypatch.setattr(foreign_folders, "_BYTES_OF_REQUEST", 40)
    gd.train.export(f"{folder}/w.safetensors", {"before": np.ones(5), "w": W})
    asked: list[Any] = []
    read = BucketObjects.read

    def noted(self: BucketObjects, key: str, part: slice | None = None) -> Any:
        asked.append(part)
        return read(self, key, part)

    array = gd.train.load(f"{folder}/w.safetensors")["w"]
    monkeypatch.setattr(BucketObjects, "read", noted)
    for part in ((slice(1, 3),), (slice(0, 4), slice(2, 4)), (slice(2, 3), slice(0, 6))):
        asked.clear()
        np.testing.assert_array_equal(array[part], W[part])
        assert all(each.stop - each.start <= 40 for each in asked)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["orbax", "safetensors"])
def test_an_interrupted_export_is_removed_by_the_next(
    folder: str, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last object makes it complete: without it the next export replaces what there is."""
    names = {"w": [f"layers.{i}" for i in range(4)]}
    options: Any = {} if way == "orbax" else {"names": names, "max_shard_bytes": 30}
    last = "commit_success.txt" if way == "orbax" else "model.safetensors.index.json"
    for point in range(60):
        address = f"{folder}/{point}"
        with monkeypatch.context() as patch:
            patch.setattr(LockedExport, "close", lambda _: None)  # as in a process that is killed
            was_broken_off = broken_off(
                lambda: gd.train.export(address, {"w": W}, way, **options),  # noqa: B023
                point,
                monkeypatch,
            )
        checkpoint_lock._all_held.clear()
        expected = W
        if last in keys_in(address):
            with pytest.raises(gd.CheckpointError, match="exists already, and is not replaced"):
                gd.train.export(address, {"w": W + 1}, way, **options)
        else:
            with contextlib.suppress(gd.UnreadableCheckpointError):
                assert len(gd.train.load(address)) == (1 if way == "orbax" else 4)
            expected = W + 1
            gd.train.export(address, {"w": expected}, way, **options)
        found = gd.train.load(address)
        read = found["w"] if way == "orbax" else np.stack([array[...] for array in found.values()])
        np.testing.assert_array_equal(read, expected)
        if not was_broken_off:
            break
    assert 10 < point < 59


def test_damage_is_told(folder: str) -> None:
    path = f"{folder}/w.safetensors"
    gd.train.export(path, {"w": W})
    content = objects_in(folder).content("w.safetensors")
    for wrong, what in {
        content[:-1]: "it is cut short, or was not written to its end",
        content[:5]: "it is cut short, or was not written to its end",
        content + b"x": "it has more bytes than the",
    }.items():
        objects_in(folder).write("w.safetensors", wrong)
        with pytest.raises(gd.UnreadableCheckpointError, match=what):
            gd.train.load(path)
    gd.train.export(f"{folder}/orbax", {"w": W})
    objects_in(f"{folder}/orbax").write("w/0.0", None)
    with pytest.raises(gd.UnreadableCheckpointError, match="array 'w' of "):
        gd.train.load(f"{folder}/orbax")["w"][...]
    index = {"weight_map": {"w": "x.safetensors"}}
    objects_in(folder).write("m/model.safetensors.index.json", json.dumps(index).encode())
    with pytest.raises(gd.UnreadableCheckpointError, match=r"x\.safetensors cannot be read: it is"):
        gd.train.load(f"{folder}/m")


def test_other_addresses_are_told(folder: str) -> None:
    checkpoint = gd.train.Checkpoint(w=1.0)
    checkpoint.save(f"{folder}/ckpt")
    gd.train.latest_checkpoint(folder)
    for address, what in {
        f"{folder}/none": "there is no ",
        f"{folder}/none.safetensors": "there is no ",
        f"{folder}/ckpt-1": "is a checkpoint of graphdist",
        folder: "has checkpoints of graphdist",
    }.items():
        with pytest.raises(gd.UnreadableCheckpointError, match=what):
            gd.train.load(address)
    gd.train.export(f"{folder}/orbax", {"w": W})
    with pytest.raises(gd.UnreadableCheckpointError, match=r"gd\.train\.load"):
        checkpoint.restore(f"{folder}/orbax")
    del checkpoint


def test_an_outage_is_no_damage(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gd.train.export(f"{folder}/orbax", {"w": W})
    array = gd.train.load(f"{folder}/orbax")["w"]
    for text in ("NOT_FOUND: chunk {0, 0} is missing", "ABORTED: All 32 retry attempts failed"):
        # The true one comes after 15 minutes of requests.
        failing = mock.Mock(side_effect=ValueError(text))
        monkeypatch.setattr(OrbaxArray, "_start_reading", failing)
        with pytest.raises(gd.CheckpointError, match=text[:8]) as caught:
            array[...]
        is_damage = isinstance(caught.value, gd.UnreadableCheckpointError)
        assert is_damage == text.startswith("NOT_FOUND")


@pytest.mark.parametrize("served", ["s3"], indirect=True)
def test_a_bucket_that_does_not_exist(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder
    with pytest.raises(gd.CheckpointError, match="NoSuchBucket"):
        broken_off(lambda: gd.train.export("s3://nowhere/w", {"w": W}), 30, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("format", ["orbax", "safetensors"])
def test_workers_export_together(folder: str, tmp_path: Path, format: str) -> None:
    address = f"{folder}/{format}"
    workers = [
        start("export_together", tmp_path, index, 2, address, format, **_variables())
        for index in range(2)
    ]
    for worker in workers:
        finished(worker)
    found = gd.train.load(address)
    for name in "abcd":
        np.testing.assert_array_equal(found[name], np.full(300, ord(name), np.float32))
    assert not [key for key in keys_in(address) if key.startswith(".")]
    shutil.rmtree(tmp_path)
