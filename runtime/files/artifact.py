"""The file of a compiled step, `.gdx`: one zip of known members, read with suspicion.

Members are read into memory and never written to disk, so that no name in the file can become a
path. Refused are: a file that is no zip or is cut short; a member that is unknown, given twice, or
larger than its limit or its stated size; a member whose SHA-256 differs from the manifest's; and a
changed manifest. The hashes find damage and carelessness. They are no signature, since whoever can
write the file can write its manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any  # Any: JSON

from graphdist.ir.errors import GraphdistError
from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.files.regular_files import NoRegularFileError, open_regular

FORMAT = 1
MANIFEST = "manifest.json"
LIMITS = {
    MANIFEST: 2**26,
    "graph.txt": 2**28,
    "module.mlir": 2**31,
    "executable.bin": 2**32,
    "report.json": 2**26,
}
"""The members that are allowed, and the most bytes of each."""
LARGEST_RATIO = 100
"""Members that would compress better than this are stored uncompressed, so that a small file cannot
demand much memory: deflate itself compresses zeros 1 to 1032."""
SMALL = 2**20
"""The size in bytes up to which any ratio is allowed."""


class ArtifactError(GraphdistError, ValueError):
    """A file is no artifact, was changed, or was made for something else than is here."""


def sha256(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def write_artifact(
    path: str | os.PathLike[str], manifest: Mapping[str, Any], members: Mapping[str, bytes]
) -> None:
    """Write members and their manifest; the file appears complete or not at all.

    Raises OSError, which names the file, and not the temporary one that becomes it.
    """
    entries = {name: {"bytes": len(data), "sha256": sha256(data)} for name, data in members.items()}
    described: dict[str, Any] = {"format": FORMAT, **manifest, "members": entries}
    described["hash"] = _hash(described)
    with _temporary(Path(path)) as name:
        with zipfile.ZipFile(name, "w") as archive:
            for member, data in {MANIFEST: _json(described), **members}.items():
                # A fixed time, so that the same step makes the same file.
                info = zipfile.ZipInfo(member, date_time=(1980, 1, 1, 0, 0, 0))
                info.compress_type = _compression(data)
                archive.writestr(info, data)
        Path(name).chmod(0o644)  # a temporary file is its owner's alone
        os.replace(name, path)


def try_to_write(path: str | os.PathLike[str]) -> None:
    """Make the temporary file that would become this file, and remove it.

    Raises OSError or ValueError as `write_artifact` would.
    """
    with _temporary(Path(path)):
        pass


@contextmanager
def _temporary(target: Path) -> Iterator[str]:
    """Make an empty file beside the target, and remove it if it is still there then."""
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
    """Return how a member is compressed, so that its ratio is within the limit of readers."""
    is_too_tight = len(data) > len(zlib.compress(data)) * LARGEST_RATIO + SMALL
    return zipfile.ZIP_STORED if is_too_tight else zipfile.ZIP_DEFLATED


def read_artifact(
    path: str | os.PathLike[str], at: Source = UNKNOWN
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return manifest and members; raises `ArtifactError`, with `at` as the user's line."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            members = _members(archive, os.fstat(file.fileno()).st_size, Path(path).name, at)
    except FileNotFoundError:
        raise ArtifactError(f"there is no file {os.fspath(path)}", source=at) from None
    except NoRegularFileError as error:
        raise ArtifactError(
            str(error), source=at, hint="give the file that gd.aot.save has written"
        ) from None
    except ArtifactError:
        raise
    # zlib's and struct's errors, and the ones zipfile has for what it does not support.
    except Exception as error:
        raise _broken(Path(path).name, f"cannot be read: {error}", at) from error
    manifest = _manifest(members.pop(MANIFEST, None), Path(path).name, at)
    _check_hashes(manifest, members, Path(path).name, at)
    return manifest, members


def _members(archive: zipfile.ZipFile, size: int, name: str, at: Source) -> dict[str, bytes]:
    """Return the members of an archive that is a file of a size."""
    members: dict[str, bytes] = {}
    for info in archive.infolist():
        member = info.filename
        if member not in LIMITS:
            raise _broken(name, f"has a member {member!r}, which no artifact has", at)
        if member in members:
            raise _broken(name, f"has the member {member!r} twice", at)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _broken(name, f"has a member {member!r} that is packed in another way", at)
        packed = min(info.compress_size, size)  # the file says the one, and has the other
        limit = min(LIMITS[member], packed * LARGEST_RATIO + SMALL)
        if info.file_size > limit:
            raise _broken(
                name, f"has a member {member!r} of {info.file_size:,} bytes; {limit:,} is most", at
            )
        with archive.open(info) as file:
            members[member] = file.read(info.file_size + 1)
        if len(members[member]) != info.file_size:
            raise _broken(
                name,
                f"says that {member!r} has {info.file_size:,} bytes, and it has "
                f"{len(members[member]):,} or more",
                at,
            )
    return members


def _manifest(data: bytes | None, name: str, at: Source) -> dict[str, Any]:
    if data is None:
        raise _broken(name, f"has no {MANIFEST}", at)
    try:
        manifest = json.loads(data)
        rest = manifest.items() if isinstance(manifest, dict) else ()
        found = _hash({key: value for key, value in rest if key != "hash"})
    except (ValueError, RecursionError) as error:
        raise _broken(name, f"has a {MANIFEST} that is no JSON", at) from error
    if not isinstance(manifest, dict):
        raise _broken(name, f"has a {MANIFEST} that is no JSON object", at)
    if manifest.get("format") != FORMAT:
        raise ArtifactError(
            f"{name} is of format {manifest.get('format')!r}, this graphdist reads format {FORMAT}",
            source=at,
            hint="compile the step anew with this version",
        )
    expected = manifest.get("hash")
    if expected != found:
        raise _broken(name, f"has a manifest of hash {found[:12]}, which says {expected!s:.12}", at)
    return manifest


def _check_hashes(
    manifest: Mapping[str, Any], members: Mapping[str, bytes], name: str, at: Source
) -> None:
    entries = manifest.get("members")
    entries = entries if isinstance(entries, dict) else {}
    if set(entries) != set(members):
        raise _broken(
            name,
            f"has the members {', '.join(sorted(members)) or 'none'}, its manifest "
            f"{', '.join(sorted(entries)) or 'none'}",
            at,
        )
    for member, data in members.items():
        entry, found = entries[member], sha256(data)
        expected = str(entry.get("sha256")) if isinstance(entry, dict) else ""
        if expected != found:
            raise _broken(
                name, f"has a {member} of hash {found[:12]}, its manifest says {expected:.12}", at
            )


def _broken(name: str, what: str, at: Source) -> ArtifactError:
    return ArtifactError(
        f"{name} {what}",
        source=at,
        hint="the file was damaged or changed: get it again, or compile the step anew",
    )


def _hash(value: Mapping[str, Any]) -> str:
    return sha256(_json(value))


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()
