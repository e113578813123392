"""The cost of a graph: floating-point operations, bytes moved, and how often each node runs.

The cost is counted on the graph, since XLA's own cost analysis counts the body of a loop once and
differs between platforms. The rules:

* a matrix multiplication is 2 operations for each element of the result and each index summed over;
  a convolution is 2 for each product of a weight and an element of its operand, without the zeros
  of padding and dilation; a decomposition is `DECOMPOSITIONS` for each element of the matrix and of
  its shorter side (Golub and Van Loan, "Matrix Computations"; iterative ones are estimates); a
  reduction is 1 for each element of its operand; any other operation that computes floats is 1 for
  each element of its results; kernels of Pallas are counted by `kernels.py`;
* the body of a `scan` counts once for each iteration, the body of a `while` only once, since the
  number of its iterations depends on data;
* of the branches of a `cond`, the branch with the most operations counts. It counts 1/H if the
  `cond` synchronizes local steps in every H-th step;
* memory traffic is the bytes that must move between the chip and its memory if XLA fuses all
  elementwise work: the inputs and outputs of the program, and the operands and results of matrix
  multiplications, convolutions, gathers, scatters, sorts, kernels and collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, prod

from graphdist.ir.errors import VerifyError
from graphdist.ir.graph import Graph, Node
from graphdist.ir.jax_parameters import parameter
from graphdist.ir.kernels import KERNEL, kernel_flops
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.operation_table import TABLE
from graphdist.ir.ops import COND, SCAN
from graphdist.ir.types import is_inexact

PRODUCT, _SOLVE = "jax.dot_general", "jax.triangular_solve"
DECOMPOSITIONS = {
    "jax.cholesky": Fraction(1, 3),
    "jax.lu": Fraction(2, 3),
    _SOLVE: Fraction(1),
    "jax.tridiagonal": Fraction(4, 3),
    "jax.qr": Fraction(2),
    "jax.geqrf": Fraction(2),
    "jax.householder_product": Fraction(2),
    "jax.hessenberg": Fraction(10, 3),
    "jax.eigh": Fraction(9),
    "jax.svd": Fraction(21),
    "jax.eig": Fraction(25),
    "jax.schur": Fraction(25),
}
"""The operations of a decomposition, for each element of the matrix and of its shorter side."""

_HEAVY = {
    PRODUCT,
    *DECOMPOSITIONS,
    "jax.conv_general_dilated",
    "jax.gather",
    "jax.scatter",
    "jax.scatter-add",
    "jax.sort",
    KERNEL,
}
_COUNTED_BY = {"jax.conv_general_dilated": "dimension_numbers", KERNEL: "jaxpr"}
"""The parameter that the count of a node needs, and that the text of a graph does not hold."""
_REDUCTIONS = {f"jax.reduce_{name}" for name in ("sum", "max", "min", "prod")}
_MOVES = {name for name, row in TABLE.items() if row.only_moves} | {
    f"jax.{name}" for name in ("convert_element_type", "gather", "iota", "stop_gradient")
}


@dataclass
class Cost:
    """The operations and the bytes of one replica in a step.

    `flops` counts operations by dtype; a matrix multiplication has the dtype of its operands.
    `bytes` is the memory traffic.
    """

    flops: Counter[str] = field(default_factory=Counter)
    bytes: int = 0

    def add(self, other: Cost, times: int | Fraction) -> None:
        """Add `times` times another cost."""
        for dtype, count in other.flops.items():
            self.flops[dtype] += round(count * times)
        self.bytes += round(other.bytes * times)

    @property
    def total_flops(self) -> int:
        """Return the operations of all dtypes together."""
        return sum(self.flops.values())

    @property
    def main_dtype(self) -> str:
        """Return the dtype of the most operations; "bf16" if there are none."""
        return max(self.flops, key=lambda dtype: self.flops[dtype], default="bf16")


def cost(graph: Graph) -> Cost:
    """Return the cost of one step of a graph on one replica.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.mul(%x, %x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> cost(graph)
    Cost(flops=Counter({'f32': 3}), bytes=24)
    """
    total = _body(graph)
    total.bytes += sum(value.type.bytes for value in graph.inputs)
    total.bytes += sum(output.type.bytes for output in graph.outputs)
    return total


def node_cost(node: Node) -> Cost:
    """Return the cost of running a node once on one replica, its nested graphs included.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.mul(%x, %x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> node_cost(graph.nodes[0]).total_flops
    3
    """
    total = Cost()
    _add_node(node, total)
    return total


def executions(graph: Graph) -> Iterator[tuple[Node, int, int]]:
    """Yield (node, times, every) for every node: each `every`-th step runs the node `times` times.

    Each branch of a `cond` counts as if it ran. `every` is 1, except in a `cond` that synchronizes
    local steps.
    """
    pending: list[tuple[Sequence[Node], int, int]] = [(graph.nodes, 1, 1)]
    while pending:
        nodes, times, every = pending.pop()
        for node in nodes:
            yield node, times, every
            inside = times * trip_count(node), every * steps_per_run(node)
            pending += [(nested.nodes, *inside) for nested in node.graphs]


def _body(graph: Graph) -> Cost:
    total = Cost()
    for node in graph.nodes:
        _add_node(node, total)
    return total


def _add_node(node: Node, total: Cost) -> None:
    if node.op.name == "cond":
        most = max(map(_body, node.graphs), key=lambda body: body.total_flops)
        total.add(most, Fraction(1, steps_per_run(node)))
    elif node.graphs:
        for nested in node.graphs:
            total.add(_body(nested), trip_count(node))
    else:
        try:
            _count(node, total)
        except (LookupError, TypeError, ValueError) as error:  # of a text, which anyone may write
            problem = f"{node.op.name} does not take these parameters: {error!r}"
            raise VerifyError(problem, source=node.source) from error


def steps_per_run(node: Node) -> int:
    """Return H if `node` is a `cond` that synchronizes local steps in every H-th step, else 1."""
    return COND.of(node).every if node.op is COND else 1


def trip_count(node: Node) -> int:
    """Return how often a node runs its body: the length of a `scan`; 1 for a `while` or `cond`."""
    return SCAN.of(node).length if node.op is SCAN else 1


def _count(node: Node, total: Cost) -> None:
    name = node.op.name
    if name in _HEAVY or node.op.is_collective:
        total.bytes += sum(value.type.bytes for value in (*node.operands, *node.results))
    if isinstance(node.params.get(_COUNTED_BY.get(name, ""), ()), Placeholder | None):
        return  # the graph was read from a text, which does not hold the parameter
    if name == PRODUCT:
        total.flops[node.operands[0].type.dtype] += _of_matmul(node)
    elif name == "jax.conv_general_dilated":
        total.flops[node.operands[0].type.dtype] += _of_convolution(node)
    elif name in DECOMPOSITIONS:
        matrix = node.operands[0].type
        # A triangular solve counts for each element of its other operand.
        size = node.operands[name == _SOLVE].type.size
        total.flops[matrix.dtype] += round(DECOMPOSITIONS[name] * size * min(matrix.shape[-2:]))
    elif name == KERNEL:
        total.flops.update(kernel_flops(node, lambda primitive: f"jax.{primitive}" in _MOVES))
    elif name not in _MOVES:
        for value in node.operands if name in _REDUCTIONS else node.results:
            if is_inexact(value.type.dtype):
                total.flops[value.type.dtype] += value.type.size


def _of_matmul(node: Node) -> int:
    shape = node.operands[0].type.shape
    ((contracted, _), _) = parameter(node, "dimension_numbers")
    return 2 * node.results[0].type.size * prod(shape[dimension] for dimension in contracted)


def _of_convolution(node: Node) -> int:
    """Return 2 operations for each product of a weight and an element of the unpadded operand.

    Positions along different dimensions are independent. So the number of products for one batch
    entry and one pair of features is the product of the numbers along each dimension.
    """
    names = ("dimension_numbers", "window_strides", "padding", "lhs_dilation", "rhs_dilation")
    numbers, *window = (parameter(node, name) for name in names)
    size, weights = (operand.type.shape for operand in node.operands)
    outputs = node.results[0].type.shape
    spatial = (spec[2:] for spec in (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec))
    along = [
        _pairs(size[of_operand], weights[of_weights], outputs[of_result], stride, low, *dilations)
        for of_operand, of_weights, of_result, stride, (low, _), *dilations in zip(
            *spatial, *window, strict=True
        )
    ]
    batch, features = (outputs[dimension] for dimension in numbers.out_spec[:2])
    return 2 * batch * features * weights[numbers.rhs_spec[1]] * prod(along)


def _pairs(
    size: int, weights: int, outputs: int, stride: int, low: int, dilation: int, apart: int
) -> int:
    """Return the number of products of a weight and an element of the operand along a dimension.

    Output o and weight w use position o * stride + w * apart - low of the dilated operand, which
    has an element at each multiple of `dilation` up to (size - 1) * dilation, and zeros between.

    >>> _pairs(size=4, weights=3, outputs=4, stride=1, low=1, dilation=1, apart=1)
    10
    """
    period = dilation // gcd(stride, dilation)
    total = 0
    for weight in range(weights):
        start = weight * apart - low
        first = next((o for o in range(period) if (o * stride + start) % dilation == 0), None)
        if first is None:
            continue
        lowest = max(-(start // stride), 0)
        highest = min(((size - 1) * dilation - start) // stride, outputs - 1)
        # Every `period`th output from lowest to highest uses an element.
        total += max((highest - first) // period - (lowest - 1 - first) // period, 0)
    return total
