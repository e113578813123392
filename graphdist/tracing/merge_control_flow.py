"""Loops and branches that all replica variants reach, with collectives or assignments inside.

The variants' bodies are merged into one body, in the same way as the traces around the loop or
branch. Variants share the array of a carried value, padded to the largest variant's shape. As
around every collective, a predicate must be the same on all replicas. If it is not, the analysis of
layouts raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias  # Any: equations and tracers of JAX are untyped

import numpy as np
from jax import lax
from jax.extend import core as jex

from graphdist.tracing.control_flow import scan_counts
from graphdist.tracing.slots import Slot, padded
from graphdist.tracing.trace_in_progress import TraceError
from graphdist.tracing.user_lines import source_of_equation
from graphdist.tracing.variant_trace import Equation

SlotRows: TypeAlias = Sequence[Sequence[Slot]]
"""The slots of each variant."""
Merge: TypeAlias = Callable[[Sequence[jex.ClosedJaxpr], SlotRows], list[list[Slot]]]


def merge_control_flow(aligned: Sequence[Equation], operands: SlotRows, merge: Merge) -> list[Any]:
    """Return the results of a loop or branch of all variants, padded to the largest variant.

    `merge` merges the variants' bodies. Raises `TraceError` if the primitive is no `scan`, `while`
    or `cond`, or if the variants' loops differ.
    """
    merged = _MERGES.get(aligned[0].primitive.name)
    if merged is None:
        raise TraceError(
            f"a collective or an assignment inside {aligned[0].primitive.name} is reached by "
            f"{len(aligned)} replica variants, which differ in shape or use their replica id as a "
            f"Python value",
            source=source_of_equation(aligned[0]),
            hint="move it out, or give the replicas equal shapes",
        )
    return merged(aligned, operands, merge)


def _merge_scan(aligned: Sequence[Equation], operands: SlotRows, merge: Merge) -> list[Any]:
    params = aligned[0].params
    num_consts, num_carry = _agreed(aligned, scan_counts)
    length, reverse = _agreed(aligned, lambda p: (p["length"], p["reverse"]))
    consts = [row[:num_consts] for row in operands]
    bodies = [equation.params["jaxpr"] for equation in aligned]
    arrays = _entering(aligned, [row[num_consts:] for row in operands])
    carried = list(map(_strong, arrays[:num_carry]))

    def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        rows = [
            [
                *of_variant,
                *_slots(carry, row[num_consts:]),
                *(Slot(x, slot.shape[1:]) for x, slot in zip(xs, row[-len(xs) :], strict=False)),
            ]
            for of_variant, row in zip(consts, operands, strict=True)
        ]
        results = _arrays(aligned, merge(bodies, rows))
        return _fitted(results, map(np.shape, carry)), results[num_carry:]

    xs = arrays[num_carry:]
    final, ys = lax.scan(body, carried, xs, length, reverse, params["unroll"])
    return [*final, *ys]


def _merge_while(aligned: Sequence[Equation], operands: SlotRows, merge: Merge) -> list[Any]:
    of_condition, of_body = _agreed(aligned, lambda p: (p["cond_nconsts"], p["body_nconsts"]))
    start = of_condition + of_body
    conditions = [equation.params["cond_jaxpr"] for equation in aligned]
    bodies = [equation.params["body_jaxpr"] for equation in aligned]

    def rows(first: int, last: int, carry: list[Any]) -> SlotRows:
        return [[*row[first:last], *_slots(carry, row[start:])] for row in operands]

    def condition(carry: Any) -> Any:
        return _arrays(aligned, merge(conditions, rows(0, of_condition, carry)))[0]

    def body(carry: Any) -> list[Any]:
        results = _arrays(aligned, merge(bodies, rows(of_condition, start, carry)))
        return _fitted(results, map(np.shape, carry))

    carried = map(_strong, _entering(aligned, [row[start:] for row in operands]))
    return list(lax.while_loop(condition, body, list(carried)))


def _merge_cond(aligned: Sequence[Equation], operands: SlotRows, merge: Merge) -> list[Any]:
    count = _agreed(aligned, lambda p: len(p["branches"]))
    shapes = [
        tuple(map(max, *(v.aval.shape for v in variables), variables[0].aval.shape))
        for variables in zip(*(equation.outvars for equation in aligned), strict=True)
    ]

    def branch(number: int) -> list[Any]:
        bodies = [equation.params["branches"][number] for equation in aligned]
        return _fitted(_arrays(aligned, merge(bodies, [row[1:] for row in operands])), shapes)

    (index,) = _entering(aligned, [row[:1] for row in operands])
    return list(lax.switch(index, [partial(branch, number) for number in range(count)]))


_MERGES = {"scan": _merge_scan, "while": _merge_while, "cond": _merge_cond}


def _agreed(aligned: Sequence[Equation], property_of: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a property that all variants share; raises `TraceError` if they differ in it."""
    first, *others = [property_of(equation.params) for equation in aligned]
    if any(other != first for other in others):
        raise _differ(aligned)
    return first


def _differ(aligned: Sequence[Equation]) -> TraceError:
    lines = sorted({str(source_of_equation(equation)) for equation in aligned})
    return TraceError(
        f"the replicas execute different loops or branches with collectives or assignments "
        f"inside, at {' and '.join(lines)}",
        source=source_of_equation(aligned[-1]),
        hint="let all replicas execute the same loop, or move the collective out",
    )


def _entering(aligned: Sequence[Equation], rows: SlotRows) -> list[Any]:
    """Return the arrays that the variants pass to a loop or branch.

    Variants share the array of an operand that has one dtype and rank in all variants. Raises
    `TraceError` if an operand differs in dtype or rank.
    """
    for slots in zip(*rows, strict=True):
        kinds = {f"{slot.array.dtype}{list(slot.shape)}" for slot in slots}
        if any(slot.array is not slots[0].array for slot in slots):
            raise TraceError(
                f"unequal replicas pass {' and '.join(sorted(kinds))} to "
                f"{aligned[0].primitive.name}, and a collective or an assignment is inside",
                source=source_of_equation(aligned[0]),
                hint="give all of them values of one dtype and rank",
            )
    return [slot.array for slot in rows[0]]


def _slots(arrays: Sequence[Any], like: Sequence[Slot]) -> list[Slot]:
    return [Slot(array, slot.shape) for array, slot in zip(arrays, like, strict=False)]


def _arrays(aligned: Sequence[Equation], rows: SlotRows) -> list[Any]:
    """Return the array that the variants share at each position of their results."""
    for slots in zip(*rows, strict=True):
        if any(slot.array is not slots[0].array for slot in slots):
            raise _differ(aligned)
    return [slot.array for slot in rows[0]]


def _fitted(results: Sequence[Any], shapes: Iterable[tuple[int, ...]]) -> list[Any]:
    """Return the first results as arrays of these shapes, without weak types."""
    pairs = zip(results, shapes, strict=False)
    return [_strong(padded(result, shape)) for result, shape in pairs]


def _strong(array: Any) -> Any:
    """Return an array without weak type, since a carried value may not change its type."""
    return lax.convert_element_type(array, array.dtype)
