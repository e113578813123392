"""`graphdist-compile --list-variables step.gdx`: the variables of the step in a file."""

from __future__ import annotations

import json
from pathlib import Path

from graphdist.aot import SavedVariable, list_variables
from graphdist.report.amounts import size_text, table
from graphdist.tools.given_files import require_file


def variable_table(path: str, *, as_json: bool) -> str:
    """Return the table of a file's variables; raises `ArtifactError` for a damaged file."""
    require_file(Path(path))
    found = list_variables(path)
    if as_json:
        return json.dumps([_figures(variable) for variable in found], indent=1)
    total = sum(variable.bytes for variable in found)
    end = f"{len(found)} variable{'s' * (len(found) != 1)}, {size_text(total)} in full"
    return "\n".join([*table([["variable", "shape", "dtype", "size", ""], *map(_row, found)]), end])


def _row(variable: SavedVariable) -> list[str]:
    shape = str(list(variable.shape))
    assigned = "assigned" if variable.is_assigned else "read"
    return [variable.name, shape, str(variable.dtype), size_text(variable.bytes), assigned]


def _figures(variable: SavedVariable) -> dict[str, object]:
    return {
        "name": variable.name,
        "shape": list(variable.shape),
        "dtype": str(variable.dtype),
        "bytes": variable.bytes,
        "is_assigned": variable.is_assigned,
    }
