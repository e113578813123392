"""Which operations XLA's compiler for CPUs gives to a library, chosen by what the graph computes.

XLA gives products, convolutions and reductions to a library (YNNPACK), each alone. In a graph with
attention, steps are up to 30 % shorter if the library computes products together with what
surrounds them, and XLA the reductions. In other graphs they are up to 15 % longer
(`docs/benchmarks.md` has the figures). Attention is recognised by its batched products. An option
that this version of XLA refuses is left out.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import NamedTuple

import jax

from graphdist.ir.analyses import operations, walk
from graphdist.ir.graph import Graph, Node
from graphdist.ir.jax_parameters import parameter

_PRODUCT = "jax.dot_general"
LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
PRODUCTS_AND_SURROUNDINGS = "LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"


class ChosenOption(NamedTuple):
    """An option of XLA that graphdist has chosen for a graph, and the reason."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"compiler option {self.name}={self.value}: {self.reason}"


def library_options(graph: Graph, platform: str) -> tuple[ChosenOption, ...]:
    """Return the options for an SPMD graph on a platform, such as "cpu"."""
    if platform != "cpu" or _PRODUCT not in operations(graph):
        return ()
    batched = sum(map(_is_batched, walk(graph)))
    if not batched or not _is_accepted(LIBRARY, PRODUCTS_AND_SURROUNDINGS):
        return ()
    reason = f"the graph has {batched} batched product{'s' * (batched > 1)}, as attention has"
    return (ChosenOption(LIBRARY, PRODUCTS_AND_SURROUNDINGS, reason),)


def _is_batched(node: Node) -> bool:
    """Return whether a node is a product of several matrices at once."""
    if node.op.name != _PRODUCT:
        return False
    (batch, _), shape = parameter(node, "dimension_numbers")[1], node.operands[0].type.shape
    return prod(shape[dimension] for dimension in batch) > 1


@cache
def _is_accepted(name: str, value: str) -> bool:
    """Return whether this version of XLA accepts an option."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
