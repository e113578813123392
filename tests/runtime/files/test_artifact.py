"""Files that are no artifacts, or not the ones that were written, are refused and leave nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import socket
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.aot import reading
from graphdist.runtime.files import artifact
from graphdist.runtime.files.artifact import LIMITS, read_artifact, sha256, write_artifact
from graphdist.runtime.files.regular_files import open_regular
from graphdist.tools import given_files
from graphdist.tools.given_files import read_given

MEMBERS = {"graph.txt": b"graph " * 100, "module.mlir": b"module", "report.json": b"{}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "step.gdx"
    write_artifact(file, {"project": "graphdist"}, MEMBERS)
    return file


def rewritten(path: Path, change: Callable[[dict[str, bytes]], Any]) -> Path:
    """Write the file anew with some members changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def refused(path: Path, says: str) -> None:
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(gd.ArtifactError) as caught:
        gd.aot.load(path)
    assert says in str(caught.value)
    assert sorted(path.parent.rglob("*")) == before


def test_what_is_written_is_read(path: Path) -> None:
    manifest, members = read_artifact(path)
    assert members == MEMBERS
    assert manifest["project"] == "graphdist"
    assert [one.name for one in path.parent.iterdir()] == ["step.gdx"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "none.gdx", "there is no file")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(path.parent):
        listening.bind(path.name)  # a socket's name may have 107 characters


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such files")
@pytest.mark.parametrize("read", [gd.aot.load, gd.aot.list_variables])
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (pipe, "a pipe"),
        (socket_at, "a socket"),
        (Path.mkdir, "a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (lambda path: path.symlink_to("/dev/null"), "a device"),
        (lambda path: path.symlink_to("/dev/tty"), "a device"),
    ],
)
def test_what_is_no_file_is_refused_and_not_waited_for(
    tmp_path: Path, read: Callable[[Path], Any], make: Callable[[Path], Any], kind: str
) -> None:
    path = tmp_path / "step.gdx"
    make(path)
    with pytest.raises(
        gd.ArtifactError, match=f"'{path}' cannot be opened: it is {kind}, and no file"
    ):
        read(path)


def test_a_file_that_a_pipe_takes_the_place_of_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = os.stat(path)
    path.unlink()
    pipe(path)
    monkeypatch.setattr(os, "stat", lambda *_, **__: found)
    with pytest.raises(OSError, match="is a pipe, and no file"):
        open_regular(path, follows_links=True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("step.gdx/in it", "in it' cannot be opened: Not a directory"),
        ("x" * 300, "x' cannot be opened: File name too long"),
        ("a\0b", r"a\x00b' cannot be opened: "),
    ],
    ids=["no folder", "long", "NUL"],
)
@pytest.mark.parametrize("read", [gd.aot.load, lambda path: read_given(Path(path), "", 1)])
def test_a_path_that_cannot_be_opened_is_no_damaged_file(
    path: Path, read: Callable[[str], Any], name: str, says: str
) -> None:
    with pytest.raises((gd.ArtifactError, gd.ArgumentError)) as caught:
        read(f"{path.parent}/{name}")
    assert says in str(caught.value)
    assert "hint: give the path of a file that" in str(caught.value)
    assert "get it again" not in str(caught.value)


