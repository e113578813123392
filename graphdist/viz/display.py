"""Programs in a notebook and in the browser."""

from __future__ import annotations

import html
import sys
import tempfile
import webbrowser
from pathlib import Path

from graphdist.viz.dump import dump_stage
from graphdist.viz.formats import Shown, render

__all__ = ["dump_stage", "notebook_cell", "open_file", "open_page", "show"]

_HEIGHT = 720


def show(shown: Shown, format: str = "html") -> None:
    """Show a program: the page goes into the notebook, or else to a browser; text is printed."""
    if format != "html":
        print(render(shown, format), end="")
    elif _in_notebook():
        from IPython.display import HTML, display

        display(HTML(notebook_cell(shown)))
    else:
        open_page(render(shown, "html"))


def notebook_cell(shown: Shown) -> str:
    """Return the page in a frame of its own, for the cell of a notebook."""
    page = html.escape(render(shown, "html"), quote=True)
    return (
        f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="graphdist" '
        f'style="width:100%;height:{_HEIGHT}px;border:1px solid #8884"></iframe>'
    )


def open_page(page: str, path: Path | None = None) -> Path:
    """Write a page to a file, a temporary one if no path is given, and open it in a browser."""
    if path is None:
        folder = Path(tempfile.mkdtemp(prefix="graphdist-"))
        path = folder / "program.html"
    path.write_text(page, encoding="utf-8")
    return open_file(path)


def open_file(path: Path) -> Path:
    """Open a page that is in a file in a browser, or say where it is."""
    if not webbrowser.open(path.resolve().as_uri()):
        print(f"no browser could be started; the page is in {path}", file=sys.stderr)
    return path


def _in_notebook() -> bool:
    """Return whether a kernel with a front end runs this: IPython in a terminal shows no HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"
