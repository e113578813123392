"""A checkpoint, written by all workers together: it appears complete or not at all.

    ckpt-3/
        index.json      the contents by name; see `checkpoint_index`
        part-0/         the arrays that worker 0 wrote; see `checkpoint_arrays`
            0/.zarray
            0/0.0

All workers see the folder, on a shared file system. The first worker makes a folder under another
name, each worker writes a part, and they wait for each other in between. The first then writes the
index, checks that every file exists and has its length, syncs, and renames the folder. Everything
is synced to the disk before the rename, since a file system may persist the rename first: then a
crash would leave the name without the contents. So a process killed at any moment leaves the
checkpoint complete, or without its name. A checkpoint that has the name already is put aside first,
and is found there if the process dies between the two renames.

Files are not read back before the rename. Reading would take as long as writing, and would be
answered from the memory of the host and not from the disk. Restoring compares the checksums.

The values are copies in the memory of the host (`graphdist.train.index`): the program goes on while
they are written, and its next step donates the variables' buffers.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any  # Any: JSON, numpy dtypes

import numpy as np

from graphdist.runtime.files.checkpoint_arrays import missing_file, write_arrays
from graphdist.runtime.files.checkpoint_files import (
    CheckpointError,
    erase,
    not_written,
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
from graphdist.runtime.files.checkpoint_index import (
    INDEX,
    MOST_BYTES,
    Index,
    as_json,
    sealed,
)
from graphdist.runtime.files.checkpoint_lock import CheckpointWriter
from graphdist.runtime.processes.workers import Workers, exchange

SECONDS_TO_WRITE = 3600.0
"""How long a worker waits for the others to write their parts."""


def write_checkpoint(
    path: Path,
    parts: Mapping[str, np.ndarray[Any, Any]],
    report: Any,
    make_index: Callable[[list[Any], list[dict[str, str]]], Mapping[str, Any]],
    writer: CheckpointWriter,
    group: Workers,
    call: str,
) -> None:
    """Write a checkpoint, all workers together; `parts` are this worker's arrays by file name.

    Each worker hands in a `report`, a JSON value. The first worker is the writer, and makes the
    index from all reports and the checksums of all files. `call` distinguishes this call from
    others. Returns when the checkpoint is complete. If one worker fails all raise, the others a
    `CheckpointError` that names it, and the partial checkpoint is removed.
    """
    is_first = group.index == 0

    def begin(_: list[str]) -> str:
        if not is_first:
            return ""
        take_place(path, writer)
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
            erase(path.with_name(name))
        raise


def take_place(path: Path, writer: CheckpointWriter) -> None:
    """Make the folder of a checkpoint, and become its writer.

    Raises `CheckpointError` where that cannot be done, or where something else has the name.
    """
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        no_folder = NotADirectoryError(errno.ENOTDIR, "", str(folder))
        raise not_written(no_folder, folder) or error from error
    except OSError as error:
        raise not_written(error, folder) or error from error
    try:
        os.lstat(partial_name(path))  # its name is the longest: is it too long?
    except FileNotFoundError:
        pass
    except OSError as error:
        raise not_written(error, folder) or error from error
    check_replaceable(path)
    writer.take_for(path)


def _write_part(part: Path, parts: Mapping[str, np.ndarray[Any, Any]], report: Any) -> str:
    """Write the arrays of a worker and its report, and return the checksum of the latter."""
    checksums = write_arrays(part, parts)
    checksum = write_synced(part / "report.json", as_json([report, checksums]))
    sync_folders(part)
    return checksum


def _reports(partial: Path, said: list[str]) -> tuple[list[Any], list[dict[str, str]]]:
    """Return the reports of the workers and the checksums of their files, and remove them."""
    reports, checksums = [], []
    for worker, checksum in enumerate(said):
        file = partial / f"part-{worker}" / "report.json"
        text = read_small(file, partial, MOST_BYTES)
        if f"{zlib.crc32(text):08x}" != checksum:
            raise CheckpointError(f"the report of worker {worker} is not what it wrote")
        report, of_files = json.loads(text)
        reports.append(report)
        checksums.append(of_files)
        file.unlink()
    return reports, checksums


def _write_index(partial: Path, content: Mapping[str, Any]) -> None:
    """Write the index of a checkpoint.

    Raises `CheckpointError` if one of its files is missing.
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
        sync(folder)  # again: the reports were removed
    sync(partial)


def _together(
    group: Workers, name: str, act: Callable[[list[str]], str], heard: list[str], path: Path
) -> list[str]:
    """Act on the last texts of all workers, and return their new ones; raise if one failed."""
    failure, said, failed, doing = None, "", "", f"checkpoint {path.name} is written"
    try:
        said = act(heard)
    except Exception as error:
        failure = not_written(error, path.parent) or error
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
