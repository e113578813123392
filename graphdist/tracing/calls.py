"""Calls: equations that only wrap a jaxpr, and are inlined.

A jaxpr is imported after differentiation, so that custom rules of differentiation are not needed
any more. The recomputation of a `jax.checkpoint` keeps its barrier: otherwise XLA would merge it
with the first computation, and keep the values in memory that the checkpoint was to free.
"""

from __future__ import annotations

from typing import Any  # Any: equations of JAX are untyped

from jax.extend import core as jex

from graphdist.ir.graph import GraphVariable, Operand, Value
from graphdist.tracing.importer import Environment, Importer
from graphdist.tracing.jax_ops import optimization_barrier
from graphdist.tracing.user_lines import source_of_equation

CALLS = frozenset(
    {
        "jit",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "remat2",
        "checkpoint",
    }
)
"""The names of JAX's call primitives."""

_CHECKPOINTS = ("checkpoint", "remat2")


def called_jaxpr(equation: Any) -> jex.ClosedJaxpr:
    """Return the jaxpr that a call wraps."""
    params = equation.params
    jaxpr = params.get("jaxpr", params.get("call_jaxpr"))
    return jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jex.ClosedJaxpr(jaxpr, ())


def import_call(importer: Importer, equation: Any, environment: Environment) -> None:
    """Add the nodes of the jaxpr that a call wraps."""
    closed, params = called_jaxpr(equation), equation.params
    arguments = [importer.resolved(atom, environment) for atom in equation.invars]
    before = importer.in_checkpoint, importer.is_replay
    if equation.primitive.name in _CHECKPOINTS:
        importer.in_checkpoint = True
        importer.is_replay = params["differentiated"] or importer.is_replay
        if params["differentiated"] and params["prevent_cse"]:
            arguments = _behind_barrier(importer, equation, arguments)
    inner: Environment = dict(zip(closed.jaxpr.invars, arguments, strict=True))
    importer.bind_constants(closed, inner)
    importer.run(closed.jaxpr, inner, equation)
    importer.in_checkpoint, importer.is_replay = before
    for outside, inside in zip(equation.outvars, closed.jaxpr.outvars, strict=True):
        environment[outside] = importer.operand(inside, inner)


def _behind_barrier(
    importer: Importer, equation: Any, arguments: list[Operand | GraphVariable]
) -> list[Operand | GraphVariable]:
    values = [argument for argument in arguments if isinstance(argument, Value)]
    if not values:
        return arguments
    results = importer.builder.add(
        optimization_barrier(),
        values,
        at=source_of_equation(equation),
        types=[value.type for value in values],
    )
    behind = dict(zip(values, results, strict=True))
    return [behind.get(a, a) if isinstance(a, Value) else a for a in arguments]
