"""Shapes and dtypes of arguments, to trace a function without values.

A dimension that varies between the elements of a dataset is None. The spec of a dataset also has
the shape of the first element, so that a function can be traced with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias  # Any: everything that numpy accepts as a dtype

import jax
import jax.numpy as jnp

from graphdist.errors import ArgumentError

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase

Dimensions: TypeAlias = tuple[int | None, ...]
"""A shape; None is a dimension that varies."""


class ArraySpec(jax.ShapeDtypeStruct):
    """Shape and dtype of an array; a dimension that varies is None.

    If all dimensions are known, an `ArraySpec` works like a `jax.ShapeDtypeStruct`, also in
    functions of JAX.

    >>> ArraySpec((None, 28, 28), jnp.float32)
    ArraySpec(shape=(None, 28, 28), dtype=float32)
    """

    __slots__ = ("example",)

    def __init__(
        self, shape: Sequence[int | None], dtype: Any, example: tuple[int, ...] | None = None
    ) -> None:
        """Describe an array; `example` is the shape of an element, for dimensions that vary.

        Raises `ArgumentError` for a shape with other sizes than None and integers from 0.
        """
        sizes = _checked_shape(shape, "ArraySpec", "give the shape of an element: (28, 28)")
        known = tuple(0 if size is None else size for size in sizes)
        super().__init__(known, dtype)  # type: ignore[no-untyped-call]
        # The constructor of JAX's class takes no None, and its instances are immutable.
        object.__setattr__(self, "shape", sizes)
        self.example = example

    def __repr__(self) -> str:
        return f"ArraySpec(shape={self.shape}, dtype={self.dtype})"

    @property
    def traced_shape(self) -> tuple[int, ...] | None:
        """Return the shape for which a function is traced; None if the shape is not known."""
        return self.example if None in self.shape else tuple(self.shape)


def _checked_shape(shape: Any, name: str, hint: str) -> Dimensions:
    """Return a shape as a tuple of Python integers; raises `ArgumentError` for another value."""
    try:
        if isinstance(shape, str):
            raise TypeError
        sizes = tuple(None if size is None else index(size) for size in shape)
        if any(size is not None and size < 0 for size in sizes):
            raise TypeError
    except TypeError:
        raise ArgumentError(
            f"{name} has shape {shape!r}: a shape is a tuple of sizes, each an integer from 0",
            hint=f"{hint}, and (16,) for one dimension",
        ) from None
    return sizes


class PerReplicaSpec:
    """Shape and dtype of each replica's component: the spec of a `PerReplica`.

    >>> PerReplicaSpec((16, 8), jnp.float32)
    PerReplicaSpec(shape=(16, 8), dtype=float32)
    """

    def __init__(
        self,
        shape: Sequence[int | None],
        dtype: Any,
        examples: tuple[tuple[int, ...], ...] | None = None,
        strategy: StrategyBase | None = None,
    ) -> None:
        """Describe one replica's component.

        `examples` are shapes of an element, per replica or one for all. With `strategy` None the
        spec belongs to the strategy in whose scope it is used. Raises `ArgumentError` for a shape
        with other sizes than None and integers from 0.
        """
        hint = "give the shape of one replica's part: (16, 8)"
        self.shape: Dimensions = _checked_shape(shape, "PerReplicaSpec", hint)
        self.dtype = jnp.dtype(dtype)
        self.examples, self.strategy = examples, strategy

    def __repr__(self) -> str:
        return f"PerReplicaSpec(shape={self.shape}, dtype={self.dtype})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerReplicaSpec) and (self.shape, self.dtype) == (
            other.shape,
            other.dtype,
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    @property
    def traced_shapes(self) -> tuple[tuple[int, ...], ...] | None:
        """Return the shapes for which a function is traced: one per replica, or one for all.

        None if they are not known.
        """
        if None in self.shape:
            return self.examples
        return (tuple(size for size in self.shape if size is not None),)
