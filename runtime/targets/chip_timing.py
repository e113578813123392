"""How fast chips are beyond their published peaks: clocks, and constants fitted to published runs.

`clock` is cycles a second, so that the compiler's cycles of a large matrix multiplication at the
peak of the matrix unit are the published peak: `python -m graphdist.tools.truth --clocks` shows it.
The other constants are fitted to published training runs (`docs/estimates.md`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChipTiming:
    """The constants of one kind of chip.

    A fusion takes `slowdown` times the compiler's cycles. A kernel reaches `kernel_share` of the
    chip's peak, links `link_share` of their bandwidth; a collective takes at least `link_start`
    seconds. `spread` is the relative error of estimates to expect, up and down.
    """

    clock: float
    slowdown: float = 1.0
    kernel_share: float = 0.3
    link_share: float = 0.8
    link_start: float = 2e-6
    copy_share: float = 0.8
    host_bandwidth: float = 32e9
    spread: float = 0.3
    source: str = "not fitted: there are no published runs in the table"


TIMINGS: dict[str, ChipTiming] = {
    "v4": ChipTiming(1.05e9),
    "v5e": ChipTiming(1.5e9),
    "v5p": ChipTiming(1.75e9),
    "v6e": ChipTiming(1.75e9),
    "tpu7x": ChipTiming(2.2e9),
}
"""By the name of the chip."""
