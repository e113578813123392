"""Readers of the parameters of JAX's operations, which are plain mappings without types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast  # Any: JAX's parameters, whose classes are not imported here

from graphdist.ir.graph import Node
from graphdist.ir.opaque_placeholders import Placeholder


def parameter(node: Node, name: str) -> Any:
    """Return the parameter `name`, which the operation of `node` must have."""
    return node.params[name]


def integers(node: Node, name: str) -> tuple[int, ...]:
    """Return the parameter `name`, which is an integer or a sequence of integers, as a tuple."""
    value = node.params[name]
    items = cast("Sequence[int]", value if isinstance(value, tuple | list) else (value,))
    return tuple(map(int, items))


def is_plain(node: Node) -> bool:
    """Return whether a conversion, reshape or broadcast has no permutation and no sharding."""
    params = node.params
    return params.get("sharding") is None and params.get("dimensions") is None


def mode(node: Node) -> str:
    """Return the name of the mode in which a `gather` or scatter treats indices out of range."""
    return parameter(node, "mode").name


def fill_value(node: Node) -> float | bool | None:
    """Return the scalar that a `gather` returns at indices out of range; None if unstated."""
    value = parameter(node, "fill_value")
    return value.item() if hasattr(value, "item") else value


def exchanged_product(node: Node) -> dict[str, Any]:
    """Return the parameters of a product whose two operands are exchanged."""
    contracted, batch = parameter(node, "dimension_numbers")
    precision = parameter(node, "precision")
    return {
        **node.params,
        "dimension_numbers": (contracted[::-1], batch[::-1]),
        "precision": precision[::-1] if isinstance(precision, tuple) else precision,
    }


def feature_dimensions(node: Node) -> tuple[tuple[int, int], ...]:
    """Return the dimensions of batch and features of a convolution's operand and of its result.

    Return () if the graph was read from a text with other dimensions than its arrays have.
    """
    numbers = parameter(node, "dimension_numbers")
    if type(numbers) is Placeholder:
        return ()
    found = numbers.lhs_spec[:2], numbers.out_spec[:2]
    ranks = len(node.operands[0].type.shape), len(node.results[0].type.shape)
    fits = all(len(each) == 2 and max(each) < rank for each, rank in zip(found, ranks, strict=True))
    return found if fits else ()
