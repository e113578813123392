"""Marks on loops: requests to passes, made by the user or by the code that makes the loop.

* `gather`: how often the loop gathers sharded variables, "once" or in "each" iteration.
* `steps`: each iteration is a step of a training loop, and gives the same bits as a single step.

A mark is a parameter of a primitive that returns its operand, a value in the body of the loop. The
importer makes no node for the primitive. The mark becomes a parameter of the loop's node.
"""

from __future__ import annotations

from typing import Any  # Any: tracers, and equations of JAX

import jax
from jax.interpreters import batching

from graphdist.tracing.primitives import linear_primitive, same_type


def _transpose(cotangent: Any, aval: Any, **mark: Any) -> Any:
    return loop_mark_p.bind(cotangent, **mark)


loop_mark_p = linear_primitive("loop_mark", same_type, _transpose)
batching.defvectorized(loop_mark_p)


def marked(value: jax.Array, **mark: str | bool) -> jax.Array:
    """Return `value` with a mark for the loop whose body uses the returned value."""
    result: jax.Array = loop_mark_p.bind(value, **mark)
    return result


def marks_of(jaxpr: Any) -> dict[str, Any]:
    """Return the marks in the jaxpr of a loop's body, as keyword arguments of `Scanning`."""
    marks: dict[str, Any] = {}
    for equation in jaxpr.eqns:
        if equation.primitive is loop_mark_p:
            marks.update(equation.params)
    return marks
