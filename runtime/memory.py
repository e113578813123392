"""What a compiled step needs in the memory of each device, as XLA says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any  # Any: what JAX returns has no type of its own

from jax.stages import Compiled


@dataclass(frozen=True, slots=True)
class Memory:
    """What a step needs on each device, in bytes, as XLA says.

    `alias_bytes` is the part of the arguments that outputs reuse (donated variables).
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_bytes: int

    def needed_bytes(self, platform: str) -> int:
        """Return the most that is held at once.

        The TPU compiler says it. What others call peak leaves some of the temporary memory out, so
        there it is all of it together.
        """
        if platform == "tpu" and self.peak_bytes:
            return self.peak_bytes
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes


def memory_of(compiled: Compiled) -> Memory:
    """Return what a program that JAX compiled needs on each device."""
    analysis: Any = compiled.memory_analysis()
    return Memory(
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes,
        analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
        getattr(analysis, "peak_memory_in_bytes", 0),
    )
