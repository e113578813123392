"""Synchronization points: collectives and assignments, which all replicas execute in one order.

The traces of replica variants are split at their synchronization points. All variants must reach
the same points in the same order: a device would wait for ever in a collective if another device
executed a different one. Assignments are synchronization points too, so that a read gives the same
value wherever it is between two points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: equations of JAX are untyped

import numpy as np
from jax.extend import core as jex

from graphdist.ir.types import dtype_name
from graphdist.tracing.merge_call import are_one_merge_call, merge_call_p
from graphdist.tracing.named_collectives import is_named_collective
from graphdist.tracing.primitives import LOGICAL, all_gather_p, replica_id_p, to_replicas_p
from graphdist.tracing.same_equations import same_parameters
from graphdist.tracing.slots import is_ref
from graphdist.tracing.trace_in_progress import TraceError
from graphdist.tracing.user_lines import source_of_equation

_SYNCHRONIZING = {*LOGICAL, merge_call_p} - {to_replicas_p, replica_id_p}
_WRITES = ("swap", "addupdate")
_UNEQUAL_GATHER = "; gd.get_replica_context().all_gather takes other lengths along its axis"


def is_synchronization_point(equation: Any) -> bool:
    """Return whether all variants must execute this equation together."""
    return (
        equation.primitive in _SYNCHRONIZING
        or equation.primitive.name in _WRITES
        or is_named_collective(equation)
        or holds_synchronization_point(equation)
    )


def holds_synchronization_point(equation: Any) -> bool:
    """Return whether a call, loop or branch contains a synchronization point or uses a variable.

    A variable counts even if it is only read. A branch of `lax.switch` cannot read a ref, so a loop
    that reads a variable must stay outside of the switch.
    """
    inner = list(jex.jaxprs_in_params(equation.params))
    if inner and any(is_ref(atom) for atom in equation.invars):
        return True
    return any(is_synchronization_point(nested) for jaxpr in inner for nested in jaxpr.eqns)


def split_at_points(equations: Sequence[Any]) -> list[tuple[list[Any], Any | None]]:
    """Return the segments between synchronization points, each with the point at its end.

    The last segment has None in place of a point.
    """
    segments: list[tuple[list[Any], Any | None]] = []
    segment: list[Any] = []
    for equation in equations:
        if is_synchronization_point(equation):
            segments.append((segment, equation))
            segment = []
        else:
            segment.append(equation)
    return [*segments, (segment, None)]


def require_agreement(points: Sequence[Any | None]) -> list[Any]:
    """Return the variants' equations at a synchronization point.

    None in `points` is a variant that reaches no more points. Raises `TraceError` unless all
    variants have the same operation on values of the same shape.
    """
    present = [point for point in points if point is not None]
    first = present[0]
    for point in points:
        if point is None:
            raise TraceError(
                f"a replica executes {_description(first)} that another replica does not execute",
                source=source_of_equation(first),
                hint="let all replicas make the same collectives and assignments",
            )
        if not _agree(first, point):
            here, there = source_of_equation(first), source_of_equation(point)
            raise TraceError(
                f"the replicas disagree: one executes {_description(first)} at {here}, "
                f"another {_description(point)} at {there}",
                source=there,
                hint="let all replicas make the same collectives and assignments, in one order "
                f"and with one shape{_UNEQUAL_GATHER * (first.primitive is all_gather_p)}",
            )
    return present


def _agree(point: Any, other: Any) -> bool:
    # Shapes in loops, branches and merge_calls may differ, since their bodies are compared later.
    is_open = holds_synchronization_point(point) or are_one_merge_call(point, other)
    is_alike = point.primitive is other.primitive
    if is_open and is_alike and len(point.invars) == len(other.invars):
        return True
    return same_parameters(point, other) and _operand_types(point) == _operand_types(other)


def _operand_types(point: Any) -> list[Any]:
    return [(np.shape(atom.aval), getattr(atom.aval, "dtype", None)) for atom in point.invars]


def _description(point: Any) -> str:
    name = LOGICAL.get(point.primitive, point.primitive.name)
    kind = "an assignment" if name in ("aggregate", *_WRITES) else name
    reducer = point.params.get("reducer")
    shapes = ", ".join(_shape_text(atom) for atom in point.invars if not is_ref(atom))
    return f"{kind}{f' ({reducer})' if reducer else ''}{f' of {shapes}' if shapes else ''}"


def _shape_text(atom: Any) -> str:
    return f"{dtype_name(atom.aval.dtype)}[{','.join(map(str, atom.aval.shape))}]"
