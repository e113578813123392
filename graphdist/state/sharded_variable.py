"""A sharded variable: several variables whose rows together are the rows of one large variable.

The rows of shard i follow the rows of shard i - 1. The rows are split evenly; a
remainder gives each of the first shards one row more, so that 13 rows in 5 shards are split into 3,
3, 3, 2 and 2 rows. The shards are ordinary variables, and may be stored in different places.

An access to some rows touches only the shards that have these rows. Only a read of the full value
joins the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Any  # Any: values, indices, and results of writes

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.errors import ArgumentError, ArgumentTypeError, OutOfRangeError, UnsupportedError
from graphdist.state.checks import checked_value
from graphdist.state.variable import Variable
from graphdist.state.variable_updates import IndexedSlices, VariableUpdates
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.array_operators import ArrayOperators
from graphdist.values.distributed import type_name


class ShardedVariable(ArrayOperators, VariableUpdates):
    """Variables whose rows, in order, are the rows of one variable.

    Raises `ArgumentTypeError` without variables, `ArgumentError` if their dtypes or the shapes
    of their rows differ.

    >>> import graphdist as gd
    >>> v = ShardedVariable([gd.Variable(jnp.zeros((3, 2))), gd.Variable(jnp.ones((2, 2)))])
    >>> v.shape
    (5, 2)
    >>> v[3]
    Array([1., 1.], dtype=float32)
    """

    def __init__(self, variables: Sequence[Variable], name: str = "ShardedVariable") -> None:
        """Make a variable of shards, in order."""
        self.variables = _checked_shards(variables)
        self.name = name
        first = self.variables[0]
        self.dtype, self.made_at, self.strategy = first.dtype, first.made_at, first.strategy
        self.trainable, self.synchronization = first.trainable, first.synchronization
        self._ends = list(accumulate(shard.shape[0] for shard in self.variables))
        self.starts = [0, *self._ends[:-1]]
        """The first row of each shard."""
        self.shape: tuple[int, ...] = (self._ends[-1], *first.shape[1:])
        self.ndim, self.size = len(self.shape), prod(self.shape)

    @property
    def is_read_by_all(self) -> bool:
        """Return whether all processes must read the value together."""
        return any(shard.is_read_by_all for shard in self.variables)

    def read_value(self) -> jax.Array:
        """Return the full value: the rows of all shards."""
        return jnp.concatenate([shard.read_value() for shard in self.variables])

    value = read_value
    _as_array = read_value

    def host_value(self) -> Any:
        """Return the full value in the memory of the host."""
        return np.concatenate([shard.host_value() for shard in self.variables])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.host_value(), dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the shards, as in `tf.distribute`."""
        return iter(self.variables)

    def __getitem__(self, index: Any) -> jax.Array:
        """Return rows or parts of rows. Only the shards that have these rows are read."""
        if _is_array_of_rows(index):
            return self.gather(index)
        entries = self._entries(index)
        place = next((i for i, entry in enumerate(entries) if entry is not None), len(entries))
        new, rest = entries[:place], entries[place + 1 :]
        first = entries[place] if place < len(entries) else slice(None)
        if isinstance(first, slice):
            rows = self._rows(first)
            return rows[(*new, slice(None), *rest)]
        return self._row(int(first))[(*new, *rest)]

    def _entries(self, index: Any) -> tuple[Any, ...]:
        """Return an index with one entry for each dimension, and None for each new dimension."""
        entries = index if isinstance(index, tuple) else (index,)
        for entry in entries:
            is_known = (
                entry is None or entry is Ellipsis or isinstance(entry, int | slice | np.integer)
            )
            if not is_known and not hasattr(entry, "shape"):
                raise ArgumentTypeError(
                    f"an index of variable {self.name!r} is of type {type_name(entry)}",
                    hint="index with integers, slices, None and ...",
                )
        if not any(entry is Ellipsis for entry in entries):
            return entries
        place = next(i for i, entry in enumerate(entries) if entry is Ellipsis)
        named = sum(entry is not None and entry is not Ellipsis for entry in entries)
        filled = (slice(None),) * (self.ndim - named)
        return (*entries[:place], *filled, *entries[place + 1 :])

    def _row(self, row: int) -> jax.Array:
        found = row + self.shape[0] if row < 0 else row
        if not 0 <= found < self.shape[0]:
            raise OutOfRangeError(
                f"row {row} of variable {self.name!r}, which has {self.shape[0]} rows"
            )
        shard = next(i for i, end in enumerate(self._ends) if found < end)
        return self.variables[shard][found - self.starts[shard]]

    def _rows(self, rows: slice) -> jax.Array:
        if rows.step == 0:
            raise ArgumentError(f"a slice of variable {self.name!r} has step 0")
        wanted = range(*rows.indices(self.shape[0]))
        found: list[jax.Array] = []
        for shard, start, end in zip(self.variables, self.starts, self._ends, strict=True):
            inside = [row - start for row in wanted if start <= row < end]
            if inside:
                found.append(shard[_as_slice(inside)])
        if not found:
            return jnp.zeros((0, *self.shape[1:]), self.dtype)
        return jnp.concatenate(found if wanted.step > 0 else found[::-1])

    def gather(self, indices: Any, axis: int = 0) -> jax.Array:
        """Return the rows at these indices, shard by shard.

        Raises `UnsupportedError` for another axis than 0.
        """
        if axis != 0:
            raise UnsupportedError(
                f"gather of variable {self.name!r} along axis {axis}: its shards are rows",
                hint="gather from the full value: jnp.take(v[...], indices, axis)",
            )
        rows = jnp.asarray(indices)
        result = jnp.zeros((*rows.shape, *self.shape[1:]), self.dtype)
        for shard, start in zip(self.variables, self.starts, strict=True):
            local = rows - start
            is_inside = (local >= 0) & (local < shard.shape[0])
            # If another shard has the row, the index is out of range, so no server reads a row.
            own = jnp.where(is_inside, local, shard.shape[0])
            found = shard.read_value().at[own].get(mode="fill", fill_value=0)
            mask = is_inside.reshape(rows.shape + (1,) * (self.ndim - 1))
            result = jnp.where(mask, found, result)
        return result

    sparse_read = gather

    def checked(self, value: Any) -> Any:
        """Return the value as an array of the variable's shape and dtype."""
        return checked_value(self, value)  # type: ignore[arg-type]  # it has the attributes used

    def write(self, method: str, array: Any) -> None:
        """Apply `assign`, `assign_add` or `assign_sub` to each shard, with the shard's rows."""
        for shard, start, end in zip(self.variables, self.starts, self._ends, strict=True):
            shard.write(method, shard.checked(array[start:end]))

    def result_of_write(self, read_value: bool) -> Any:
        """Return the result of a method that writes: None, the variable, or its new value."""
        if not read_value:
            return None
        return self if current_trace() is None else self.read_value()

    def batch_scatter_update(self, slices: IndexedSlices, *, read_value: bool = True) -> Any:
        """Raise `UnsupportedError`, as `tf.distribute` has no such method for sharded variables."""
        raise UnsupportedError(
            f"batch_scatter_update of variable {self.name!r}, which is in shards"
        )

    def _scatter(self, method: str, slices: IndexedSlices, read_value: bool) -> Any:
        sizes = [shard.shape[0] for shard in self.variables]
        if sizes != rows_of_shards(self.shape[0], len(sizes)):
            raise UnsupportedError(
                f"{method} of variable {self.name!r}, whose shards have {sizes} rows",
                hint=f"split it evenly: {rows_of_shards(self.shape[0], len(sizes))}",
            )
        indices = jnp.asarray(slices.indices)
        for shard, start in zip(self.variables, self.starts, strict=True):
            local = indices - start
            is_inside = (local >= 0) & (local < shard.shape[0])
            if current_trace() is None and not bool(jnp.any(is_inside)):
                continue
            # A scatter ignores an index after the last row.
            own = IndexedSlices(slices.values, jnp.where(is_inside, local, shard.shape[0]))
            getattr(shard, method)(own, read_value=False)
        return self.result_of_write(read_value)

    def __repr__(self) -> str:
        places = ", ".join(str(list(shard.shape)) for shard in self.variables)
        return f"<ShardedVariable {self.name!r} {list(self.shape)} in shards {places}>"


