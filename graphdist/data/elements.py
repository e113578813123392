"""Elements of datasets: pytrees of NumPy arrays, and what all elements of a dataset share.

Lists are leaves in a `Dataset`, as in tf.data: a list of numbers is an array. In elements of other
sources they are containers, as everywhere in JAX. A mapping that is not a dict, such as another
library's batch, is treated as a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias  # Any: elements are of the user's making

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from graphdist.errors import ArgumentError, ArgumentTypeError, BatchDimensionError, GraphdistError
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import structure_text
from graphdist.values.specs import ArraySpec, Dimensions

Element: TypeAlias = Any
"""A pytree of arrays or scalars."""

Array: TypeAlias = np.ndarray[Any, Any]

UNKNOWN: Final[Any] = object()
"""Stands for the spec of elements that cannot be described before one was made."""


@contextmanager
def at_the_users_line() -> Iterator[None]:
    """Add the user's current line to errors of a `with` block that name no line."""
    try:
        yield
    except GraphdistError as error:
        if error.source is None:
            error.source = here()
        raise


def as_element(value: Any) -> Element:
    """Return a value as an element of a `Dataset`, in which lists are arrays.

    >>> as_element({"x": [1, 2]})
    {'x': array([1, 2])}
    """
    return jax.tree.map(_array_or_scalar, value, is_leaf=is_list)


def is_list(leaf: Any) -> bool:
    """Return whether a part of a `Dataset`'s element is a list, which stands for an array."""
    return isinstance(leaf, list)


def _array_or_scalar(value: Any) -> Array | np.generic:
    if isinstance(value, np.ndarray | np.generic):
        return value
    return leaf_as_array(value, lambda: "a component of the element")


def leaf_as_array(leaf: Any, name: Callable[[], str]) -> Array:
    """Return a leaf as an array.

    Raises `ArgumentTypeError` for a leaf that is no array of numbers; `name()` returns the leaf's
    name in the error.
    """
    try:
        array = np.asarray(leaf)
    except GraphdistError:
        raise
    except Exception as error:  # libraries raise all kinds of errors for tensors on other devices
        raise ArgumentTypeError(
            f"{name()} is a {type(leaf).__name__} that cannot be read as an array: {error}",
            hint="give a NumPy array, or what numpy.asarray takes",
        ) from error
    if array.dtype.kind == "O":
        raise _no_numbers(leaf, array, name)
    return array


def _no_numbers(leaf: Any, array: Array, name: Callable[[], str]) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{name()} is no array of numbers: {type(leaf).__name__} of dtype {array.dtype}",
        hint="encode it as numbers, or leave it out of the batches",
    )


class Flat(NamedTuple):
    """An element, its leaves as arrays of numbers, and its structure as a pytree."""

    element: Element
    arrays: list[Array]
    structure: Any


def flattened(element: Element) -> Flat:
    """Flatten an element; raises `ArgumentTypeError` for a leaf that devices cannot hold.

    >>> flattened({"x": [1, 2.5]}).arrays
    [array(1), array(2.5)]
    """
    leaves: list[Any]
    leaves, structure = jax.tree.flatten(element, is_leaf=_is_sparse)
    if any(isinstance(leaf, Mapping) for leaf in leaves):
        return flattened(
            jax.tree.map(lambda leaf: dict(leaf) if isinstance(leaf, Mapping) else leaf, element)
        )
    arrays = [_numbers(leaf, element, index) for index, leaf in enumerate(leaves)]
    return Flat(element, arrays, structure)


def _is_sparse(node: Any) -> bool:
    """Return whether a part of an element is a sparse array, which JAX treats as a pytree."""
    return hasattr(node, "todense")


def _numbers(leaf: Any, element: Element, index: int) -> Array:
    name = partial(leaf_name, element, index)
    if _is_sparse(leaf):
        raise ArgumentTypeError(
            f"{name()} is a sparse array, {type(leaf).__name__}: it does not store rows",
            hint="give a dense array: leaf.todense()",
        )
    array = leaf if type(leaf) is np.ndarray else leaf_as_array(leaf, name)
    if array.dtype.kind in "OSUMm" or array.dtype.fields:
        raise _no_numbers(leaf, array, name)
    return array


def leaf_name(element: Element, index: int, root: str = "element") -> str:
    """Return the expression for a leaf of an element, such as `element['x']`.

    >>> leaf_name({"x": (1, 2)}, 1)
    "element['x'][1]"
    """
    path, _ = tree_flatten_with_path(element, is_leaf=_is_sparse)[0][index]
    return root + keystr(path)


