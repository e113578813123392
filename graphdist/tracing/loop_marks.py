"""Marks on loops, for passes: what the user, or the caller of JAX's loop, wants of them.

* `gather`: how often the loop gathers variables in slices, "once" or in "each" step.
* `steps`: each step is one of a training loop, and computes what it computes alone, to the bit.

A mark passes through the loop's body as the parameter of a primitive, on a value that the body
takes. The importer makes no node of the primitive; it writes the mark on the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: tracers, and equations of JAX

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

loop_mark_p = Primitive("loop_mark")
loop_mark_p.def_abstract_eval(
    lambda x, **mark: ShapedArray(x.shape, x.dtype, weak_type=x.weak_type)
)


def marked(taken: jax.Array, **mark: str | bool) -> jax.Array:
    """Return a value that the body of a loop takes; the loop gets the mark."""
    found: jax.Array = loop_mark_p.bind(taken, **mark)
    return found


def marks_of(jaxpr: Any) -> dict[str, Any]:
    """Return the marks in the jaxpr of a loop's body, as `Scanning` has them."""
    found: dict[str, Any] = {}
    for equation in jaxpr.eqns:
        if equation.primitive is loop_mark_p:
            found.update(equation.params)
    return found


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **mark: Any) -> tuple[Any, Any]:
    result = loop_mark_p.bind(*primals, **mark)
    (tangent,) = tangents
    if type(tangent) is ad.Zero:
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, loop_mark_p.bind(tangent, **mark)


def _transposed(cotangent: Any, operand: Any, **mark: Any) -> list[Any]:
    is_zero = type(cotangent) is ad.Zero
    return [ad.Zero(operand.aval) if is_zero else loop_mark_p.bind(cotangent, **mark)]


def _batched(operands: Sequence[Any], dims: Sequence[int], **mark: Any) -> tuple[Any, int]:
    return loop_mark_p.bind(*operands, **mark), dims[0]


ad.primitive_jvps[loop_mark_p] = _jvp
ad.primitive_transposes[loop_mark_p] = _transposed
batching.primitive_batchers[loop_mark_p] = _batched
