"""The traces of several replica variants as one trace.

All variants must come to the same synchronization points (collectives and assignments) in the same
order, with the same shapes: there they run as one program. Between two synchronization points

* a variable is read once for all;
* work that every variant does on the same values is done once for all, so that what is mirrored
  stays provably mirrored;
* the rest becomes one `lax.switch` on the replica's variant. What a variant computes there for
  later goes into slots that all variants share, padded to the largest.

JAX's own rules differentiate and batch the result, so that gradients are exact whatever the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, zip_longest
from typing import Any, TypeAlias  # Any: equations, avals and tracers of JAX are untyped

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

from graphdist.ir.types import dtype_name
from graphdist.tracing.merge_call import are_one_merge_call, merge_call_p, padded
from graphdist.tracing.merge_control_flow import merge_control_flow
from graphdist.tracing.primitives import LOGICAL, all_gather_p
from graphdist.tracing.sources import source_of
from graphdist.tracing.state import TraceError
from graphdist.tracing.variant_trace import (
    Atom,
    Equation,
    Slot,
    VariantTrace,
    evaluate,
    holds_synchronization_point,
    is_read,
    is_ref,
    is_synchronization_point,
    literal_key,
    merge_call_results,
    needed,
    same_parameters,
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
    known: dict[Any, Any] = {}
    template = traces[0].jaxpr
    variants = [variant_trace(t, a, known) for t, a in zip(traces, arguments, strict=True)]
    for one, outputs in zip(variants, results, strict=True):
        one.returned = [None if i is None else one.returned[i] for i in outputs]
    return _Merger(index, variants, template).run()


class _Merger:
    def __init__(self, index: Any, variants: list[VariantTrace], template: Any) -> None:
        self.index, self.variants, self.template = index, variants, template
        self.segments = [_split(one.equations) for one in variants]
        self.last_uses = [
            _last_uses(segments, one.returned)
            for segments, one in zip(self.segments, variants, strict=True)
        ]

    def run(self) -> list[list[Slot | None]]:
        points = [[point for _, point in segments] for segments in self.segments]
        for position, aligned in enumerate(zip_longest(*points)):
            if aligned == (None,) * len(self.variants):
                break
            together = _checked(aligned)
            operands = self._segment(position, [list(point.invars) for point in together])
            present = [[slot for slot in row if slot is not None] for row in operands]
            self._synchronize(together, present)
        return self._segment(len(points[0]) - 1, [one.returned for one in self.variants])

    def _segment(self, position: int, needed: Sequence[Sequence[Atom]]) -> list[list[Slot | None]]:
        """Do what is before a synchronization point or the end; return the slots needed there."""
        own = self._in_common([segments[position][0] for segments in self.segments])
        layout = _Layout(len(self.variants))
        found = layout.add_needed(self.variants, needed)
        for number, uses in enumerate(self.last_uses):
            computed = [var for equation in own[number] for var in equation.outvars]
            layout.add_kept(number, [var for var in computed if uses.get(var, -1) > position])
        if layout.types or any(equation.effects for rest in own for equation in rest):
            self._switch(own, layout)
        return [
            [layout.slot(number, place) if isinstance(place, int) else place for place in row]
            for number, row in enumerate(found)
        ]

    def _outside(self, one: VariantTrace, equation: Equation) -> list[Any]:
        inputs = {atom: one.slots[atom].value() for atom in used([equation])}
        return evaluate([equation], inputs, equation.outvars, self.template)

    def _note(self, one: VariantTrace, equation: Equation, results: Sequence[Any]) -> None:
        for var, result in zip(equation.outvars, results, strict=True):
            one.slots[var] = Slot(result, np.shape(result))

    def _in_common(self, own: Sequence[list[Equation]]) -> list[list[Equation]]:
        """Do once what all variants do on the same values; return the rest of each.

        A variable is read here even if not all variants read it: nothing is assigned before the
        next synchronization point, and in the switch there are no variables.
        """
        table: _Table = {}
        counter, numbers = count(), []
        for one, equations in zip(self.variants, own, strict=True):
            numbering = _Numbering(one, table, counter)
            numbers.append([numbering.number(equation) for equation in equations])
        shared = set.intersection(*map(set, numbers)) - {None}
        done: dict[int, list[Any]] = {}
        rest: list[list[Equation]] = []
        for one, equations, numbered in zip(self.variants, own, numbers, strict=True):
            rest.append([])
            for equation, number in zip(equations, numbered, strict=True):
                is_known = used([equation]).keys() <= one.slots.keys()
                if number is None or not (number in shared or (is_read(equation) and is_known)):
                    if is_read(equation):
                        raise _reads_what_it_computes(equation)
                    rest[-1].append(equation)
                    continue
                if number not in done:
                    done[number] = self._outside(one, equation)
                self._note(one, equation, done[number])
        return rest

    def _switch(self, own: Sequence[list[Equation]], layout: _Layout) -> None:
        branches = [
            self._branch(one, equations, layout.placed[number], layout.types)
            for number, (one, equations) in enumerate(zip(self.variants, own, strict=True))
        ]
        layout.arrays = lax.switch(self.index, branches)
        for number, one in enumerate(self.variants):
            for place, atom in layout.placed[number].items():
                if not isinstance(atom, jex.Literal) and atom not in one.slots:
                    one.slots[atom] = layout.slot(number, place)

    def _branch(
        self,
        one: VariantTrace,
        equations: Sequence[Equation],
        placed: dict[int, Atom],
        types: Sequence[jax.ShapeDtypeStruct],
    ) -> Callable[[], list[Any]]:
        equations = needed(equations, placed.values())
        inside = {var for equation in equations for var in equation.outvars}
        atoms = [atom for atom in placed.values() if not isinstance(atom, jex.Literal)]
        free = [atom for atom in dict.fromkeys([*used(equations), *atoms]) if atom not in inside]

        def branch() -> list[Any]:
            inputs = {atom: one.slots[atom].value() for atom in free}
            results = evaluate(equations, inputs, list(placed.values()), self.template)
            values = dict(zip(placed, results, strict=True))
            return [
                padded(values[place], type.shape)
                if place in values
                else jnp.zeros(type.shape, type.dtype)
                for place, type in enumerate(types)
            ]

        return branch

    def _synchronize(self, aligned: Sequence[Equation], operands: Sequence[Sequence[Slot]]) -> None:
        """Do once what all variants come together for."""
        first = aligned[0]
        wholes: Sequence[Any] = [None] * len(first.outvars)
        if holds_synchronization_point(first):
            results = merge_control_flow(aligned, operands, self._nested)
        elif first.primitive is merge_call_p:
            results, wholes = merge_call_results(first, operands[0])
        else:
            arrays = [slot.value() for slot in operands[0]]
            inputs = [jex.Var(jax.typeof(array)) for array in arrays]
            results = evaluate(
                [first.replace(invars=inputs)],
                dict(zip(inputs, arrays, strict=True)),
                first.outvars,
                self.template,
            )
        for one, point in zip(self.variants, aligned, strict=True):
            for var, result, whole in zip(point.outvars, results, wholes, strict=True):
                one.slots[var] = Slot(result, var.aval.shape, whole)

    def _nested(
        self, bodies: Sequence[jex.ClosedJaxpr], arguments: Sequence[Sequence[Slot]]
    ) -> list[list[Slot]]:
        outputs = [range(len(body.jaxpr.outvars)) for body in bodies]
        rows = merge_variants(self.index, bodies, arguments, outputs)
        return [[slot for slot in row if slot is not None] for row in rows]


class _Layout:
    """Where a switch puts what the variants compute: slots, each of the size of the largest."""

    def __init__(self, num_variants: int) -> None:
        self.types: list[jax.ShapeDtypeStruct] = []
        self.placed: list[dict[int, Atom]] = [{} for _ in range(num_variants)]
        self.arrays: Sequence[Any] = ()

    def slot(self, number: int, place: int) -> Slot:
        """Return what the switch put in a slot for a variant."""
        return Slot(self.arrays[place], np.shape(self.placed[number][place].aval))

    def add_needed(
        self, variants: Sequence[VariantTrace], needed: Sequence[Sequence[Atom]]
    ) -> list[list[Slot | int | None]]:
        """Give slots to what is needed at one position by all, unless it has one already."""
        found: list[list[Slot | int | None]] = [[] for _ in variants]
        for atoms in zip(*needed, strict=True):
            known = _known_before(variants, atoms)
            if known:
                for row, slot in zip(found, known, strict=True):
                    row.append(slot)
                continue
            shared: dict[Any, int] = {}
            for number, atom in enumerate(atoms):
                if atom is None:
                    found[number].append(None)
                    continue
                kind = (atom.aval.dtype, len(atom.aval.shape))
                shared[kind] = self._place(number, atom, shared.get(kind))
                found[number].append(shared[kind])
        return found

    def add_kept(self, number: int, variables: Sequence[Any]) -> None:
        """Give slots to what a variant keeps for later, shared with other variants in order."""
        taken = set(filter(_is_variable, self.placed[number].values()))
        for var in variables:
            if var not in taken:
                self._place(number, var, self._free(number, var.aval))

    def _free(self, number: int, aval: Any) -> int | None:
        for place, type in enumerate(self.types):
            alike = (type.dtype, len(type.shape)) == (aval.dtype, len(aval.shape))
            if alike and place not in self.placed[number]:
                return place
        return None

    def _place(self, number: int, atom: Atom, place: int | None) -> int:
        aval = atom.aval
        if place is None:
            self.types.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
            place = len(self.types) - 1
        else:
            shape = tuple(map(max, self.types[place].shape, aval.shape))
            self.types[place] = jax.ShapeDtypeStruct(shape, aval.dtype)
        self.placed[number][place] = atom
        return place


_Table: TypeAlias = dict[Any, list[tuple[Equation, int]]]


class _Numbering:
    """Numbers for what a variant computes: what has one number in two variants has one value."""

    def __init__(self, one: VariantTrace, table: _Table, counter: Iterator[int]) -> None:
        self._slots, self._table, self._counter = one.slots, table, counter
        self._numbers: dict[Any, Any] = {}

    def number(self, equation: Equation) -> int | None:
        """Return the number of what an equation computes, None if it is the variant's own."""
        operands = [self._operand(atom) for atom in equation.invars]
        if None in operands or (equation.effects and not is_read(equation)):
            return None
        alike = self._table.setdefault((equation.primitive, *operands), [])
        found = [number for other, number in alike if same_parameters(other, equation)]
        if not found:
            found = [next(self._counter)]
            alike.append((equation, found[0]))
        for place, var in enumerate(equation.outvars):
            self._numbers[var] = (found[0], place)
        return found[0]

    def _operand(self, atom: Atom) -> Any:
        if isinstance(atom, jex.Literal):
            return literal_key(atom)
        slot = self._slots.get(atom)
        if slot is None:
            return self._numbers.get(atom)
        return None if slot.is_padded else ("outside", id(slot.array))


