"""JAX primitives as operations of the graph: `jax.<name>`, one `Op` per primitive.

The `Op` holds the primitive. Only emission and evaluation use the primitive, to bind it.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.extend.core.primitives as jax_primitives
from jax.extend.core import Primitive

from graphdist.ir.errors import ParseError
from graphdist.ir.graph import Op

# A host callback is called for each replica and may return different values; XLA's own random
# generator has a state on each device.
_VARIES = frozenset({"io_callback", "rng_uniform"})

_IDENTITIES = frozenset({"device_put", "optimization_barrier"})

_by_name: dict[str, Primitive] = {}


@cache
def jax_op(primitive: Primitive, has_effect: bool = False) -> Op:
    """Return the operation of a primitive.

    >>> jax_op(jax_primitives.add_p).name
    'jax.add'
    """
    _by_name.setdefault(primitive.name, primitive)
    return Op(
        f"jax.{primitive.name}",
        has_effect=has_effect,
        varies=primitive.name in _VARIES,
        is_identity=primitive.name in _IDENTITIES,
        primitive=primitive,
    )


def resolve(name: str) -> Op:
    """Return the operation named `jax.<primitive>`, for the parser.

    Only JAX's public primitives and those of earlier traces are known. Raises `ParseError` for any
    other name.

    >>> resolve("jax.dot_general").primitive
    dot_general
    """
    short = name.removeprefix("jax.")
    primitive = _by_name.get(short) or _public_primitives().get(short)
    if primitive is None:
        raise ParseError(f"{name} is not a JAX operation seen in any trace of this process")
    return jax_op(primitive)


@cache
def optimization_barrier() -> Op:
    """Return the operation that keeps XLA from merging operations before it with those after it."""
    return resolve("jax.optimization_barrier")


@cache
def _public_primitives() -> dict[str, Primitive]:
    primitives = [value for value in vars(jax_primitives).values() if isinstance(value, Primitive)]
    # The primitive of a barrier has no public name, but the function that binds it has.
    primitives.append(jax.make_jaxpr(jax.lax.optimization_barrier)(0.0).eqns[0].primitive)
    return {primitive.name: primitive for primitive in primitives}
