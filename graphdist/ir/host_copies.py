"""Copies between the memory of a device and the memory of its host: `jax.device_put` in a step.

`jax.checkpoint` policies that offload values make such copies, too.
"""

from __future__ import annotations

from graphdist.ir.graph import Node
from graphdist.ir.jax_parameters import parameter
from graphdist.ir.opaque_placeholders import Placeholder

DEVICE_PUT = "jax.device_put"


def copies_to_host(node: Node) -> bool:
    """Return whether a node copies its operand to the memory of the host.

    The result is False for a graph that was read from a text, which does not hold the memory.
    """
    if node.op.name != DEVICE_PUT:
        return False
    targets = parameter(node, "devices")
    return not isinstance(targets, Placeholder) and any(map(_is_host, targets))


def _is_host(target: object) -> bool:
    """Return whether a memory space, a memory kind or a sharding is in the memory of the host."""
    kind = getattr(target, "memory_kind", None) or getattr(target, "name", None) or ""
    return "host" in str(kind).lower()