def _reads_what_it_computes(equation: Equation) -> TraceError:
    return TraceError(
        "a part of a variable is read, which part depends on what one replica variant computes",
        source=source_of(equation.source_info),
        hint="read the whole variable first: v.read_value()[index]",
    )


def _known_before(variants: Sequence[VariantTrace], atoms: Sequence[Atom]) -> list[Slot]:
    """Return the slots of these atoms if they share an array before the switch, or else nothing."""
    if all(isinstance(atom, jex.Literal) for atom in atoms):
        first = atoms[0]
        if all(literal_key(atom) == literal_key(first) for atom in atoms):
            value = jnp.asarray(first.val, first.aval.dtype)
            return [Slot(value, first.aval.shape)] * len(atoms)
        return []
    if not all(map(_is_variable, atoms)):
        return []
    slots = [one.slots.get(atom) for one, atom in zip(variants, atoms, strict=True)]
    known = [slot for slot in slots if slot is not None]
    shared = all(slot.array is known[0].array for slot in known)
    return known if shared and len(known) == len(slots) else []


def _is_variable(atom: Atom) -> bool:
    return atom is not None and not isinstance(atom, jex.Literal)


def _split(equations: Sequence[Equation]) -> list[tuple[list[Equation], Equation | None]]:
    """Cut at the synchronization points: each segment with the one it ends at, None at the end."""
    segments: list[tuple[list[Equation], Equation | None]] = []
    segment: list[Equation] = []
    for equation in equations:
        if is_synchronization_point(equation):
            segments.append((segment, equation))
            segment = []
        else:
            segment.append(equation)
    return [*segments, (segment, None)]


