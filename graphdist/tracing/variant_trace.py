"""The trace of one replica variant, as a list of equations that can be compared with another's.

Replicas that do not look the same (other shapes, or their number as a Python value) are traced once
for each *variant*: replicas that look the same are one. Here such a trace is taken apart. Calls of
`jit` are inlined, so that equal work is seen as equal, and so is any call with a *synchronization
point* in it: what all replicas must do together or in one order, a collective or the assignment of
a variable. Equations between two synchronization points are a variant's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias  # Any: equations, avals and parameters of JAX are untyped

import jax
import numpy as np
from jax.extend import core as jex

from graphdist.tracing.merge_call import Merged, merge_call_p
from graphdist.tracing.named_collectives import (
    in_our_terms,
    is_collective_over_replicas,
    is_over_replicas,
    size_in_scope,
)
from graphdist.tracing.primitives import (
    aggregate_p,
    all_gather_p,
    all_reduce_p,
    all_to_all_p,
    gather_p,
    permute_p,
    reduce_p,
    reduce_scatter_p,
    to_replicas,
)

Equation: TypeAlias = Any
Atom: TypeAlias = Any

_SYNCHRONIZING = {aggregate_p, all_gather_p, all_reduce_p, gather_p, reduce_p, reduce_scatter_p}
_SYNCHRONIZING |= {merge_call_p, permute_p, all_to_all_p}
_CALLS = {"jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat2"}
_CALLS |= {"checkpoint", "custom_vjp_call_jaxpr"}
_SMALL = 1 << 16
"""Constants up to this many bytes are compared by value, larger ones by identity."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of one variant: the corner of `array` that has this shape.

    Variants share arrays, of the size of the largest.
    """

    array: Any
    shape: tuple[int, ...]
    whole: Any = None
    """The one value of cross-replica code that the array is on every replica, if it is one."""

    def value(self) -> Any:
        """Return the value without what other variants need."""
        if not self.is_padded:
            return self.array
        return jax.lax.slice(self.array, (0,) * len(self.shape), self.shape)

    @property
    def is_padded(self) -> bool:
        """Return whether the array is larger than the value."""
        return not is_ref(self.array) and np.shape(self.array) != self.shape


@dataclass(slots=True)
class VariantTrace:
    """The trace of a variant: its equations, and where the values from outside are."""

    equations: list[Equation]
    returned: list[Atom]
    slots: dict[Any, Slot] = field(default_factory=dict)


def variant_trace(
    closed: jex.ClosedJaxpr, arguments: Sequence[Slot], constants: dict[Any, Any]
) -> VariantTrace:
    """Take a trace apart. `constants` collects what equal constants of all variants are."""
    trace = VariantTrace([], [])
    names: dict[Any, Atom] = {}
    jaxpr = closed.jaxpr
    for var, slot in zip(jaxpr.invars, arguments, strict=True):
        trace.slots[var] = slot
    trace.returned = _inline(jaxpr, closed.consts, names, trace, constants)
    return trace


def _inline(
    jaxpr: Any, consts: Sequence[Any], names: dict[Any, Atom], trace: VariantTrace, known: Any
) -> list[Atom]:
    for var, const in zip(jaxpr.constvars, consts, strict=True):
        names[var] = jex.Var(var.aval)
        trace.slots[names[var]] = Slot(_shared(const, known), getattr(var.aval, "shape", ()))

    def renamed(atom: Atom) -> Atom:
        return atom if isinstance(atom, jex.Literal) else names.get(atom, atom)

    for equation in jaxpr.eqns:
        operands = [renamed(atom) for atom in equation.invars]
        inner = _called(equation)
        if inner is not None:
            inside = dict(zip(inner.jaxpr.invars, operands, strict=True))
            results = _inline(inner.jaxpr, inner.consts, inside, trace, known)
            names.update(zip(equation.outvars, results, strict=True))
            continue
        outputs = [jex.Var(var.aval) for var in equation.outvars]
        names.update(zip(equation.outvars, outputs, strict=True))
        trace.equations.append(equation.replace(invars=operands, outvars=outputs))
    return [renamed(atom) for atom in jaxpr.outvars]


def _called(equation: Equation) -> jex.ClosedJaxpr | None:
    """Return the jaxpr of a call to be inlined, or that a collective of JAX's stands for."""
    if is_over_replicas(equation):
        return in_our_terms(equation, size_in_scope(equation))
    name = equation.primitive.name
    if name not in _CALLS or (name != "jit" and not holds_synchronization_point(equation)):
        return None
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return inner if isinstance(inner, jex.ClosedJaxpr) else jex.ClosedJaxpr(inner, ())


def _shared(const: Any, known: dict[Any, Any]) -> Any:
    """Return one object for equal constants, so that equal work on them is seen as equal."""
    if isinstance(const, jax.core.Tracer) or not isinstance(const, np.ndarray | jax.Array):
        return const
    if const.nbytes > _SMALL or jax.numpy.issubdtype(const.dtype, jax.dtypes.extended):
        return const
    array = np.asarray(const)
    return known.setdefault((array.dtype, array.shape, array.tobytes()), const)


