"""Whether equations of two traces do the same: primitive, parameters and nested jaxprs.

The comparison may fail to see that two equations do the same, never the other way: then work is
done once for each variant instead of once for all, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: equations and parameters of JAX are untyped

import jax
import numpy as np
from jax.extend import core as jex


def same_parameters(equation: Any, other: Any) -> bool:
    """Return whether two equations do the same with their operands."""
    if equation.primitive is not other.primitive or equation.params.keys() != other.params.keys():
        return False
    return all(_is_same(value, other.params[name]) for name, value in equation.params.items())


def literal_key(atom: Any) -> Any:
    """Return type and bytes of a literal's value, by which literals are compared; else None."""
    if not isinstance(atom, jex.Literal):
        return None
    value = np.asarray(atom.val)
    return atom.aval, value.tobytes()


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two parameters mean the same, jaxprs equation by equation."""
    if value is other:
        return True
    if isinstance(value, jex.ClosedJaxpr) and isinstance(other, jex.ClosedJaxpr):
        if len(value.consts) != len(other.consts):
            return False
        are_same = all(a is b for a, b in zip(value.consts, other.consts, strict=True))
        return are_same and _are_same_jaxprs(value.jaxpr, other.jaxpr)
    if isinstance(value, jex.Jaxpr) and isinstance(other, jex.Jaxpr):
        return _are_same_jaxprs(value, other)
    if isinstance(value, tuple | list) and isinstance(other, tuple | list):
        return len(value) == len(other) and all(map(_is_same, value, other))
    if isinstance(value, np.ndarray | jax.Array) or callable(value):
        return False  # not the same object; functions are rules of differentiation
    try:
        return type(value) is type(other) and bool(value == other)
    except Exception:  # comparisons of JAX's own parameters may raise anything
        return False


def _are_same_jaxprs(jaxpr: Any, other: Any) -> bool:
    if len(jaxpr.eqns) != len(other.eqns):
        return False
    names: dict[Any, Any] = {}

    def are_alike(atoms: Sequence[Any], others: Sequence[Any]) -> bool:
        return len(atoms) == len(others) and all(map(is_alike, atoms, others))

    def is_alike(atom: Any, peer: Any) -> bool:
        if isinstance(atom, jex.Literal) or isinstance(peer, jex.Literal):
            return literal_key(atom) == literal_key(peer)
        return names.get(atom) is peer

    def declare(variables: Sequence[Any], peers: Sequence[Any]) -> bool:
        names.update(zip(variables, peers, strict=False))
        return [v.aval for v in variables] == [p.aval for p in peers]

    if not declare([*jaxpr.constvars, *jaxpr.invars], [*other.constvars, *other.invars]):
        return False
    for equation, peer in zip(jaxpr.eqns, other.eqns, strict=True):
        if not (same_parameters(equation, peer) and are_alike(equation.invars, peer.invars)):
            return False
        if not declare(equation.outvars, peer.outvars):
            return False
    return are_alike(jaxpr.outvars, other.outvars)
