"""How often a loop gathers variables in slices that it takes in each step, if the user has said so.

The word passes through the loop's body as the parameter of a primitive, on one of the carried
values. The importer makes no node of the primitive; it writes the word on the loop, as `gather`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: tracers, and equations of JAX

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

loop_gather_p = Primitive("loop_gather")
loop_gather_p.def_abstract_eval(
    lambda x, *, gather: ShapedArray(x.shape, x.dtype, weak_type=x.weak_type)
)


def marked(carried: jax.Array, gather: str) -> jax.Array:
    """Return a carried value of a loop, for the loop to gather "once" or in "each" step."""
    found: jax.Array = loop_gather_p.bind(carried, gather=gather)
    return found


def gather_of(jaxpr: Any) -> str | None:
    """Return the word in the jaxpr of a loop's body; None without one."""
    found = (made for made in jaxpr.eqns if made.primitive is loop_gather_p)
    return next((str(equation.params["gather"]) for equation in found), None)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, gather: str) -> tuple[Any, Any]:
    result = loop_gather_p.bind(*primals, gather=gather)
    (tangent,) = tangents
    if type(tangent) is ad.Zero:
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, loop_gather_p.bind(tangent, gather=gather)


def _transposed(cotangent: Any, operand: Any, *, gather: str) -> list[Any]:
    is_zero = type(cotangent) is ad.Zero
    return [ad.Zero(operand.aval) if is_zero else loop_gather_p.bind(cotangent, gather=gather)]


def _batched(operands: Sequence[Any], dims: Sequence[int], *, gather: str) -> tuple[Any, int]:
    return loop_gather_p.bind(*operands, gather=gather), dims[0]


ad.primitive_jvps[loop_gather_p] = _jvp
ad.primitive_transposes[loop_gather_p] = _transposed
batching.primitive_batchers[loop_gather_p] = _batched
