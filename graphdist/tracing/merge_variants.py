"""The traces of several replica variants as one trace.

All variants must reach the same synchronization points (`synchronization_points.py`) in the same
order. There they run as one program. Equations between two of the points may be moved, because no
value goes from one replica to another between them, and no variable changes. So

* a variable is read once for all variants, in front of everything else: `lax.switch` takes no refs,
  and every read before the next assignment gives the same value;
* work that every variant does on the same values (`value_numbers.py`) is done once for all, so that
  mirrored values stay provably mirrored: the analysis knows nothing of a value that comes out of a
  switch on the replica's number;
* the rest becomes one `lax.switch` on the replica's variant. Values that a variant computes there
  and uses later go into slots that all variants share, padded to the largest (`switch_layout.py`).

JAX's own rules differentiate and batch the result, so that gradients are exact whatever the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any  # Any: equations, avals and tracers of JAX are untyped

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from graphdist.tracing.merge_call import Merged, merge_call_p
from graphdist.tracing.merge_control_flow import merge_control_flow
from graphdist.tracing.primitives import to_replicas
from graphdist.tracing.slots import Slot, cut, padded
from graphdist.tracing.state import TraceError
from graphdist.tracing.switch_layout import SwitchLayout, is_variable
from graphdist.tracing.synchronization_points import (
    cut_at_points,
    holds_synchronization_point,
    require_agreement,
)
from graphdist.tracing.user_lines import source_of_equation
from graphdist.tracing.value_numbers import numbered
from graphdist.tracing.variant_trace import (
    Atom,
    Equation,
    VariantTrace,
    is_read,
    needed,
    run_equations,
    used,
    variant_trace,
)


def merge_variants(
    index: Any,
    traces: Sequence[jex.ClosedJaxpr],
    arguments: Sequence[Sequence[Slot]],
    results: Sequence[Sequence[int | None]],
) -> list[list[Slot | None]]:
    """Run the traces of all variants as one; returns each variant's results.

    `index` is the traced number of the replica's variant, `arguments` are each variant's, and so
    are `results`: which output of its jaxpr stands at each position, None where it has none there.
    Results at one position share an array where they have one dtype and rank. Raises `TraceError`
    where the variants do not come to the same synchronization points.
    """
    constants: dict[Any, Any] = {}
    template = traces[0].jaxpr
    variants = [variant_trace(t, a, constants) for t, a in zip(traces, arguments, strict=True)]
    for variant, outputs in zip(variants, results, strict=True):
        variant.returned = [None if i is None else variant.returned[i] for i in outputs]
    return _Merger(index, variants, template).run()


class _Merger:
    def __init__(self, index: Any, variants: list[VariantTrace], template: Any) -> None:
        self.index, self.variants, self.template = index, variants, template
        self.segments = [cut_at_points(variant.equations) for variant in variants]
        self.last_uses = [
            _last_uses(segments, variant.returned)
            for segments, variant in zip(self.segments, variants, strict=True)
        ]

    def run(self) -> list[list[Slot | None]]:
        rows = [[point for _, point in segments] for segments in self.segments]
        for position, points in enumerate(zip_longest(*rows)):
            if points == (None,) * len(self.variants):
                break
            agreed = require_agreement(points)
            operands = self._segment(position, [list(point.invars) for point in agreed])
            self._synchronize(agreed, [[slot for slot in row if slot] for row in operands])
        return self._segment(len(rows[0]) - 1, [variant.returned for variant in self.variants])

    def _segment(self, position: int, wanted: Sequence[Sequence[Atom]]) -> list[list[Slot | None]]:
        """Do the work before a synchronization point or the end; return the slots of `wanted`."""
        own = self._in_common([segments[position][0] for segments in self.segments])
        layout = SwitchLayout(len(self.variants))
        found = layout.add_needed(self.variants, wanted)
        for number, uses in enumerate(self.last_uses):
            computed = [variable for equation in own[number] for variable in equation.outvars]
            kept = [variable for variable in computed if uses.get(variable, -1) > position]
            layout.add_kept(number, kept)
        if layout.types or any(equation.effects for rest in own for equation in rest):
            self._switch(own, layout)
        return [
            [layout.slot(number, place) if isinstance(place, int) else place for place in row]
            for number, row in enumerate(found)
        ]

    def _in_common(self, segments: list[list[Equation]]) -> list[list[Equation]]:
        """Do once what all variants do on the same values; return the rest of each.

        A variable is read here even if not all variants read it: nothing is assigned before the
        next synchronization point, and in the switch there are no variables.
        """
        numbers = numbered(self.variants, segments)
        shared = set.intersection(*map(set, numbers)) - {None}
        done: dict[int, list[Any]] = {}
        rest: list[list[Equation]] = []
        for variant, equations, row in zip(self.variants, segments, numbers, strict=True):
            rest.append([])
            for equation, number in zip(equations, row, strict=True):
                is_known = used([equation]).keys() <= variant.slots.keys()
                if number is None or not (number in shared or (is_read(equation) and is_known)):
                    if is_read(equation):
                        raise _reads_what_it_computes(equation)
                    rest[-1].append(equation)
                    continue
                if number not in done:
                    done[number] = self._done_once(variant, equation)
                for variable, result in zip(equation.outvars, done[number], strict=True):
                    variant.slots[variable] = Slot(result, np.shape(result))
        return rest

    def _done_once(self, variant: VariantTrace, equation: Equation) -> list[Any]:
        inputs = {atom: variant.slots[atom].value() for atom in used([equation])}
        return run_equations([equation], inputs, equation.outvars, self.template)

    def _switch(self, own: Sequence[list[Equation]], layout: SwitchLayout) -> None:
        branches = [
            self._branch(variant, equations, layout.placed[number], layout.types)
            for number, (variant, equations) in enumerate(zip(self.variants, own, strict=True))
        ]
        layout.arrays = lax.switch(self.index, branches)
        for number, variant in enumerate(self.variants):
            for place, atom in layout.placed[number].items():
                if is_variable(atom) and atom not in variant.slots:
                    variant.slots[atom] = layout.slot(number, place)

    def _branch(
        self,
        variant: VariantTrace,
        equations: Sequence[Equation],
        placed: dict[int, Atom],
        types: Sequence[jax.ShapeDtypeStruct],
    ) -> Callable[[], list[Any]]:
        equations = needed(equations, placed.values())
        inside = {variable for equation in equations for variable in equation.outvars}
        atoms = [*used(equations), *filter(is_variable, placed.values())]
        free = [atom for atom in dict.fromkeys(atoms) if atom not in inside]

        def branch() -> list[Any]:
            inputs = {atom: variant.slots[atom].value() for atom in free}
            results = run_equations(equations, inputs, list(placed.values()), self.template)
            values = dict(zip(placed, results, strict=True))
            return [
                padded(values[place], type.shape)
                if place in values
                else jnp.zeros(type.shape, type.dtype)
                for place, type in enumerate(types)
            ]

        return branch

    def _synchronize(self, points: Sequence[Equation], operands: Sequence[Sequence[Slot]]) -> None:
        """Do once what all variants come together for."""
        first = points[0]
        mirrored: Sequence[Any] = [None] * len(first.outvars)
        if holds_synchronization_point(first):
            results = merge_control_flow(points, operands, self._nested)
        elif first.primitive is merge_call_p:
            results, mirrored = _merge_call_results(first, operands[0])
        else:
            arrays = [slot.value() for slot in operands[0]]
            inputs = [jex.Var(jax.typeof(array)) for array in arrays]
            results = run_equations(
                [first.replace(invars=inputs)],
                dict(zip(inputs, arrays, strict=True)),
                first.outvars,
                self.template,
            )
        for variant, point in zip(self.variants, points, strict=True):
            for variable, result, value in zip(point.outvars, results, mirrored, strict=True):
                variant.slots[variable] = Slot(result, variable.aval.shape, value)

    def _nested(
        self, bodies: Sequence[jex.ClosedJaxpr], arguments: Sequence[Sequence[Slot]]
    ) -> list[list[Slot]]:
        outputs = [range(len(body.jaxpr.outvars)) for body in bodies]
        rows = merge_variants(self.index, bodies, arguments, outputs)
        return [[slot for slot in row if slot is not None] for row in rows]


def _merge_call_results(point: Equation, operands: Sequence[Slot]) -> tuple[list[Any], list[Any]]:
    """Return what `merge_call` gives the replicas, and the mirrored value of each result, or None.

    The mirrored value is kept for cross-replica code, where it is provably one value.
    """
    merged: Merged = point.params["merged"]
    arrays = [
        cut(slot.array, aval.shape)
        for slot, aval in zip(operands, merged.jaxpr.in_avals, strict=True)
    ]
    values = jex.jaxpr_as_fun(merged.jaxpr)(*arrays)
    results, mirrored = [], []
    for value, spreads in zip(values, merged.spreads, strict=True):
        results.append(to_replicas(value, merged.num_replicas) if spreads else value)
        mirrored.append(value if spreads else None)
    return results, mirrored


def _last_uses(
    segments: Sequence[tuple[list[Equation], Equation | None]], returned: Sequence[Atom]
) -> dict[Any, int]:
    """Return the last segment that uses each value, its synchronization point included."""
    last: dict[Any, int] = {}
    for position, (equations, point) in enumerate(segments):
        together = equations if point is None else [*equations, point]
        last.update(dict.fromkeys(used(together), position))
    last.update(dict.fromkeys(filter(is_variable, returned), len(segments) - 1))
    return last


def _reads_what_it_computes(equation: Equation) -> TraceError:
    return TraceError(
        "a part of a variable is read, which part depends on what one replica variant computes",
        source=source_of_equation(equation),
        hint="read the whole variable first: v.read_value()[index]",
    )
