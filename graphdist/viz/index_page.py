"""An index of pages: one row for each function, with its figures, and links to the pages.

The index is a page without a script: rows are HTML, and everything of the user's is escaped. Links
lead to files of the same folder.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from graphdist.report.amounts import size_text, time_text
from graphdist.viz.memory import memory_timeline
from graphdist.viz.model import model_of
from graphdist.viz.program import ShownProgram

__all__ = ["IndexRow", "figures_of", "file_name", "render", "report_note"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_COLUMNS = ("Function", "Replicas", "Nodes", "Collectives", "Bytes moved", "Peak by the graph")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --text: #1f2328; --link: #0969da; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #0d1117; --text: #e6edf3; --link: #4493f8; }
}
a { color: var(--link); }
body { background: var(--ground); color: var(--text); }
body { font: 14px/1.5 system-ui, "Segoe UI", "Noto Sans", sans-serif; margin: 24px; }
table { border-collapse: collapse; } caption { text-align: left; padding-bottom: 8px; }
th, td { text-align: left; padding: 4px 18px 4px 0; border-bottom: 1px solid #8886;
  vertical-align: top; }
.figure { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.note { max-width: 60ch; overflow-wrap: anywhere; }
@media (max-width: 700px) { body { margin: 10px; } main { overflow-x: auto; } }
"""


@dataclass(frozen=True)
class IndexRow:
    """A row: a function, its page, its figures in the order of the columns, and what to say of it.

    `changes` is the page that compares it with an earlier program of the function, if there is one.
    An entry without a page says why in its note.
    """

    name: str
    page: str = ""
    figures: tuple[str, ...] = ()
    note: str = ""
    changes: str = ""


def render(title: str, entries: Sequence[IndexRow]) -> str:
    """Return the index page."""
    head = "".join(f'<th scope="col">{column}</th>' for column in (*_COLUMNS, "Notes"))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(title)} - graphdist</title>",
            f"<style>{_STYLE}</style></head>",
            f"<body><main><h1>{_text(title)}</h1>",
            f"<table><thead><tr>{head}</tr></thead><tbody>",
            *map(_row, entries),
            "</tbody></table></main></body></html>\n",
        ]
    )


def figures_of(program: ShownProgram) -> tuple[str, ...]:
    """Return the figures of a program's last graph, as the index shows them."""
    model = model_of(program.graph)
    moved = sum(record.moved for record in model.records)
    return (
        f"{program.graph.num_replicas:,}",
        f"{sum(1 for record in model.records if record.node):,}",
        f"{len(model.collectives):,}",
        size_text(moved),
        size_text(memory_timeline(model).peak),
    )


def report_note(program: ShownProgram) -> str:
    """Return whether a program fits its topology, and its predicted time; "" without a report."""
    report = program.report
    if report is None:
        return ""
    fits = "fits" if report.fits else "does not fit"
    time = report.timeline or report.estimate
    return f"{fits} {program.topology}" + (f", {time_text(time.step)} a step" if time else "")


def file_name(name: str, taken: Sequence[str] = ()) -> str:
    """Return a name for the page of a function that is not taken: of letters and digits alone.

    >>> file_name("train/step<1>", taken=["train_step_1.html"])
    'train_step_1-2.html'
    """
    stem = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("_.")[:80] or "function"
    found, number = f"{stem}.html", 1
    while found in taken or found == "index.html":
        number += 1
        found = f"{stem}-{number}.html"
    return found


def _row(entry: IndexRow) -> str:
    figures = (*entry.figures, *[""] * (len(_COLUMNS) - 1 - len(entry.figures)))
    name = _link(entry.page, entry.name) if entry.page else _text(entry.name)
    changes = f" {_link(entry.changes, 'what changed')}" if entry.changes else ""
    return (
        f'<tr><th scope="row">{name}</th>'
        + "".join(f'<td class="figure">{_text(figure)}</td>' for figure in figures)
        + f'<td class="note">{_text(entry.note)}{changes}</td></tr>'
    )


def _link(page: str, text: str) -> str:
    return f'<a href="{html.escape(quote(page))}">{_text(text)}</a>'


def _text(text: str) -> str:
    """Return text as HTML; characters that are not seen are written as their numbers."""
    return html.escape(_UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text[:2000]))