def rows_of_shards(rows: int, num_shards: int) -> list[int]:
    """Return the number of rows of each shard of a variable that is split evenly.

    >>> rows_of_shards(13, 5)
    [3, 3, 3, 2, 2]
    """
    least, more = divmod(rows, num_shards)
    return [least + (shard < more) for shard in range(num_shards)]


def in_shards(
    value: Any, num_shards: int, name: str, make: Callable[[Any, str], Variable]
) -> ShardedVariable:
    """Return a sharded variable; `make` makes one shard from its rows and a name."""
    ends = list(accumulate(rows_of_shards(value.shape[0], num_shards)))
    parts = [value[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    shards = [make(part, f"{name}/part_{i}") for i, part in enumerate(parts)]
    return ShardedVariable(shards, name)


def _checked_shards(variables: Any) -> list[Variable]:
    """Return the shards; raise the errors of `ShardedVariable`."""
    shards = list(variables) if isinstance(variables, Sequence) else []
    if not shards or not all(isinstance(shard, Variable) for shard in shards):
        raise ArgumentTypeError(
            f"a ShardedVariable is made of {variables!r}, not of variables",
            hint="give it a list of gd.Variable, one at least",
        )
    first = shards[0]
    for shard in shards:
        if shard.dtype != first.dtype:
            raise ArgumentError(
                f"shard {shard.name!r} has dtype {shard.dtype}, "
                f"shard {first.name!r} has dtype {first.dtype}"
            )
        if not shard.shape or shard.shape[1:] != first.shape[1:]:
            raise ArgumentError(
                f"shard {shard.name!r} has shape {list(shard.shape)}, "
                f"shard {first.name!r} has shape {list(first.shape)}: their rows differ"
            )
    return shards


def _is_array_of_rows(index: Any) -> bool:
    return isinstance(index, list) or (
        hasattr(index, "shape") and not isinstance(index, np.integer)
    )


def _as_slice(rows: list[int]) -> slice:
    """Return the slice of rows that are evenly spaced."""
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    end = rows[-1] + (1 if step > 0 else -1)
    return slice(rows[0], None if end < 0 else end, step)
