"""The accelerators that programs are compiled for ahead of time, with their published figures.

`CHIPS` is one table, with the source of each figure beside the figure. Figures are numbers per
chip; rates are dense, without structured sparsity. Bandwidths of links and networks are published
as the sum of both directions. The table has half of that sum, the bandwidth of one direction,
because a collective sends and receives at once. Memory is the amount that the compiler lets a
program use, or the published amount if that is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Self

from graphdist.runtime.targets.gpu_targets import GPU_TARGETS

GIB = 2**30


class Figure(float):
    """A number; `source` is the page, paper or program that states the number."""

    source: str

    def __new__(cls, value: float, source: str) -> Self:
        """Return the number with its source."""
        figure = super().__new__(cls, value)
        figure.source = source
        return figure

    def __reduce__(self) -> tuple[type[Self], tuple[float, str]]:  # for copies and pickles
        return type(self), (float(self), self.source)


@dataclass(frozen=True, slots=True)
class Chip:
    """One kind of accelerator.

    Figures are per chip, in bytes, bytes per second, operations per second and hertz. `devices` is
    the number of devices that JAX shows for a chip. `memory` are the bytes that a program may use,
    `memory_rate` the bytes per second between the chip and its memory. A chip has `links` links to
    the other chips of its slice or host, or to their switch. Each link has the bandwidth `link`;
    `network` is the bandwidth between slices or hosts; both are for one direction.

    `closes_at` is the length at which a row of TPU chips is closed to a ring. In two dimensions,
    the rows along each side of this length are closed. In three, all rows are closed if all sides
    are multiples of this length. `configuration` is the compiler's name for the mode of the chip,
    if it is not the default. `product` are the operations per second that large products of
    bfloat16 were measured to reach.
    """

    name: str
    vendor: str
    devices: int
    dimensions: int
    chips_per_host: int
    largest: int
    examples: tuple[str, ...]
    memory: Figure
    memory_rate: Figure
    peaks: dict[str, Figure] = field(hash=False)
    link: Figure
    links: int
    network: Figure
    clock: Figure | None = None
    closes_at: Figure | None = None
    configuration: str = ""
    product: Figure | None = None

    @property
    def description(self) -> str:
        """Return the chip's name in words."""
        if self.platform == "tpu":
            return f"Google TPU {self.name.removeprefix('tpu')}"
        return f"NVIDIA {self.name.upper()} SXM"

    @property
    def platform(self) -> str:
        """Return JAX's name of the platform."""
        return "tpu" if self.vendor == "Google" else "gpu"

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of memory that a program may use."""
        return int(self.memory)

    @property
    def interconnect_bandwidth(self) -> float:
        """Return the bytes per second over all links of the chip, in one direction."""
        return self.link * self.links

    def peak(self, dtype: str) -> float:
        """Return the peak of a dtype in FLOP/s; a dtype that is not listed has the peak of bf16.

        >>> CHIPS["v5e"].peak("bf16") / 1e12
        197.0
        """
        return self.peaks.get(dtype, self.peaks["bf16"])

    def reached(self, dtype: str) -> float:
        """Return the operations per second that large products of a dtype reach.

        Products of every dtype are assumed to reach the same share of the peak as products of bf16.

        >>> CHIPS["a100"].reached("bf16") / 1e12
        271.2
        """
        bf16 = self.peaks["bf16"]
        return self.peak(dtype) * ((self.product or bf16) / bf16)

    @property
    def sources(self) -> dict[str, str]:
        """Return the source of each figure, by the name of the figure.

        >>> CHIPS["v5e"].sources["clock"]
        'Austin et al. 2025, How to scale your model, chapter 2'
        """
        named = [(each.name, getattr(self, each.name)) for each in fields(self)]
        figures = {name: figure for name, figure in named if isinstance(figure, Figure)}
        figures |= {f"peak of {dtype}": peak for dtype, peak in self.peaks.items()}
        return {name: figure.source for name, figure in figures.items()}


def _gbps(both_ways: float, source: str, links: int) -> Figure:
    """Return one link's bytes per second in one direction.

    `both_ways` are the gigabytes per second of all links in both directions.
    """
    return Figure(both_ways * 1e9 / 2 / links, f"{both_ways:g} GB/s over {links} links, {source}")


def _nic(gbits: float, source: str) -> Figure:
    return Figure(gbits * 1e9 / 8, source)


_DOCS = "docs.cloud.google.com/tpu/docs/"
_COMPILER = "the limit that libtpu states when a program is too large"
_FROM_CYCLES = (
    "the clock at which the cycles that libtpu states of a large product, 524,288 operations each, "
    "are the peak"
)
_PRODUCT = 184.3 / 197
"""The share of the peak of a v5e that large products of bfloat16 reach."""
_PRODUCT_SOURCE = (
    "what XLA takes longer for 8192^3 than for 4096^3 on v5e, docs.jax.dev, Pallas, matrix "
    "multiplication"
)
_TRACED = "yangwhale/gpu-tpu-pedia tpu/v7_perf/chay_gemm_benchmark_simple"
_PAPER = "Jouppi et al. 2023, TPU v4, arXiv:2304.01433, table 4"
_SCALING_BOOK = "Austin et al. 2025, How to scale your model, chapter 2"
_ROWS = Figure(16, f"{_SCALING_BOOK}; AI-Hypercomputer/maxtext, accelerator_to_spec_map.py")
_CUBES = Figure(4, f"{_DOCS}v5p: slices of 4x4x4 chips and more; {_SCALING_BOOK}")

_TPUS = (
    Chip(
        "v4", "Google", 1, 3, 4, 4096, ("v4:2x2x1", "v4:4x4x4", "v4:8x8x8"),
        memory=Figure(30.75 * GIB, _COMPILER),
        memory_rate=Figure(1200e9, f"{_DOCS}v4"),
        peaks={"bf16": Figure(275e12, f"{_DOCS}v4")},
        product=Figure(275e12 * _PRODUCT, "as much of the peak as v5e reaches"),
        link=Figure(50e9, _PAPER),
        links=6,
        network=_nic(50, "taken from v5p: none is published"),
        clock=Figure(1.05e9, _PAPER),
        closes_at=_CUBES,
        configuration="megacore",  # the mode on TPU VMs: both cores are one device
    ),
    Chip(
        "v5e", "Google", 1, 2, 4, 256, ("v5e:2x2", "v5e:4x4", "v5e:8x8", "v5e:16x16"),
        memory=Figure(15.75 * GIB, _COMPILER),
        memory_rate=Figure(819e9, f"{_DOCS}v5e"),
        peaks={"bf16": Figure(197e12, f"{_DOCS}v5e")},
        product=Figure(197e12 * _PRODUCT, _PRODUCT_SOURCE),
        link=_gbps(400, f"{_DOCS}v5e", 4),
        links=4,
        network=_nic(25, f"6.4 Tbit/s of 256 chips, {_DOCS}v5e"),
        clock=Figure(1.5e9, _SCALING_BOOK),
        closes_at=_ROWS,
    ),
    Chip(
        "v5p", "Google", 1, 3, 4, 8960, ("v5p:2x2x1", "v5p:4x4x4", "v5p:8x8x8", "v5p:16x16x24"),
        memory=Figure(95.74 * GIB, _COMPILER),
        memory_rate=Figure(2765e9, f"{_DOCS}v5p"),
        peaks={"bf16": Figure(459e12, f"{_DOCS}v5p")},
        product=Figure(459e12 * _PRODUCT, "as much of the peak as v5e reaches"),
        link=_gbps(1200, f"{_DOCS}v5p", 6),
        links=6,
        network=_nic(50, f"{_DOCS}v5p"),
        clock=Figure(1.75e9, f"the peak of 8 matrix units of 128 x 128, {_DOCS}v5p"),
        closes_at=_CUBES,
    ),
    Chip(
        "v6e", "Google", 1, 2, 4, 256, ("v6e:2x2", "v6e:8x8", "v6e:16x16"),
        memory=Figure(31.25 * GIB, _COMPILER),
        memory_rate=Figure(1638e9, f"{_DOCS}v6e"),
        peaks={"bf16": Figure(918e12, f"{_DOCS}v6e")},
        product=Figure(727.7e12, f"8192^3 in 1.511 ms, {_TRACED}/results_trace_test.csv"),
        link=_gbps(800, f"{_DOCS}v6e", 4),
        links=4,
        network=_nic(100, f"{_DOCS}tpu7x"),
        clock=Figure(1.75e9, _FROM_CYCLES),
        closes_at=_ROWS,
    ),
    Chip(
        "tpu7x", "Google", 2, 3, 4, 9216, ("tpu7x:2x2x1", "tpu7x:4x4x4", "tpu7x:8x8x8"),
        memory=Figure(189.5 * GIB, _COMPILER),
        memory_rate=Figure(7380e9, f"{_DOCS}tpu7x"),
        peaks={"bf16": Figure(2307e12, f"{_DOCS}tpu7x")},
        product=Figure(2 * 1081.3e12, f"8192^3 in 1.017 ms, {_TRACED}/results_v7_trace.csv"),
        link=_gbps(1200, f"{_DOCS}tpu7x", 6),
        links=6,
        network=_nic(100, f"{_DOCS}tpu7x"),
        clock=Figure(2.2e9, _FROM_CYCLES),
        closes_at=_CUBES,
    ),
)  # fmt: skip


def _gpu(
    name: str,
    sheet: str,
    memory_rate: float,
    tflops: tuple[float, float, float],
    nvlink: tuple[float, int],
    network: Figure,
    product: Figure,
) -> Chip:
    """Return a GPU; `tflops` are the peaks of bf16 and f16, of f32 as TF32, and of f64."""
    half, single, double = tflops
    both_ways, links = nvlink
    described = f"openxla/xla, target_config/specs, {GPU_TARGETS[name].description}"
    return Chip(
        name, "NVIDIA", 1, 2, 8, 16384, (f"{name}:1x8", f"{name}:8x8"),
        memory=Figure(GPU_TARGETS[name].memory_bytes, described),
        memory_rate=Figure(memory_rate, sheet),
        peaks={
            "bf16": Figure(half * 1e12, sheet),
            "f16": Figure(half * 1e12, sheet),
            "f32": Figure(single * 1e12, sheet),
            "f64": Figure(double * 1e12, sheet),
        },
        link=_gbps(both_ways, sheet, links),
        links=links,
        network=network,
        clock=Figure(GPU_TARGETS[name].clock_ghz * 1e9, described),
        product=product,
    )  # fmt: skip


def _measured(tflops: float, of: str) -> Figure:
    return Figure(tflops * 1e12, f"{of}, stas00/ml-engineering, compute/accelerator/README.md")


_GPUS = (
    _gpu(
        "a100", "NVIDIA A100 80GB data sheet", 2039e9, (312, 156, 19.5), (600, 12),
        _nic(200, "DGX A100 data sheet"), _measured(271.2, "1024 x 10240 x 5120 on A100 SXM"),
    ),
    _gpu(
        "h100", "NVIDIA H100 data sheet", 3352e9, (989, 494, 67), (900, 18),
        _nic(400, "DGX H100 data sheet"), _measured(794.5, "2048 x 2048 x 13312 on H100 SXM"),
    ),
    _gpu(
        "h200", "NVIDIA H200 data sheet", 4800e9, (989, 494, 67), (900, 18),
        _nic(400, "DGX H200 data sheet"), _measured(794.5, "taken from H100"),
    ),
    _gpu(
        "b200", "NVIDIA DGX B200 data sheet", 7672e9, (2250, 1125, 37), (1800, 18),
        _nic(400, "NVIDIA DGX B200 data sheet"), _measured(1745, "the largest on B200 SXM"),
    ),
)  # fmt: skip

HOST_BYTES: dict[str, Figure] = {
    "tpu": Figure(128 * GIB, "the limit that libtpu 0.0.42 states when a program keeps more there")
}
"""The most bytes of the host's memory that a program for one chip of a platform may use."""
CHIPS: dict[str, Chip] = {chip.name: chip for chip in (*_TPUS, *_GPUS)}
"""All chips by name."""
