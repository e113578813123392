"""The file of a compiled step, `.gdx`: a zip with known members, which are checked when read.

Members are read into memory and never written to disk, so that no name in the file can become a
path. Refused are: a file that is no zip or is truncated; a member that is unknown, occurs twice, or
is larger than its limit or its stated size; a member whose SHA-256 differs from the manifest's; and
a changed manifest. The hashes detect accidental changes. They are no signature, since whoever can
write the file can write its manifest.

All members are unpacked in parts and compared with their hashes, but only the requested ones are
kept. So these and the values of the manifest limit the memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO  # Any: JSON

from graphdist.ir.errors import GraphdistError
from graphdist.ir.source import Source
from graphdist.runtime.files.regular_files import open_regular

FORMAT = 2
MANIFEST = "manifest.json"
LIMITS = {
    MANIFEST: 2**23,
    "graph.txt": 2**28,
    "module.mlir": 2**31,
    "executable.bin": 2**32,
    "report.json": 2**23,
    "plan.json": 2**23,
}
"""The allowed members, and the largest size of each in bytes. Parsed JSON takes up to 30 times the
bytes of its text. A manifest has about 650 bytes per variable of a step."""
LARGEST_RATIO = 100
"""Members with a larger compression ratio are stored uncompressed, so that a small file cannot need
much memory: deflate compresses zeros by a ratio of 1032."""
SMALL = 2**20
"""The size in bytes up to which any ratio is allowed."""
_PART = 2**20
"""The number of bytes that are unpacked at once."""


_DAMAGED = "the file was damaged or changed: get it again, or compile the step anew"
"""The hint for a file whose contents are not those that were written."""


class ArtifactError(GraphdistError, ValueError):
    """A file is no artifact, was changed, or does not fit this process."""


class Refusal(Exception):
    """The reason why a file or its module is refused, and a hint.

    The reason is worded to follow the name of the file or module.
    """

    def __init__(self, what: str, hint: str = _DAMAGED) -> None:
        super().__init__(what)
        self.hint = hint


def sha256(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def write_artifact(
    path: str | os.PathLike[str], manifest: Mapping[str, Any], members: Mapping[str, bytes]
) -> None:
    """Write members and their manifest; the file appears complete or not at all.

    Raises OSError with the name of the file, not of the temporary one, and `ArtifactError` for a
    member that is larger than readers allow.
    """
    entries = {name: {"bytes": len(data), "sha256": sha256(data)} for name, data in members.items()}
    described: dict[str, Any] = {"format": FORMAT, **manifest, "members": entries}
    described["hash"] = _hash(described)
    written = {MANIFEST: _json(described), **members}
    for member, data in written.items():
        if len(data) > LIMITS[member]:
            raise ArtifactError(
                f"the step's {member} has {len(data):,} bytes; the limit is {LIMITS[member]:,}",
                hint="stack the variables of layers that are alike, so that there are fewer",
            )
    with _temporary(Path(path)) as name:
        with zipfile.ZipFile(name, "w") as archive:
            for member, data in written.items():
                # A fixed time, so that the same step makes the same file.
                info = zipfile.ZipInfo(member, date_time=(1980, 1, 1, 0, 0, 0))
                info.compress_type = _compression(data)
                archive.writestr(info, data)
        Path(name).chmod(0o644)  # only its owner can read a temporary file
        os.replace(name, path)


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file that appears complete or not at all; raises OSError with its name."""
    with _temporary(Path(path)) as name:
        Path(name).write_bytes(content)
        Path(name).chmod(0o644)
        os.replace(name, path)


def try_to_write(path: str | os.PathLike[str]) -> None:
    """Create and remove the temporary file of `write_artifact`; raises its errors."""
    with _temporary(Path(path)):
        pass


@contextmanager
def _temporary(target: Path) -> Iterator[str]:
    """Create an empty file beside the target; remove it at the end unless it was renamed."""
    name = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        yield name
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(target)) from error
    finally:
        if name is not None:
            Path(name).unlink(missing_ok=True)


def _compression(data: bytes) -> int:
    """Return how a member is compressed: not at all if readers would refuse the ratio."""
    is_too_tight = len(data) > len(zlib.compress(data)) * LARGEST_RATIO + SMALL
    return zipfile.ZIP_STORED if is_too_tight else zipfile.ZIP_DEFLATED


