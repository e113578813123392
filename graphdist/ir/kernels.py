"""What a kernel of Pallas computes: the floating-point operations of a `jax.pallas_call` node.

A kernel that states its cost (`cost_estimate`) is taken at its word. Of any other, the body is
counted once for each point of the grid. So blocks that the kernel skips, such as those above the
diagonal of causal attention, count too, as they do in attention without a kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from typing import Any  # Any: the body is a jaxpr, and this package does not import JAX

from graphdist.ir.graph import Node
from graphdist.ir.types import dtype_name

KERNEL = "jax.pallas_call"

_ACCESSES = {"get", "swap", "masked_load", "masked_swap", "program_id", "num_programs"}

Flops = Counter[str]


def kernel_flops(node: Node, is_move: Callable[[str], bool]) -> Flops:
    """Return the operations of a kernel by dtype; `is_move` knows primitives that compute nothing.

    A cost that the kernel states counts as operations on its largest operand's dtype.
    """
    params: dict[str, Any] = dict(node.params)
    stated = params["cost_estimate"]
    if stated is not None:
        largest = max(node.operands, key=lambda operand: operand.type.bytes)
        return Counter({largest.type.dtype: int(stated.flops)})
    body = _of_jaxpr(params["jaxpr"], is_move)
    points = prod(size for size in params["grid_mapping"].grid if isinstance(size, int))
    return _times(body, points)


def _of_jaxpr(jaxpr: Any, is_move: Callable[[str], bool]) -> Flops:
    total: Flops = Counter()
    for equation in jaxpr.eqns:
        total.update(_of_equation(equation, is_move))
    return total


def _of_equation(equation: Any, is_move: Callable[[str], bool]) -> Flops:
    name, params = equation.primitive.name, equation.params
    if name == "cond":
        arms = [_of_jaxpr(branch, is_move) for branch in params["branches"]]
        return max(arms, key=lambda arm: arm.total())
    bodies = [_of_jaxpr(nested, is_move) for nested in _nested(params)]
    if bodies:
        return _times(sum(bodies, Counter()), params["length"] if name == "scan" else 1)
    if name == "dot_general":
        return _of_matmul(equation)
    if name in _ACCESSES or is_move(name):
        return Counter()
    results = [atom.aval for atom in equation.outvars if hasattr(atom.aval, "dtype")]
    return Counter({_dtype(aval): prod(aval.shape) for aval in results if _is_float(aval)})


def _nested(params: dict[str, Any]) -> Iterator[Any]:
    for param in params.values():
        if hasattr(param, "eqns"):
            yield param


def _of_matmul(equation: Any) -> Flops:
    ((contracted, _), _) = equation.params["dimension_numbers"]
    left = equation.invars[0].aval
    summed = prod(left.shape[dimension] for dimension in contracted)
    return Counter({_dtype(left): 2 * prod(equation.outvars[0].aval.shape) * summed})


def _dtype(aval: Any) -> str:
    return dtype_name(aval.dtype)


def _is_float(aval: Any) -> bool:
    return _dtype(aval).startswith(("f", "bf"))


def _times(flops: Flops, times: int) -> Flops:
    return Counter({dtype: count * times for dtype, count in flops.items()})
