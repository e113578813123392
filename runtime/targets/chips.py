"""The accelerators that programs are compiled for ahead of time, and what their vendors publish.

Bandwidths of interconnects are published for both directions together. Here they are for one
direction, half of that, since a collective sends and receives at once. Memory is the amount that
the compiler lets a program use where that is known, else the published amount. `source` names the
page or paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Chip:
    """One kind of accelerator.

    Figures are per chip: bytes, bytes per second, floating-point operations per second.
    `devices` is the number of devices JAX shows for it. `interconnect_bandwidth` is between the
    chips of a slice or host, over all links of a chip; `network_bandwidth` is between slices or
    hosts; both in one direction. `configuration` is the compiler's name of the way the chip is
    used, where that is not its default.
    """

    name: str
    vendor: str
    description: str
    devices: int
    dimensions: int
    chips_per_host: int
    largest: int
    memory_bytes: int
    memory_bandwidth: float
    peak_flops: dict[str, float] = field(hash=False)
    interconnect_bandwidth: float
    network_bandwidth: float
    source: str
    examples: tuple[str, ...]
    configuration: str = ""

    @property
    def links(self) -> int:
        """Return the number of a TPU chip's links to other chips, two along each dimension.

        A GPU's links go to a switch: it reaches all others of its host over all of them.
        """
        return 2 * self.dimensions if self.platform == "tpu" else 1

    @property
    def platform(self) -> str:
        """Return JAX's name of the platform."""
        return "tpu" if self.vendor == "Google" else "gpu"

    def peak(self, dtype: str) -> float:
        """Return the peak of a dtype in FLOP/s; one that is not listed runs as bf16 does.

        >>> CHIPS["v5e"].peak("bf16") / 1e12
        197.0
        """
        return self.peak_flops.get(dtype, self.peak_flops["bf16"])


def _tpu(
    name: str,
    devices: int,
    dimensions: int,
    largest: int,
    memory_gib: float,
    memory_gbps: float,
    tflops: float,
    both_ways_gbps: float,
    network_gbits: float,
    source: str,
    examples: tuple[str, ...],
    configuration: str = "",
) -> Chip:
    return Chip(
        name,
        "Google",
        f"Google TPU {name.removeprefix('tpu')}",
        devices,
        dimensions,
        4,
        largest,
        int(memory_gib * GIB),
        memory_gbps * 1e9,
        {"bf16": tflops * 1e12},
        both_ways_gbps * 1e9 / 2,
        network_gbits * 1e9 / 8,
        source,
        examples,
        configuration,
    )


def _gpu(
    name: str,
    memory_bytes: int,
    memory_gbps: float,
    bf16_tflops: float,
    tf32_tflops: float,
    f64_tflops: float,
    both_ways_gbps: float,
    network_gbits: float,
    source: str,
) -> Chip:
    return Chip(
        name,
        "NVIDIA",
        f"NVIDIA {name.upper()} SXM",
        1,
        2,
        8,
        16384,
        memory_bytes,
        memory_gbps * 1e9,
        {
            "bf16": bf16_tflops * 1e12,
            "f16": bf16_tflops * 1e12,
            "f32": tf32_tflops * 1e12,
            "f64": f64_tflops * 1e12,
        },
        both_ways_gbps * 1e9 / 2,
        network_gbits * 1e9 / 8,
        source,
        (f"{name}:1x8", f"{name}:8x8"),
    )


_DOCS = "docs.cloud.google.com/tpu/docs/"

CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        _tpu(
            "v4", 1, 3, 4096, 30.75, 1228, 275, 600, 50,
            "Jouppi et al. 2023, TPU v4, arXiv:2304.01433, table 4; " + _DOCS + "v4; "
            "network: as v5p; memory: what the compiler leaves of 32 GiB",
            ("v4:2x2x1", "v4:4x4x4", "v4:8x8x8"),
            configuration="megacore",  # as TPU VMs have it: both cores are one device
        ),
        _tpu(
            "v5e", 1, 2, 256, 15.75, 819, 197, 400, 25,
            _DOCS + "v5e; memory: what the compiler leaves of 16 GiB",
            ("v5e:2x2", "v5e:4x4", "v5e:8x8", "v5e:16x16"),
        ),
        _tpu(
            "v5p", 1, 3, 8960, 95.74, 2765, 459, 1200, 50,
            _DOCS + "v5p; memory: what the compiler leaves",
            ("v5p:2x2x1", "v5p:4x4x4", "v5p:8x8x8", "v5p:16x16x24"),
        ),
        _tpu(
            "v6e", 1, 2, 256, 31.25, 1638, 918, 800, 100,
            _DOCS + "v6e and " + _DOCS + "tpu7x; memory: what the compiler leaves of 32 GiB",
            ("v6e:2x2", "v6e:8x8", "v6e:16x16"),
        ),
        _tpu(
            "tpu7x", 2, 3, 9216, 189.5, 7380, 2307, 1200, 100,
            _DOCS + "tpu7x; memory: what the compiler leaves of 192 GiB",
            ("tpu7x:2x2x1", "tpu7x:4x4x4", "tpu7x:8x8x8"),
        ),
        _gpu(
            "a100", 85_100_068_864, 2039, 312, 156, 19.5, 600, 200,
            "NVIDIA A100 80GB data sheet; network: DGX A100 data sheet",
        ),
        _gpu(
            "h100", 84_942_979_072, 3352, 989, 494, 67, 900, 400,
            "NVIDIA H100 data sheet; network: DGX H100 data sheet",
        ),
        _gpu(
            "h200", 151_397_597_184, 4800, 989, 494, 67, 900, 400,
            "NVIDIA H200 data sheet; network: DGX H200 data sheet",
        ),
        _gpu(
            "b200", 191_514_411_008, 7672, 2250, 1125, 37, 1800, 400,
            "NVIDIA DGX B200 data sheet; memory: openxla/xla target_config/specs/b200.txtpb",
        ),
    )
}  # fmt: skip
"""By name; rates are dense, without structured sparsity, and f32 on NVIDIA's is TF32."""
