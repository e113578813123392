"""What each platform packs into common buffers, up to which size."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphdist.ir.graph import Node
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, ALL_REDUCE_OVER_CORES, REDUCE_SCATTER

ALL_REDUCES = ALL_REDUCE, ALL_REDUCE_OVER_CORES
"""The all_reduces that are packed."""


@dataclass(frozen=True, slots=True)
class PackLimits:
    """What a target packs into buffers of `buffer_bytes`.

    A target packs all_reduces of up to `largest_all_reduce` bytes, over replicas or over the cores
    of each replica, reduce_scatters and all_gathers of values of up to `largest_scatter_or_gather`
    bytes, and variables of up to `largest_variable` bytes; 0 packs none. If a buffer has more than
    `most_constant_starts` pieces, their starts are hidden from XLA (`runtime/pieces.py`); None
    hides no starts.
    """

    largest_all_reduce: int = 0
    buffer_bytes: int = 0
    largest_scatter_or_gather: int = 0
    largest_variable: int = 0
    most_constant_starts: int | None = None

    def at_most(self, bytes_per_pack: int) -> PackLimits:
        """Return the same limits with buffers of `bytes_per_pack` bytes; 0 changes nothing."""
        if not bytes_per_pack:
            return self
        return replace(
            self,
            buffer_bytes=bytes_per_pack,
            largest_all_reduce=min(self.largest_all_reduce, bytes_per_pack),
            largest_scatter_or_gather=min(self.largest_scatter_or_gather, bytes_per_pack),
        )

    def starts_at_run_time(self, pieces: int) -> bool:
        """Return whether to hide the starts of this many pieces from XLA.

        >>> PACK_LIMITS["cpu"].starts_at_run_time(400)
        True
        """
        return self.most_constant_starts is not None and pieces > self.most_constant_starts

    def largest(self, node: Node) -> int:
        """Return the largest size of a collective's full value that is packed; 0 if none is."""
        if node.op in ALL_REDUCES:
            return self.largest_all_reduce
        return self.largest_scatter_or_gather if node.op in (REDUCE_SCATTER, ALL_GATHER) else 0

    def takes(self, node: Node) -> bool:
        """Return whether a node is a collective that is packed."""
        if node.op not in (*ALL_REDUCES, REDUCE_SCATTER, ALL_GATHER):
            return False
        full = node.results[0] if node.op is ALL_GATHER else node.operands[0]
        return full.type.bytes <= self.largest(node)


PACK_LIMITS = {
    "cpu": PackLimits(
        largest_all_reduce=256 * 2**10,
        buffer_bytes=8 * 2**20,
        largest_scatter_or_gather=256 * 2**10,
        largest_variable=16 * 2**10,
        most_constant_starts=8,
    ),
    "gpu": PackLimits(
        largest_all_reduce=256 * 2**10,
        buffer_bytes=8 * 2**20,
        largest_scatter_or_gather=256 * 2**10,
        largest_variable=16 * 2**10,
    ),
    "tpu": PackLimits(buffer_bytes=8 * 2**20, largest_scatter_or_gather=256 * 2**10),
}
"""The limits by platform; a platform that is not listed packs nothing."""
