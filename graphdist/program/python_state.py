"""The state of Python that functions read, and what they change of it while they are traced.

A loop over a dataset traces its body once for all elements and for later calls. So a value of
Python that the body reads would be the one of the first call, and a change would happen once. A
walk (`python_walk.py`) finds the values in each call. While the body is traced, the places of
arrays hold tracers. After the trace all places are read again. A place that changed and is not in
the loop's state is restored, and refused by name. So is a random generator that was drawn from, and
a Python iterator that the walk reaches, since asking it cannot be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any  # Any: users' functions and values

import jax

from graphdist.errors import ArgumentError
from graphdist.program.places import GeneratorState, Holder, global_generators
from graphdist.program.python_values import may_be_constant
from graphdist.program.python_walk import Input, Walk
from graphdist.tracing.state import current_trace
from graphdist.tracing.user_lines import here


class PythonState:
    """What some functions read; `replaced` traces them, and refuses what they change."""

    def __init__(
        self,
        functions: Iterable[Any],
        values: Mapping[str, Any],
        attributes: set[str],
        local: frozenset[str] = frozenset(),
        carried: frozenset[tuple[int, Any]] = frozenset(),
        arrays_are_constants: bool = False,
    ) -> None:
        """Walk from the functions, and from values that they are given, by their names.

        `attributes` are the names of attributes that the functions have been found to read; it
        grows. `local` are variables, and `carried` other places by their owner's identity and their
        key, that belong to the state of the loop.
        """
        known = -1
        while known < len(attributes):  # an object may be found before the name of its attribute
            known = len(attributes)
            self._walk = Walk(functions, values, attributes, local, carried, arrays_are_constants)
        self.key = tuple(self._walk.key)
        """The key of a program that is traced for this state."""
        self.arrays, self.kept = self._walk.arrays, self._walk.kept

    @property
    def has_arrays_for_python(self) -> bool:
        """Return whether there are arrays whose numbers Python may need, and could be given."""
        return any(map(may_be_constant, self.arrays))

    @contextmanager
    def replaced(self, arrays: Sequence[Any] | None = None) -> Iterator[None]:
        """Trace the functions with other arrays; refuse and undo their changes of other values.

        Does nothing outside of a trace: there each change happens as often as Python does it.
        """
        if current_trace() is None:
            yield
            return
        if self._walk.iterators:
            raise _refused(f"asks {self._walk.iterators[0]}, for elements", _ITERATOR_HINT)
        holders = [*self._walk.holders, *global_generators()]
        for holder in holders:
            holder.begin()
        try:
            put = self._put(arrays) if arrays is not None else []
            for holder in holders:
                holder.are_set()
            yield
            self._refuse_changes(holders, put)
        except BaseException:
            for holder in holders:
                holder.carried = set()  # they would keep values of the trace
            raise
        finally:
            for holder in holders:
                holder.restore()

    @contextmanager
    def undone(self, after: Callable[[Exception], bool]) -> Iterator[None]:
        """Undo what the functions change if they raise such an error."""
        holders = [*self._walk.holders, *global_generators()]
        for holder in holders:
            holder.begin()
        try:
            yield
        except Exception as error:
            if after(error):
                for holder in holders:
                    holder.restore()
            raise

    def _put(self, arrays: Sequence[Any]) -> list[tuple[Input, Any, list[Any], Any]]:
        rest, put = iter(arrays), []
        for place in self._walk.inputs:
            leaves = list(place.leaves)
            for number in place.places:
                leaves[number] = next(rest)
            value = jax.tree.unflatten(place.structure, leaves)
            place.holder.put(place.key, value)
            put.append((place, value, *jax.tree.flatten(value)))
        return put

    def _refuse_changes(self, holders: list[Holder], put: list[Any]) -> None:
        for place, value, leaves, before in put:
            after, structure = jax.tree.flatten(value)
            if structure != before or any(
                new is not old for new, old in zip(after, leaves, strict=True)
            ):
                kind = type(jax.tree.unflatten(place.structure, place.leaves)).__name__
                raise _refused(f"changes {place.name}, a {kind}", _hint(kind))
        for holder in holders:
            changed = holder.changed()
            if changed is not None:
                hint = _GENERATOR_HINT if isinstance(holder, GeneratorState) else _hint("")
                raise _refused(f"changes {changed}", hint)


_GENERATOR_HINT = (
    "draw from jax.random by a key of the step: jax.random.fold_in(key, step), or from "
    "gd.random.Generator; or draw in the dataset"
)
_ITERATOR_HINT = (
    "put its values into the dataset, give each step an array of them, or loop outside the function"
)


def _hint(kind: str) -> str:
    if kind == "Rngs":
        return _GENERATOR_HINT
    return (
        "assign it in the loop itself, as an array or a number: it is carried then; or loop "
        "outside the function"
    )


def _refused(what: str, hint: str) -> ArgumentError:
    return ArgumentError(
        f"a loop over a dataset {what}: its body is traced once for all elements",
        source=here(),
        hint=hint,
    )
