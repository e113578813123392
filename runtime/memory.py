"""The memory of each device that a compiled step needs, as XLA reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any  # Any: JAX's analysis has no public type

from jax.stages import Compiled


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a step needs on each device, in bytes, as XLA reports it.

    `alias_bytes` is the part of the arguments that outputs reuse (donated variables).
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_bytes: int

    def needed_bytes(self, platform: str) -> int:
        """Return the most memory that is in use at once.

        The TPU compiler reports it. The peak of other compilers leaves out some temporary memory,
        so for them it is the sum of all memory.
        """
        if platform == "tpu" and self.peak_bytes:
            return self.peak_bytes
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes


def memory_of(compiled: Compiled) -> Memory:
    """Return the memory that a program compiled by JAX needs on each device."""
    analysis: Any = compiled.memory_analysis()
    return Memory(
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes,
        analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
        getattr(analysis, "peak_memory_in_bytes", 0),
    )
