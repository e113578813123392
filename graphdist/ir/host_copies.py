"""Copies between the memory of a device and the memory of its host.

They are our own `copy_to`, and `jax.device_put` in a step, which policies of `jax.checkpoint` that
offload values make, too.
"""

from __future__ import annotations

from graphdist.ir.graph import Node
from graphdist.ir.jax_parameters import parameter
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.ops import COPY_TO

DEVICE_PUT = "jax.device_put"


def copies_to_host(node: Node) -> bool:
    """Return whether a node copies its operand to the memory of the host."""
    return "host" in _memory(node)


def copies_from_host(node: Node) -> bool:
    """Return whether a node copies its operand from the memory of the host."""
    return _memory(node) == "device"


def _memory(node: Node) -> str:
    """Return the kind of memory to which a node copies its operand; "" if it states none.

    A graph that was read from a text does not hold the memory.
    """
    if node.op is COPY_TO:
        return COPY_TO.of(node).memory
    if node.op.name != DEVICE_PUT:
        return ""
    targets = parameter(node, "devices")
    target = None if isinstance(targets, Placeholder) else targets[0]
    kind = getattr(target, "memory_kind", None) or getattr(target, "name", None) or ""
    return str(kind).lower()
