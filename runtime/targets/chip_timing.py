"""The constants of predictions that are not among the published figures of chips.

`docs/estimates.md` compares predictions with published runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ChipTiming:
    """The constants of one kind of chip.

    An instruction that computes takes `slowdown` times the seconds of its operations or bytes. On
    TPUs these seconds are at least `cycle_share` of the compiler's cycles. On GPUs the start of an
    instruction takes `launch` seconds more. A kernel reaches `kernel_share` of the chip's peak.
    Links reach `link_share` of their bandwidth; a collective takes at least `link_start` seconds.
    Reads, writes and copies reach `copy_share` of the memory's bandwidth, copies to and from the
    host `host_rate` bytes per second. A step is expected to take between `low` and `high` times its
    predicted seconds.
    """

    slowdown: float = 1.0
    kernel_share: float = 0.5
    link_share: float = 0.8
    link_start: float = 2e-6
    copy_share: float = 0.8
    host_rate: float = 32e9
    launch: float = 0.0
    cycle_share: float = 0.5
    low: float = 0.6
    high: float = 1.1
    source: str = "not fitted"


def _of_runs(timing: ChipTiming, slowdown: float, runs: int, kind: str = "published") -> ChipTiming:
    source = f"fitted to {runs} {kind} runs"
    return replace(timing, slowdown=slowdown, low=0.82, high=1.22, source=source)


def _of_other_chips(timing: ChipTiming, slowdown: float) -> ChipTiming:
    source = "no published run of this chip: fitted to other chips"
    return replace(timing, slowdown=slowdown, low=0.7, high=1.4, source=source)


_TPU = ChipTiming(kernel_share=0.9)
_V6E = replace(_TPU, host_rate=50e9)
"""The host rate is that of PCIe of the fifth generation (docs.cloud.google.com/tpu/docs/v6e)."""
_GPU = ChipTiming(kernel_share=0.4, link_start=2e-5, copy_share=0.85, launch=2e-6)

TIMINGS: dict[str, ChipTiming] = {
    "v4": _of_other_chips(_TPU, 1.090),
    "v5e": _of_runs(_TPU, 1.125, runs=4),
    "v5p": _of_runs(_TPU, 1.100, runs=5),
    "v6e": _of_runs(_V6E, 1.05, runs=14),
    "tpu7x": _of_runs(_TPU, 1.115, runs=2),
    "a100": _of_runs(_GPU, 1.055, runs=5),
    "h100": _of_runs(_GPU, 1.175, runs=6),
    "h200": _of_runs(_GPU, 1.085, runs=6, kind="measured"),
    "b200": _of_other_chips(_GPU, 1.080),
}
"""The constants by chip name. `python -m graphdist.tools.truth` prints the slowdowns."""
