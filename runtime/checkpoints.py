"""Checkpoints on disk: folders that are there whole or not at all, and the arrays in them.

A checkpoint is a folder. It is written under another name, `<name>.partial`, synced to the disk,
and renamed: a process killed at any moment leaves the folder with everything in it or without its
name. Where a checkpoint of the name is there already, that one is put aside as `<name>.replaced`
first, and `existing` finds it there if the process dies between the two renames.

    ckpt-3/
        index.json      what is in it, by name; its format is of graphdist.train
        part-0/         the arrays that worker 0 wrote, each a folder of zarr with one chunk
            0/.zarray
            0/0.0

Workers share the folder: it lies on a file system that all of them see. The first makes and renames
it, each writes a part, and each waits for the others in between.

Arrays are written by tensorstore, which writes several at a time and syncs each to the disk. They
are not compressed, since parameters hardly get smaller: zstd took a tenth off random floats and
made writing 6 times slower.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any  # Any: JSON, numpy dtypes, and tensorstore, which is no package here

import jax
import numpy as np

from graphdist.ir.errors import GraphdistError
from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.topologies import MissingExtraError
from graphdist.runtime.workers import Workers, exchange

INDEX = "index.json"
PARTIAL, REPLACED = ".partial", ".replaced"
SECONDS_TO_WRITE = 3600.0
"""How long a worker waits for the others to have written their parts."""
_WRITES_AT_ONCE = 8


class CheckpointError(GraphdistError, ValueError):
    """A checkpoint that is not there, is damaged, or does not fit what it is restored to."""


def require_tensorstore(at: Source = UNKNOWN) -> Any:
    """Return the package that writes arrays; raises `MissingExtraError` without it."""
    try:
        import tensorstore
    except ImportError as error:
        raise MissingExtraError(
            "checkpoints need the package tensorstore, which is not installed",
            source=at,
            hint='pip install "graphdist[checkpoint]"',
        ) from error
    return tensorstore


def host_copy(array: jax.Array) -> np.ndarray[Any, Any]:
    """Return a copy in the memory of the host, one copy of each part and none on the devices.

    The parts of the array on this process's devices make up the whole.
    """
    shards = array.addressable_shards
    first = shards[0].data
    if first.shape == array.shape:
        is_view = first.platform() == "cpu"  # what NumPy sees there is the array's own memory
        return np.array(first) if is_view else np.asarray(first)
    whole = np.empty(array.shape, array.dtype)
    for shard in shards:
        whole[shard.index] = np.asarray(shard.data)
    return whole


# Folders.


def existing(path: Path) -> Path | None:
    """Return where the checkpoint of a name is; None if there is no complete one."""
    for found in (path, path.with_name(path.name + REPLACED)):
        if (found / INDEX).is_file():
            return found
    return None


def checkpoints_in(folder: Path, stem: str = "") -> list[Path]:
    """Return the complete checkpoints `<stem>-<number>` of a folder, in the order of their saving.

    Any stem without one. Names are without `.replaced`.
    """
    name = re.compile(rf"(?:{re.escape(stem)}|.+)-\d+" if not stem else rf"{re.escape(stem)}-\d+")
    try:
        listed = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
    except FileNotFoundError:
        return []
    names = {path.with_name(path.name.removesuffix(REPLACED)) for path in listed}
    found: list[tuple[tuple[int, int], Path]] = []
    for path in names:
        place = existing(path) if name.fullmatch(path.name) else None
        index = None if place is None else _index_or_none(place)
        if index is not None:
            found.append(((int(index["sequence"]), _number_of(path)), path))
    return [path for _, path in sorted(found)]


def _number_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _index_or_none(place: Path) -> dict[str, Any] | None:
    """Return the index of a checkpoint; None if another process removes it just now."""
    try:
        return read_index(place)
    except CheckpointError:
        return None


def read_index(place: Path, at: Source = UNKNOWN) -> dict[str, Any]:
    """Return the index of a checkpoint; raises `CheckpointError` if it cannot be read."""
    try:
        index = json.loads((place / INDEX).read_text(encoding="utf-8"))
        if not isinstance(index, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"the index of checkpoint {place.name} cannot be read: {error}", source=at
        ) from error
    return index


def remove(path: Path) -> None:
    """Remove a checkpoint: it is gone as a whole before its files are.

    A `.partial` folder is none, and the next save of the name removes what a kill leaves of it.
    """
    for place in (path, path.with_name(path.name + REPLACED)):
        if place.exists():
            doomed = path.with_name(path.name + PARTIAL)
            shutil.rmtree(doomed, ignore_errors=True)
            place.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def remove_remains(folder: Path, stem: str) -> None:
    """Remove what killed processes left of checkpoints `<stem>-<number>`."""
    name = re.compile(rf"{re.escape(stem)}-\d+({re.escape(PARTIAL)}|{re.escape(REPLACED)})")
    for path in folder.glob(f"*-*{PARTIAL}"):
        if name.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(f"*-*{REPLACED}"):
        is_needless = (path.with_name(path.name.removesuffix(REPLACED)) / INDEX).is_file()
        if name.fullmatch(path.name) and is_needless:
            shutil.rmtree(path, ignore_errors=True)


def write_checkpoint(
    path: Path,
    parts: Mapping[str, np.ndarray[Any, Any]],
    report: Any,
    make_index: Callable[[list[Any]], Mapping[str, Any]],
    group: Workers,
    call: str,
) -> None:
    """Write a checkpoint, all workers together: this one's arrays, by the name of their file.

    Each worker hands in a `report`, a JSON value, and the first makes the index of all of them.
    `call` tells this call from others. Returns when the checkpoint is there for all. Where one
    worker fails all raise, the others a `CheckpointError` that names it.
    """
    partial = path.with_name(path.name + PARTIAL)

    def begin() -> None:
        if group.index == 0:
            _check_replaceable(path)
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)

    def write() -> None:
        part = partial / f"part-{group.index}"
        write_arrays(part, parts)
        _write_json(part / "report.json", report)
        _sync_folders(part)

    def finish() -> None:
        if group.index == 0:
            places = [partial / f"part-{worker}" / "report.json" for worker in range(group.count)]
            reports = [json.loads(place.read_text(encoding="utf-8")) for place in places]
            _write_json(partial / INDEX, make_index(reports))
            _sync(partial)
            _give_name(partial, path)

    for name, act in (("begin", begin), ("write", write), ("finish", finish)):
        _together(group, f"checkpoint/{call}/{name}", act, f"checkpoint {path.name} is written")


def _together(group: Workers, name: str, act: Callable[[], None], doing: str) -> None:
    """Act, and wait until all have; raise if one could not."""
    failure: Exception | None = None
    try:
        act()
    except Exception as error:
        failure = error
    said = "" if failure is None else f"{type(failure).__name__}: {failure}"
    answers = exchange(group, name, said, SECONDS_TO_WRITE, doing)
    if failure is not None:
        raise failure
    for worker, answer in enumerate(answers):
        if answer:
            raise CheckpointError(
                f"worker {worker} of {group.count} failed while {doing}: {answer}"
            )


def _check_replaceable(path: Path) -> None:
    """Raise `CheckpointError` for what is there and is no checkpoint: it would be lost."""
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty and not (path / INDEX).is_file():
        raise CheckpointError(
            f"{path.name!r} is there and is no checkpoint, which would take its place",
            hint=f"give a path in it, such as {path.name}/checkpoint, or one where nothing is",
        )


def _give_name(partial: Path, path: Path) -> None:
    replaced = path.with_name(path.name + REPLACED)
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    partial.rename(path)
    _sync(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _write_json(file: Path, value: Any) -> None:
    with file.open("w", encoding="utf-8") as opened:
        json.dump(value, opened, indent=1)
        opened.flush()
        os.fsync(opened.fileno())


def _sync_folders(folder: Path) -> None:
    for found, _, _ in os.walk(folder):
        _sync(Path(found))


def _sync(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    if os.name == "nt":
        return  # a folder cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Arrays.


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays to folders of these names; all are on the disk when it returns.

    An array without elements has nothing to write.
    """
    tensorstore = require_tensorstore()
    context = tensorstore.Context({"file_io_concurrency": {"limit": _WRITES_AT_ONCE}})
    folder.mkdir(parents=True, exist_ok=True)
    under_way: list[Any] = []
    for name, array in arrays.items():
        if not array.size:
            continue
        spec = {
            **_file_spec(folder / name),
            "metadata": {
                "shape": list(array.shape),
                "chunks": list(array.shape),
                "compressor": None,
            },
            "dtype": array.dtype.name,
        }
        if len(under_way) == _WRITES_AT_ONCE:
            under_way.pop(0).result()
        store = tensorstore.open(spec, create=True, delete_existing=True, context=context).result()
        under_way.append(store.write(array, can_reference_source_data_indefinitely=True))
    for write in under_way:
        write.result()


