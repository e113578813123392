"""The traces of several replica variants as one trace.

All variants must reach the same synchronization points (`synchronization_points.py`) in the same
order. At the points they run as one program. Equations between two points may be moved, because
between the points no value goes from one replica to another and no variable changes. So

* a variable is read once for all variants, before all other equations. `lax.switch` takes no refs,
  and every read before the next assignment gives the same value;
* what all variants compute from the same values (`same_equations.py`) is computed once. So mirrored
  values stay provably mirrored, which the result of a switch on the replica id is not;
* all other equations become one `lax.switch` on the index of the replica's variant. Values that a
  variant computes in the switch and uses later go into slots that all variants share
  (`SwitchLayout`).

JAX's own rules differentiate and batch the result, so that gradients are exact for all shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from typing import Any  # Any: equations, avals and tracers of JAX are untyped

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from graphdist.tracing.merge_call import Merged, merge_call_p
from graphdist.tracing.merge_control_flow import merge_control_flow
from graphdist.tracing.same_equations import is_read, literal_key, value_numbers
from graphdist.tracing.slots import Slot, padded, unpadded
from graphdist.tracing.synchronization_points import (
    holds_synchronization_point,
    require_agreement,
    split_at_points,
)
from graphdist.tracing.trace_in_progress import TraceError
from graphdist.tracing.user_lines import source_of_equation
from graphdist.tracing.variant_trace import (
    Atom,
    Equation,
    VariantTrace,
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
    """Run the traces of all variants as one; return each variant's results.

    `index` is the traced index of the replica's variant. `arguments` has the arguments of each
    variant. `results` has, for each variant, the indices of the jaxpr's outputs that the variant
    returns, and None at a position where it returns nothing. Variants' results at one position
    share an array if they have one dtype and rank. Raises `TraceError` if the variants do not reach
    the same synchronization points.
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
        self.segments = [split_at_points(variant.equations) for variant in variants]
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
        """Run a segment, up to a synchronization point or the end; return the slots of `wanted`."""
        own = self._run_shared([segments[position][0] for segments in self.segments])
        layout = SwitchLayout(len(self.variants))
        rows = layout.add_needed(self.variants, wanted)
        for variant, uses in enumerate(self.last_uses):
            computed = [variable for equation in own[variant] for variable in equation.outvars]
            kept = [variable for variable in computed if uses.get(variable, -1) > position]
            layout.add_kept(variant, kept)
        if layout.types or any(equation.effects for rest in own for equation in rest):
            self._switch(own, layout)
        return [
            [layout.slot(variant, item) if isinstance(item, int) else item for item in row]
            for variant, row in enumerate(rows)
        ]

    def _run_shared(self, segments: list[list[Equation]]) -> list[list[Equation]]:
        """Run the equations that all variants share, once; return each variant's other equations.

        A variable is read here even if only some variants read it. The early read is correct, since
        nothing is assigned before the next synchronization point. It is necessary, since a switch
        cannot read variables.
        """
        numbers = value_numbers([variant.slots for variant in self.variants], segments)
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
                    done[number] = self._run_once(variant, equation)
                for variable, result in zip(equation.outvars, done[number], strict=True):
                    variant.slots[variable] = Slot(result, np.shape(result))
        return rest

    def _run_once(self, variant: VariantTrace, equation: Equation) -> list[Any]:
        inputs = {atom: variant.slots[atom].value() for atom in used([equation])}
        return run_equations([equation], inputs, equation.outvars, self.template)

    def _switch(self, own: Sequence[list[Equation]], layout: SwitchLayout) -> None:
        branches = [
            partial(self._branch, variant, equations, atoms, layout.types)
            for variant, equations, atoms in zip(self.variants, own, layout.atoms, strict=True)
        ]
        layout.arrays = lax.switch(self.index, branches)
        for number, variant in enumerate(self.variants):
            for output, atom in layout.atoms[number].items():
                if is_variable(atom) and atom not in variant.slots:
                    variant.slots[atom] = layout.slot(number, output)

    def _branch(
        self,
        variant: VariantTrace,
        equations: Sequence[Equation],
        atoms: dict[int, Atom],
        types: Sequence[jax.ShapeDtypeStruct],
    ) -> list[Any]:
        """Return the outputs of one branch: the values of `atoms`, zeros for other outputs."""
        equations = needed(equations, atoms.values())
        inside = {variable for equation in equations for variable in equation.outvars}
        operands = dict.fromkeys([*used(equations), *filter(is_variable, atoms.values())])
        inputs = {atom: variant.slots[atom].value() for atom in operands if atom not in inside}
        results = run_equations(equations, inputs, list(atoms.values()), self.template)
        values = dict(zip(atoms, results, strict=True))
        return [
            padded(values[output], type.shape)
            if output in values
            else jnp.zeros(type.shape, type.dtype)
            for output, type in enumerate(types)
        ]

    def _synchronize(self, points: Sequence[Equation], operands: Sequence[Sequence[Slot]]) -> None:
        """Run a synchronization point once for all variants."""
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
    """Return the results of a `merge_call` on each replica, and their mirrored values.

    A result that is not mirrored has None. Cross-replica code uses the mirrored value, which is
    provably one value.
    """
    merged: Merged = point.params["merged"]
    arrays = [
        unpadded(slot.array, aval.shape)
        for slot, aval in zip(operands, merged.jaxpr.in_avals, strict=True)
    ]
    values = jex.jaxpr_as_fun(merged.jaxpr)(*arrays)
    mirrored = [v if flag else None for v, flag in zip(values, merged.is_mirrored, strict=True)]
    return merged.to_replicas(values), mirrored


