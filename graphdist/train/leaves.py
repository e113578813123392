"""The entries of a checkpoint: how each kind of leaf is read, and written back.

An array holds numbers in the byte order of the host. Its dtype is the same on every host, whether
JAX's 64-bit mode is on or not. A value raises an error if it would be restored as another value or
another type: masked arrays and other subclasses of arrays, subclasses of numbers and strings. An
array in a memory map is saved as its values, and restored in memory.

A restored array of JAX is committed to its devices if the array that it replaces was committed. It
is weakly typed if the array that it replaces was a weakly typed scalar, because JAX makes weakly
typed arrays of Python scalars only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias  # Any: JSON, values of numpy and JAX

import jax
import numpy as np

from graphdist.data.other_datasets import state_pair
from graphdist.data.state_encoding import decoded, encoded
from graphdist.errors import ArgumentTypeError
from graphdist.metrics.exact_sums import Total
from graphdist.metrics.metric import Metric
from graphdist.runtime.files.checkpoint_index import as_json, can_be_stored
from graphdist.runtime.spans import Part, Span, array_of_full, shards_to_write
from graphdist.state.sharded_variable import ShardedVariable
from graphdist.state.stored_values import StoredValue
from graphdist.state.variable import Variable
from graphdist.values.distributed import PerReplica, type_name

Array: TypeAlias = np.ndarray[Any, Any]
PutBack: TypeAlias = Callable[[Any], None]

_FLOATS = {"bfloat16", "float16", "float32", "float64"}
_OF_64_BITS = {"float64", "int64", "uint64", "complex128"}


@dataclass
class Shards:
    """The shards of an array on the devices of this worker."""

    shape: tuple[int, ...]
    """The shape of one shard."""
    read: Callable[[], Iterator[tuple[Part, Array]]]
    """Yields the shards that this worker writes to files, each after its index in the array."""


@dataclass
class ArrayEntry:
    """An array with its dtype and shape.

    `read` copies the array to the host; `write` replaces the part `span` of the array.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]
    write: Callable[[Array], None]
    is_read_by_all: bool = False
    """Whether all workers take part in a read."""
    holder: Any = None
    """The object that is written to; None for an array, which is replaced."""
    takes_any_float: bool = False
    """Whether the array can also be restored from floats of other dtypes."""
    slices: StoredValue | None = None
    """The value of a variable that is sharded over workers. Each worker saves its own shards."""
    key_shape: tuple[int, ...] = ()
    """The shape of the integers stored per element, if elements are random keys."""
    shards: Shards | None = None
    """The shards of a sharded array, else None. With shards, `write` reads each shard of its
    argument by an index."""

    @property
    def span(self) -> Span | None:
        """Return the part that is restored on this worker; None for the full array."""
        return None if self.slices is None else self.slices.own_span

    def takes(self, dtype: str, shape: Sequence[int], stored_shape: Sequence[int]) -> bool:
        """Return whether the entry can be restored from an array of this dtype and shape."""
        is_float = self.takes_any_float and dtype in _FLOATS
        is_alike = tuple(stored_shape) == (*self.shape, *self.key_shape)
        return (is_float or dtype == self.dtype) and tuple(shape) == tuple(self.shape) and is_alike

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @property
    def num_bytes(self) -> int:
        """Return the size in bytes; for random keys it is an estimate."""
        size = 8 if self.dtype.startswith("key<") else jax.numpy.dtype(self.dtype).itemsize
        return size * int(np.prod(self.shape, dtype=np.int64))


@dataclass
class ValueEntry:
    """A Python scalar or a string."""

    name: str
    value: Any
    write: PutBack
    holder: None = None
    shape = ()
    key_shape = ()
    shards = None
    is_read_by_all = False

    @property
    def dtype(self) -> str:
        """Return the dtype of an array of the value."""
        return str(self.read().dtype)

    def read(self) -> Array:
        """Return the value as an array."""
        return np.asarray(self.value)

    def __str__(self) -> str:
        return f"of type {type(self.value).__name__}"


