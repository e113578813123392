"""The page of predictions against published runs: a table and a picture.

The table stands in `estimates.md` between two marks, so that the text around it stays; the picture
is `figures/estimates.svg`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from pathlib import Path
from statistics import median

from graphdist.errors import ArgumentError
from graphdist.report.svg_document import svg_document
from graphdist.tools.truth.runs import PublishedRun

PAGE, PICTURE = Path("estimates.md"), Path("figures/estimates.svg")
_SIZE, _LEFT, _TOP = 440, 70, 60
_COLOURS = {
    "v5e": "#0b6e4f", "v6e": "#4a6fa5", "tpu7x": "#8f5aa8", "a100": "#d98e2b", "h100": "#c2502e",
}  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """A run with its predictions: with a slowdown fitted without its family, and with none."""

    run: PublishedRun
    predicted: float
    unfitted: float
    slowdown: float

    @property
    def error(self) -> float:
        """Return the relative error: above 0 if the prediction is too long."""
        return self.predicted / self.run.seconds - 1


def errors_line(results: Sequence[Judged]) -> str:
    """Return the median and the 90th percentile of the errors, for each platform."""
    return "; ".join(_errors(results))


def _errors(results: Sequence[Judged]) -> Iterator[str]:
    for platform in dict.fromkeys(each.run.chip.platform for each in results):
        errors = sorted(abs(each.error) for each in results if each.run.chip.platform == platform)
        ninth = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
        yield (
            f"{platform.upper()}, {len(errors)} rows: median error {median(errors):.1%}, "
            f"90th percentile {ninth:.1%}"
        )


def write_page(folder: Path, results: Sequence[Judged]) -> None:
    """Write the table into the page of a folder, and the picture beside it.

    Raises `ArgumentError` if the page has no marks.
    """
    write_table(folder, "predictions", _table(results))
    (folder / PICTURE).write_text(drawn(results), encoding="utf-8")


def write_table(folder: Path, name: str, lines: Iterable[str]) -> None:
    """Write a table between the marks of a name in the page of a folder.

    Raises `ArgumentError` if the page has no marks.
    """
    page, mark, last = folder / PAGE, f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ArgumentError(
            f"{page} has no place for {name}", hint=f"put {mark} and {last} into it"
        )
    table = "\n".join(lines)
    page.write_text(f"{before}{mark}\n{table}\n{last}{after}", encoding="utf-8")


def _table(results: Sequence[Judged]) -> Iterator[str]:
    yield "| row | model, hardware, rows x length per chip | measured | predicted | error |"
    yield "| --- | --- | --- | --- | --- |"
    for each in results:
        yield (
            f"| {each.run.row} | {each.run.title} | {each.run.seconds:.3g} s "
            f"| {each.predicted:.3g} s | {each.error:+.1%} |"
        )
    yield ""
    yield f"{errors_line(results)}."


def drawn(results: Sequence[Judged]) -> str:
    """Return predicted against measured seconds as SVG, both on logarithmic scales."""
    seconds = [value for each in results for value in (each.predicted, each.run.seconds)]
    low, high = log10(min(seconds)) - 0.1, log10(max(seconds)) + 0.1

    def at(value: float) -> float:
        return (log10(value) - low) / (high - low) * _SIZE

    def position(x: float, y: float) -> str:
        return f'cx="{_LEFT + at(x):.1f}" cy="{_TOP + _SIZE - at(y):.1f}"'

    dots = [
        f'<circle class="{each.run.chip.name}" {position(each.run.seconds, each.predicted)} r="4">'
        f"<title>{escape(each.run.title)}: {each.error:+.1%}</title></circle>"
        for each in results
    ]
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low < log10(t) < high]
    chips = dict.fromkeys(each.run.chip.name for each in results)
    width, height = _LEFT + _SIZE + 110, _TOP + _SIZE + 50
    return svg_document(
        "Predicted and measured steps",
        (width, height),
        _style(),
        [
            '<text class="title" x="16" y="28">Predicted and measured seconds of a step</text>',
            '<text class="note" x="16" y="46">on the line they are equal; beside it 15 %</text>',
            f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_SIZE}" height="{_SIZE}"/>',
            *(_line(high - low, factor) for factor in (1.0, 1.15, 1 / 1.15)),
            *(_tick(at(t), t) for t in ticks),
            f'<text class="note" x="{_LEFT + _SIZE / 2}" y="{height - 8}">measured</text>',
            f'<text class="note" x="12" y="{_TOP + _SIZE / 2}">predicted</text>',
            *dots,
            *(_key(i, chip) for i, chip in enumerate(chips)),
        ],
    )


def _line(decades: float, factor: float) -> str:
    shift = log10(factor) / decades * _SIZE
    start, end = max(-shift, 0.0), min(_SIZE - shift, float(_SIZE))
    bottom = _TOP + _SIZE - shift
    kind = "equal" if factor == 1 else "near"
    return (
        f'<line class="{kind}" x1="{_LEFT + start:.1f}" y1="{bottom - start:.1f}" '
        f'x2="{_LEFT + end:.1f}" y2="{bottom - end:.1f}"/>'
    )


def _tick(at: float, value: float) -> str:
    return (
        f'<text class="note" x="{_LEFT + at - 6:.1f}" y="{_TOP + _SIZE + 16}">{value:g}</text>'
        f'<text class="end note" x="{_LEFT - 6}" y="{_TOP + _SIZE - at + 4:.1f}">{value:g}</text>'
    )


def _key(i: int, chip: str) -> str:
    x, y = _LEFT + _SIZE + 24, _TOP + 12 + 20 * i
    dot = f'<circle class="{chip}" cx="{x}" cy="{y}" r="4"/>'
    label = f'<text x="{x + 12}" y="{y + 4}">{chip}</text>'
    return dot + label


def _style() -> str:
    colours = "".join(f".{name}{{fill:{colour}}}" for name, colour in _COLOURS.items())
    return (
        "text{font:12px system-ui,sans-serif;fill:#1c2430}.page{fill:#fff}"
        ".title{font-size:16px;font-weight:600}.note{fill:#5a6675}.end{text-anchor:end}"
        ".frame{fill:none;stroke:#b9c2cd}.equal{stroke:#5a6675}"
        ".near{stroke:#b9c2cd;stroke-dasharray:4 4}"
        f"{colours}"
        "@media(prefers-color-scheme:dark){text{fill:#e6ebf2}.page{fill:#12161c}"
        ".note{fill:#9aa7b8}.equal{stroke:#9aa7b8}.frame,.near{stroke:#45505e}}"
    )
