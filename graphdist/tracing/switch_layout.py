"""The shared slots for the values that replica variants compute in a switch.

The branches of a `lax.switch` return the same number of arrays of the same types. So values of
different variants share an output of the switch where they have one dtype and rank, and a smaller
one is padded to the largest; a variant with no value for an output puts zeros there. A value of the
trace before the switch stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: atoms of jaxprs and arrays have no common public type

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from graphdist.tracing.same_equations import literal_key
from graphdist.tracing.slots import Slot
from graphdist.tracing.variant_trace import Atom, VariantTrace


class SwitchLayout:
    """The outputs of one switch, and which value each variant puts there."""

    def __init__(self, num_variants: int) -> None:
        """Start without outputs."""
        self.types: list[jax.ShapeDtypeStruct] = []
        self.placed: list[dict[int, Atom]] = [{} for _ in range(num_variants)]
        """The value of each variant at each output, by the output's place."""
        self.arrays: Sequence[Any] = ()
        """The outputs, once the switch is made."""

    def slot(self, number: int, place: int) -> Slot:
        """Return what the switch put in an output for a variant."""
        return Slot(self.arrays[place], np.shape(self.placed[number][place].aval))

    def add_needed(
        self, variants: Sequence[VariantTrace], rows: Sequence[Sequence[Atom]]
    ) -> list[list[Slot | int | None]]:
        """Give outputs to what all variants need at the same positions of their `rows`.

        Returns the place of each, or its slot where it has one already; None where a variant has
        nothing.
        """
        found: list[list[Slot | int | None]] = [[] for _ in variants]
        for atoms in zip(*rows, strict=True):
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
                kind = _kind(atom.aval)
                shared[kind] = self._place(number, atom, shared.get(kind))
                found[number].append(shared[kind])
        return found

    def add_kept(self, number: int, variables: Sequence[Any]) -> None:
        """Give outputs to what a variant keeps for later, shared with other variants in order."""
        taken = set(filter(is_variable, self.placed[number].values()))
        for variable in variables:
            if variable not in taken:
                self._place(number, variable, self._free_place(number, variable.aval))

    def _free_place(self, number: int, aval: Any) -> int | None:
        for place, type in enumerate(self.types):
            if _kind(type) == _kind(aval) and place not in self.placed[number]:
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


def is_variable(atom: Atom) -> bool:
    """Return whether an atom is a variable of a jaxpr: neither a literal nor None."""
    return atom is not None and not isinstance(atom, jex.Literal)


def _kind(aval: Any) -> Any:
    return aval.dtype, len(aval.shape)


def _known_before(variants: Sequence[VariantTrace], atoms: Sequence[Atom]) -> list[Slot]:
    """Return the slots of these atoms if they share an array before the switch, or else nothing."""
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
