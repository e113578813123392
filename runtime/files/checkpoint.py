"""Writes a checkpoint, all workers together: it appears complete or not at all.

    ckpt-3/
        index.json      the contents by name; see `checkpoint_index`
        part-0/         the arrays that worker 0 wrote; see `checkpoint_arrays`
            0/.zarray
            0/0.0

All workers see the folder, on a shared file system. The first worker creates a folder under another
name, each worker writes a part, and they wait for each other after each step. Then the first writes
the index, checks that every file exists and has its length, syncs, and renames the folder.
Everything is synced to the disk before the rename, since a file system may persist the rename
first: then a crash would leave the name without the contents. So a process that is killed leaves
the checkpoint complete, or without its name. An older checkpoint of the same name is renamed first,
and is found under that name if the process dies between the two renames.

Files are not read back before the rename. That would take as long as writing, and would read the
cache of the host, not the disk. `restore` compares the checksums.

The values are copies in the memory of the host (`graphdist.train.index`): the program continues
while they are written, and its next step donates the variables' buffers.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Mapping
from functools import partial
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

    Each worker passes a `report`, a JSON value. The first worker is the writer, and makes the index
    of all reports and the checksums of all files. `call` distinguishes this call from others.
    Returns when the checkpoint is complete. If a worker fails, all raise (the others a
    `CheckpointError` that names it), and the partial checkpoint is removed.
    """
    is_first, name = group.index == 0, ""
    together = partial(_together, group, f"checkpoint/{call}", path)

    def begin() -> str:
        if not is_first:
            return ""
        take_place(path, writer)
        remove_remains(path.parent, writer.stem)
        partial_folder = partial_name(path)
        partial_folder.mkdir()
        return partial_folder.name

    def finish(checksums: list[str]) -> str:
        if is_first:
            folder = path.with_name(name)
            _write_index(folder, make_index(*_reports(folder, checksums)))
            writer.confirm()
            give_name(folder, path)
        return ""

    try:
        name = together("begin", begin)[0]
        part = path.with_name(name) / f"part-{group.index}"
        checksums = together("write", lambda: _write_part(part, parts, report))
        together("finish", lambda: finish(checksums))
    except Exception:
        if is_first and name:
            erase(path.with_name(name))
        raise


def take_place(path: Path, writer: CheckpointWriter) -> None:
    """Create the folder of checkpoints, and become the writer of a checkpoint.

    Raises `CheckpointError` if that fails, or if another kind of file has the name.
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
        os.lstat(partial_name(path))  # raises if this name, the longest, is too long
    except FileNotFoundError:
        pass
    except OSError as error:
        raise not_written(error, folder) or error from error
    check_replaceable(path)
    writer.take_for(path)


def _write_part(part: Path, parts: Mapping[str, np.ndarray[Any, Any]], report: Any) -> str:
    """Write the arrays of a worker and its report; return the checksum of the report."""
    part.mkdir()
    checksums = write_arrays(part, parts)
    checksum = write_synced(part / "report.json", as_json([report, checksums]))
    sync_folders(part)
    return checksum


def _reports(partial: Path, expected: list[str]) -> tuple[list[Any], list[dict[str, str]]]:
    """Return the workers' reports and the checksums of their files; remove the reports."""
    reports, checksums = [], []
    for worker, checksum in enumerate(expected):
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
            f"a checkpoint was not saved, since files of it disappeared while it was written: "
            f"{missing}",
            hint="another program changes this folder: give checkpoints a folder of their own",
        )
    write_synced(partial / INDEX, text)
    for folder in partial.glob("part-*"):
        sync(folder)  # again: the reports were removed
    sync(partial)


def _together(
    group: Workers, call: str, path: Path, step: str, act: Callable[[], str]
) -> list[str]:
    """Return the results of `act` on all workers, or raise on all."""
    failure, result, failed, doing = None, "", "", f"checkpoint {path.name} is written"
    try:
        result = act()
    except Exception as error:
        failure = not_written(error, path.parent) or error
        failure.__cause__ = error if failure is not error else error.__cause__
        failed = f"{type(failure).__name__}: {failure}"
    answers = exchange(group, f"{call}/{step}", [result, failed], SECONDS_TO_WRITE, doing)
    if failure is not None:
        raise failure
    results, failures = zip(*answers, strict=True)
    for worker, what in enumerate(failures):
        if what:
            raise CheckpointError(f"worker {worker} of {group.count} failed while {doing}: {what}")
    return list(results)