def test_no_path_is_quoted() -> None:
    with pytest.raises(gd.ArtifactError, match="there is no file ''"):
        gd.aot.load("")


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short(path: Path, kept: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    refused(path, "cannot be read")


def test_every_byte_counts(path: Path) -> None:
    # Not every byte of a zip carries meaning; but no change may give other members.
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        with suppress(gd.ArtifactError):
            assert read_artifact(path)[1] == MEMBERS


def test_a_changed_member(path: Path) -> None:
    refused(
        rewritten(path, lambda members: members.update({"module.mlir": b"other!"})),
        "has a module.mlir of hash",
    )


def test_a_changed_manifest(path: Path) -> None:
    def change(members: dict[str, bytes]) -> None:
        members["manifest.json"] = members["manifest.json"].replace(b"graphdist", b"graphfist")

    refused(rewritten(path, change), "has a manifest of hash")


NO_HASH: dict[str, Any] = {"sha256": 5}


@pytest.mark.parametrize("entries", [None, 5, [1, "a"], {}, {**dict.fromkeys(MEMBERS, NO_HASH)}])
def test_a_manifest_that_says_nothing_of_its_members(path: Path, entries: Any) -> None:
    def change(members: dict[str, bytes]) -> None:
        manifest = {**json.loads(members["manifest.json"]), "members": entries}
        del manifest["hash"]
        manifest["hash"] = sha256(json.dumps(manifest, indent=1, sort_keys=True).encode())
        members["manifest.json"] = json.dumps(manifest).encode()

    refused(rewritten(path, change), "its manifest")


def test_a_missing_and_an_added_member(path: Path) -> None:
    refused(rewritten(path, lambda members: members.pop("report.json")), "has the members")


def test_a_missing_manifest(path: Path) -> None:
    refused(rewritten(path, lambda members: members.pop("manifest.json")), "has no manifest.json")


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_manifest_that_is_none(path: Path, text: bytes) -> None:
    refused(
        rewritten(path, lambda members: members.update({"manifest.json": text})),
        "has a manifest.json that is no JSON",
    )


@pytest.mark.parametrize("depth", range(700, 1000, 30))
def test_a_manifest_that_is_deep(path: Path, depth: int) -> None:
    # Somewhere it can be read and no longer be written, which its hash takes.
    text = b'{"format": 2, "deep": ' + b"[" * depth + b"]" * depth + b"}"
    refused(rewritten(path, lambda members: members.update({"manifest.json": text})), "manifest")


def test_a_format_of_the_future(path: Path) -> None:
    def change(members: dict[str, bytes]) -> None:
        manifest = {**json.loads(members["manifest.json"]), "format": 99}
        members["manifest.json"] = json.dumps(manifest).encode()

    refused(rewritten(path, change), "is of format 99, this graphdist reads format 2")


def test_the_format_is_looked_at_before_the_hash(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which takes the time to write all values again.
    monkeypatch.setattr(artifact, "_hash", lambda value: pytest.fail("hashed"))
    text = b'{"format": 3, "z": [[], []]}'
    refused(rewritten(path, lambda members: members.update({"manifest.json": text})), "format 2")


def test_a_manifest_too_large_for_any_step_is_not_read(path: Path) -> None:
    text = b'{"format": 2, "z": [' + b"[]," * 3_000_000 + b"[]]}"
    refused(
        rewritten(path, lambda members: members.update({"manifest.json": text})),
        "has a member 'manifest.json' of 9,000,024 bytes; ",
    )


def test_a_manifest_too_large_for_readers_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(
        gd.ArtifactError, match=r"manifest\.json has 9,000,\d+ bytes; the limit is 8,388,608"
    ):
        write_artifact(tmp_path / "step.gdx", {"z": "x" * 9_000_000}, MEMBERS)
    assert list(tmp_path.iterdir()) == []


def test_members_are_checked_and_kept_if_they_are_asked_for(path: Path) -> None:
    assert read_artifact(path, kept=["module.mlir"])[1] == {"module.mlir": b"module"}
    changed = rewritten(path, lambda members: members.update({"graph.txt": b"other"}))
    with pytest.raises(gd.ArtifactError, match=r"has a graph\.txt of hash"):
        read_artifact(changed, kept=[])


@pytest.mark.parametrize(
    ("read", "kept"),
    [
        (gd.aot.list_variables, set()),
        (gd.aot.load, {"graph.txt", "report.json", "module.mlir"}),
        (partial(gd.aot.load, native=True), {"graph.txt", "report.json", "executable.bin"}),
        (lambda path: read_given(path, "graph.txt", 2**20), {"graph.txt"}),
    ],
)
def test_readers_keep_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], Any], kept: set[str]
) -> None:
    path = tmp_path / "step.gdx"
    gd.aot.save(path, gd.function(lambda x: x * 2).trace(jnp.ones(2)).lower().compile())
    asked: list[set[str]] = []

    def read_and_noted(*given: Any) -> Any:
        manifest, members = read_artifact(*given)
        asked.append({*members})
        return manifest, members

    monkeypatch.setattr(reading, "read_artifact", read_and_noted)
    monkeypatch.setattr(given_files, "read_artifact", read_and_noted)
    read(path)
    assert asked == [kept]


@pytest.mark.parametrize(
    "name", ["../outside.txt", "/etc/outside", "graph.txt/../../x", "C:\\x", "more.py"]
)
def test_names_that_are_no_members(path: Path, name: str) -> None:
    refused(rewritten(path, lambda members: members.update({name: b"x"})), "which no artifact has")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_twice(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("graph.txt", b"another")
    refused(path, "has the member 'graph.txt' twice")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, "graph.txt", 2**20)
    refused(
        rewritten(path, lambda members: members.update({"graph.txt": bytes(2**22)})), "the limit is"
    )


def test_a_member_larger_than_it_says(path: Path) -> None:
    def lie(data: bytes) -> bytes:
        """Say in the directory that graph.txt has 10 bytes."""
        place = data.rindex(b"graph.txt") - 46
        return data[: place + 24] + (10).to_bytes(4, "little") + data[place + 28 :]

    path.write_bytes(lie(path.read_bytes()))
    with pytest.raises(gd.ArtifactError):
        read_artifact(path)


def test_nothing_is_unpickled_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = gd.function(lambda x: x * 2)
    path = tmp_path / "step.gdx"
    gd.aot.save(path, step.trace(jnp.ones(2)).lower().compile())

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    assert gd.aot.load(path)(jnp.ones(2)).tolist() == [2, 2]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_artifact(tmp_path / "none" / "step.gdx", {}, MEMBERS)
    with pytest.raises(TypeError):
        write_artifact(tmp_path / "step.gdx", {"x": io.BytesIO()}, MEMBERS)
    assert list(tmp_path.iterdir()) == []