def _last_uses(
    segments: Sequence[tuple[list[Equation], Equation | None]], returned: Sequence[Atom]
) -> dict[Any, int]:
    """Return the index of the last segment that uses each value.

    The synchronization point at the end of a segment belongs to the segment.
    """
    last: dict[Any, int] = {}
    for position, (equations, point) in enumerate(segments):
        together = equations if point is None else [*equations, point]
        last.update(dict.fromkeys(used(together), position))
    last.update(dict.fromkeys(filter(is_variable, returned), len(segments) - 1))
    return last


def _reads_what_it_computes(equation: Equation) -> TraceError:
    return TraceError(
        "a part of a variable is read at an index that one replica variant computes",
        source=source_of_equation(equation),
        hint="read the full variable first: v.read_value()[index]",
    )


class SwitchLayout:
    """The outputs of one switch: slots for the values that replica variants compute in it.

    The branches of a `lax.switch` return the same number of arrays of the same types. So values of
    different variants share an output if they have one dtype and rank. Smaller values are padded to
    the largest, and a variant that has no value for an output returns zeros. A value from before
    the switch keeps its slot.
    """

    def __init__(self, num_variants: int) -> None:
        """Start without outputs."""
        self.types: list[jax.ShapeDtypeStruct] = []
        self.atoms: list[dict[int, Atom]] = [{} for _ in range(num_variants)]
        """For each variant, the atoms that it returns, by the index of the output."""
        self.arrays: Sequence[Any] = ()
        """The results of the switch, once it is traced."""

    def slot(self, variant: int, output: int) -> Slot:
        """Return the slot of a variant's value in an output of the switch."""
        return Slot(self.arrays[output], np.shape(self.atoms[variant][output].aval))

    def add_needed(
        self, variants: Sequence[VariantTrace], rows: Sequence[Sequence[Atom]]
    ) -> list[list[Slot | int | None]]:
        """Add outputs for the atoms that the variants need: `rows` has a row for each variant.

        Atoms at one position of all rows share an output if they can. Returns a row for each
        variant. It has the index of each atom's output, or the atom's slot if all variants share an
        array from before the switch. At a position where the variant needs no atom it has None.
        """
        results: list[list[Slot | int | None]] = [[] for _ in variants]
        for atoms in zip(*rows, strict=True):
            known = _known_before(variants, atoms)
            if known:
                for row, slot in zip(results, known, strict=True):
                    row.append(slot)
                continue
            shared: dict[Any, int] = {}
            for variant, atom in enumerate(atoms):
                if atom is None:
                    results[variant].append(None)
                    continue
                kind = _kind(atom.aval)
                shared[kind] = self._put(variant, atom, shared.get(kind))
                results[variant].append(shared[kind])
        return results

    def add_kept(self, variant: int, variables: Sequence[Any]) -> None:
        """Add outputs for variables that a variant uses later; reuse outputs of other variants."""
        atoms = self.atoms[variant]
        returned = set(filter(is_variable, atoms.values()))
        for variable in variables:
            if variable not in returned:
                kind = _kind(variable.aval)
                free = (i for i, t in enumerate(self.types) if _kind(t) == kind and i not in atoms)
                self._put(variant, variable, next(free, None))

    def _put(self, variant: int, atom: Atom, output: int | None) -> int:
        """Place an atom in `output`, enlarged to the atom's shape, or in a new output for None.

        Returns the index of the output.
        """
        aval = atom.aval
        if output is None:
            self.types.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
            output = len(self.types) - 1
        else:
            shape = tuple(map(max, self.types[output].shape, aval.shape))
            self.types[output] = jax.ShapeDtypeStruct(shape, aval.dtype)
        self.atoms[variant][output] = atom
        return output


def is_variable(atom: Atom) -> bool:
    """Return whether an atom is a variable of a jaxpr, not a literal or None."""
    return atom is not None and not isinstance(atom, jex.Literal)


def _kind(aval: Any) -> Any:
    return aval.dtype, len(aval.shape)


def _known_before(variants: Sequence[VariantTrace], atoms: Sequence[Atom]) -> list[Slot]:
    """Return the slots of `atoms` if they share an array from before the switch, else []."""
    if all(isinstance(atom, jex.Literal) for atom in atoms):
        first = atoms[0]
        if all(literal_key(atom) == literal_key(first) for atom in atoms):
            value = jnp.asarray(first.val, first.aval.dtype)
            return [Slot(value, first.aval.shape)] * len(atoms)
        return []
    if not all(map(is_variable, atoms)):
        return []
    slots = [variant.slots.get(atom) for variant, atom in zip(variants, atoms, strict=True)]
    known = [slot for slot in slots if slot is not None]
    is_shared = all(slot.array is known[0].array for slot in known)
    return known if is_shared and len(known) == len(slots) else []
