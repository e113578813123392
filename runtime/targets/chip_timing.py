"""How fast chips are beyond their published figures: the constants of predictions.

`docs/estimates.md` says how far predictions are off published runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChipTiming:
    """The constants of one kind of chip.

    What computes takes `slowdown` times the seconds of the compiler's cycles on a TPU, of its
    operations or bytes on a GPU, where it takes `launch` seconds more to start. A kernel reaches
    `kernel_share` of the chip's peak. Links reach `link_share` of their bandwidth; a collective
    takes at least `link_start` seconds. Copies, and what moves bytes on a GPU, reach `copy_share`
    of the memory's bandwidth, copies to the host and from there `host_rate` bytes a second. A step
    is expected to take between `low` and `high` of its prediction.
    """

    slowdown: float = 1.0
    kernel_share: float = 0.5
    link_share: float = 0.8
    link_start: float = 2e-6
    copy_share: float = 0.8
    host_rate: float = 32e9
    launch: float = 0.0
    low: float = 0.6
    high: float = 1.1
    source: str = "by the compiler's cycles"


_GPU = ChipTiming(
    kernel_share=0.4,
    link_start=2e-5,
    copy_share=0.85,
    launch=4e-6,
    source="by operations and bytes",
)

TIMINGS: dict[str, ChipTiming] = {
    "v4": ChipTiming(),
    "v5e": ChipTiming(),
    "v5p": ChipTiming(),
    "v6e": ChipTiming(),
    "tpu7x": ChipTiming(),
    "a100": _GPU,
    "h100": _GPU,
    "h200": _GPU,
    "b200": _GPU,
}
"""By the name of the chip."""
