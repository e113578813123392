"""The Python state that functions read, and changes of the state while functions are traced.

A loop over a dataset traces its body once for all elements and for later calls. So the body would
always read the Python values of the first call, and changes would happen once. A walk
(`python_walk.py`) finds the values in each call. While the body is traced, tracers replace the
arrays. After the trace all values are read again. A value that changed and is not in the loop's
state is restored, and an error names it. The same holds for a random generator that was used. If
the walk reaches a Python iterator, there is an error before the trace, since reads of an iterator
cannot be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any  # Any: users' values

import jax

from graphdist.errors import ArgumentError
from graphdist.program.python_holders import GeneratorState, Holder, global_generators
from graphdist.program.python_walk import Input, Walk, may_be_constant
from graphdist.tracing.trace_in_progress import current_trace


class PythonState:
    """The Python state that functions read.

    A trace runs inside `replaced`, which raises an error if a function changes the state.
    """

    def __init__(self, walk: Walk) -> None:
        """Store the results of a walk from the functions."""
        self._walk = walk
        self.key = tuple(walk.key)
        """The key of programs that are traced for this state."""
        self.arrays, self.kept = walk.arrays, walk.kept

    @property
    def has_arrays_for_python(self) -> bool:
        """Return whether some arrays can be constants, in case Python needs their values."""
        return any(map(may_be_constant, self.arrays))

    @contextmanager
    def replaced(self, arrays: Sequence[Any] | None = None) -> Iterator[None]:
        """Replace the arrays during a trace by `arrays`, if given; undo all changes afterwards.

        Raises `ArgumentError` if a function made a change. Outside of a trace this does nothing,
        since there Python makes each change itself.
        """
        if current_trace() is None:
            yield
            return
        if self._walk.iterators:
            raise _refused(f"reads elements of {self._walk.iterators[0]}", _ITERATOR_HINT)
        before = self._held_values()
        is_done = False
        try:
            put = self._put(arrays) if arrays is not None else []
            during = self._held_values()
            yield
            self._refuse_changes(during, put)
            is_done = True
        finally:
            for holder, values in before:  # after an error the loop's state is restored, too
                holder.restore(values, holder.carried if is_done else ())

    @contextmanager
    def undone(self, after: Callable[[Exception], bool]) -> Iterator[None]:
        """Undo the functions' changes after an error for which `after` returns True."""
        before = self._held_values()
        try:
            yield
        except Exception as error:
            if after(error):
                for holder, values in before:
                    holder.restore(values)
            raise

    def _held_values(self) -> list[tuple[Holder, dict[Any, Any]]]:
        """Return all holders with their current values."""
        holders = [*self._walk.holders, *global_generators()]
        return [(holder, holder.values()) for holder in holders]

    def _put(self, arrays: Sequence[Any]) -> list[tuple[Input, Any, list[Any], Any]]:
        rest, put = iter(arrays), []
        for each in self._walk.inputs:
            leaves = list(each.leaves)
            for index in each.indices:
                leaves[index] = next(rest)
            value = jax.tree.unflatten(each.structure, leaves)
            each.holder.put(each.key, value)
            put.append((each, value, *jax.tree.flatten(value)))
        return put

    def _refuse_changes(self, held: list[tuple[Holder, dict[Any, Any]]], put: list[Any]) -> None:
        for each, value, leaves, before in put:
            after, structure = jax.tree.flatten(value)
            if structure != before or any(
                new is not old for new, old in zip(after, leaves, strict=True)
            ):
                kind = type(jax.tree.unflatten(each.structure, each.leaves)).__name__
                raise _refused(f"changes {each.name}, a {kind}", _hint(kind))
        for holder, values in held:
            changed = holder.changed(values)
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
        f"a loop over a dataset {what}: its body is traced once for all elements", hint=hint
    )
