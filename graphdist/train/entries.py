"""The entries of a checkpoint: named arrays, plain values and states of a program's objects.

Objects are pytrees. The name of a leaf is the path to it, `params/dense/0/w`. A leaf is

* a `Variable`: its value; the value of an ON_READ variable is combined as by a read. It is restored
  by assigning, so that it may be on other devices, or on another number of replicas;
* a `ShardedVariable`: one array, whatever its shards;
* a metric: its sums, as float64; a generator of random numbers: its variable;
* an array, a key of `jax.random`, a number or a string. These cannot be written to: the object is
  rebuilt with the restored ones, and takes the old object's place in the checkpoint;
* an iterator over a dataset, or another object with `get_state` and `set_state`: its state, a JSON
  value, separate for each worker;
* another checkpoint: its entries;
* an object of a user's class: the variables, metrics, generators and iterators in its attributes.

An object that is found twice is saved once, under the first name. The other names are its aliases.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias  # Any: pytrees, JSON, values of numpy and JAX

import jax
import numpy as np

from graphdist.data.iterators import ElementIterator
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.metrics.exact_sums import Total
from graphdist.metrics.metric import Metric
from graphdist.random import Generator
from graphdist.runtime.files.checkpoint_arrays import can_be_written
from graphdist.runtime.spans import Span
from graphdist.state.sharded_variable import ShardedVariable
from graphdist.state.storage import Storage
from graphdist.state.variable import Variable
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import PerReplica, type_name

Array: TypeAlias = np.ndarray[Any, Any]
PutBack: TypeAlias = Callable[[Any], None]

_FLOATS = {"bfloat16", "float16", "float32", "float64"}
_LIBRARIES = {"jax", "jaxlib", "numpy", "builtins", "graphdist"}
_NO_OBJECTS = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)


@dataclass
class ArrayEntry:
    """An array, by its dtype and shape; `read` copies it to the host, `write` replaces all."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]
    write: Callable[[Array], None]
    is_read_by_all: bool = False
    """Whether reading takes all workers."""
    holder: Any = None
    """The object that is written to; None for an array, which is replaced."""
    takes_any_float: bool = False
    """Whether it can also be restored from floats of other dtypes."""
    slices: Storage | None = None
    """The storage of a variable in slices over workers: each worker saves and restores its own."""
    numbers: tuple[int, ...] = ()
    """The shape of the numbers stored for each element, if elements are random keys."""

    @property
    def span(self) -> Span | None:
        """Return the part that is restored on this worker; None: all of it."""
        return None if self.slices is None else self.slices.own_span

    def restore(self, array: Array) -> None:
        """Write the part of `span`."""
        (self.write if self.slices is None else self.slices.assign_own_slices)(array)

    def takes(self, dtype: str, shape: Sequence[int], stored_shape: Sequence[int]) -> bool:
        """Return whether it can be restored from an array of this dtype and shape."""
        is_float = self.takes_any_float and dtype in _FLOATS
        is_alike = tuple(stored_shape) == (*self.shape, *self.numbers)
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
    """A number or a string."""

    name: str
    value: Any
    write: PutBack
    holder: None = None

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


class _Tree:
    """A pytree some of whose leaves are replaced when it is restored."""

    def __init__(self, leaves: list[Any], structure: Any, put: PutBack) -> None:
        self._leaves, self._structure, self._put = leaves, structure, put
        self._is_changed = False

    def replace(self, place: int, leaf: Any) -> None:
        self._leaves[place] = leaf
        self._is_changed = True

    def finish(self) -> None:
        if self._is_changed:
            self._put(jax.tree.unflatten(self._structure, self._leaves))


