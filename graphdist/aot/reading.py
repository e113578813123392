"""Reads and checks the file of a step, for `gd.aot.load` and `gd.aot.list_variables`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any  # Any: users' arguments, JSON

from graphdist.aot.manifest import boundary_from_json
from graphdist.aot.manifest_schema import MANIFEST, with_defaults
from graphdist.data.elements import at_the_users_line
from graphdist.errors import ArgumentTypeError, ArtifactError, GraphdistError
from graphdist.ir.graph import GraphVariable
from graphdist.ir.types import Type
from graphdist.runtime.executable import jax_dtype
from graphdist.runtime.files.artifact import read_artifact
from graphdist.runtime.processes.json_schema import mismatch
from graphdist.values.distributed import type_name


@dataclass(frozen=True)
class StepFile:
    """The file of a step: its name, its checked manifest, and the members that are needed."""

    name: str
    manifest: dict[str, Any]
    members: dict[str, bytes]


def read_checked(path: Any, caller: str, needed: Collection[str] = ()) -> StepFile:
    """Return the file of a step with the members that are needed.

    Raises `ArtifactError` for a damaged file, and for a manifest that breaks its schema.
    """
    require_path(path, caller)
    name = os.path.basename(os.fspath(path))
    manifest, members = read_artifact(path, None, needed)
    manifest = with_defaults(manifest)
    if problem := mismatch(manifest, MANIFEST, root="the manifest"):
        raise contradiction(name, problem)
    for member in needed:
        if member not in members:
            raise contradiction(name, f"it has no {member}")
    return StepFile(name, manifest, members)


def require_path(path: Any, what: str) -> None:
    """Raise `ArgumentTypeError` unless the argument of the function `what` is a path."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(
            f"the path given to {what} is of type {type_name(path)}",
            hint='write gd.aot.save("step.gdx", compiled) and gd.aot.load("step.gdx")',
        )


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn every error while the contents of a file are read into an `ArtifactError`.

    The file's hashes are right. So the contents were wrong when they were written, and any library
    may raise any error when it reads the contents.
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
        hint="the file was damaged or changed: get it again, or compile the step again",
    )


@dataclass(frozen=True, slots=True)
class SavedVariable:
    """A variable of the step in a file.

    `bytes` is the size of the full value, even if the step stores it in shards. `is_assigned` says
    whether the step assigns the variable.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    bytes: int
    is_assigned: bool


@at_the_users_line()
def list_variables(path: str | os.PathLike[str]) -> tuple[SavedVariable, ...]:
    """Return the variables that `gd.aot.load` needs for the step in a file, in their order.

    Nothing is compiled, and the step may be for other devices and versions. Raises
    `ArtifactError` for a file that is damaged or was changed.
    """
    file = read_checked(path, "gd.aot.list_variables")
    with reading(file.name):
        graph = boundary_from_json(file.manifest["boundary"])
        return tuple(_saved_variable(each, each.whole(graph.num_cores)) for each in graph.variables)


def _saved_variable(variable: GraphVariable, type: Type) -> SavedVariable:
    dtype = jax_dtype(type.dtype)
    return SavedVariable(variable.name, type.shape, dtype, type.bytes, variable.assigned)
