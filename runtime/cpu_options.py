"""XLA's options for CPUs, chosen by what the graph computes.

*Products.* XLA gives products, convolutions and reductions to a library (YNNPACK), each alone. In a
graph with attention and its gradient, steps are up to 30 % shorter if the library computes products
together with what surrounds them, and XLA the reductions. With attention alone they are up to 15 %
shorter if XLA computes both itself. Attention is recognised by its batched products, and its
gradient by two of them with a common operand: the gradient of the weighted values is one, of which
both the weights' and the values' gradients are computed. Products of bfloat16 are the library's,
alone or not, if the processor has such instructions (`cpu_operations.py`).

*Convolutions.* In graphs without attention, XLA computes convolutions if most of their work is on
many features: their gradients take up to half the time. In other graphs XLA's choice is right
(`docs/benchmarks.md` has the figures).

*Memory.* XLA allocates all temporaries of a step as one block. If it has 32 MiB or more, the C
library gives it back to the system after each step (`freed_memory.py`). Blocks of the size of the
largest value stay in the process, and of half as much more where images are copied with padding:
XLA warns of each that does not fit. XLA writes such a program, but cannot read it.

An option that this version of XLA refuses is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, NamedTuple  # Any: options of XLA

import jax

from graphdist.ir.analyses import operations, walk
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.jax_parameters import feature_dimensions, parameter
from graphdist.runtime.cpu_convolutions import CONVOLUTION
from graphdist.runtime.cpu_operations import LIBRARY, PRODUCT, has_bfloat16_instructions
from graphdist.runtime.cpu_pools import GRADIENT_OF_POOL, POOLS
from graphdist.runtime.freed_memory import BLOCK_BYTES, MOST_BYTES_KEPT

CONVOLUTIONS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"
PRODUCTS_AND_SURROUNDINGS = f"LIBRARY_FUSION_TYPE_DOT,{CONVOLUTIONS}"
PRODUCTS_OF_BFLOAT16 = f"LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,{PRODUCTS_AND_SURROUNDINGS}"
ALL_BUT_CONVOLUTIONS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
MANY_FEATURES = 16 if jax.__version_info__ >= (0, 12) else 32
"""From so many features on, XLA's convolutions take less time than the library's."""
BLOCK = "xla_multiheap_size_constraint_per_heap"
_WINDOWED = {CONVOLUTION, GRADIENT_OF_POOL, *POOLS}
"""Operations that copy an image with padding around it, which is larger than any value."""
ONE_BLOCK = -1
"""The value of `BLOCK` with which XLA does not divide temporaries."""


class ChosenOption(NamedTuple):
    """An option of XLA that graphdist has chosen for a graph, and the reason."""

    name: str
    value: str | int
    reason: str

    def __str__(self) -> str:
        return f"compiler option {self.name}={self.value}: {self.reason}"


def cpu_options(graph: Graph, platform: str) -> tuple[ChosenOption, ...]:
    """Return the options for an SPMD graph on a platform: none if it is not "cpu"."""
    if platform != "cpu":
        return ()
    products = _option_of_products(graph)
    return (*(products or _option_of_convolutions(graph)), *_option_of_blocks(graph))


def block_bytes(graph: Graph) -> int:
    """Return the size in bytes of the blocks into which XLA divides the temporaries of a graph.

    It is 0 if the values of the graph have no `MOST_BYTES_KEPT` together, or one of them has.
    """
    sizes = [_most_bytes(result) for node in walk(graph) for result in node.results]
    if sum(sizes) < MOST_BYTES_KEPT:
        return 0
    largest = -(-max(sizes) // 2**20) * 2**20
    if largest >= MOST_BYTES_KEPT:
        return 0
    if any(node.op.name in _WINDOWED for node in walk(graph)):
        largest = min(largest * 3 // 2, MOST_BYTES_KEPT - 2**20)
    return max(BLOCK_BYTES, largest)


def divides_temporaries(options: Mapping[str, Any]) -> bool:
    """Return whether XLA divides the temporaries of a program with these options into blocks."""
    return options.get(BLOCK, ONE_BLOCK) != ONE_BLOCK


def _most_bytes(value: Value) -> int:
    """Return the bytes of a value, which XLA may compute in float32."""
    return max(value.type.bytes, 4 * prod(value.type.shape))


def _option_of_blocks(graph: Graph) -> tuple[ChosenOption, ...]:
    size = block_bytes(graph)
    if not size or not _is_accepted(BLOCK, size):
        return ()
    reason = f"the process keeps temporaries in blocks of less than {MOST_BYTES_KEPT >> 20} MiB"
    return (ChosenOption(BLOCK, size, reason),)


def _option_of_products(graph: Graph) -> tuple[ChosenOption, ...]:
    if PRODUCT not in operations(graph):
        return ()
    batched = [node for node in walk(graph) if _is_batched(node)]
    uses = Counter(
        operand for node in batched for operand in set(node.operands) if type(operand) is Value
    )
    has_gradient = any(count > 1 for count in uses.values())
    value = PRODUCTS_AND_SURROUNDINGS if has_gradient else CONVOLUTIONS
    if has_bfloat16_instructions() and any(_is_of_bfloat16(node) for node in walk(graph)):
        value = PRODUCTS_OF_BFLOAT16
    if not batched or not _is_accepted(LIBRARY, value):
        return ()
    what = "attention and its gradient have" if has_gradient else "attention has"
    reason = f"the graph has {len(batched)} batched product{'s' * (len(batched) > 1)}, as {what}"
    return (ChosenOption(LIBRARY, value, reason),)


def _option_of_convolutions(graph: Graph) -> tuple[ChosenOption, ...]:
    if CONVOLUTION not in operations(graph):
        return ()
    multiplications = Counter[bool]()
    for node in walk(graph):
        if node.op.name == CONVOLUTION and feature_dimensions(node):
            has_many = _fewest_features(node) >= MANY_FEATURES
            multiplications[has_many] += _multiplications(node)
    has_many = multiplications[True] > multiplications[False]
    if not has_many or not _is_accepted(LIBRARY, ALL_BUT_CONVOLUTIONS):
        return ()
    reason = f"most of the convolutions' work is on {MANY_FEATURES} features or more"
    return (ChosenOption(LIBRARY, ALL_BUT_CONVOLUTIONS, reason),)


def _fewest_features(node: Node) -> int:
    """Return the features of a convolution's image or result, of which it has fewer.

    The gradient of a kernel is a convolution, whose batch are the features of the image.
    """
    numbers = parameter(node, "dimension_numbers")
    image, kernel = (operand.type.shape for operand in node.operands)
    result = node.results[0].type.shape
    of_kernel, of_result = (
        prod(shape[dimension] for dimension in spec[2:])
        for shape, spec in ((kernel, numbers.rhs_spec), (result, numbers.out_spec))
    )
    is_gradient = of_kernel > of_result
    before = image[numbers.lhs_spec[0]] if is_gradient else kernel[numbers.rhs_spec[1]]
    return min(before, result[numbers.out_spec[1]])


def _multiplications(node: Node) -> int:
    """Return the multiplications of a convolution, those with padding too."""
    kernel, result = node.operands[1].type, node.results[0].type
    return (
        result.size * kernel.size // kernel.shape[parameter(node, "dimension_numbers").rhs_spec[0]]
    )


def _is_batched(node: Node) -> bool:
    """Return whether a node is a product of several matrices at once."""
    if node.op.name != PRODUCT:
        return False
    (batch, _), shape = parameter(node, "dimension_numbers")[1], node.operands[0].type.shape
    return prod(shape[dimension] for dimension in batch) > 1


def _is_of_bfloat16(node: Node) -> bool:
    """Return whether a node is a product of values of bfloat16."""
    return node.op.name == PRODUCT and {operand.type.dtype for operand in node.operands} == {"bf16"}


@cache
def _is_accepted(name: str, value: str | int) -> bool:
    """Return whether this version of XLA accepts an option."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