def read_artifact(
    path: str | os.PathLike[str], at: Source | None = None, kept: Collection[str] = tuple(LIMITS)
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest, and the members that are `kept`.

    Raises `ArtifactError` at the user's line `at`.
    """
    name = Path(path).name
    with _opened(path, at) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _checked(archive, os.fstat(file.fileno()).st_size, kept)
        except Refusal as refusal:
            raise ArtifactError(f"{name} {refusal}", source=at, hint=refusal.hint) from None
        # Errors of zlib and struct, and of zipfile for features that it does not support.
        except Exception as error:
            raise ArtifactError(
                f"{name} cannot be read: {error}", source=at, hint=_DAMAGED
            ) from error


def _opened(path: str | os.PathLike[str], at: Source | None) -> BinaryIO:
    name = repr(os.fspath(path))
    try:
        return os.fdopen(open_regular(path, follows_links=True), "rb")
    except FileNotFoundError:
        what = f"there is no file {name}"
    except (OSError, ValueError) as error:  # ValueError if the path has a NUL character
        what = f"{name} cannot be opened: {getattr(error, 'strerror', error)}"
    raise ArtifactError(
        what, source=at, hint="give the path of a file that gd.aot.save has written"
    )


def _checked(
    archive: zipfile.ZipFile, size: int, kept: Collection[str]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest of an archive of `size` bytes, and the members that are `kept`."""
    infos = _infos(archive, size)
    if MANIFEST not in infos:
        raise Refusal(f"has no {MANIFEST}")
    text, _ = _unpacked(archive, infos.pop(MANIFEST))
    manifest = _manifest(text)
    entries = manifest["members"] if isinstance(manifest.get("members"), dict) else {}
    if set(entries) != set(infos):
        raise Refusal(
            f"has the members {', '.join(sorted(infos)) or 'none'}, its manifest "
            f"{', '.join(sorted(entries)) or 'none'}"
        )
    members: dict[str, bytes] = {}
    for member, info in infos.items():
        entry = entries[member]
        expected = str(entry.get("sha256")) if isinstance(entry, dict) else ""
        data, actual = _unpacked(archive, info, is_kept=member in kept)
        if actual != expected:
            raise Refusal(f"has a {member} of hash {actual[:12]}, its manifest says {expected:.12}")
        if member in kept:
            members[member] = data
    return manifest, members


def _infos(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the checked records of an archive's members; `size` is the file's size in bytes."""
    infos: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        member = info.filename
        if member not in LIMITS:
            raise Refusal(f"has a member {member!r}, which no artifact has")
        if member in infos:
            raise Refusal(f"has the member {member!r} twice")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Refusal(f"has a member {member!r} that is packed in another way")
        packed = min(info.compress_size, size)  # the stated size may be larger than the file
        limit = min(LIMITS[member], packed * LARGEST_RATIO + SMALL)
        if info.file_size > limit:
            raise Refusal(
                f"has a member {member!r} of {info.file_size:,} bytes; the limit is {limit:,}"
            )
        infos[member] = info
    return infos


def _unpacked(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, *, is_kept: bool = True
) -> tuple[bytes, str]:
    """Return a member and its SHA-256; the member is empty unless it is kept."""
    unpacked, hashed, length = io.BytesIO(), hashlib.sha256(), 0
    with archive.open(info) as file:
        while part := file.read(_PART):
            length += len(part)
            if length > info.file_size:
                break
            hashed.update(part)
            if is_kept:
                unpacked.write(part)
    if length != info.file_size:
        raise Refusal(
            f"says that {info.filename!r} has {info.file_size:,} bytes, but it has {length:,} or "
            f"more"
        )
    return unpacked.getvalue(), hashed.hexdigest()


def _manifest(data: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(data)
        if not isinstance(manifest, dict):
            raise Refusal(f"has a {MANIFEST} that is no JSON object")
        if manifest.get("format") != FORMAT:
            raise Refusal(
                f"is of format {manifest.get('format')!r:.100}, this graphdist reads format "
                f"{FORMAT}",
                hint="compile the step anew with this version",
            )
        expected = manifest.get("hash")
        actual = _hash({key: value for key, value in manifest.items() if key != "hash"})
    except (ValueError, RecursionError) as error:
        raise Refusal(f"has a {MANIFEST} that is no JSON") from error
    if expected != actual:
        raise Refusal(f"has a manifest of hash {actual[:12]}, which says {expected!s:.12}")
    return manifest


_ENCODER = json.JSONEncoder(indent=1, sort_keys=True)


def _hash(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the text that `_json` returns; hash it in parts to save memory."""
    hashed = hashlib.sha256()
    for part in _ENCODER.iterencode(value):
        hashed.update(part.encode())
    return hashed.hexdigest()


def _json(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()
