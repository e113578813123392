"""The floating-point operations of a kernel of Pallas, the node `jax.pallas_call`.

If a kernel states its cost (`cost_estimate`), that cost is used. The body of any other kernel
counts once for each position of the grid, with the iterations of its loops at that position. Of the
branches of a `cond`, the one with the most operations counts. So blocks that a branch skips count,
as in the attention for TPUs. Blocks that a loop does not reach do not count, as in the attention
for GPUs.

A loop in a kernel often ends at an index that depends on the position in the grid: causal attention
reads the keys up to its queries. Integer arithmetic computes such an index from `program_id`, and
this module evaluates the arithmetic for a position. A loop that does not count up by one, or whose
bounds depend on data, counts as one iteration.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeAlias  # Any: jaxprs, since this package does not import JAX

from graphdist.ir.graph import Node
from graphdist.ir.types import dtype_name

KERNEL = "jax.pallas_call"

_ACCESSES = {"get", "swap", "masked_load", "masked_swap", "program_id", "num_programs"}

Flops: TypeAlias = Counter[str]
Position: TypeAlias = tuple[int, ...]
Known: TypeAlias = Mapping[Any, int]
"""The known integers at a position of the grid, by variable of the jaxpr."""

_MOST_POSITIONS = 1024
"""The largest number of positions that are counted. In larger grids they are evenly spaced."""

_AS_IN_OPERATOR = ("add", "sub", "mul", "neg", "lt", "le", "gt", "ge", "eq", "ne")
_ARITHMETIC: dict[str, Callable[..., int]] = {
    **{name: getattr(operator, name) for name in _AS_IN_OPERATOR},
    "div": lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
    "rem": lambda x, y: abs(x) % abs(y) * (-1 if x < 0 else 1),
    "min": min,
    "max": max,
    "sign": lambda x: (x > 0) - (x < 0),
    "and": operator.and_,
    "or": operator.or_,
    "not": operator.not_,
    "select_n": lambda which, *cases: cases[which],
    "clamp": lambda low, x, high: max(low, min(x, high)),
    "convert_element_type": int,
    "stop_gradient": int,
}


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
    counted = _grid_positions(body, grid)
    for position in counted:
        total.update(_of_jaxpr(body, is_move, _scalars(body, {}, position, grid)))
    points = prod(grid)
    return Counter({dtype: flops * points // len(counted) for dtype, flops in total.items()})


def _of_jaxpr(jaxpr: Any, is_move: Callable[[str], bool], known: Known) -> Flops:
    total: Flops = Counter()
    for equation in jaxpr.eqns:
        total.update(_of_equation(equation, is_move, known))
    return total


def _of_equation(equation: Any, is_move: Callable[[str], bool], known: Known) -> Flops:
    name, params = equation.primitive.name, equation.params
    bodies = [_of_jaxpr(nested, is_move, {}) for nested in _nested_jaxprs(equation)]
    if name == "cond":
        return max(bodies, key=Counter.total)
    if bodies:
        times = _loop_turns(equation, known) if name == "while" else params.get("length", 1)
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


def _grid_positions(jaxpr: Any, grid: Sequence[int]) -> list[Position]:
    """Return evenly spaced positions of a grid, over which a kernel's operations are averaged.

    On an axis that no loop's bounds can depend on, the positions have index 0 alone.
    """
    named = [(equation.primitive.name, equation.params) for equation in equations_of(jaxpr)]
    has_loop = any(name == "while" for name, _ in named)
    axes = {params["axis"] for name, params in named if has_loop and name == "program_id"}
    sizes = [size if axis in axes else 1 for axis, size in enumerate(grid)]
    # Sizes of grids are mostly even. An even step would select the same few indices in each row.
    step = -(-prod(sizes) // _MOST_POSITIONS) | 1
    return list(product(*map(range, sizes)))[::step]


def _scalars(jaxpr: Any, known: Known, position: Position, grid: Sequence[int]) -> Known:
    """Return the integers in a jaxpr that do not depend on data, for one position of the grid."""
    found = dict(known)
    for equation in jaxpr.eqns:
        values = _values(equation, found, position, grid)
        found.update(zip(equation.outvars, values, strict=False))
    return found


def _loop_turns(equation: Any, known: Known) -> int:
    """Return the number of iterations of a `while`, or 1 if its bounds are unknown."""
    params = equation.params
    cond, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    carried = equation.invars[params["cond_nconsts"] + params["body_nconsts"] :]
    if len(cond.eqns) != 1 or cond.eqns[0].primitive.name != "lt" or params["cond_nconsts"]:
        return 1
    ends = [_index(atom, cond.invars) for atom in cond.eqns[0].invars]
    if None in ends or not _counts_by_one(body, params["body_nconsts"], *ends):
        return 1
    start, stop = (_number(carried[index], known) for index in ends)
    return 1 if start is None or stop is None else max(stop - start, 0)


def _counts_by_one(body: Any, num_constants: int, counter: Any, end: Any) -> bool:
    carried = body.invars[num_constants:]
    if body.outvars[end] is not carried[end]:
        return False
    made = next((e for e in body.eqns if body.outvars[counter] in e.outvars), None)
    if made is None or made.primitive.name != "add":
        return False
    operands = made.invars
    return any(o is carried[counter] for o in operands) and any(_literal(o) == 1 for o in operands)


def _values(equation: Any, known: Known, position: Position, grid: Sequence[int]) -> Sequence[int]:
    """Return the results of an equation if all are known integers, else an empty sequence."""
    name = equation.primitive.name
    if name == "program_id":
        return [position[equation.params["axis"]]]
    if name == "num_programs":
        return [grid[equation.params["axis"]]]
    operands = [_number(atom, known) for atom in equation.invars]
    if None in operands or not operands:
        return []
    if name in ("jit", "pjit"):
        nested = equation.params["jaxpr"].jaxpr
        inside = _scalars(nested, dict(zip(nested.invars, operands, strict=True)), position, grid)
        results = [_number(atom, inside) for atom in nested.outvars]
        return [] if None in results else results
    if name not in _ARITHMETIC:
        return []
    return [int(_ARITHMETIC[name](*operands))]


def _number(atom: Any, known: Known) -> Any:
    literal = _literal(atom)
    # Literals have no hash, so they cannot be keys of `known`.
    return known.get(atom) if literal is None and not hasattr(atom, "val") else literal


def _literal(atom: Any) -> int | None:
    """Return the integer of a literal; None for a variable or any other literal."""
    if not hasattr(atom, "val") or atom.aval.shape or atom.aval.dtype.kind not in "iub":
        return None
    return int(atom.val)


def _index(atom: Any, variables: Sequence[Any]) -> int | None:
    return next((i for i, variable in enumerate(variables) if variable is atom), None)


def equations_of(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, each before those of the jaxprs nested in it."""
    for equation in jaxpr.eqns:
        yield equation
        for nested in _nested_jaxprs(equation):
            yield from equations_of(nested)


def _nested_jaxprs(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs nested in an equation."""
    for param in equation.params.values():
        for each in param if isinstance(param, tuple) else (param,):
            if hasattr(each, "eqns"):
                yield getattr(each, "jaxpr", each)
