"""A function in the making, drawn while JAX traces it: its values so far, and choices to come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias  # Any: arrays and functions of JAX

import jax.numpy as jnp
import numpy as np
from jax import lax

import graphdist as gd

Array: TypeAlias = Any
Operation: TypeAlias = "Callable[[Drawn], Array | None]"

NUMBERS = ("float32", "bfloat16", "int32")
ALL = (*NUMBERS, "bool")
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (8,),
    (16,),
    (8, 16),
    (16, 8),
    (8, 3),
    (3, 16),
    (2, 8, 16),
    (8, 16, 3),
)
LARGEST = 4096
"""The most elements of a value."""


def bounded(x: Array) -> Array:
    """Return numbers of which sums are exact: the large ones replaced by a limit."""
    if x.dtype == jnp.bool_:
        return x
    limit = 2 if x.dtype == jnp.bfloat16 else 8
    return lax.clamp(jnp.array(-limit, x.dtype), x, jnp.array(limit, x.dtype))


def is_exact(x: Array, terms: int) -> bool:
    """Return whether a sum of so many products is exact in the dtype of a value."""
    return x.dtype != jnp.bfloat16 or terms <= 64


class Drawn:
    """A function in the making: the values so far, and the choices to come."""

    def __init__(
        self, seed: int, values: Sequence[Array], variables: Sequence[gd.Variable] = ()
    ) -> None:
        self.choices = Random(seed)
        self.values = list(values)
        self.variables = variables

    def any(self, dtypes: Sequence[str] = ALL, ranks: Sequence[int] = (0, 1, 2, 3)) -> Array:
        """Return a value of these dtypes and ranks, preferably a late one."""
        fitting = [x for x in self.values if str(x.dtype) in dtypes and x.ndim in ranks]
        if fitting:
            return self.choices.choice([*fitting, *fitting[-3:], fitting[-1]])
        shape = self.choices.choice([shape for shape in SHAPES if len(shape) in ranks])
        return self.constant(self.choices.choice(dtypes), shape)

    def constant(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return an array of small integers that is part of the program."""
        numbers = np.random.default_rng(self.choices.randrange(100))
        drawn = numbers.integers(-2, 3, shape)
        return jnp.asarray(drawn > 0 if dtype == "bool" else drawn).astype(dtype)

    def like(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a value of this shape and dtype, one of another shape broadcast if it fits."""
        fitting = [x for x in self.values if x.dtype == dtype and x.shape in (shape, shape[1:], ())]
        if not fitting:
            return self.constant(str(dtype), shape)
        return jnp.broadcast_to(self.choices.choice(fitting), shape)

    def axis(self, x: Array) -> int:
        """Return a dimension."""
        return self.choices.randrange(x.ndim)

    def body(
        self, operations: Sequence[Operation], gives: Sequence[Array], most: int = 4
    ) -> Callable[..., list[Array]]:
        """Return a nested function whose results have these shapes and dtypes."""
        seed, steps = self.choices.randrange(2**32), self.choices.randint(1, most)

        def call(*values: Array) -> list[Array]:
            inner = Drawn(seed, values)
            inner.grow(steps, operations)
            return [inner.given(each.shape, each.dtype) for each in gives]

        return call

    def given(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the last value of this shape, or one that is summed or broadcast to it."""
        fitting = [x for x in self.values if x.shape == shape]
        x = fitting[-1] if fitting else self.values[-1]
        if x.shape != shape:
            x = jnp.broadcast_to(bounded(jnp.sum(x.astype(jnp.int32))), shape)
        if dtype == jnp.bool_ or x.dtype == jnp.bool_:
            return (x > 0 if x.dtype != jnp.bool_ else x).astype(dtype)
        return bounded(x.astype(dtype))

    def grow(self, steps: int, operations: Sequence[Operation]) -> None:
        """Add the results of some operations; one that finds nothing to take adds none."""
        for _ in range(steps):
            found = self.choices.choice(operations)(self)
            for x in found if isinstance(found, list | tuple) else [found]:
                if x is not None and x.ndim <= 4 and 0 < x.size <= LARGEST:
                    self.values.append(x)
