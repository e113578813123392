"""A checkpoint written by all workers together: it is there whole or not at all.

    ckpt-3/
        index.json      what is in it, by name; see `checkpoint_index`
        part-0/         the arrays that worker 0 wrote; see `checkpoint_arrays`
            0/.zarray
            0/0.0

Workers share the folder: it lies on a file system that all of them see. The first makes a folder of
another name, each writes a part, and each waits for the others in between. The first then makes the
index, looks whether every file is there and as long as it should be, syncs, and renames the folder:
a process killed at any moment leaves the checkpoint with everything in it or without its name.
Where there is one of the name already, that is put aside first, and is found there if the process
dies between the two renames.

Files are not read back before they are renamed. That would take as long as writing them, and would
be answered from the memory of the host, not from the disk; restoring compares the checksums.
"""

from __future__ import annotations

import errno
import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any  # Any: JSON, numpy dtypes

import numpy as np

from graphdist.runtime.files.checkpoint_arrays import missing_file, write_arrays
from graphdist.runtime.files.checkpoint_files import (
    CheckpointError,
    full_disk,
    read_small,
    sync,
    sync_folders,
    write_synced,
)
from graphdist.runtime.files.checkpoint_folders import (
    check_replaceable,
    give_name,
    partial_name,
    remove_remains,
)
from graphdist.runtime.files.checkpoint_index import INDEX, MOST_BYTES, Index, sealed
from graphdist.runtime.files.checkpoint_writer import CheckpointWriter
from graphdist.runtime.processes.workers import Workers, exchange

SECONDS_TO_WRITE = 3600.0
"""How long a worker waits for the others to have written their parts."""


def write_checkpoint(
    path: Path,
    parts: Mapping[str, np.ndarray[Any, Any]],
    report: Any,
    make_index: Callable[[list[Any], list[dict[str, str]]], Mapping[str, Any]],
    writer: CheckpointWriter,
    group: Workers,
    call: str,
) -> None:
    """Write a checkpoint, all workers together: this one's arrays, by the name of their file.

    Each worker hands in a `report`, a JSON value, and the first makes the index of all of them and
    of the checksums of their files. The first is the writer. `call` tells this call from others.
    Returns when the checkpoint is there for all. Where one worker fails all raise, the others a
    `CheckpointError` that names it, and what was written is removed.
    """
    is_first = group.index == 0

    def begin(_: list[str]) -> str:
        if not is_first:
            return ""
        _make_folder(path.parent)
        writer.take_for(path)
        check_replaceable(path)
        remove_remains(path.parent, writer.stem)
        partial = partial_name(path)
        partial.mkdir()
        return partial.name

    def write(said: list[str]) -> str:
        part = path.with_name(said[0]) / f"part-{group.index}"
        part.mkdir()
        return _write_part(part, parts, report)

    def finish(said: list[str]) -> str:
        if is_first:
            partial = path.with_name(name)
            content = make_index(*_reports(partial, said))
            _write_index(partial, content)
            writer.confirm()
            give_name(partial, path)
        return ""

    said: list[str] = []
    name = ""
    try:
        for step, act in (("begin", begin), ("write", write), ("finish", finish)):
            said = _together(group, f"checkpoint/{call}/{step}", act, said, path)
            name = name or said[0]
    except Exception:
        if is_first and name:
            shutil.rmtree(path.with_name(name), ignore_errors=True)
        raise


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(folder)) from error


def _write_part(part: Path, parts: Mapping[str, np.ndarray[Any, Any]], report: Any) -> str:
    """Write the arrays of a worker and its report, and return the checksum of the latter."""
    checksums = write_arrays(part, parts)
    text = json.dumps([report, checksums]).encode()
    write_synced(part / "report.json", text)
    sync_folders(part)
    return f"{zlib.crc32(text):08x}"


def _reports(partial: Path, said: list[str]) -> tuple[list[Any], list[dict[str, str]]]:
    """Return the reports of the workers and the checksums of their files, and remove them."""
    reports, checksums = [], []
    for worker, checksum in enumerate(said):
        file = partial / f"part-{worker}" / "report.json"
        text = read_small(file, MOST_BYTES)
        if f"{zlib.crc32(text):08x}" != checksum:
            raise CheckpointError(f"the report of worker {worker} is not what it wrote")
        report, of_files = json.loads(text)
        reports.append(report)
        checksums.append(of_files)
        file.unlink()
    return reports, checksums


def _write_index(partial: Path, content: Mapping[str, Any]) -> None:
    """Write the index of a checkpoint, all of whose files are there.

    Raises `CheckpointError` if one is not.
    """
    text = sealed(content)
    missing = missing_file(partial, Index.of(json.loads(text)))
    if missing is not None:
        raise CheckpointError(
            f"a checkpoint was not saved, since files of it went away while it was written: "
            f"{missing}",
            hint="something else changes this folder: give checkpoints one of their own",
        )
    write_synced(partial / INDEX, text)
    for folder in partial.glob("part-*"):
        sync(folder)  # without the reports
    sync(partial)


def _together(
    group: Workers, name: str, act: Callable[[list[str]], str], heard: list[str], path: Path
) -> list[str]:
    """Act on what was heard before, and return what each worker says; raise if one could not."""
    failure, said, failed, doing = None, "", "", f"checkpoint {path.name} is written"
    try:
        said = act(heard)
    except Exception as error:
        failure = full_disk(error, path.parent) or error
        failure.__cause__ = error if failure is not error else error.__cause__
        failed = f"{type(failure).__name__}: {failure}"
    answers = exchange(group, name, json.dumps([said, failed]), SECONDS_TO_WRITE, doing)
    if failure is not None:
        raise failure
    said_by_all, failures = zip(*map(json.loads, answers), strict=True)
    for worker, what in enumerate(failures):
        if what:
            raise CheckpointError(f"worker {worker} of {group.count} failed while {doing}: {what}")
    return list(said_by_all)
