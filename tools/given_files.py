"""Files that users give to a command: the file of a step, or a text, which may come by a pipe.

    graphdist-compile step.py:make_step --against <(git show main:report.json)

A pipe can be read once and waits for its writer, as with other commands of Unix. A device raises an
error, because it may have no end. A file that is too large raises an error, too.
"""

from __future__ import annotations

import difflib
import stat
import zipfile
from contextlib import suppress
from pathlib import Path

from graphdist.errors import ArgumentError, ArtifactError
from graphdist.runtime.files.artifact import read_artifact
from graphdist.tracing.user_lines import here

_PART = 2**20


def is_given(path: Path) -> bool:
    """Return whether the path leads to a file or a pipe."""
    with suppress(OSError, ValueError):
        return _has_content(path.stat().st_mode)
    return False


def _has_content(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def require_file(path: Path) -> None:
    """Raise `ArgumentError` for a path with neither a file nor a pipe."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise _not_there(path) from None
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL character
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ArgumentError(
            f"{str(path)!r} cannot be opened: {reason}",
            hint="give the path of a file that this process may read",
        ) from error
    if stat.S_ISDIR(mode):
        raise ArgumentError(f"{path} is a folder", hint="name a file in it")
    if not _has_content(mode):
        raise ArgumentError(f"{path} is a device or a socket, and no file")


def _not_there(path: Path) -> ArgumentError:
    folder = path.parent
    alike: list[str] = []
    with suppress(OSError):
        alike = sorted(other.stem for other in folder.iterdir() if other.suffix == path.suffix)
    near = [stem + path.suffix for stem in difflib.get_close_matches(path.stem, alike, n=3)]
    hint = "give the path from the current folder, or an absolute one"
    if near:
        hint = f"did you mean {' or '.join(str(folder / other) for other in near)}?"
    return ArgumentError(f"there is no file {path}", hint=hint)


def read_given(path: Path, member: str, most_bytes: int) -> bytes:
    """Return a member of the file of a step, or the content of any other file or of a pipe.

    Raise `ArgumentError` if nothing can be read, or more than `most_bytes`. Raise `ArtifactError`
    for a damaged file of a step, and for a file of a step without the member.
    """
    require_file(path)
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            if file.seekable():
                file.seek(0)
            content = bytearray()
            while part := file.read(_PART):  # one read would allocate `most_bytes`
                content += part
                if len(content) > most_bytes:
                    raise ArgumentError(f"{path} has more than {most_bytes:,} bytes, the limit")
            return bytes(content)
    _, members = read_artifact(path, here(), [member])
    if member not in members:
        raise ArtifactError(f"{path.name} has no {member}", source=here())
    return members[member]
