"""`graphdist-compile --list-topologies`: chips, their figures, and the sources of these."""

from __future__ import annotations

import json
from typing import Any  # Any: JSON

from graphdist.program.amounts import count_text, size_text
from graphdist.runtime.targets.chips import CHIPS, Chip
from graphdist.tools.comparisons import table


def topology_table(*, as_json: bool) -> str:
    """Return the table of chips and topologies, with the sources of its figures."""
    if as_json:
        return json.dumps({chip.name: _figures(chip) for chip in CHIPS.values()}, indent=1)
    header = [
        "chip",
        "devices",
        "most chips",
        "memory",
        "memory/s",
        "bf16 FLOP/s",
        "link/s",
        "net/s",
    ]
    rows = [
        [
            chip.name,
            str(chip.devices),
            str(chip.largest),
            size_text(chip.memory_bytes),
            f"{chip.memory_bandwidth / 1e9:.0f} GB",
            count_text(chip.peak("bf16")),
            f"{chip.interconnect_bandwidth / 1e9:.0f} GB",
            f"{chip.network_bandwidth / 1e9:.1f} GB",
        ]
        for chip in CHIPS.values()
    ]
    notes = [
        f"{chip.name:<6} {', '.join(chip.examples)}\n       {chip.source}"
        for chip in CHIPS.values()
    ]
    return "\n".join(
        [
            *table([header, *rows]),
            "",
            "Figures are of a chip; links and network in one direction. TPU topologies are",
            "chips in a torus, GPU topologies hosts x GPUs, in any shape of whole hosts.",
            "",
            *notes,
        ]
    )


def _figures(chip: Chip) -> dict[str, Any]:
    return {
        "devices": chip.devices,
        "largest": chip.largest,
        "memory_bytes": chip.memory_bytes,
        "memory_bandwidth": chip.memory_bandwidth,
        "peak_flops": chip.peak_flops,
        "interconnect_bandwidth": chip.interconnect_bandwidth,
        "network_bandwidth": chip.network_bandwidth,
        "examples": list(chip.examples),
        "source": chip.source,
    }
