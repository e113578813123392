"""The entries of a checkpoint: named arrays, plain values and states of a program's objects.

Objects are pytrees. The name of a leaf is the path to it, `params/dense/0/w`. A leaf is

* a `Variable`: its value; the value of an ON_READ variable is combined as by a read. A variable is
  restored by assigning the saved value, so it may be on other devices, or have another number of
  replicas than when it was saved;
* a `ShardedVariable`: one array, whatever its shards;
* a metric: its sums, as float64; a generator of random numbers: its variable;
* an array, a key of `jax.random`, a number or a string. These values cannot be assigned, so the
  pytree around them is rebuilt with the restored values, and replaces the old pytree in the
  checkpoint object;
* an iterator over a dataset, another object with `get_state` and `set_state`, or an iterable with
  `state_dict` and `load_state_dict`: its state, separate for each worker;
* another checkpoint: its entries;
* an object of a user's class: the variables, metrics, generators and iterators in its attributes.

An object that occurs twice is saved once, under its first name. Its other names are aliases.
"""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias  # Any: pytrees

import jax

from graphdist.data.iterators import ElementIterator
from graphdist.data.other_datasets import state_pair
from graphdist.errors import ArgumentError, ContextError
from graphdist.metrics.exact_sums import Total
from graphdist.metrics.metric import Metric
from graphdist.quoted import quoted
from graphdist.random import Generator
from graphdist.state.sharded_variable import ShardedVariable
from graphdist.state.variable import Variable
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.train.leaves import (
    CheckpointEntry,
    PutBack,
    named_totals,
    of_state,
    of_total,
    of_value,
    of_variable,
)
from graphdist.values.distributed import PerReplica

Key: TypeAlias = tuple[str, bool]
"""A key of a pytree as text, and whether it is an index of a list or tuple."""

_LIBRARIES = {"jax", "jaxlib", "numpy", "builtins", "graphdist"}
_STATES = (Variable, ShardedVariable, Metric, Total, Generator)
_NO_OBJECTS = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)


class _Tree:
    """One node of a pytree. A restore may replace some of its children."""

    def __init__(self, children: list[Any], structure: Any, put: PutBack) -> None:
        self._children, self._structure, self._put = children, structure, put
        self._is_changed = False

    def replace(self, index: int, child: Any) -> None:
        self._children[index] = child
        self._is_changed = True

    def finish(self) -> None:
        if self._is_changed:
            self._put(jax.tree.unflatten(self._structure, self._children))


@dataclass
class _Position:
    """The position of a value in the objects of a checkpoint."""

    name: str
    """The name of the pytree that the value is in."""
    value: Any
    put: PutBack | None
    """Replaces the value. None in the attributes of a user's object, which are not replaced."""
    outer: _Position | None = None
    """The node of the pytree that the value is a child of, None at the top."""
    key: str = ""
    """The key of the value in the node `outer`."""
    is_entered: bool = False
    """Whether the value's children are being visited. The position is popped again after them."""
    is_object: bool = False
    """Whether the value is an object of a user's class."""
    entries_before: int = 0
    """The number of all entries when the visit of the value's children began."""
    is_index: bool = False
    """Whether the key is an index of a list or tuple."""

    @property
    def full_name(self) -> str:
        """Return the name of the value."""
        keys = "/".join(key for key, _ in self.keys)
        return "/".join(filter(None, (self.name, keys)))

    @property
    def keys(self) -> list[Key]:
        """Return the keys from the top of the pytree to the value."""
        keys, position = [], self
        while position.outer is not None:
            keys.append((position.key, position.is_index))
            position = position.outer
        return keys[::-1]

    @property
    def path(self) -> tuple[Key, ...]:
        """Return the keys from the objects of the checkpoint to the value."""
        above = self.name.split("/") if self.name else []
        return (*((key, False) for key in above), *self.keys)

    def below(self, key: Any, value: Any, put: PutBack | None) -> _Position:
        """Return the position of a child of this node."""
        text = jax.tree_util.keystr(key, simple=True, separator="/")
        is_index = isinstance(key[-1], jax.tree_util.SequenceKey)
        return _Position(self.name, value, put, self, text, is_index=is_index)


