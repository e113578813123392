"""The trace of one replica variant, as a list of equations to compare with other variants'.

Replicas may differ in shapes, or use their replica id as a Python value. Equal replicas form one
*variant*, and each variant is traced once. This module turns a variant's trace into a list of
equations. It inlines calls of `jit`, so that equal equations are recognised. It also inlines every
call that contains a synchronization point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: equations, avals and parameters of JAX are untyped

import jax
import numpy as np
from jax.extend import core as jex

from graphdist.tracing.control_flow import CALLS, called_jaxpr
from graphdist.tracing.named_collectives import is_over_replicas, lowered_collective, size_in_scope
from graphdist.tracing.slots import Slot
from graphdist.tracing.synchronization_points import holds_synchronization_point
from graphdist.tracing.user_lines import with_lines_of, within_scope_of

Equation: TypeAlias = Any
Atom: TypeAlias = Any

_SMALL_CONSTANT = 1 << 16
"""Constants up to this many bytes are compared by value, larger ones by identity."""


@dataclass(slots=True)
class VariantTrace:
    """The trace of a variant: its equations, and the slots of the values known so far."""

    equations: list[Equation]
    returned: list[Atom]
    slots: dict[Any, Slot]


def variant_trace(
    closed: jex.ClosedJaxpr, arguments: Sequence[Slot], constants: dict[Any, Any]
) -> VariantTrace:
    """Return a variant's trace; `constants` collects the constants of all variants, each once."""
    trace = VariantTrace([], [], dict(zip(closed.jaxpr.invars, arguments, strict=True)))
    trace.returned = _inline(closed, {}, trace, constants)
    return trace


def _inline(
    closed: jex.ClosedJaxpr,
    names: dict[Any, Atom],
    trace: VariantTrace,
    known: dict[Any, Any],
    call: Equation | None = None,
) -> list[Atom]:
    """Add the equations of a jaxpr to the trace; return its results.

    `names` maps the jaxpr's inputs to atoms of the trace. Every result gets a new variable, since a
    jaxpr that is called twice is inlined twice, and two values must not share a variable.
    """
    for variable, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        names[variable] = jex.Var(variable.aval)
        shape = getattr(variable.aval, "shape", ())
        trace.slots[names[variable]] = Slot(_unique(constant, known), shape)

    def renamed(atom: Atom) -> Atom:
        return atom if isinstance(atom, jex.Literal) else names.get(atom, atom)

    for equation in closed.jaxpr.eqns:
        if call is not None:
            equation = with_lines_of(call, within_scope_of(call, equation))
        operands = [renamed(atom) for atom in equation.invars]
        inner = _inlined_jaxpr(equation)
        if inner is not None:
            inside = dict(zip(inner.jaxpr.invars, operands, strict=True))
            results = _inline(inner, inside, trace, known, equation)
            names.update(zip(equation.outvars, results, strict=True))
            continue
        outputs = [jex.Var(variable.aval) for variable in equation.outvars]
        names.update(zip(equation.outvars, outputs, strict=True))
        trace.equations.append(equation.replace(invars=operands, outvars=outputs))
    return [renamed(atom) for atom in closed.jaxpr.outvars]


def _inlined_jaxpr(equation: Equation) -> jex.ClosedJaxpr | None:
    """Return the jaxpr that replaces a call or one of JAX's collectives; else None.

    A call is replaced if it is a `jit`, or contains a synchronization point. Any other call stays,
    since its rules of differentiation, or the barrier of a checkpoint, would be lost.
    """
    if is_over_replicas(equation):
        return lowered_collective(equation, size_in_scope(equation))
    name = equation.primitive.name
    if name not in CALLS or (name != "jit" and not holds_synchronization_point(equation)):
        return None
    return called_jaxpr(equation)


def _unique(constant: Any, known: dict[Any, Any]) -> Any:
    """Return one object for equal constants, so that equal equations are recognised."""
    if isinstance(constant, jax.core.Tracer) or not isinstance(constant, np.ndarray | jax.Array):
        return constant
    is_extended = jax.numpy.issubdtype(constant.dtype, jax.dtypes.extended)
    if constant.nbytes > _SMALL_CONSTANT or is_extended:
        return constant
    array = np.asarray(constant)
    return known.setdefault((array.dtype, array.shape, array.tobytes()), constant)


def used(equations: Iterable[Equation]) -> dict[Any, None]:
    """Return the variables that equations use, in order."""
    atoms = (atom for equation in equations for atom in equation.invars)
    return dict.fromkeys(atom for atom in atoms if not isinstance(atom, jex.Literal))


def needed(equations: Sequence[Equation], atoms: Iterable[Atom]) -> list[Equation]:
    """Return the equations that compute `atoms`, and the equations with effects."""
    wanted = {atom for atom in atoms if not isinstance(atom, jex.Literal)}
    kept = []
    for equation in reversed(equations):
        if equation.effects or not wanted.isdisjoint(equation.outvars):
            kept.append(equation)
            wanted.update(used([equation]))
    return kept[::-1]


def run_equations(
    equations: Sequence[Equation], inputs: dict[Any, Any], results: Sequence[Any], template: Any
) -> list[Any]:
    """Evaluate equations in the current trace. The new equations have the same user's lines."""
    jaxpr = template.replace(
        constvars=[],
        invars=list(inputs),
        outvars=list(results),
        eqns=list(equations),
        effects=jex.no_effects,
    )
    return list(jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))(*inputs.values()))
