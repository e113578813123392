"""The operands in which the results of an operation are linear.

A rule returns alternatives. Each alternative is a tuple of indices of operands in which the results
are linear together, while the other operands are constant: `add` has ((0, 1),), `mul` has ((0,),
(1,)). Linear means f(a x + b y) = a f(x) + b f(y) with real a and b, up to rounding. So the sum of
the results for several terms is the result for the sum of the terms. Where dtypes differ (`mul` to
another dtype), all of them are inexact. Conversions are not linear in the table, since the callers
of these rules decide whether a sum may be computed in another precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast  # Any: the mode of JAX's accesses by index

from graphdist.ir.graph import Node
from graphdist.ir.types import is_inexact, is_integer

Alternatives: TypeAlias = tuple[tuple[int, ...], ...]
LinearIn: TypeAlias = Callable[[Node], Alternatives]

_NOT_LINEAR: Alternatives = ()


def nowhere(node: Node) -> Alternatives:
    """Return that the operation is not linear."""
    return _NOT_LINEAR


def together(*operands: int) -> LinearIn:
    """Return the rule of operations that are linear in `operands` together, or in all if ()."""
    return lambda node: _if_of_numbers(node, (operands or tuple(range(len(node.operands))),))


def in_each(*operands: int) -> LinearIn:
    """Return the rule of operations that are linear in each of `operands` by itself."""
    return lambda node: _if_of_numbers(node, tuple((operand,) for operand in operands))


def _if_of_numbers(node: Node, alternatives: Alternatives) -> Alternatives:
    """Return `alternatives` if all values are inexact, or all integers of one dtype, else none."""
    places = {place for alternative in alternatives for place in alternative}
    values = (*(node.operands[place] for place in places), *node.results)
    dtypes = {value.type.dtype for value in values}
    are_inexact = all(map(is_inexact, dtypes))
    is_of_integers = len(dtypes) == 1 and all(map(is_integer, dtypes))
    return alternatives if are_inexact or is_of_integers else _NOT_LINEAR


def division(node: Node) -> Alternatives:
    """Return that a quotient is linear in the dividend if it is inexact."""
    return in_each(0)(node) if is_inexact(node.results[0].type.dtype) else _NOT_LINEAR


def cases(node: Node) -> Alternatives:
    """Return that a selection is linear in all its cases together, the operands from index 1."""
    return together(*range(1, len(node.operands)))(node)


def gathered(node: Node) -> Alternatives:
    """Return that a gather is linear in its operand if it fills in nothing, 0 or nan."""
    fill = cast(Any, node.params.get("fill_value"))
    is_filled = "FILL" in str(node.params["mode"])
    is_nan = is_inexact(node.results[0].type.dtype) and (fill is None or fill != fill)
    return in_each(0)(node) if not is_filled or is_nan or fill == 0 else _NOT_LINEAR


def scattered(node: Node) -> Alternatives:
    """Return that a scatter is linear in operand and updates together if indices are unique."""
    return together(0, 2)(node) if node.params["unique_indices"] else _NOT_LINEAR
