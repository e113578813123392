"""Maps from the names of a program's objects to arrays in files of other programs.

An array in a file has one of these forms:

* `"model.norm.weight"`: the array of that name;
* `[form, form, ..]`: arrays that are stacked along a new first dimension, as layers in a scan are;
* `Transposed(form)`, `Transposed(form, axes)`: an array with its dimensions in another order;
* `Reshaped(form, shape)`: the elements of an array in another shape, such as heads that the file
  has joined;
* None: no array; the object is left alone.

A load reads a view of the form. An export goes the other way: it takes a stacked array apart, and
undoes a transposition. An export refuses `Reshaped`, which does not say the shape in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.quoted import did_you_mean, quoted
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.foreign_arrays import (
    Array,
    ForeignArray,
    ReshapedView,
    StackedView,
    TransposedView,
)
from graphdist.runtime.spans import Part
from graphdist.values.distributed import type_name


@dataclass(frozen=True)
class Transposed:
    """An array of a file with its dimensions in the order `axes`, by default reversed.

    Dense layers of PyTorch store their weights `[outputs, inputs]`, those of Flax and Keras
    `[inputs, outputs]`.

    >>> Transposed("layers.0.up_proj.weight")
    Transposed(source='layers.0.up_proj.weight', axes=None)
    """

    source: Form
    axes: tuple[int, ...] | None = None

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """Return the axes for an array of so many dimensions.

        Raises `ArgumentError` if the axes are not all of them.
        """
        axes = tuple(reversed(range(rank))) if self.axes is None else tuple(self.axes)
        if sorted(axes) != list(range(rank)):
            raise ArgumentError(
                f"{quoted(self)} has axes {list(axes)}, and the array has {rank} dimensions",
                hint=f"give each of {list(range(rank))} once",
            )
        return axes

    def inverse(self, rank: int) -> tuple[int, ...]:
        """Return the axes that undo the transposition of an array of so many dimensions."""
        axes = self.of_rank(rank)
        return tuple(axes.index(i) for i in range(rank))


@dataclass(frozen=True)
class Reshaped:
    """The elements of an array of a file, row by row, in the shape `shape`.

    >>> Reshaped(Transposed("layers.0.q_proj.weight"), (4096, 32, 128)).shape
    (4096, 32, 128)
    """

    source: Form
    shape: tuple[int, ...]


Form: TypeAlias = str | Sequence["Form"] | Transposed | Reshaped
"""What an array of an object is in a file."""
NameMap: TypeAlias = Mapping[str, Form | None] | Callable[[str], Form | None] | None
"""The forms by the names of objects; None for the same names."""


def form_of(names: NameMap, name: str) -> Form | None:
    """Return the form for an object's name: by default the name itself; None for no array."""
    if names is None:
        return name
    found = names.get(name, name) if isinstance(names, Mapping) else names(name)
    if found is not None:
        names_in(found, name)  # raises for a value that is no form
    return found


def require_known(names: NameMap, known: Iterable[str]) -> None:
    """Raise `ArgumentError` if a dict `names` has a key that is not in `known`.

    `known` are the names of the objects. Raises `ArgumentTypeError` if `names` is neither a dict, a
    function nor None.

    >>> require_known({"w": "weight"}, ["w", "b"])
    """
    if isinstance(names, Mapping):
        known = list(known)
        for name in names:
            if name not in known:
                raise ArgumentError(
                    f"names has {quoted(name)}, and no object has that name",
                    hint=did_you_mean(str(name), known, f"the objects are {some_of(known)}"),
                )
    elif names is not None and not callable(names):
        raise ArgumentTypeError(
            f"names is of type {type_name(names)}, not a dict or a function",
            hint='give {"name of the object": "name in the file"}, or a function of the first',
        )


def some_of(names: Iterable[str]) -> str:
    """Return the first names as text."""
    names = list(names)
    return ", ".join(map(quoted, names[:8])) + (", .." if names[8:] else "")


def names_in(form: Form, of: str = "") -> list[str]:
    """Return the names of all arrays of a form.

    Raises `ArgumentTypeError` for a value that is no form, which `names` gives the object `of`.

    >>> names_in([Transposed("a"), "b"])
    ['a', 'b']
    """
    if isinstance(form, str):
        return [form]
    if isinstance(form, Transposed | Reshaped):
        return names_in(form.source, of)
    if isinstance(form, list | tuple) and form:
        return [name for each in form for name in names_in(each, of)]
    what = "an empty list" if isinstance(form, list | tuple) else f"of type {type_name(form)}"
    raise ArgumentTypeError(
        f"names gives {quoted(of)} a value that is {what}",
        hint="give a name in the file, a list of names to stack, gd.train.Transposed, "
        "gd.train.Reshaped, or None",
    )


def view_of(form: Form, arrays: Mapping[str, ForeignArray]) -> ForeignArray:
    """Return a view of the arrays of a form; raises `CheckpointError` if they do not fit it."""
    if isinstance(form, str):
        return arrays[form]
    if isinstance(form, Transposed):
        array = view_of(form.source, arrays)
        return TransposedView(array, form.of_rank(len(array.shape)))
    if isinstance(form, Reshaped):
        return ReshapedView(view_of(form.source, arrays), tuple(form.shape))
    return StackedView([view_of(each, arrays) for each in form])


def shapes_in(form: Form, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of each array that an array of a form is exported to.

    Raises `ArgumentError` if the form is not one of an array of this shape.

    >>> list(shapes_in([Transposed("a"), Transposed("b")], (2, 3, 4)))
    [('a', (4, 3)), ('b', (4, 3))]
    """
    if isinstance(form, str):
        yield form, shape
    elif isinstance(form, Reshaped):
        raise ArgumentError(
            f"{quoted(form)} is not exported: it does not say the shape in the file",
            hint="reshape the array, and export that",
        )
    elif isinstance(form, Transposed):
        yield from shapes_in(form.source, tuple(shape[i] for i in form.inverse(len(shape))))
    else:
        if not shape or len(form) != shape[0]:
            raise ArgumentError(
                f"names has a list of {len(form)} arrays for an array of shape {list(shape)}",
                hint="give one for each index of the first dimension",
            )
        for each in form:
            yield from shapes_in(each, shape[1:])


def parts_in(form: Form, part: Part, values: Array) -> Iterator[tuple[str, Part, Array]]:
    """Yield where a part of an exported array is written: name, part and elements of arrays."""
    if isinstance(form, str):
        yield form, part, values
    elif isinstance(form, Transposed):
        inverse = form.inverse(len(part))
        inner = tuple(part[i] for i in inverse)
        yield from parts_in(form.source, inner, values.transpose(inverse))
    elif not isinstance(form, Reshaped):
        first = part[0]
        for each, row in zip(form[first.start : first.stop], values, strict=True):
            yield from parts_in(each, part[1:], row)


def require_all_in(form: Form, name: str, arrays: Mapping[str, ForeignArray], called: str) -> None:
    """Raise `CheckpointError` if a file lacks an array of a form."""
    for each in names_in(form):
        if each not in arrays:
            raise CheckpointError(
                f"{called} has no array {quoted(each)}, which names gives {quoted(name)}",
                hint=did_you_mean(each, arrays, "gd.train.load(path) lists the arrays it has"),
            )