def batch_size(flat: Flat) -> int:
    """Return the number of rows of an element, which all leaves share.

    Raises `BatchDimensionError` for a scalar, `ArgumentError` when leaves differ.
    """
    element, arrays, _ = flat
    for index, array in enumerate(arrays):
        if array.ndim == 0:
            raise without_batch_dimension(element, index)
        if len(array) != len(arrays[0]):
            raise ArgumentError(
                f"{leaf_name(element, 0)} has batch size {len(arrays[0])}, "
                f"{leaf_name(element, index)} has {len(array)}",
                hint="one element is one batch: give its leaves the same size in dimension 0",
            )
    return len(arrays[0]) if arrays else 0


def without_batch_dimension(element: Element, index: int) -> BatchDimensionError:
    """Return the error for a leaf of an element that is a scalar."""
    return BatchDimensionError(
        f"{leaf_name(element, index)} is a scalar: there is no batch dimension to split",
        hint="stack several examples into one batch, or repeat the value for each row",
    )


def spec_of(element: Element) -> Any:
    """Return the pytree of `ArraySpec` that describes an element exactly."""
    return jax.tree.map(lambda leaf: ArraySpec(np.shape(leaf), np.asarray(leaf).dtype), element)


def each_row(arrays: Element, start: int = 0) -> Iterator[Element]:
    """Yield the rows of a pytree of arrays, from index `start` on.

    >>> list(each_row({"x": np.array([1, 2, 3])}, 1))
    [{'x': np.int64(2)}, {'x': np.int64(3)}]
    """
    leaves, structure = jax.tree.flatten(arrays)
    for row in range(start, len(leaves[0]) if leaves else 0):
        yield jax.tree.unflatten(structure, [leaf[row] for leaf in leaves])


def spec_of_rows(spec: Any) -> Any:
    """Return the specs of the rows of arrays; `spec` has the arrays or their specs."""
    return jax.tree.map(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), spec)


def with_open_batch(shape: Dimensions) -> Dimensions:
    """Return the dimensions of a shape with the number of rows left open.

    >>> with_open_batch((4, 3)), with_open_batch(())
    ((None, 3), ())
    """
    return (None, *shape[1:]) if shape else ()


@dataclass(frozen=True)
class ElementKind:
    """What all elements of a dataset have in common: structure, dtypes and inner shapes."""

    structure: Any
    leaves: Sequence[ArraySpec]
    origin: str
    """Where the kind comes from, as text of an error."""

    @classmethod
    def of_spec(cls, spec: Any, origin: str) -> ElementKind:
        """Return the kind that a pytree of specs describes."""
        leaves, structure = jax.tree.flatten(spec)
        specs = [ArraySpec(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves]
        return cls(structure, specs, origin)

    @classmethod
    def of_first(cls, first: Flat, *, shapes_vary: bool) -> ElementKind:
        """Return the kind of the first element, with an open number of rows.

        If shapes vary, all sizes are open.
        """
        leaves = [
            ArraySpec(
                (None,) * array.ndim if shapes_vary else with_open_batch(array.shape), array.dtype
            )
            for array in first.arrays
        ]
        return cls(first.structure, leaves, "in the first element")

    def check(self, flat: Flat) -> None:
        """Raise `ArgumentError` if an element is of another kind."""
        element, arrays, structure = flat
        if structure != self.structure:
            raise ArgumentError(
                f"an element is {structure_text(structure)}, "
                f"{self.origin} it is {structure_text(self.structure)}",
                hint="give all elements one structure",
            )
        for index, (array, spec) in enumerate(zip(arrays, self.leaves, strict=True)):
            if array.dtype != spec.dtype or not fits(array.shape, spec.shape):
                raise ArgumentError(
                    f"{leaf_name(element, index)} is {type_text(array.dtype, array.shape)}, "
                    f"{self.origin} it is {type_text(spec.dtype, spec.shape)}",
                    hint="cast or pad to one dtype and inner shape, or declare what varies: "
                    "gd.data.Dataset.from_generator(generator, output_signature)",
                )


def fits(shape: Sequence[int], dimensions: Dimensions) -> bool:
    """Return whether a shape has the given dimensions, in which None is any size.

    >>> fits((4, 3), (None, 3)), fits((4,), (None, 3))
    (True, False)
    """
    if len(shape) != len(dimensions):
        return False
    return all(known in (None, size) for size, known in zip(shape, dimensions, strict=True))


def type_text(dtype: Any, dimensions: Dimensions) -> str:
    """Return a dtype and dimensions as text, with `?` for an open size.

    >>> type_text("float32", (None, 3))
    'float32[?,3]'
    """
    return f"{dtype}[{','.join('?' if size is None else str(size) for size in dimensions)}]"