@dataclass
class Entries:
    """The entries of objects, by name and in order.

    The positions to visit are in a list, since objects may be nested deeper than Python's stack
    allows. JAX flattens one level of a pytree at a time.
    """

    by_name: dict[str, CheckpointEntry] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    paths: dict[str, tuple[Key, ...]] = field(default_factory=dict)
    """The keys of each entry, by its name: a key may contain a slash."""
    empty: list[tuple[tuple[Key, ...], Any]] = field(default_factory=list)
    """The nodes of pytrees that have no children, with their keys."""
    trees: list[_Tree] = field(default_factory=list)
    inner: list[Objects] = field(default_factory=list)
    of_value: Callable[[str, Any, PutBack], CheckpointEntry] = of_value
    """Makes the entry of a leaf that is replaced when it is restored."""
    _names: dict[int, str] = field(default_factory=dict)
    _seen: list[Any] = field(default_factory=list)  # keeps objects alive, so that ids stay unique
    _inside: set[int] = field(default_factory=set)
    """The ids of the objects that are being visited. An object may contain itself."""

    def collect(self, name: str, tree: Any, put: PutBack) -> None:
        """Add the entries of a pytree; `put` takes the tree that replaces the pytree."""
        waiting = [self._root(name, tree, put)]
        while waiting:
            position = waiting.pop()
            if position.is_entered:
                self._leave(position)
            elif (within := self._visit(position)) is not None:
                self._inside.add(id(position.value))
                position.is_entered, position.entries_before = True, self._count
                waiting += [position, *reversed(within)]

    def finish(self) -> None:
        """Replace the trees by those with restored leaves."""
        for tree in reversed(self.trees):  # the inner ones first
            tree.finish()

    @property
    def _count(self) -> int:
        return len(self.by_name) + len(self.aliases)

    def _leave(self, position: _Position) -> None:
        """End the visit of a value, after all its children.

        Raises `ArgumentTypeError` if a leaf of a pytree is an object of a user's class in which no
        entry was found. In an attribute of another object, such an object is allowed.
        """
        self._inside.remove(id(position.value))
        if (
            position.is_object
            and position.put is not None
            and self._count == position.entries_before
        ):
            self.of_value(position.full_name, position.value, position.put)

    def _visit(self, position: _Position) -> list[_Position] | None:
        """Return the positions of a value's children; add the entry of a leaf, and return None."""
        value, is_inside = position.value, id(position.value) in self._inside
        if isinstance(value, _STATES) or _has_state(value):
            self._add_state(position.full_name, value, position.path)
            return None
        if isinstance(value, Objects):
            return None if is_inside else self._objects(position.full_name, value)
        if not isinstance(value, PerReplica) and (children := self._level(position)) is not None:
            if not children:
                self.empty.append((position.path, value))
            return children
        if _is_users_object(value):
            position.is_object = True
            return None if is_inside else _attributes(position.full_name, value)
        if position.put is not None:
            name = position.full_name
            self._add(name, self.of_value(name, value, position.put), position.path)
        return None

    def _objects(self, name: str, holder: Objects) -> list[_Position]:
        self.inner.append(holder)
        named = holder.objects.items()
        return [self._root(f"{name}/{each}", tree, holder.putter(each)) for each, tree in named]

    def _root(self, name: str, tree: Any, put: PutBack) -> _Position:
        """Return the position of a pytree, which `finish` replaces."""
        root = _Tree([tree], jax.tree.structure(0), put)
        self.trees.append(root)
        return _Position(name, tree, partial(root.replace, 0))

    def _level(self, position: _Position) -> list[_Position] | None:
        """Return the children of a node of a pytree; None for a leaf."""
        calls = itertools.count()  # JAX calls `is_leaf` for the node first, then for its children
        try:
            pairs, structure = jax.tree_util.tree_flatten_with_path(
                position.value, is_leaf=lambda _: next(calls) > 0
            )
        except (TypeError, ValueError) as error:
            kind = type(position.value).__name__
            raise ArgumentError(
                f"entry {position.full_name!r} of a checkpoint is a {kind} whose keys cannot "
                f"be put in order: {error}",
                hint="give keys of one type",
            ) from error
        if [key for key, _ in pairs] == [()]:
            return None
        is_inside = id(position.value) in self._inside
        if position.put is None:
            below = [position.below(key, child, None) for key, child in pairs]
            return None if is_inside else below
        if is_inside:
            raise ArgumentError(
                f"entry {quoted(position.full_name)} of a checkpoint contains itself",
                hint="give a tree: each list or dict in one place",
            )
        tree = _Tree([child for _, child in pairs], structure, position.put)
        self.trees.append(tree)
        return [
            position.below(key, child, partial(tree.replace, index))
            for index, (key, child) in enumerate(pairs)
        ]

    def _add(self, name: str, entry: CheckpointEntry, path: tuple[Key, ...]) -> None:
        self._check_free(name)
        self.by_name[name], self.paths[name] = entry, path

    def _check_free(self, name: str) -> None:
        if name in self.by_name or name in self.aliases:
            raise ArgumentError(
                f"two values of a checkpoint have the name {name!r}: one would be lost",
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

    def _add_state(self, name: str, leaf: Any, path: tuple[Key, ...]) -> None:
        """Add an object that is restored in place."""
        if isinstance(leaf, Metric):
            for inner, total in named_totals(leaf):
                self._add_state(f"{name}/{inner}", total, (*path, (inner, False)))
        elif isinstance(leaf, Generator):
            self._add_state(f"{name}/state", leaf.state, (*path, ("state", False)))
        elif self._is_new(name, leaf):
            if isinstance(leaf, Variable | ShardedVariable):
                self._add(name, of_variable(name, leaf), path)
            elif isinstance(leaf, Total):
                self._add(name, of_total(name, leaf), path)
            else:
                self._add(name, of_state(name, leaf), path)


class Objects:
    """Objects by name: the content of a checkpoint."""

    def __init__(self, objects: dict[str, Any]) -> None:
        """Take the objects."""
        self.objects = objects

    def putter(self, name: str) -> PutBack:
        """Return a function that replaces an object."""
        return lambda new: self.objects.__setitem__(name, new)

    def follow(self, status: Any) -> None:
        """Let the status of a checkpoint that contains these objects restore later ones, too."""


def entries_of(
    objects: Objects,
    names: Iterable[str] | None = None,
    of_value: Callable[[str, Any, PutBack], CheckpointEntry] = of_value,
) -> Entries:
    """Return the entries of the objects with these names, by default of all objects."""
    entries = Entries(of_value=of_value)
    for name in objects.objects if names is None else names:
        entries.collect(name, objects.objects[name], objects.putter(name))
    return entries


def outside_scopes(function: Callable[[], Any]) -> Any:
    """Call a function outside every scope, since variables may be of any strategy."""
    return contextvars.Context().run(function)


def require_outside(done: str) -> None:
    """Raise `ContextError` inside a function; `done` is such as "a checkpoint is saved"."""
    if current_trace() is not None:
        raise ContextError(
            f"{done} inside a function, which would do it when it is traced and never again",
            hint="call it outside, between two calls of the function",
        )


def _attributes(name: str, holder: Any) -> list[_Position]:
    """Return the positions of the attributes of a user's object."""
    named = list(vars(holder).items())
    return [_Position("/".join(filter(None, (name, each))), value, None) for each, value in named]


def _has_state(leaf: Any) -> bool:
    if isinstance(leaf, ElementIterator):
        return True
    if state_pair(leaf) is None:
        return False
    # A model of torch has a `state_dict` as well, of arrays; it is called, and not iterated.
    is_iterated = hasattr(leaf, "__iter__") and not callable(leaf)
    return is_iterated or callable(getattr(leaf, "get_state", None))


def _is_users_object(leaf: Any) -> bool:
    module = type(leaf).__module__.partition(".")[0]
    return (
        not isinstance(leaf, _NO_OBJECTS) and module not in _LIBRARIES and hasattr(leaf, "__dict__")
    )
