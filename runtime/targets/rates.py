"""How long a chip takes for operations, bytes and collectives: the rates of all predictions.

The published figures of a chip are in `chips.py`, the shares of them that steps reach in
`chip_timing.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdist.ir.collective_bytes import Exchange
from graphdist.runtime.targets.chip_timing import TIMINGS, ChipTiming
from graphdist.runtime.targets.routes import collective_seconds_at_peak
from graphdist.runtime.targets.topologies import Topology

_FILLED_IN_A_CYCLE = 80
"""The bytes that a `pad` writes in a cycle: libtpu 0.0.42 states 76 on v5e, 88 on v6e."""


@dataclass(frozen=True, slots=True)
class ChipRates:
    """The rates of one device of a topology.

    >>> from graphdist.runtime.targets.topologies import find_topology
    >>> rates = ChipRates.of(find_topology("v5e:4x4"))
    >>> round(rates.products("bf16", 2 * 8192**3) * 1e3, 2), round(rates.bytes(2**30) * 1e3, 2)
    (5.97, 1.64)
    """

    topology: Topology
    timing: ChipTiming

    @classmethod
    def of(cls, topology: Topology) -> ChipRates:
        """Return the rates with the constants of the topology's chip."""
        return cls(topology, TIMINGS[topology.chip.name])

    def products(self, dtype: str, operations: int) -> float:
        """Return the seconds of matrix products, at the rate that large products reach."""
        chip = self.topology.chip
        return operations * chip.devices / chip.reached(dtype) if operations else 0.0

    def bytes(self, moved: float) -> float:
        """Return the seconds to read and write bytes of the device's memory."""
        chip = self.topology.chip
        return moved * chip.devices / (chip.memory_rate * self.timing.copy_share)

    def filling(self, filled: float) -> float:
        """Return the seconds to fill stacks of so many bytes with zeros; 0 on GPUs."""
        chip = self.topology.chip
        if chip.platform != "tpu" or chip.clock is None:
            return 0.0
        return filled / _FILLED_IN_A_CYCLE / chip.clock * self.timing.cycle_share

    def kernel(self, dtype: str, operations: int) -> float:
        """Return the seconds of a kernel of Pallas, which is opaque to the compiler."""
        chip = self.topology.chip
        return operations * chip.devices / (chip.peak(dtype) * self.timing.kernel_share)

    def collective(self, exchange: Exchange) -> float:
        """Return the seconds of one run of a collective."""
        seconds = collective_seconds_at_peak(self.topology, exchange)
        return max(seconds / self.timing.link_share, self.timing.link_start)

    def host(self, moved: float) -> float:
        """Return the seconds to copy bytes to or from the memory of the host."""
        return moved / self.timing.host_rate
