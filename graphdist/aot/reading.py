"""Reads the file of a step as far as all its readers do, and says when it describes none."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any  # Any: users' arguments, JSON

from graphdist.aot.manifest_schema import MANIFEST, mismatch
from graphdist.errors import ArgumentTypeError, ArtifactError, GraphdistError
from graphdist.runtime.files.artifact import read_artifact
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name


def read_checked(
    path: Any, caller: str, kept: Collection[str] = ()
) -> tuple[str, dict[str, Any], dict[str, bytes]]:
    """Return the name of a step's file, its manifest and the members that are `kept`.

    Raises `ArtifactError` for a damaged file, and for a manifest of another form.
    """
    require_path(path, caller)
    name = os.path.basename(os.fspath(path))
    manifest, members = read_artifact(path, here(), kept)
    if said := mismatch(manifest, MANIFEST):
        raise contradiction(name, said)
    return name, manifest, members


def require_path(path: Any, what: str) -> None:
    """Raise `ArgumentTypeError` for any other value than a path, given to the function `what`."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(
            f"the path given to {what} is of type {type_name(path)}",
            source=here(),
            hint='write gd.aot.save("step.gdx", compiled) and gd.aot.load("step.gdx")',
        )


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn every error while the contents of a file are read into an `ArtifactError`.

    The hashes were right, so the contents were made wrong, and any library may raise.
    """
    try:
        yield
    except GraphdistError:
        raise
    except Exception as error:  # JSON's, flatbuffers', MLIR's, XLA's, and pickle's
        reason = (str(error).splitlines() or [""])[0]
        raise contradiction(name, f"{type(error).__name__}: {reason}") from error


def contradiction(name: str, reason: str) -> ArtifactError:
    """Return the error for a file whose contents contradict each other."""
    return ArtifactError(
        f"{name} has a manifest and a module that describe no step: {reason:.500}",
        source=here(),
        hint="the file was damaged or changed: get it again, or compile the step again",
    )
