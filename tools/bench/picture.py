"""The picture of a run: a panel for each program, a bar for each system.

If steps ran, a bar is the time of a step, otherwise the bytes that a device sends per step. The
bars of a panel share a scale. Beside each bar are its value and the ratio of graphdist's to it.
Colours follow the reader's light or dark theme; a system has the same colour in all panels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from graphdist.report.amounts import size_text, time_text
from graphdist.report.svg_document import svg_document
from graphdist.tools.bench.measurement import OURS, Measurement

WIDTH = 760
_LABELS, _BARS = 110, 440
_ROW, _TITLE, _GAP, _TOP = 20, 26, 14, 62
_COLOURS = {
    OURS: ("#0b6e4f", "#3ddc97"),
    "shard_map": ("#4a6fa5", "#86a8e0"),
    "jit": ("#7d97bd", "#5f7fb5"),
    "pmap": ("#a9bad3", "#48618c"),
    "tensorflow": ("#d98e2b", "#f0ab4a"),
    "floor": ("#b9b9b9", "#6b6b6b"),
    "ddp": ("#c2502e", "#f07a55"),
}
"""The colours of each system, in a light and in a dark theme."""


def draw_picture(title: str, titles: dict[str, str], measurements: Sequence[Measurement]) -> str:
    """Return the picture as SVG; `titles` has the programs' titles, in order."""
    has_steps = any(measurement.step_seconds is not None for measurement in measurements)
    value: Callable[[Measurement], float | None] = _seconds if has_steps else _moved
    text: Callable[[float], str] = time_text if has_steps else size_text
    body: list[str] = []
    top = _TOP
    for program, name in titles.items():
        of_program = {
            measurement.system: measurement
            for measurement in measurements
            if measurement.program == program
        }
        ours = of_program.get(OURS)
        shown = [
            (system, bar, _ratio(ours, measurement, value))
            for system, measurement in of_program.items()
            if (bar := value(measurement)) is not None
        ]
        if shown:
            body += _panel(name, shown, text, top)
            top += _TITLE + _ROW * len(shown) + _GAP
    what = "time of a step" if has_steps else "bytes that a device sends per step"
    return svg_document(
        title,
        (WIDTH, top),
        _style(),
        [
            f'<text class="title" x="16" y="28">{escape(title)}</text>',
            f'<text class="note" x="16" y="48">{what}: shorter is better</text>',
            *body,
        ],
    )


def _seconds(measurement: Measurement) -> float | None:
    return measurement.step_seconds


def _moved(measurement: Measurement) -> float | None:
    return None if measurement.module is None else measurement.module.moved_bytes


def _ratio(
    ours: Measurement | None,
    other: Measurement,
    value: Callable[[Measurement], float | None],
) -> float | None:
    """Return the ratio of our value to another's: of times round by round, or of bytes."""
    if ours is None or ours is other:
        return None
    if value is _seconds:
        return ours.of(other)
    mine, theirs = value(ours), value(other)
    return mine / theirs if mine is not None and theirs else None


def _panel(
    name: str,
    shown: Sequence[tuple[str, float, float | None]],
    text: Callable[[float], str],
    top: int,
) -> list[str]:
    longest = max(bar for _, bar, _ in shown) or 1.0
    lines = [f'<text class="panel" x="16" y="{top + 16}">{escape(name)}</text>']
    for i, (system, bar, ratio) in enumerate(shown):
        y = top + _TITLE + i * _ROW
        width = max(_BARS * bar / longest, 1.0)
        label = text(bar)
        if ratio is not None:
            label += f"   ours {ratio:.2f}x"
        lines += [
            f'<text class="label" x="{_LABELS}" y="{y + 12}">{escape(system)}</text>',
            f'<rect class="{system}" x="{_LABELS + 10}" y="{y + 1}" width="{width:.1f}" '
            f'height="{_ROW - 6}" rx="2"/>',
            f'<text class="number" x="{_LABELS + 18 + width:.1f}" y="{y + 12}">{label}</text>',
        ]
    return lines


def _style() -> str:
    light = "".join(f".{name}{{fill:{colour}}}" for name, (colour, _) in _COLOURS.items())
    dark = "".join(f".{name}{{fill:{colour}}}" for name, (_, colour) in _COLOURS.items())
    return (
        "text{font:12px system-ui,sans-serif;fill:#1c2430}.page{fill:#fff}"
        ".title{font-size:16px;font-weight:600}.panel{font-weight:600}"
        ".note,.number{fill:#5a6675}.label{text-anchor:end}"
        f"{light}"
        "@media(prefers-color-scheme:dark){text{fill:#e6ebf2}.page{fill:#12161c}"
        f".note,.number{{fill:#9aa7b8}}{dark}}}"
    )
