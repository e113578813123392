"""The floating-point operations of a kernel of Pallas, the node `jax.pallas_call`.

If a kernel states its cost (`cost_estimate`), that cost is used. The body of any other kernel
counts once for each position of the grid, with the iterations of its loops at that position
(`kernel_loops.py`). Of the branches of a `cond`, the one with the most operations counts. So blocks
that a branch skips count, as in the attention for TPUs. Blocks that a loop does not reach do not
count, as in the attention for GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any  # Any: the body is a jaxpr, and this package does not import JAX

from graphdist.ir.graph import Node
from graphdist.ir.kernel_loops import Known, grid_positions, loop_turns, nested_jaxprs, scalars
from graphdist.ir.types import dtype_name

KERNEL = "jax.pallas_call"

_ACCESSES = {"get", "swap", "masked_load", "masked_swap", "program_id", "num_programs"}

Flops = Counter[str]


def kernel_flops(node: Node, is_move: Callable[[str], bool]) -> Flops:
    """Return the operations of a kernel by dtype.

    `is_move` says whether a primitive computes nothing. The operations of a stated cost have the
    dtype of the kernel's largest operand.
    """
    params: dict[str, Any] = dict(node.params)
    stated = params["cost_estimate"]
    if stated is not None:
        largest = max(node.operands, key=lambda operand: operand.type.bytes)
        return Counter({largest.type.dtype: int(stated.flops)})
    body, grid = params["jaxpr"], params["grid_mapping"].grid
    # A size that is known only at run time counts as 1.
    grid = tuple(size if isinstance(size, int) else 1 for size in grid)
    total: Flops = Counter()
    counted = grid_positions(body, grid)
    for position in counted:
        total.update(_of_jaxpr(body, is_move, scalars(body, {}, position, grid)))
    points = prod(grid)
    return Counter({dtype: flops * points // len(counted) for dtype, flops in total.items()})


def _of_jaxpr(jaxpr: Any, is_move: Callable[[str], bool], known: Known) -> Flops:
    total: Flops = Counter()
    for equation in jaxpr.eqns:
        total.update(_of_equation(equation, is_move, known))
    return total


def _of_equation(equation: Any, is_move: Callable[[str], bool], known: Known) -> Flops:
    name, params = equation.primitive.name, equation.params
    bodies = [_of_jaxpr(nested, is_move, {}) for nested in nested_jaxprs(equation)]
    if name == "cond":
        return max(bodies, key=Counter.total)
    if bodies:
        times = loop_turns(equation, known) if name == "while" else params.get("length", 1)
        total: Flops = sum(bodies, Counter())
        return Counter({dtype: count * times for dtype, count in total.items()})
    if name == "dot_general":
        ((contracted, _), _), left = params["dimension_numbers"], equation.invars[0].aval
        summed = prod(left.shape[dimension] for dimension in contracted)
        elements = prod(equation.outvars[0].aval.shape)
        return Counter({dtype_name(left.dtype): 2 * elements * summed})
    if name in _ACCESSES or is_move(name):
        return Counter()
    results = [atom.aval for atom in equation.outvars if hasattr(atom.aval, "dtype")]
    sizes = {dtype_name(aval.dtype): prod(aval.shape) for aval in results}
    return Counter({dtype: size for dtype, size in sizes.items() if dtype.startswith(("f", "bf"))})