@dataclass
class StateEntry:
    """An object whose state differs between workers."""

    name: str
    read: Callable[[], Any]
    write: PutBack
    holder: Any

    def __str__(self) -> str:
        return "an iterator"


CheckpointEntry: TypeAlias = ArrayEntry | ValueEntry | StateEntry


def named_totals(metric: Metric) -> Iterator[tuple[str, Total]]:
    """Yield the sums of a metric with unique names."""
    names: set[str] = set()
    for index, total in enumerate(metric.totals):
        name = f"{total.name}_{index}" if total.name in names else total.name
        names.add(name)
        yield name, total


def of_total(name: str, total: Total) -> ArrayEntry:
    """Return the entry of a sum of a metric."""
    return ArrayEntry(
        name,
        "float64",
        total.shape,
        total.host_value,
        total.restore,
        is_read_by_all=total.variable.is_read_by_all,
        holder=total,
        takes_any_float=True,
    )


def of_variable(name: str, variable: Variable | ShardedVariable) -> ArrayEntry:
    """Return the entry of a variable."""
    dtype = variable.dtype

    key_shape = _key_shape_of(dtype)
    sharded = None if key_shape or isinstance(variable, ShardedVariable) else _sharded(variable)
    shards, is_over_workers = None, False
    if sharded is not None:
        storage = sharded.on_devices
        shards = Shards(storage.home.shard_shape(variable.shape), sharded.own_shards)
        is_over_workers = storage.is_in_shards_of_workers

    def write(array: Array) -> None:
        with _in_64_bits(dtype):
            if sharded is not None:
                sharded.assign_own_shards(array)
            else:
                variable.assign(_as_value(array, dtype), read_value=False)

    return ArrayEntry(
        name,
        _checked_dtype(name, dtype),
        variable.shape,
        lambda: _of_data(variable.host_value()),
        write,
        is_read_by_all=variable.is_read_by_all,
        holder=variable,
        slices=sharded if is_over_workers else None,
        key_shape=key_shape,
        shards=shards,
    )


def _sharded(variable: Variable) -> StoredValue | None:
    """Return the value of a variable that is stored sharded, or will be; None for others."""
    storage = variable.storage
    if variable.strategy.devices.is_absent:
        return None
    is_sharded = storage.sharded_along is not None or storage.is_in_shards_of_workers
    return variable.stored if is_sharded else None


def of_value(name: str, leaf: Any, put: PutBack) -> ArrayEntry | ValueEntry:
    """Return the entry of a value that is replaced on restore.

    Raises `ArgumentTypeError` for a value that would not be restored unchanged.
    """
    if type(leaf) in (bool, int, float, str):
        return ValueEntry(name, leaf, put)
    is_plain = type(leaf) in (np.ndarray, np.memmap) or isinstance(leaf, jax.Array)
    if is_plain or (isinstance(leaf, np.generic) and type(leaf) is leaf.dtype.type):
        return _of_array(name, leaf, put)
    hint = "give variables, arrays, numbers, metrics, generators, iterators, or pytrees of them"
    if isinstance(leaf, PerReplica):
        hint = "make it one value first: strategy.reduce('MEAN', value, axis=None)"
    elif isinstance(leaf, np.ndarray | np.generic):
        hint = "it would come back as a plain array: give np.asarray(value)"
    elif isinstance(leaf, int | float | str):
        kind = next(kind for kind in (int, float, str) if isinstance(leaf, kind))
        hint = f"it would come back as a plain {kind.__name__}: give {kind.__name__}(value)"
    elif any(each.__module__.startswith("keras.") for each in type(leaf).__mro__):
        hint = "give the strategy's variables: graphdist.keras.variable_of(weight)"
    raise ArgumentTypeError(
        f"entry {name!r} of a checkpoint is of type {type_name(leaf)}, which cannot be saved",
        hint=hint,
    )


