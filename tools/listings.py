"""The tables that `graphdist-compile --list-topologies` and `--list-variables` print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any  # Any: JSON

from graphdist.aot import list_variables
from graphdist.report.amounts import (
    count_text,
    fitted_lines,
    indented_table,
    plural,
    record_table,
    size_text,
)
from graphdist.runtime.targets.chips import CHIPS, Chip
from graphdist.tools.given_files import require_file


def topology_table(*, as_json: bool) -> str:
    """Return the table of chips and topologies, with the sources of the figures."""
    if as_json:
        return json.dumps({chip.name: _chip_figures(chip) for chip in CHIPS.values()}, indent=1)
    notes = [line for chip in CHIPS.values() for line in _notes(chip)]
    chips = [f"  {row}" for row in record_table(list(map(_row, CHIPS.values())))]
    return "\n".join(fitted_lines(["Chips", *chips, *_MEANING.splitlines(), "", *notes]))


_MEANING = """\
  Figures are of a chip; links and network in one direction. TPU topologies are
  chips in a torus, GPU topologies hosts x GPUs, in any shape of full hosts.
  A side of 16 chips of v5e and v6e is closed to a ring, and so are all sides
  of v4, v5p and tpu7x that are multiples of 4."""


def _row(chip: Chip) -> dict[str, str]:
    return {
        "chip": chip.name,
        "devices": str(chip.devices),
        "most chips": str(chip.largest),
        "memory": size_text(chip.memory_bytes),
        "memory/s": f"{chip.memory_rate / 1e9:.0f} GB",
        "FLOP/s bf16": count_text(chip.peak("bf16")),
        "links": str(chip.links),
        "link/s": f"{chip.link / 1e9:.0f} GB",
        "net/s": f"{chip.network / 1e9:.1f} GB",
    }


def _notes(chip: Chip) -> Iterator[str]:
    """Yield examples of a chip's topologies, and the figures that each source states."""
    yield f"{chip.name}: {', '.join(chip.examples)}"
    stated: dict[str, list[str]] = {}
    for figure, source in chip.sources.items():
        stated.setdefault(source, []).append(figure.replace("_", " "))
    for source, figures in stated.items():
        yield f"  {', '.join(figures)}: {source}"


def _chip_figures(chip: Chip) -> dict[str, Any]:
    return {
        "devices": chip.devices,
        "largest": chip.largest,
        "memory_bytes": chip.memory_bytes,
        "memory_bandwidth": chip.memory_rate,
        "peak_flops": chip.peaks,
        "links": chip.links,
        "link_bandwidth": chip.link,
        "interconnect_bandwidth": chip.interconnect_bandwidth,
        "network_bandwidth": chip.network,
        "examples": chip.examples,
        "clock": chip.clock,
        "sources": chip.sources,
    }


def variable_table(path: str, *, as_json: bool) -> str:
    """Return the table of a file's variables; raises `ArtifactError` for a damaged file."""
    require_file(Path(path))
    variables = list_variables(path)
    if as_json:
        return json.dumps(list(map(asdict, variables)), indent=1, default=str)  # `str` of dtypes
    rows = [["variable", "shape", "dtype", "size", ""]]
    for each in variables:
        assigned = "assigned" if each.is_assigned else "read"
        shape = str(list(each.shape))
        rows.append([each.name, shape, str(each.dtype), size_text(each.bytes), assigned])
    total = size_text(sum(each.bytes for each in variables))
    return "\n".join(
        [f"{plural(len(variables), 'variable')}, {total} unsharded", *indented_table(rows)]
    )
