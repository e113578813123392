"""The picture of a step on its replicas: which values are where, and where replicas exchange them.

It is drawn of the graph that `docs/index.md` makes with its own program, so that the picture shows
what the page says. Each replica has a column. A row has the operations of one of the user's lines.
The colour of a box is the layout of its results. A collective is a bar over all columns.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any  # Any: what a program of the documents defines

from graphdist.ir.collective_bytes import collective_of
from graphdist.ir.graph import Graph, Node
from graphdist.ir.types import MIRRORED, Layout, Type
from graphdist.report.amounts import size_text
from graphdist.report.svg_document import svg_document

_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LEFT, _COLUMN, _GAP, _ROW, _TOP = 312, 210, 16, 50, 84
_MOST_CODE = 42


def drawn_step(page: Path) -> str:
    """Return the picture of the step that the first program of a page defines."""
    found = _PROGRAM.search(page.read_text(encoding="utf-8"))
    assert found is not None, f"{page} has no program"
    namespace: dict[str, Any] = {}
    with redirect_stdout(sys.stderr):
        exec(compile(found[1], str(page), "exec"), namespace)
    lowered = namespace["train_step"].trace(namespace["batch"]).lower()
    codes = found[1].splitlines()
    return replica_picture(lowered.graph, list(map(str, lowered.devices.devices)), codes)


def replica_picture(graph: Graph, devices: Sequence[str], codes: Sequence[str]) -> str:
    """Return the picture of a graph as SVG; `codes` are the lines of its program."""
    count = len(devices)
    right = _LEFT + count * (_COLUMN + _GAP)
    body = [
        f'<text class="title" x="16" y="26">{escape(graph.name)} on {count} replicas</text>',
        *_legend(graph),
    ]
    for number, device in enumerate(devices):
        x = _LEFT + number * (_COLUMN + _GAP)
        body.append(
            f'<text class="panel" x="{x}" y="{_TOP - 10}">replica {number}, {device}</text>'
        )
    top = _TOP
    for value, name in zip(graph.inputs, _input_names(graph), strict=True):
        body += _row(top, name, "", [value.type], count)
        top += _ROW
    for (line, is_collective), group in groupby(graph.nodes, key=_line):
        nodes = list(group)
        code = codes[line - 1].strip() if 0 < line <= len(codes) else ""
        if is_collective:
            body += _bar(top, code, nodes[0], right - _GAP)
        else:
            names = ", ".join(dict.fromkeys(each.op.name.removeprefix("jax.") for each in nodes))
            body += _row(top, code, names, [each.type for each in nodes[-1].results], count)
        top += _ROW
    return svg_document(f"The step {graph.name}", (right, top + 6), _STYLE, body)


def _line(node: Node) -> tuple[int, bool]:
    frame = node.source.frame
    return frame.line if frame else 0, node.op.is_collective


def _input_names(graph: Graph) -> list[str]:
    variables = [f"variable {variable.name}" for variable in graph.variables]
    others = [f"rows of {value.hint or 'an argument'}" for value in graph.inputs[len(variables) :]]
    return [*variables, *others]


def _row(top: int, code: str, names: str, types: Sequence[Type], count: int) -> list[str]:
    """Return a row: what it does, and on each replica a box with the type of its result."""
    lines = [_code(top, code, names)]
    for number in range(count):
        x = _LEFT + number * (_COLUMN + _GAP)
        text = ", ".join(f"{each.dtype}[{','.join(map(str, each.shape))}]" for each in types)
        lines += [
            f'<rect class="{_kind(types[0].layout)}" x="{x}" y="{top}" width="{_COLUMN}" '
            f'height="{_ROW - 14}" rx="5"/>',
            f'<text x="{x + 12}" y="{top + 22}">{escape(text)} {types[0].layout}</text>',
        ]
    return lines


def _bar(top: int, code: str, node: Node, right: int) -> list[str]:
    found = collective_of(node)
    between = f"between {found.group_size} replicas"
    text = f"{found.kind} {found.reducer}: {size_text(found.bytes)} {between}"
    return [
        _code(top, code, ""),
        f'<rect class="collective" x="{_LEFT}" y="{top}" width="{right - _LEFT}" '
        f'height="{_ROW - 14}" rx="5"/>',
        f'<text class="panel" x="{_LEFT + 12}" y="{top + 22}">{escape(text)}</text>',
    ]


def _code(top: int, code: str, names: str) -> str:
    code, names = map(_short, (code, names))
    second = f'<text class="note" x="16" y="{top + 29}">{escape(names)}</text>' if names else ""
    return f'<text class="code" x="16" y="{top + 14}">{escape(code)}</text>{second}'


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CODE else f"{text[: _MOST_CODE - 1]}…"


def _kind(layout: Layout | None) -> str:
    return "mirrored" if layout is MIRRORED else "sharded" if "sharded" in str(layout) else "own"


def _legend(graph: Graph) -> list[str]:
    texts = {"mirrored": "mirrored: the same on all", "own": "per replica: each its own"}
    texts |= {"sharded": "sharded: a part on each"} if "sharded" in str(graph) else {}
    lines = []
    for number, (kind, text) in enumerate([*texts.items(), ("collective", "collective")]):
        x = 16 + number * 190
        lines.append(f'<rect class="{kind}" x="{x}" y="38" width="14" height="14" rx="3"/>')
        lines.append(f'<text class="note" x="{x + 20}" y="49">{text}</text>')
    return lines


_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c2430}.page{fill:#fff}"
    ".title{font-size:16px;font-weight:600}.panel{font-weight:600}.note{fill:#5a6675}"
    ".code{font:11px ui-monospace,monospace}"
    ".mirrored{fill:#d9e8fb}.own{fill:#fdebcf}.sharded{fill:#d8f0dd}.collective{fill:#f7b267}"
    "@media(prefers-color-scheme:dark){text{fill:#e6ebf2}.page{fill:#12161c}.note{fill:#9aa7b8}"
    ".mirrored{fill:#17365c}.own{fill:#4f3610}.sharded{fill:#1d4527}.collective{fill:#8a4b0c}}"
)