@dataclass
class Entries:
    """The entries found in objects, by name and in order."""

    by_name: dict[str, CheckpointEntry] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    trees: list[_Tree] = field(default_factory=list)
    inner: list[Objects] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _seen: list[Any] = field(default_factory=list)  # keeps them alive, so that ids stay unique
    _inside: set[int] = field(default_factory=set)

    def collect(self, name: str, tree: Any, put: PutBack) -> None:
        """Add the entries of a pytree; `put` receives the tree that takes its place."""
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_entry_leaf)
        replaced = _Tree([leaf for _, leaf in leaves], structure, put)
        self.trees.append(replaced)
        for place, (path, leaf) in enumerate(leaves):
            inner = jax.tree_util.keystr(path, simple=True, separator="/")
            full = "/".join(filter(None, (name, inner)))
            if not self._collect_state(full, leaf):
                self._collect_value(full, leaf, partial(replaced.replace, place))

    def finish(self) -> None:
        """Put the trees with restored leaves in their places."""
        for tree in reversed(self.trees):
            tree.finish()

    def _add(self, name: str, entry: CheckpointEntry) -> None:
        self._check_free(name)
        self.by_name[name] = entry

    def _check_free(self, name: str) -> None:
        if name in self.by_name or name in self.aliases:
            raise ArgumentError(
                f"two values of a checkpoint have the name {name!r}: one would be lost",
                source=here(),
                hint="a slash joins the keys of a pytree: give keys without one, and other keys",
            )

    def _is_new(self, name: str, holder: Any) -> bool:
        known = self._names.get(id(holder))
        if known is not None:
            self._check_free(name)
            self.aliases[name] = known
            return False
        self._names[id(holder)] = name
        self._seen.append(holder)
        return True

    def _collect_state(self, name: str, leaf: Any) -> bool:
        """Add an object that is restored in place; return whether the leaf is one."""
        if isinstance(leaf, Variable | ShardedVariable):
            if self._is_new(name, leaf):
                self._add(name, _of_variable(name, leaf))
        elif isinstance(leaf, Metric):
            for inner, total in _named_totals(leaf):
                self._collect_state(f"{name}/{inner}", total)
        elif isinstance(leaf, Total):
            if self._is_new(name, leaf):
                self._add(name, _of_total(name, leaf))
        elif isinstance(leaf, Generator):
            self._collect_state(f"{name}/state", leaf.state)
        elif _has_state(leaf):
            if self._is_new(name, leaf):
                self._add(name, StateEntry(name, leaf.get_state, leaf.set_state, leaf))
        elif isinstance(leaf, Objects):
            if id(leaf) not in self._inside:
                self.inner.append(leaf)
                with self._entered(leaf):
                    for inner, tree in leaf.objects.items():
                        self.collect(f"{name}/{inner}", tree, leaf.putter(inner))
        elif _is_users_object(leaf):
            return self._collect_attributes(name, leaf)
        else:
            return False
        return True

    def _collect_attributes(self, name: str, holder: Any) -> bool:
        """Add the entries in the attributes of a user's object; return whether there are any."""
        if id(holder) in self._inside:
            return True
        is_found = False
        with self._entered(holder):
            for attribute, tree in vars(holder).items():
                leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_entry_leaf)
                for path, leaf in leaves:
                    inner = jax.tree_util.keystr(path, simple=True, separator="/")
                    full = "/".join(filter(None, (name, attribute, inner)))
                    is_found |= self._collect_state(full, leaf)
        return is_found

    @contextmanager
    def _entered(self, holder: Any) -> Iterator[None]:
        """Note that an object is being visited: it may contain itself."""
        self._inside.add(id(holder))
        try:
            yield
        finally:
            self._inside.remove(id(holder))

    def _collect_value(self, name: str, leaf: Any, put: PutBack) -> None:
        """Add a value that is replaced on restore; raises `ArgumentTypeError` for other kinds."""
        if isinstance(leaf, jax.Array | np.ndarray | np.generic):
            self._add(name, _of_array(name, leaf, put))
        elif isinstance(leaf, bool | int | float | str):
            self._add(name, ValueEntry(name, leaf, put))
        else:
            is_per_replica = isinstance(leaf, PerReplica)
            raise ArgumentTypeError(
                f"entry {name!r} of a checkpoint is of type {type_name(leaf)}, which cannot be "
                f"saved",
                source=here(),
                hint="make it one value first: strategy.reduce('MEAN', value, axis=None)"
                if is_per_replica
                else "give variables, arrays, numbers, metrics, generators, iterators, "
                "or pytrees of them",
            )


