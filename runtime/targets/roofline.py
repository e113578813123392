"""An estimate of a step's time from published peaks: a roofline.

    compute       sum over dtypes of FLOPs / peak
    memory        bytes of memory traffic / memory bandwidth
    interconnect  sum over collectives of the bytes that a device sends / bandwidth
                  (`graphdist.ir.collective_bytes`)
    step          max(compute, memory) + interconnect

The links that a collective uses depend on the members of its groups (`routes.py`).

Real steps are slower, because they do not reach the peaks. Where XLA overlaps collectives with
computation, steps can also be faster, down to the largest of the three terms.
Williams, Waterman and Patterson 2009, Roofline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphdist.ir.collective_bytes import Exchange
from graphdist.runtime.targets.routes import route_of
from graphdist.runtime.targets.topologies import Topology


@dataclass(frozen=True, slots=True)
class Roofline:
    """An estimate, in seconds per step."""

    compute: float
    memory: float
    interconnect: float

    @property
    def step(self) -> float:
        """Return the seconds of the step."""
        return max(self.compute, self.memory) + self.interconnect

    @property
    def bottleneck(self) -> str:
        """Return the largest term: "compute", "memory" or "interconnect"."""
        return max("compute", "memory", "interconnect", key=lambda term: getattr(self, term))

    @property
    def efficiency(self) -> float:
        """Return the share of the step's time that is not spent in collectives."""
        return max(self.compute, self.memory) / self.step if self.step else 1.0


def estimate_step(
    topology: Topology,
    flops: Mapping[str, int],
    memory_bytes: int,
    collectives: Iterable[Exchange],
) -> Roofline:
    """Return the estimate for one device's FLOPs, bytes and collectives."""
    chip = topology.chip
    return Roofline(
        compute=sum(count * chip.devices / chip.peak(dtype) for dtype, count in flops.items()),
        memory=memory_bytes * chip.devices / chip.memory_rate,
        interconnect=sum(collective_seconds_at_peak(topology, made) for made in collectives),
    )


def collective_seconds_at_peak(topology: Topology, made: Exchange) -> float:
    """Return the seconds that an exchange takes.

    >>> from graphdist.runtime.targets.topologies import find_topology
    >>> made = Exchange("all_reduce", 2**30, range(4))
    >>> round(collective_seconds_at_peak(find_topology("v5e:2x2"), made) * 1e3, 2)
    16.11
    """
    chip, route = topology.chip, route_of(topology, made.members)
    near, far = made.bytes_sent_over(route.num_slices)
    return near / route.bandwidth + far * chip.devices / chip.network
