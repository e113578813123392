"""SVG documents: pictures of steps, plans and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def svg_document(label: str, size: tuple[int, int], style: str, body: Sequence[str]) -> str:
    """Return an SVG document of a size in pixels; `.page` in the style is its background."""
    width, height = size
    start = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">',
        f"<style>{style}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
    ]
    return "\n".join([*start, *body, "</svg>", ""])