def _of_array(name: str, leaf: Any, put: PutBack) -> ArrayEntry:
    is_numpy = isinstance(leaf, np.ndarray | np.generic)
    dtype = leaf.dtype.newbyteorder("=") if is_numpy else leaf.dtype

    def write(array: Array) -> None:
        if is_numpy:
            put(array[()] if isinstance(leaf, np.generic) else array)
            return
        with _in_64_bits(dtype):
            put(_placed(_as_value(array, dtype), leaf))

    def read() -> Array:
        return np.array(leaf, dtype, order="C") if is_numpy else _of_data(leaf)

    shards, key_shape = None, _key_shape_of(dtype)
    if not is_numpy and not key_shape and not leaf.sharding.is_fully_replicated:
        shards = Shards(leaf.sharding.shard_shape(leaf.shape), partial(shards_to_write, leaf))
    return ArrayEntry(
        name,
        _checked_dtype(name, dtype),
        leaf.shape,
        read,
        write,
        key_shape=key_shape,
        shards=shards,
    )


def _in_64_bits(dtype: Any) -> AbstractContextManager[None]:
    """Let JAX make arrays of a dtype of 64 bits, even if its 64-bit mode is off."""
    return jax.enable_x64(True) if str(dtype) in _OF_64_BITS else nullcontext()


def of_state(name: str, holder: Any) -> StateEntry:
    """Return the entry of an object with a pair of methods that read and set its state."""
    pair = state_pair(holder)
    assert pair is not None

    def write(state: Any) -> None:
        pair.set(decoded(state))

    return StateEntry(name, partial(_state_of, name, pair.get), write, holder)


def _state_of(name: str, get: Callable[[], Any]) -> Any:
    """Return a copy of the state of an object: the state may change while the copy is written.

    Raises `ArgumentTypeError` for a state that would not be restored unchanged.
    """
    state = get()
    try:
        return json.loads(as_json(encoded(state)))
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"the state of entry {name!r} of a checkpoint cannot be saved: {error}",
            hint="a state has dicts, lists, tuples, sets, text, bytes, bool, int, float, None, and "
            "arrays of numbers",
        ) from error


def _key_shape_of(dtype: Any) -> tuple[int, ...]:
    """Return the shape of the integers of which a random key consists; () for other dtypes."""
    if not jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        return ()
    return tuple(jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype)).shape)


def _checked_dtype(name: str, dtype: Any) -> str:
    """Return the dtype as text; raises `ArgumentTypeError` for one that no file can hold."""
    if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) or can_be_stored(np.dtype(dtype)):
        return str(dtype)
    raise ArgumentTypeError(
        f"entry {name!r} of a checkpoint has dtype {dtype}, which cannot be saved",
        hint="give numbers: value.astype(...)",
    )


def _of_data(value: Any) -> Array:
    """Return a value in the memory of the host, a random key as integers."""
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _as_value(array: Array, dtype: Any) -> Any:
    if not jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        return array
    implementation = jax.random.key_impl(jax.numpy.empty((), dtype))  # `dtype` has a short name
    return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=implementation)


def _placed(value: Any, before: jax.Array) -> jax.Array:
    """Return `value` as an array with the sharding of `before`.

    If the sharding has devices of other processes, this process makes only its own shards.
    """
    sharding = before.sharding
    if not sharding.is_fully_addressable or not sharding.is_fully_replicated:
        return array_of_full(value, sharding)
    if not before.shape and jax.typeof(before).weak_type:  # arrays of keys lack `weak_type`
        with jax.enable_x64(before.dtype.name in _OF_64_BITS):
            value = jax.numpy.asarray(value.item())
    if before.committed:
        return jax.device_put(value, sharding)
    (device,) = sharding.device_set
    with jax.default_device(device):
        return jax.device_put(value)
