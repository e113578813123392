"""The page: a single HTML file that opens from disk and makes no network request.

It contains the program as the JSON of `graphdist.viz.document`, with the text of the user's files,
deflated and in base64, so that nothing in a user's program can be interpreted as HTML. A policy in
the page forbids every request. The script and the style are built from `graphdist/viz/web` and are
in `graphdist/viz/static`, with the licences of their parts.
"""

from __future__ import annotations

import html
import json
import linecache
import zlib
from base64 import b64encode
from functools import cache
from importlib.resources import files
from typing import Any  # Any: JSON

from graphdist.garbage import collection_put_off
from graphdist.viz.document import program_document
from graphdist.viz.program import ShownProgram

__all__ = ["render"]

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


@collection_put_off()  # a hundred thousand objects are made and kept: none of them is garbage
def render(program: ShownProgram) -> str:
    """Return the page of a program with all its steps."""
    content = program_document(program)
    content["files"] = _files(content)
    packed = zlib.compress(
        json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "surrogatepass"
        ),
        level=1,  # a quarter larger than the best, in a third of the time
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(program.graph.name)} - graphdist</title>",
            f"<style>{_static('viewer.css')}</style></head>",
            '<body><div id="app"><p>This page needs JavaScript.</p></div>',
            f'<script type="application/octet-stream" id="program">{b64encode(packed).decode()}'
            "</script>",
            f"<script>{_static('viewer.js')}</script>",
            "</body></html>\n",
        ]
    )


def _files(content: dict[str, Any]) -> dict[str, list[str]]:
    """Return the lines of each source file that still exists."""
    names = {file for source in content["sources"] for file, _, _ in source}
    lines = {name: linecache.getlines(name) for name in sorted(names)}
    return {name: [line.rstrip("\r\n") for line in text] for name, text in lines.items() if text}


@cache
def _static(name: str) -> str:
    return files("graphdist.viz").joinpath("static", name).read_text("utf-8")
