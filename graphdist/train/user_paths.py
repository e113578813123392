"""The paths of users: checked in the call that takes them, and made absolute.

A path is one of the file system, or the address of a bucket: `gs://bucket/folder`, `s3://..`.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from graphdist.config import s3_server
from graphdist.errors import ArgumentError, ArgumentTypeError, CheckpointError
from graphdist.quoted import quoted
from graphdist.runtime.extras import require_package
from graphdist.runtime.files.bucket_objects import BucketObjects
from graphdist.runtime.files.checkpoint import CheckpointPath
from graphdist.runtime.files.checkpoint_bucket import BucketFolder
from graphdist.runtime.files.checkpoint_disk import DiskFolder
from graphdist.runtime.files.checkpoint_storage import CheckpointFolder
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name

StrPath: TypeAlias = str | os.PathLike[str]
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)", re.ASCII)
_BUCKET = re.compile(r"(gs|s3)://[a-z0-9][a-z0-9._-]{1,220}(/[^/]+)*", re.ASCII)


def folder_of(path: StrPath, what: str) -> CheckpointFolder:
    """Return a folder of checkpoints; "" is the current folder, as in `os`.

    Raises `ArgumentTypeError` for a value that is no path of text, `ArgumentError` for a path that
    no file can have or an address that is no bucket's, `MissingExtraError` if the package for
    buckets is not installed, and `CheckpointError` if the current folder was removed.
    """
    text = _text_of(path, what)
    if (address := _ADDRESS.match(text)) is None:
        return DiskFolder(_absolute(text, what))
    if not address[2] and address[1] in ("gs", "s3"):
        raise ArgumentError(
            f"{what} is {text!r}: an address has two slashes, and a pathlib.Path drops one",
            hint=f"give a text: {address[1]}://{text[address.end() :]}",
        )
    if not address[2]:
        return DiskFolder(_absolute(text, what))
    if not _BUCKET.fullmatch(text.rstrip("/")):
        raise ArgumentError(
            f"{what} is {quoted(text)}, which is the address of no bucket",
            hint="give gs://bucket/folder, s3://bucket/folder, or a folder of the file system",
        )
    require_package("tensorstore", f"{what}, {text!r},")
    return BucketFolder(BucketObjects(text.rstrip("/"), s3_server()))


def checkpoint_path(path: StrPath, what: str = "the path of a checkpoint") -> CheckpointPath:
    """Return the folder and the name of a checkpoint; raises the errors of `folder_of`."""
    folder = folder_of(path, what)
    if isinstance(folder, BucketFolder):
        parent, _, name = folder.objects.url.rpartition("/")
        if parent.endswith("/"):  # the address is that of a whole bucket
            return CheckpointPath(folder, "")
        return CheckpointPath(folder_of(parent, what), name)
    assert isinstance(folder, DiskFolder)
    return CheckpointPath(DiskFolder(folder.folder.parent), folder.folder.name)


def path_in(folder: CheckpointFolder, directory: str, name: str) -> str:
    """Return the path of a checkpoint: below `directory`, if `directory` leads to `folder`."""
    if isinstance(folder, BucketFolder):
        return folder.path_of(name)
    with suppress(OSError):  # the current folder may have been removed
        if DiskFolder(Path(directory).absolute()) == folder:
            return os.path.join(directory, name)
    return folder.path_of(name)


def _text_of(path: StrPath, what: str) -> str:
    """Return a path as text; raises the errors of `folder_of` for a value that is no path."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        raise ArgumentTypeError(
            f"{what} is of type {type_name(text)}, not a path",
            hint="give a text: os.fsdecode(path)"
            if isinstance(text, bytes)
            else 'give a text or a pathlib.Path, such as "checkpoints/ckpt"',
        )
    if "\0" in text:
        raise ArgumentError(f"{what} is {text!r}: no path has a NUL character")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        encoding = sys.getfilesystemencoding()
        raise ArgumentError(
            f"{what} is {text!a}: names of files are encoded in {encoding} here, which lacks "
            f"{text[error.start]!a}",
            hint="give a path without it"
            if encoding == "utf-8"
            else "start Python in its UTF-8 mode: PYTHONUTF8=1",
        ) from error
    return text


def _absolute(text: str, what: str) -> Path:
    try:
        return Path(text).absolute()
    except OSError as error:
        raise CheckpointError(
            f"{what} is {text!r}, in the current folder, which was removed",
            source=here(),
            hint="give an absolute path",
        ) from error


def prefix_of(prefix: StrPath, what: str) -> CheckpointPath:
    """Return the folder and the name of a checkpoint to be saved; the path ends in a name.

    Raises the errors of `folder_of`, and `ArgumentError` for a path without a name at its end.
    """
    path = checkpoint_path(prefix, what)
    text = os.fspath(prefix)
    if not path.name or os.path.basename(text) in ("", os.curdir, os.pardir):
        raise ArgumentError(
            f"{what} is {text!r}, which does not end in a name",
            hint=f"give a name in that folder: {os.path.join(text, 'ckpt')!r}",
        )
    return path