def _last_uses(
    segments: Sequence[tuple[list[Equation], Equation | None]], results: Sequence[Atom]
) -> dict[Any, int]:
    """Return the last segment that uses each value, its synchronization point included."""
    last: dict[Any, int] = {}
    for position, (equations, point) in enumerate(segments):
        together = equations if point is None else [*equations, point]
        last.update(dict.fromkeys(used(together), position))
    last.update(dict.fromkeys(filter(_is_variable, results), len(segments) - 1))
    return last


def _checked(aligned: Sequence[Equation | None]) -> list[Equation]:
    """Return the variants' synchronization points; `TraceError` if they do not agree."""
    present = [point for point in aligned if point is not None]
    first = present[0]
    for point in aligned:
        if point is None:
            there = first
            raise TraceError(
                f"a replica comes to {_words(there)} that another replica never comes to",
                source=source_of(there.source_info),
                hint="let all replicas make the same collectives and assignments",
            )
        is_open = holds_synchronization_point(first) or are_one_merge_call(first, point)
        is_alike = first.primitive is point.primitive
        if is_open and is_alike and len(first.invars) == len(point.invars):
            continue  # what is inside is compared there
        if not same_parameters(first, point) or _types(first) != _types(point):
            here, there = source_of(first.source_info), source_of(point.source_info)
            raise TraceError(
                f"the replicas disagree: one comes to {_words(first)} at {here}, "
                f"another to {_words(point)} at {there}",
                source=there,
                hint="let all replicas make the same collectives and assignments, in one order "
                f"and with one shape{_UNEQUAL_GATHER * (first.primitive is all_gather_p)}",
            )
    return present


_UNEQUAL_GATHER = "; gd.get_replica_context().all_gather takes other lengths along its axis"


def _types(point: Equation) -> list[Any]:
    return [(np.shape(atom.aval), getattr(atom.aval, "dtype", None)) for atom in point.invars]


def _words(point: Equation) -> str:
    name = LOGICAL.get(point.primitive, point.primitive.name)
    kind = "an assignment" if name in ("aggregate", "swap", "addupdate") else name
    reducer = point.params.get("reducer")
    shapes = ", ".join(_shape_text(atom) for atom in point.invars if not is_ref(atom))
    return f"{kind}{f' ({reducer})' if reducer else ''}{f' of {shapes}' if shapes else ''}"


def _shape_text(atom: Atom) -> str:
    return f"{dtype_name(atom.aval.dtype)}[{','.join(map(str, atom.aval.shape))}]"
