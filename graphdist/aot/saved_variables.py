"""The variables that the step in a file reads and assigns, read from the file alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any  # Any: NumPy's dtypes, and JAX's of random keys

from graphdist.aot.manifest import boundary_from_json
from graphdist.aot.reading import read_checked, reading
from graphdist.runtime.executable import jax_dtype


@dataclass(frozen=True, slots=True)
class SavedVariable:
    """A variable of the step in a file; `is_assigned` tells that the step changes it.

    `bytes` are of the full value, also where the step stores it in slices.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    bytes: int
    is_assigned: bool


def list_variables(path: str | os.PathLike[str]) -> tuple[SavedVariable, ...]:
    """Return the variables that `gd.aot.load` needs for the step in a file, in their order.

    Nothing is compiled, and devices and versions may be others than the step's. Raises
    `ArtifactError` for a file that is damaged or was changed.
    """
    name, manifest, _ = read_checked(path, "gd.aot.list_variables")
    with reading(name):
        return tuple(
            SavedVariable(
                variable.name,
                variable.type.shape,
                jax_dtype(variable.type.dtype),
                variable.type.bytes,
                variable.assigned,
            )
            for variable in boundary_from_json(manifest["boundary"]).variables
        )
