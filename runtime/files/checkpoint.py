"""Writes a checkpoint, all workers together: it appears complete or not at all.

    ckpt-3/
        index.json      the contents by name; see `checkpoint_index`
        part-0/         the arrays that worker 0 wrote; see `checkpoint_arrays`
            0/.zarray
            0/0.0

All workers see the folder, on a shared file system or in a bucket. The first worker begins the
checkpoint, each worker writes a part, and they wait for each other after each step. Then the first
writes the index, checks that every file exists and has its length, and gives the checkpoint its
name: `checkpoint_storage` says how.

Files are not read back before that. It would take as long as writing, and would read the cache of
the host, not the disk. `restore` compares the checksums.

The values are copies in the memory of the host (`graphdist.train.index`): the program continues
while they are written, and its next step donates the variables' buffers.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar  # Any: JSON, numpy dtypes

import numpy as np

from graphdist.runtime.files.checkpoint_arrays import missing_file, write_arrays
from graphdist.runtime.files.checkpoint_files import (
    CheckpointError,
    UnreadableCheckpointError,
    not_written,
)
from graphdist.runtime.files.checkpoint_index import FORMAT, MOST_BYTES, Index, as_json, sealed
from graphdist.runtime.files.checkpoint_lock import CheckpointWriter
from graphdist.runtime.files.checkpoint_storage import CheckpointFiles, CheckpointFolder
from graphdist.runtime.processes.workers import Workers, exchange

_T = TypeVar("_T")
SECONDS_TO_WRITE = 3600.0
"""How long a worker waits for the parts of the other workers."""


class CheckpointPath(NamedTuple):
    """The folder of a checkpoint, and its name in the folder."""

    folder: CheckpointFolder
    name: str

    def __str__(self) -> str:
        return self.folder.path_of(self.name)


def write_checkpoint(
    path: CheckpointPath,
    parts: Mapping[str, np.ndarray[Any, Any]],
    report: Any,
    make_index: Callable[[list[Any], list[dict[str, str]]], Mapping[str, Any]],
    writer: CheckpointWriter,
    group: Workers,
    call: str,
) -> None:
    """Write a checkpoint, all workers together; `parts` are this worker's arrays by file name.

    Each worker passes a `report`, a JSON value. The first worker is the writer: `make_index` makes
    the index of all reports and the checksums of all files. `call` distinguishes this call from
    others. Returns when the checkpoint is complete. If one worker fails, that worker raises its
    error, the other workers raise a `CheckpointError` that names it, and the unfinished checkpoint
    is removed.
    """
    is_first, token, (folder, name) = group.index == 0, "", path

    def together(step: str, act: Callable[[], str]) -> list[str]:
        doing = f"checkpoint {name} is written"
        return done_by_all(group, f"checkpoint/{call}/{step}", act, doing, str(folder))

    def begin() -> str:
        if not is_first:
            return ""
        writer.take_for(name)
        folder.remove_remains(writer.stem)
        return folder.begin(name)

    def finish(files: CheckpointFiles, checksums: list[str]) -> str:
        if is_first:
            index = make_index(*_reports(files, checksums))
            folder.give_name(name, token, _index_of(files, index), writer.confirm)
        return ""

    try:
        token = together("begin", begin)[0]
        files = folder.unfinished(name, token)
        part = PurePosixPath(files.parts, f"part-{group.index}")
        checksums = together("write", lambda: _write_part(files, part, parts, report))
        together("finish", lambda: finish(files, checksums))
    except Exception:
        if is_first and token:
            folder.abandon(name, token)
        raise


def _write_part(
    files: CheckpointFiles,
    part: PurePosixPath,
    parts: Mapping[str, np.ndarray[Any, Any]],
    report: Any,
) -> str:
    """Write the arrays of a worker and its report to the folder `part`.

    Returns the checksum of the report.
    """
    checksums = write_arrays(files, part, parts)
    checksum = files.write(part / "report.json", as_json([report, checksums]))
    files.sync(part)
    return checksum


def _reports(files: CheckpointFiles, expected: list[str]) -> tuple[list[Any], list[dict[str, str]]]:
    """Return the workers' reports and the checksums of their files; remove the reports.

    `expected` are the checksums of the reports. Raises `CheckpointError` if one differs.
    """
    reports, checksums = [], []
    for worker, checksum in enumerate(expected):
        file = PurePosixPath(files.parts, f"part-{worker}", "report.json")
        text = files.read_small(file, MOST_BYTES)
        if f"{zlib.crc32(text):08x}" != checksum:
            raise CheckpointError(f"the report of worker {worker} is not what it wrote")
        report, of_files = json.loads(text)
        reports.append(report)
        checksums.append(of_files)
        files.remove(file)
    return reports, checksums


def _index_of(files: CheckpointFiles, content: Mapping[str, Any]) -> bytes:
    """Return the index of a checkpoint as bytes.

    Raises `CheckpointError` if one of its files is missing.
    """
    folder = {"folder": files.parts} if files.parts else {}
    text = sealed({"format": FORMAT if folder else FORMAT - 1, **content, **folder})
    missing = missing_file(files, Index.of(json.loads(text)))
    if missing is not None:
        raise CheckpointError(
            f"a checkpoint was not saved, since files of it disappeared while it was written: "
            f"{missing}",
            hint="another program changes this folder: give checkpoints a folder of their own",
        )
    return text


def done_by_all(
    group: Workers, name: str, act: Callable[[], _T], doing: str, folder: str = ""
) -> list[_T]:
    """Return the results of `act` on all workers, as JSON; raise on all if `act` fails on one.

    `name` distinguishes this call from others. `doing` says in errors what the workers do, `folder`
    where they write.
    """
    failure, result, failed, is_unreadable = None, None, "", False
    try:
        result = act()
    except Exception as error:
        failure = (folder and not_written(error, folder)) or error
        failure.__cause__ = error if failure is not error else error.__cause__
        failed = f"{type(failure).__name__}: {failure}"
        if isinstance(failure, UnreadableCheckpointError):
            failed, is_unreadable = failure.what, True
    answers = exchange(group, name, [result, failed, is_unreadable], SECONDS_TO_WRITE, doing)
    if failure is not None:
        raise failure
    for worker, (_, what, is_unreadable) in enumerate(answers):
        if is_unreadable:
            raise UnreadableCheckpointError(f"worker {worker}: {what}")
        if what:
            raise CheckpointError(f"worker {worker} of {group.count} failed while {doing}: {what}")
    return [answer for answer, _, _ in answers]