def read_arrays(
    folder: Path, files: Sequence[tuple[str, tuple[int, ...], str]], at: Source = UNKNOWN
) -> Iterator[np.ndarray[Any, Any]]:
    """Yield arrays by file, shape and dtype; raises `CheckpointError` for one that is damaged."""
    tensorstore = require_tensorstore(at)
    for file, shape, dtype in files:
        if 0 in shape:
            yield np.zeros(shape, jax.numpy.dtype(dtype))
            continue
        spec = {**_file_spec(folder / file), "fill_missing_data_reads": False}
        try:
            array = np.asarray(tensorstore.open(spec, open=True).result().read().result())
        except (ValueError, OSError) as error:
            raise CheckpointError(
                f"array {file} of checkpoint {folder} cannot be read: {error}", source=at
            ) from error
        if array.shape != shape or array.dtype.name != dtype:
            raise CheckpointError(
                f"array {file} of checkpoint {folder} is {array.dtype.name}{list(array.shape)}, "
                f"its index says {dtype}{list(shape)}",
                source=at,
            )
        yield array


def can_be_written(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of a dtype can be written."""
    try:
        require_tensorstore().dtype(dtype.name)
    except (TypeError, ValueError):
        return False
    return True


def _file_spec(folder: Path) -> dict[str, Any]:
    return {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder.resolve()}/"}}