def merge_call_results(point: Equation, operands: Sequence[Slot]) -> tuple[list[Any], list[Any]]:
    """Return what `merge_call` gives the replicas, and of each the one value it is, or None."""
    merged: Merged = point.params["merged"]
    arrays = [
        Slot(slot.array, aval.shape).value()
        for slot, aval in zip(operands, merged.jaxpr.in_avals, strict=True)
    ]
    given = jex.jaxpr_as_fun(merged.jaxpr)(*arrays)
    wholes = [one if spreads else None for one, spreads in zip(given, merged.spreads, strict=True)]
    results = [
        one if whole is None else to_replicas(one, merged.num_replicas)
        for one, whole in zip(given, wholes, strict=True)
    ]
    return results, wholes


def is_ref(value: Any) -> bool:
    """Return whether a value is the handle of a variable."""
    return hasattr(getattr(value, "aval", None), "inner_aval")


def is_synchronization_point(equation: Equation) -> bool:
    """Return whether all variants must come to this equation together."""
    return (
        equation.primitive in _SYNCHRONIZING
        or _writes(equation)
        or is_collective_over_replicas(equation)
        or holds_synchronization_point(equation)
    )


def is_read(equation: Equation) -> bool:
    """Return whether the equation reads a variable, or a part of one."""
    return bool(equation.primitive.name == "get")


def _writes(equation: Equation) -> bool:
    return equation.primitive.name in ("swap", "addupdate")


def holds_synchronization_point(equation: Equation) -> bool:
    """Return whether a synchronization point or a variable is inside a call, loop or branch."""
    inner = list(jex.jaxprs_in_params(equation.params))
    if inner and any(is_ref(atom) for atom in equation.invars):
        return True
    return any(is_synchronization_point(nested) for jaxpr in inner for nested in jaxpr.eqns)


def used(equations: Iterable[Equation]) -> dict[Any, None]:
    """Return the variables that equations use, in order."""
    atoms = (atom for equation in equations for atom in equation.invars)
    return dict.fromkeys(atom for atom in atoms if not isinstance(atom, jex.Literal))


def needed(equations: Sequence[Equation], atoms: Iterable[Atom]) -> list[Equation]:
    """Return the equations that `atoms` are computed by, and those with effects."""
    wanted = {atom for atom in atoms if not isinstance(atom, jex.Literal)}
    kept = []
    for equation in reversed(equations):
        if equation.effects or not wanted.isdisjoint(equation.outvars):
            kept.append(equation)
            wanted.update(used([equation]))
    return kept[::-1]


def evaluate(
    equations: Sequence[Equation], inputs: dict[Any, Any], results: Sequence[Any], template: Any
) -> list[Any]:
    """Evaluate equations where the caller traces; they keep the user's lines."""
    jaxpr = template.replace(
        constvars=[],
        invars=list(inputs),
        outvars=list(results),
        eqns=list(equations),
        effects=jex.no_effects,
    )
    return list(jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))(*inputs.values()))


def same(one: Any, other: Any) -> bool:
    """Return whether two parameters of equations mean the same, jaxprs equation by equation."""
    if one is other:
        return True
    if isinstance(one, jex.ClosedJaxpr) and isinstance(other, jex.ClosedJaxpr):
        if not all(a is b for a, b in zip(one.consts, other.consts, strict=False)):
            return False
        return len(one.consts) == len(other.consts) and _same_jaxprs(one.jaxpr, other.jaxpr)
    if isinstance(one, jex.Jaxpr) and isinstance(other, jex.Jaxpr):
        return _same_jaxprs(one, other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | jax.Array) or callable(one):
        return False  # not the same object; functions are rules of differentiation
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        return False


def same_parameters(one: Equation, other: Equation) -> bool:
    """Return whether two equations do the same with their operands."""
    if one.primitive is not other.primitive or one.params.keys() != other.params.keys():
        return False
    return all(same(value, other.params[name]) for name, value in one.params.items())


def _same_jaxprs(one: Any, other: Any) -> bool:
    if len(one.eqns) != len(other.eqns):
        return False
    names: dict[Any, Any] = {}

    def alike(atoms: Sequence[Atom], others: Sequence[Atom]) -> bool:
        return len(atoms) == len(others) and all(map(atom_alike, atoms, others))

    def atom_alike(atom: Atom, peer: Atom) -> bool:
        if isinstance(atom, jex.Literal) or isinstance(peer, jex.Literal):
            return literal_key(atom) == literal_key(peer)
        return names.get(atom) is peer

    def declare(variables: Sequence[Any], peers: Sequence[Any]) -> bool:
        names.update(zip(variables, peers, strict=False))
        return [v.aval for v in variables] == [p.aval for p in peers]

    if not declare([*one.constvars, *one.invars], [*other.constvars, *other.invars]):
        return False
    for equation, peer in zip(one.eqns, other.eqns, strict=True):
        if not (same_parameters(equation, peer) and alike(equation.invars, peer.invars)):
            return False
        if not declare(equation.outvars, peer.outvars):
            return False
    return alike(one.outvars, other.outvars)


def literal_key(atom: Atom) -> Any:
    """Return what of a literal decides its value; None for another atom."""
    if not isinstance(atom, jex.Literal):
        return None
    value = np.asarray(atom.val)
    return atom.aval, value.tobytes()
