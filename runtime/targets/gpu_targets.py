"""The description of an absent GPU for XLA: its `GpuTargetConfig`, as text.

The numbers come from XLA's own repository, from `xla/backends/gpu/target_config/specs`:
`a100_sxm_80.txtpb`, `h100_sxm.txtpb`, `h200.txtpb` and `b200.txtpb`. Fields that only XLA's cost
models read are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

CUDA_RUNTIME = (12, 9)


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """One kind of GPU: sizes in bytes, bandwidth in bytes per second, clock in GHz."""

    description: str
    compute_capability: int
    core_count: int
    fpus_per_core: int
    memory_bytes: int
    memory_bandwidth: int
    l2_cache_bytes: int
    clock_ghz: float
    shared_memory_per_core: int
    shared_memory_per_block_optin: int

    def as_text(self) -> str:
        """Return the description that the CUDA plugin accepts in place of a GPU."""
        features = "ACCELERATED_FEATURES" if self.compute_capability >= 9 else "NONE"
        runtime_major, runtime_minor = CUDA_RUNTIME
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024
              threads_per_warp: 32
              shared_memory_per_block: 49152
              shared_memory_per_core: {self.shared_memory_per_core}
              threads_per_core_limit: 2048
              core_count: {self.core_count}
              fpus_per_core: {self.fpus_per_core}
              block_dim_limit_x: 2147483647
              block_dim_limit_y: 65535
              block_dim_limit_z: 65535
              memory_bandwidth: {self.memory_bandwidth}
              l2_cache_size: {self.l2_cache_bytes}
              clock_rate_ghz: {self.clock_ghz}
              device_memory_size: {self.memory_bytes}
              shared_memory_per_block_optin: {self.shared_memory_per_block_optin}
              cuda_compute_capability {{
                major: {self.compute_capability}
                feature_extension: {features}
              }}
              registers_per_core_limit: 65536
              registers_per_block_limit: 65536
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 8 }}
            runtime_version {{ major: {runtime_major} minor: {runtime_minor} }}
            device_description_str: "{self.description}"
        """


_HOPPER = GpuTarget(
    "NVIDIA H100 80GB HBM3", 9, 132, 128, 84_942_979_072, 3_352_320_000_000, 52_428_800, 1.98,
    233_472, 232_448,
)  # fmt: skip

GPU_TARGETS = {
    "a100": GpuTarget(
        "NVIDIA A100-SXM4-80GB", 8, 108, 64, 85_100_068_864, 2_039_040_000_000, 41_943_040, 1.41,
        167_936, 166_912,
    ),
    "h100": _HOPPER,
    "h200": replace(
        _HOPPER,
        description="NVIDIA H200",
        memory_bytes=151_397_597_184,
        memory_bandwidth=4_800_000_000_000,
    ),
    "b200": GpuTarget(
        "NVIDIA B200", 10, 148, 128, 191_514_411_008, 7_672_320_000_000, 132_644_864, 1.965,
        233_472, 232_448,
    ),
}  # fmt: skip
