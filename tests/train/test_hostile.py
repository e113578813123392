"""Checkpoints that somebody made up are refused, and take no memory."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphdist as gd
from graphdist.runtime.files.checkpoint_index import INDEX, sealed
from tests.train.subjects import FORMAT_1, nested, objects, put_in_slices, refusal

Change = Callable[[dict[str, Any]], Any]


def of_array(**fields: Any) -> Change:
    return lambda index: index["arrays"]["w"].update(fields)


def without(field: str) -> Change:
    return lambda index: index.pop(field)


def without_of_array(field: str) -> Change:
    return lambda index: index["arrays"]["w"].pop(field)


def with_field(field: str, value: Any) -> Change:
    return lambda index: index.update({field: value})


FIELDS = [
    *("format", "sequence", "save_counter", "saved_at", "workers"),
    *("arrays", "values", "states", "aliases"),
]
VALUES: list[Any] = [None, -1, 1e999, "x", [[]], {"w": None}, 10**400]
OF_ARRAYS = ["dtype", "shape", "part", "file", "stored", "crc32"]
HOSTILE: dict[str, Change] = {
    **{f"no {field}": without(field) for field in FIELDS},
    **{f"no {field} of an array": without_of_array(field) for field in OF_ARRAYS},
    **{
        f"{field} is {value!r:.30}": with_field(field, value)
        for field in FIELDS
        for value in VALUES
        if (field, value) != ("saved_at", -1)  # a clock may be wrong
    },
    "another file": of_array(file="1"),
    "a file outside": of_array(file="../../../etc"),
    "a file of the root": of_array(file="/etc/passwd"),
    "a number of digits elsewhere": of_array(file="\u0663"),
    "another part": of_array(part=1),
    "a part before the first": of_array(part=-1),
    "a part that is true": of_array(part=True),
    "negative sizes": of_array(shape=[-4, -3], stored=["float32", [-4, -3]]),
    "a huge shape": of_array(shape=[4, 2**50], stored=["float32", [4, 2**50]]),
    "a shape beyond memory": of_array(shape=[4, 2**40], stored=["float32", [4, 2**40]]),
    "many dimensions": of_array(shape=[1] * 1000, stored=["float32", [1] * 1000]),
    "a shape that is text": of_array(shape="43", stored=["float32", "43"]),
    "other shapes": of_array(shape=[3, 4]),
    "other elements": of_array(stored=["int32", [4, 3]]),
    "other elements alike": of_array(dtype="int32", stored=["int32", [4, 3]]),
    "objects": of_array(dtype="object", stored=["object", [4, 3]]),
    "records": of_array(dtype="f4,i4", stored=["f4,i4", [4, 3]]),
    "times": of_array(dtype="datetime64", stored=["datetime64", [4, 3]]),
    "no dtype at all": of_array(dtype="(" * 99, stored=["(" * 99, [4, 3]]),
    "a checksum of other digits": of_array(crc32="ABCDEF01"),
    "a key of other numbers": lambda index: index["arrays"]["key"].update(stored=["uint32", [0]]),
    "values nested deeply": lambda index: index["values"].update(step=nested(50)),
    "states of two workers": lambda index: index.update(states={"iterator": [{}, {}]}),
    "a state of another kind": lambda index: index.update(states={"iterator": [17]}),
    "an alias that is a name": lambda index: index.update(aliases={"w": "step"}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_indices(path: Path, name: str) -> None:
    index = json.loads((path / INDEX).read_text())
    HOSTILE[name](index)
    (path / INDEX).write_bytes(sealed(index))
    checkpoint = gd.train.Checkpoint(**objects())
    with pytest.raises(gd.GraphdistError):
        checkpoint.restore(path)
    assert checkpoint.step == 0
    assert not checkpoint.w.any()


def of_slices(**fields: Any) -> Change:
    return lambda index: index["arrays"]["w"].update(fields)


def of_second(**fields: Any) -> Change:
    return lambda index: index["arrays"]["w"]["slices"][1].update(fields)


HOSTILE_SLICES: dict[str, Change] = {
    **{f"slices are {value!r:.30}": of_slices(slices=value) for value in [*VALUES, [], [3]]},
    **{f"along {value!r:.30}": of_slices(sliced_along=value) for value in [*VALUES, 2, True]},
    **{f"a size of {value!r:.30}": of_second(size=value) for value in [*VALUES, 0, 1, 3, True]},
    **{f"a part {value!r:.30}": of_second(part=value) for value in [*VALUES, 2]},
    **{f"a checksum {value!r:.30}": of_second(crc32=value) for value in [*VALUES, "0" * 8]},
    "the file of another slice": of_second(part=0),
    "a file outside": of_second(file="../../etc"),
    "only one slice": lambda index: index["arrays"]["w"]["slices"].pop(),
    "a slice twice": lambda index: index["arrays"]["w"]["slices"].append(
        index["arrays"]["w"]["slices"][0]
    ),
    "slices of a number": of_slices(shape=[], stored=["float32", []]),
    "slices of nothing": of_slices(shape=[0, 3], stored=["float32", [0, 3]]),
}


@pytest.mark.parametrize("name", HOSTILE_SLICES)
def test_hostile_slices(path: Path, name: str) -> None:
    put_in_slices(path, "w", 0, [2, 2])
    index = json.loads((path / INDEX).read_text())
    HOSTILE_SLICES[name](index)
    (path / INDEX).write_bytes(sealed(index))
    checkpoint = gd.train.Checkpoint(**objects())
    with pytest.raises(gd.GraphdistError):
        checkpoint.restore(path)
    assert checkpoint.step == 0
    assert not checkpoint.w.any()


MADE_UP: dict[str, Change] = {
    "nothing of a huge shape": of_array(
        shape=[0, 2**53, 2**53], stored=["float32", [0, 2**53, 2**53]]
    ),
    "nothing in no slices": of_array(shape=[0], stored=["float32", [0]], sliced_along=0, slices=[]),
    "slices beyond memory": of_array(
        shape=[2**40],
        stored=["float32", [2**40]],
        sliced_along=0,
        slices=[
            {"size": 2**39, "part": 0, "file": file, "crc32": "00000000"} for file in ("90", "91")
        ],
    ),
}


@pytest.mark.parametrize("name", MADE_UP)
def test_a_variable_of_a_hostile_index(path: Path, name: str) -> None:
    index = json.loads((path / INDEX).read_text())
    MADE_UP[name](index)
    (path / INDEX).write_bytes(sealed(index))
    with pytest.raises(gd.UnreadableCheckpointError):
        gd.train.load_variable(path, "w")


def test_an_index_nested_without_end(path: Path) -> None:
    body = b'{"format": 3, "values": ' + b"[" * 200_000
    for text in (b"[" * 10**6, b'{"a":' * 10**6, body):
        seal = f',\n "crc32": "{zlib.crc32(text):08x}"\n}}\n'.encode()
        for content in (text, text + seal):
            (path / INDEX).write_bytes(content)
            assert "index" in refusal(path)


METADATA: dict[str, Any] = {
    "chunks": [4, 2**40],
    "order": "F",
    "dtype": ">f4",
    "shape": [3, 4],
    "fill_value": 1,
    "compressor": {"id": "blosc"},
    "filters": [{"id": "delta"}],
    "zarr_format": 3,
    "dimension_separator": "/",
}


@pytest.mark.parametrize("field", METADATA)
@pytest.mark.parametrize("is_old", [False, True])
def test_hostile_metadata_of_an_array(path: Path, field: str, is_old: bool) -> None:
    if is_old:
        shutil.rmtree(path)
        shutil.copytree(FORMAT_1, path)
    name = "params/w" if is_old else "w"
    index = json.loads((path / INDEX).read_text())
    file = path / "part-0" / index["arrays"][name]["file"] / ".zarray"
    content = json.loads(file.read_text())
    for changed in ({**content, field: METADATA[field]}, {**content, field: nested(99)}, [content]):
        file.write_text(json.dumps(changed))
        with pytest.raises(gd.UnreadableCheckpointError, match=f"{name}.*zarray"):
            gd.train.load_variable(path, name)
    content.pop(field)
    file.write_text(json.dumps(content))
    with pytest.raises(gd.UnreadableCheckpointError, match=f"{name}.*zarray"):
        gd.train.load_variable(path, name)