class Objects:
    """Objects by name: the content of a checkpoint."""

    objects: dict[str, Any]

    def putter(self, name: str) -> PutBack:
        """Return a function that replaces an object."""
        return lambda new: self.objects.__setitem__(name, new)

    def follow(self, status: Any) -> None:
        """Let a containing checkpoint's `LoadStatus` restore objects that are added later."""


def entries_of(objects: Objects, names: Iterable[str] | None = None) -> Entries:
    """Return the entries of all objects, or of those with some names."""
    entries = Entries()
    for name in objects.objects if names is None else names:
        entries.collect(name, objects.objects[name], objects.putter(name))
    return entries


def outside_scopes(function: Callable[[], Any]) -> Any:
    """Call a function outside every scope, since variables may be of any strategy."""
    return contextvars.Context().run(function)


def _is_entry_leaf(leaf: Any) -> bool:
    """Return whether an object is a leaf here, although JAX may flatten it."""
    kinds = Variable | ShardedVariable | Metric | Total | Generator | PerReplica | Objects
    return isinstance(leaf, kinds) or _has_state(leaf)


def _has_state(leaf: Any) -> bool:
    return isinstance(leaf, ElementIterator) or (
        callable(getattr(leaf, "get_state", None)) and callable(getattr(leaf, "set_state", None))
    )


def _is_users_object(leaf: Any) -> bool:
    module = type(leaf).__module__.partition(".")[0]
    return (
        not isinstance(leaf, _NO_OBJECTS) and module not in _LIBRARIES and hasattr(leaf, "__dict__")
    )


def _named_totals(metric: Metric) -> Iterator[tuple[str, Total]]:
    """Yield the sums of a metric with names that no two share."""
    names: set[str] = set()
    for number, total in enumerate(metric.totals):
        name = f"{total.name}_{number}" if total.name in names else total.name
        names.add(name)
        yield name, total


def _of_total(name: str, total: Total) -> ArrayEntry:
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


def _of_variable(name: str, variable: Variable | ShardedVariable) -> ArrayEntry:
    dtype = variable.dtype

    def write(array: Array) -> None:
        variable.assign(_as_value(array, dtype), read_value=False)

    numbers = _numbers_of(dtype)
    storage = variable.storage if isinstance(variable, Variable) else None
    is_in_slices = storage and storage.is_in_slices_over_workers and not numbers
    return ArrayEntry(
        name,
        _checked_dtype(name, dtype),
        variable.shape,
        lambda: _of_data(variable.host_value()),
        write,
        is_read_by_all=variable.is_read_by_all,
        holder=variable,
        slices=storage if is_in_slices else None,
        numbers=numbers,
    )


def _of_array(name: str, leaf: Any, put: PutBack) -> ArrayEntry:
    def write(array: Array) -> None:
        if isinstance(leaf, np.generic):
            put(array[()])
        elif isinstance(leaf, np.ndarray):
            put(array)
        else:
            put(jax.device_put(_as_value(array, leaf.dtype), leaf.sharding))

    def read() -> Array:
        is_numpy = isinstance(leaf, np.ndarray | np.generic)
        return np.array(leaf) if is_numpy else _of_data(leaf)

    dtype = _checked_dtype(name, leaf.dtype)
    return ArrayEntry(name, dtype, leaf.shape, read, write, numbers=_numbers_of(leaf.dtype))


def _numbers_of(dtype: Any) -> tuple[int, ...]:
    """Return the shape of the numbers that a random key is stored as; () for other dtypes."""
    if not jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        return ()
    return tuple(jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype)).shape)


def _checked_dtype(name: str, dtype: Any) -> str:
    """Return the dtype as text; raises `ArgumentTypeError` for one that no file can hold."""
    if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) or can_be_written(np.dtype(dtype)):
        return str(dtype)
    raise ArgumentTypeError(
        f"entry {name!r} of a checkpoint has dtype {dtype}, which cannot be saved",
        source=here(),
        hint="give numbers: value.astype(...)",
    )


def _of_data(value: Any) -> Array:
    """Return a value in the memory of the host, a random key as its numbers."""
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _as_value(array: Array, dtype: Any) -> Any:
    if not jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        return array
    implementation = jax.random.key_impl(jax.numpy.empty((), dtype))  # the dtype has a short name
    return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=implementation)
