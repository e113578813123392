"""Files of safetensors: any part is read, other programs read them, and damage is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.flax import load_file, save_file
from safetensors.numpy import save_file as save_numpy

import graphdist as gd
from graphdist.runtime.files.foreign_folders import FolderOnDisk
from graphdist.runtime.files.safetensors_files import DTYPES

SHAPE = (3, 4, 5)
VALUES = np.arange(60, dtype=np.int16).reshape(SHAPE)


def refusal(path: Path) -> str:
    with pytest.raises(gd.UnreadableCheckpointError) as caught:
        gd.train.load(path)
    return str(caught.value).replace(str(path.parent), "folder")


def written(path: Path, header: Any, data: bytes = b"") -> Path:
    """Write a file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file in which another array comes first."""
    path = tmp_path_factory.mktemp("arrays") / "model.safetensors"
    save_file({"before": jnp.ones(7, jnp.float32), "values": jnp.asarray(VALUES)}, path)
    return path


ranges = [
    st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda ends: slice(*sorted(ends)))
    for size in SHAPE
]


@given(st.tuples(*ranges), st.sampled_from([1, 20, 2**12]), st.sampled_from([1, 30, 2**24]))
def test_any_part_is_read(file: Path, part: tuple[slice, ...], run: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderOnDisk, "least_run", run)
        patch.setattr(FolderOnDisk, "block", block)
        read = gd.train.load(file)["values"][part]
    np.testing.assert_array_equal(read, VALUES[part])


@pytest.mark.parametrize("index", [0, (-1, ...), (..., 2), (slice(1), ..., slice(1, None)), ...])
def test_arrays_are_indexed_as_numpys(file: Path, index: Any) -> None:
    array = gd.train.load(file)["values"]
    np.testing.assert_array_equal(array[index], VALUES[index])
    np.testing.assert_array_equal(np.asarray(array), VALUES)
    assert [row.tolist() for row in array] == VALUES.tolist()
    for wrong in ((0, 0, 0, 0), slice(None, None, 2), 3):
        with pytest.raises(IndexError):
            array[wrong]


@pytest.mark.parametrize("name", DTYPES.values())
def test_each_dtype_goes_there_and_back(tmp_path: Path, name: str) -> None:
    values = np.arange(6).reshape(2, 3).astype(jnp.dtype(name))
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    gd.train.export(ours, {"w": values})
    ((_, record),) = safetensors.deserialize(ours.read_bytes())
    assert (DTYPES[record["dtype"]], record["shape"]) == (name, [2, 3])
    assert record["data"] == values.tobytes()
    save_numpy({"w": values}, theirs)
    read = gd.train.load(theirs)["w"][...]
    assert read.dtype == values.dtype
    assert read.tobytes() == values.tobytes()


def test_names_have_dots_and_arrays_are_aligned(tmp_path: Path) -> None:
    tree = {"a": np.ones(3, np.int8), "layers": [{"w": np.ones((2, 2))}, {"w": jnp.zeros(())}]}
    path = tmp_path / "tree.safetensors"
    gd.train.export(path, tree)
    assert {*load_file(path)} == {"a", "layers.0.w", "layers.1.w"}
    for array in gd.train.load(path).values():
        assert array.start % array.dtype.itemsize == 0  # type: ignore[attr-defined]
    restored = gd.train.load(path, tree).assert_consumed().tree
    assert restored["layers"][0]["w"].sum() == 4


def test_large_models_are_in_several_files_with_an_index(tmp_path: Path) -> None:
    folder, tree = tmp_path / "model", {name: np.full(5, ord(name), np.int64) for name in "abcd"}
    gd.train.export(folder, tree, "safetensors", max_shard_bytes=90)
    assert sorted(file.name for file in folder.iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 160}
    for name, file in index["weight_map"].items():
        assert load_file(folder / file)[name].tolist() == tree[name].tolist()
    for path in (folder, folder / "model.safetensors.index.json"):
        loaded = gd.train.load(path, tree).assert_consumed().tree
        assert [array[0] for array in loaded.values()] == [97, 98, 99, 100]
    gd.train.export(tmp_path / "small", tree, "safetensors")
    assert [file.name for file in (tmp_path / "small").iterdir()] == ["model.safetensors"]


def test_files_are_found_through_links_and_without_an_index(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    for name in "ab":
        save_file({name: jnp.ones(2)}, blobs / name)
        (folder / f"{name}.safetensors").symlink_to(blobs / name)
    assert {*gd.train.load(folder)} == {"a", "b"}
    (folder / "c.safetensors").symlink_to(blobs / "a")
    assert "two of its files have an array 'a'" in refusal(folder)


def test_a_slash_at_the_end_says_nothing_of_the_format(tmp_path: Path) -> None:
    gd.train.export(f"{tmp_path}/w.safetensors/", {"w": np.ones(2)})
    assert (tmp_path / "w.safetensors").is_file()
    assert {*gd.train.load(f"{tmp_path}/w.safetensors/")} == {"w"}


def test_a_model_of_which_a_file_is_missing_is_told(tmp_path: Path) -> None:
    tree = {name: np.ones(5) for name in "abc"}
    gd.train.export(tmp_path / "m", tree, "safetensors", max_shard_bytes=40)
    (tmp_path / "m" / "model.safetensors.index.json").unlink()
    assert {*gd.train.load(tmp_path / "m")} == {*tree}
    (tmp_path / "m" / "model-00002-of-00003.safetensors").unlink()
    assert "it has 2 of 3 files of 'model', and no index: model-00002" in refusal(tmp_path / "m")


ARRAY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HOSTILE: dict[str, tuple[Any, bytes, str]] = {
    "no json": (b"{", b"", "its header is no JSON"),
    "deep": (b'{"a":' * 100_000, b"", "its header is no JSON"),
    "no object": ([1], b"", "its header is no object of JSON"),
    "twice": (b'{"a": {}, "a": {}}', b"", "a name is in it twice"),
    "no record": ({"w": 3}, b"", "array 'w' has no record in the header"),
    "dtype": ({"w": {**ARRAY, "dtype": "F3"}}, b"", "array 'w' has dtype 'F3'"),
    "no dtype": ({"w": {**ARRAY, "dtype": ["F32"]}}, b"", "array 'w' has dtype ['F32']"),
    "shape": ({"w": {**ARRAY, "shape": [-2]}}, b"", "array 'w' has shape [-2] at [0, 8]"),
    "bool": ({"w": {**ARRAY, "shape": [True]}}, b"", "array 'w' has shape [True]"),
    "huge": ({"w": {**ARRAY, "shape": [2**62]}}, b"", f"which has {2**64:,} bytes, and its"),
    "offsets": ({"w": {**ARRAY, "data_offsets": [8, 0]}}, b"", "its header says -8"),
    "gap": ({"w": {**ARRAY, "data_offsets": [1, 9]}}, bytes(9), "begins at byte 1, not at 0"),
    "overlap": ({"v": ARRAY, "w": ARRAY}, bytes(8), "begins at byte 0, not at 8"),
    "cut short": ({"w": ARRAY}, bytes(7), "it has 76 bytes, its header says 77"),
    "too long": ({"w": ARRAY}, bytes(9), "it has 78 bytes, its header says 77"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_lies_is_refused(tmp_path: Path, case: str) -> None:
    header, data, what = HOSTILE[case]
    text = refusal(written(tmp_path / "w.safetensors", header, data))
    assert text.startswith("folder/w.safetensors cannot be read: ")
    assert what in text


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, (10**8).to_bytes(8, "little")])
def test_a_length_beyond_the_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    text = refusal(path)
    assert re.search(r"it is cut short: it has \d bytes, of |would have [0-9,]+ bytes, of", text)


def test_a_file_that_is_cut_short_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    gd.train.export(path, {"w": np.ones(8)})
    array = gd.train.load(path)["w"]
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    what = f"it is cut short: it has {len(content) - 1} bytes, of {len(content)}"
    with pytest.raises(gd.UnreadableCheckpointError, match=what):
        array[...]


@pytest.mark.parametrize(
    ("index", "what"),
    [
        ({"weight_map": {"w": "../w.safetensors"}}, "no file in its folder"),
        ({"weight_map": {"w": "/w.safetensors"}}, "no file in its folder"),
        ({"weight_map": {"w": "w.bin"}}, "no file in its folder"),
        ({"weight_map": {"v": "w.safetensors"}}, "'v' is in w.safetensors, which does not have it"),
        ({"weight_map": {"w": "x.safetensors"}}, "No such file"),
        ({"weight_map": {"w": 3}}, 'it has no "weight_map" of names of files'),
        ({}, 'it has no "weight_map" of names of files'),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, index: Any, what: str) -> None:
    gd.train.export(tmp_path / "w.safetensors", {"w": np.ones(2)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert what in refusal(tmp_path)


def test_several_indices_are_told(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
    assert "it has several indices: a.safetensors.index.json, b.safet" in refusal(tmp_path)
