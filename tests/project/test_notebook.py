"""The notebook of the tutorials runs from its first cell to its last, and shows what it prints.

`pytest --update-golden` rewrites the outputs. The cells that begin with `%` install packages.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import subprocess
import sys
from pathlib import Path
from typing import Any  # Any: JSON, and the names of the cells

import jax
import pytest

SHOWN_WITH = "0.10.2"
"""The version of JAX whose outputs documents show: others trace to other operations of JAX."""
NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorials" / "notebook.ipynb"


def run_cells(notebook: dict[str, Any]) -> list[str]:
    """Run the cells as a kernel does, and return what each prints."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for number, cell in enumerate(notebook["cells"]):
        printed = io.StringIO()
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.startswith("%"):
            file = f"cell-{number}"
            linecache.cache[file] = len(source), None, source.splitlines(True), file
            with contextlib.redirect_stdout(printed):
                exec(compile(source, file, "exec"), namespace)
        outputs.append(printed.getvalue())
    return outputs


def test_the_notebook_runs_and_shows_its_output(request: pytest.FixtureRequest) -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    codes = ["".join(each["source"]) for each in notebook["cells"] if each["cell_type"] == "code"]
    assert codes[0].startswith("%pip install -q graphdist")
    command = [sys.executable, __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for cell, printed in zip(notebook["cells"], json.loads(done.stdout), strict=True):
        if cell["cell_type"] == "code":
            stream = {"name": "stdout", "output_type": "stream", "text": printed}
            cell["outputs"] = [stream] if printed else []
    if request.config.getoption("--update-golden"):
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        NOTEBOOK.write_text(text, encoding="utf-8")
    if jax.__version__ == SHOWN_WITH:
        assert json.loads(NOTEBOOK.read_text(encoding="utf-8")) == notebook


if __name__ == "__main__":
    print(json.dumps(run_cells(json.loads(NOTEBOOK.read_text(encoding="utf-8")))))
