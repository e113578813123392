"""The paths of users: checked in the call that takes them, and made absolute."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TypeAlias

from graphdist.errors import ArgumentError, ArgumentTypeError, CheckpointError
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name

StrPath: TypeAlias = str | os.PathLike[str]


def path_of(path: StrPath, what: str) -> Path:
    """Return the absolute path of a folder or checkpoint; "" is the current folder, as in `os`.

    Raises `ArgumentTypeError` for a value that is no path of text, `ArgumentError` for a path that
    no file can have, and `CheckpointError` if the current folder was removed.
    """
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
    try:
        return Path(text).absolute()
    except OSError as error:
        raise CheckpointError(
            f"{what} is {text!r}, in the current folder, which was removed",
            source=here(),
            hint="give an absolute path",
        ) from error


def prefix_of(prefix: StrPath, what: str) -> Path:
    """Return the absolute path of a checkpoint to be saved, which ends in a name.

    Raises the errors of `path_of`, and `ArgumentError` for a path without a name at its end.
    """
    path, text = path_of(prefix, what), os.fspath(prefix)
    if os.path.basename(text) in ("", os.curdir, os.pardir):
        raise ArgumentError(
            f"{what} is {text!r}, which does not end in a name",
            hint=f"give a name in that folder: {os.path.join(text, 'ckpt')!r}",
        )
    return path
