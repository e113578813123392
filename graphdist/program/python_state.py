"""What functions read of Python's state, and what they change of it, found by one walk.

A loop over a dataset traces its body once for all elements and for later calls. So a value of
Python that the body reads would be the one of the first call, and a change would happen once. The
walk begins with the functions of the loop. By the names in their code it goes on to closure cells,
globals, attributes of objects and classes, items of containers, and to all functions, methods,
partials and callable objects that it finds there. Each value is one of:

* an array: an input of the program. While the body is traced, its place holds the tracer;
* a number, string and the like: part of the key of the program, by type and value;
* a function: part of the key by its code; the walk goes on in it;
* a container: part of the key by its length and keys; the walk goes on in its items;
* another object: part of the key by its identity; the walk goes on in the attributes that any of
  the functions names.

After the trace the places are read again. A place that changed and is not in the loop's state is
restored, and refused by name. So is a random generator, and a Python iterator if it is reached.

The walk does not enter the code of installed packages, nor objects whose classes Python's library
and the packages of `_PACKAGES` define: their caches change while a function is traced. Attributes
of such a base class are watched only if the functions name them.
"""

from __future__ import annotations

import enum
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any  # Any: users' functions and values
from weakref import ReferenceType, WeakKeyDictionary

import jax
import numpy as np

from graphdist.errors import ArgumentError
from graphdist.program.code_names import names_of
from graphdist.program.places import (
    Attributes,
    Cell,
    Elements,
    GeneratorState,
    Globals,
    Holder,
    Items,
    Numbers,
    Slots,
    global_generators,
)
from graphdist.tracing.state import current_trace
from graphdist.tracing.user_lines import CodeOwner, here, owner_of
from graphdist.values.distributed import Mirrored, PerReplicaArray

_MOST_ITEMS = 10_000
"""How many items of one container are looked at; one that is larger counts as one object."""
_PLAIN = (
    *(bool, int, float, complex, str, bytes, types.NoneType, np.dtype, enum.Enum),
    *(range, slice, types.EllipsisType, types.NotImplementedType),
)
_PACKAGES = frozenset(
    ("graphdist", "jax", "jaxlib", "numpy", "keras", "flax", "optax", "tensorflow", "torch")
)
_CONTAINERS = frozenset(("types", "collections", "argparse", "builtins", "_thread"))
"""Modules of Python's library whose objects hold users' values."""


@dataclass(frozen=True)
class _Input:
    """A place with arrays, and the structure that they are the leaves of."""

    name: str
    holder: Holder
    key: Any
    leaves: list[Any]
    structure: Any
    places: list[int]
    """Which leaves are arrays."""


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
        self._functions, self._values = list(functions), values
        self._attributes, self._local, self._carried = attributes, local, carried
        self._arrays_are_constants = arrays_are_constants
        known = -1
        while known < len(attributes):  # an object may be found before the name of its attribute
            known = len(attributes)
            self._walk()

    def _walk(self) -> None:
        self.arrays: list[Any] = []
        self.kept: list[Any] = []
        self._key: list[Any] = []
        self._inputs: list[_Input] = []
        self._holders: list[Holder] = []
        self._globals: dict[int, Globals] = {}
        self._iterators: list[str] = []
        self._seen: dict[int, int] = {}
        self._classes: set[type] = set()
        self._work: deque[tuple[str, Holder | None, Any, Any]] = deque()
        for function in self._functions:
            self._add_function(function, self._local)
        for name, value in self._values.items():
            self._push(name, None, None, value)
        while self._work:
            self._visit(*self._work.popleft())

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key of a program that is traced for this state."""
        return tuple(self._key)

    @property
    def has_arrays_for_python(self) -> bool:
        """Return whether there are arrays whose numbers Python may need, and could be given."""
        return any(map(_may_be_constant, self.arrays))

    # The walk

    def _visit(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        kind = _kind_of(value)
        if kind in _MADE_WHEN_READ:
            kind(self, name, holder, key, value)
        elif id(value) in self._seen:
            self._key.append(self._seen[id(value)])
        else:
            self._see(value)
            kind(self, name, holder, key, value)

    def _see(self, value: Any) -> None:
        self._seen[id(value)] = len(self._seen)
        self.kept.append(value)

    def _add_plain(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._key.append((type(value), value.hex() if type(value) is float else value))

    def _push(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._work.append((name, holder, key, value))

    def _hold(self, holder: Holder) -> Holder:
        holder.carried = {key for owner, key in self._carried if owner == id(holder.owner)}
        self._holders.append(holder)
        return holder

    def _push_all(self, holder: Holder, names: Iterable[Any]) -> None:
        """Push the values of some places of a holder."""
        values = holder.values()
        for key in names:
            if key in values and key not in holder.carried:
                self._push(holder.path(key), holder, key, values[key])

    def _add_arrays(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        """Take the arrays of a value as inputs; what else it has is part of the key."""
        leaves, structure = jax.tree.flatten(value)
        places = [place for place, leaf in enumerate(leaves) if self._is_input(leaf)]
        if holder is None or not places:
            places = []
        else:
            self._inputs.append(_Input(name, holder, key, leaves, structure, places))
            self.arrays += [leaves[place] for place in places]
        self._key.append((type(value), _hashable(structure), tuple(places)))
        taken = set(places)
        for place, leaf in enumerate(leaves):
            if place in taken:
                continue
            if _kind_of(leaf) is PythonState._add_arrays:
                self._add_constant(name, leaf)
            else:
                self._push(name, None, None, leaf)

    def _is_input(self, leaf: Any) -> bool:
        if self._arrays_are_constants and _may_be_constant(leaf):
            return False
        return _kind_of(leaf) is PythonState._add_arrays and _is_of_numbers(leaf)

    def _add_constant(self, name: str, array: Any) -> None:
        self.kept.append(array)
        if isinstance(array, np.ndarray) and array.dtype.hasobject:
            self._key.append(id(array))
        elif isinstance(array, np.ndarray | np.generic) or _may_be_constant(array):
            numbers = np.asarray(array)
            self._key.append((type(array), numbers.dtype, numbers.shape, numbers.tobytes()))
            if isinstance(array, np.ndarray) and array.flags.writeable:
                self._hold(Numbers(name, array))
        else:
            self._key.append(id(array))

    def _add_tree(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        """Add a pytree that is no list and no dict, such as a tuple or a module of nnx."""
        if isinstance(value, tuple):
            if not any(map(self._is_input, jax.tree.leaves(value))):
                self._key.append((type(value), len(value)))
                for place, item in enumerate(value):
                    self._push(f"{name}[{place}]", None, None, item)
                return
        else:
            self._add_class(type(value))
        self._add_arrays(name, holder, key, value)

    def _add_dict(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        keys = list(value)
        self._key.append((type(value), tuple(_plain_or_id(each) for each in keys)))
        self.kept += keys
        if len(keys) <= _MOST_ITEMS:
            self._push_all(self._hold(Items(name, value)), keys)

    def _add_elements(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._key.append((type(value), len(value)))
        if len(value) > _MOST_ITEMS or isinstance(value, frozenset):
            self._key.append(id(value))
        elif isinstance(value, set):
            self._hold(Elements(name, value))
            self._key.append(frozenset(map(_plain_or_id, value)))
        else:
            self._push_all(self._hold(Elements(name, value)), range(len(value)))

    def _add_any_function(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._add_function(value)

    def _add_function(self, function: Any, local: frozenset[str] = frozenset()) -> None:
        if id(function) not in self._seen:
            self._see(function)
        code = function.__code__
        self._key.append(id(code))
        names = names_of(code)
        if vars(function):
            held = self._hold(Attributes(function.__name__, function))
            self._push_all(held, self._named(vars(function)))
        wrapped = vars(function).get("__wrapped__")
        if wrapped is not None:
            self._push(function.__name__, None, None, wrapped)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        if names.owner is not CodeOwner.USER:
            self._add_values_of(cells)
            return
        self._attributes |= names.attributes
        if names.reads_any_attribute:
            self._attributes.add(_ANY)
        for name, cell in cells:
            if name not in local and id(cell) not in self._seen:
                self._see(cell)
                self._push_all(self._hold(Cell(name, cell)), [name])
        for values in (function.__defaults__ or (), (function.__kwdefaults__ or {}).values()):
            for value in values:
                self._push(f"a default value of {function.__name__}", None, None, value)
        self._add_globals(function.__globals__, names.globals)
        for name in names.modules:
            if name in sys.modules:
                self._push(name, None, None, sys.modules[name])

    def _add_values_of(self, cells: Iterable[tuple[str, types.CellType]]) -> None:
        """Add what a function of an installed package was given: it is not looked into."""
        for name, cell in cells:
            with suppress(ValueError):  # it has no value yet
                self._push(name, None, None, cell.cell_contents)

    def _add_globals(self, variables: dict[str, Any], names: Sequence[str]) -> None:
        holder = self._globals.get(id(variables))
        if holder is None:
            holder = self._globals[id(variables)] = Globals("", variables)
            self._hold(holder)
        added = [name for name in names if name not in holder.names]
        holder.names.update(added)
        self._push_all(holder, added)

    def _add_method(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._push(name, None, None, value.__func__)
        self._push(name.rpartition(".")[0] or name, None, None, value.__self__)

    def _add_partial(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        for part in (value.func, value.args, value.keywords):
            self._push(name, None, None, part)

    def _add_reference(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._push(name, None, None, value())

    def _add_context(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._push(name, None, None, value.get(None))

    def _add_module(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._key.append(id(value))
        file = getattr(value, "__file__", None)
        if file is not None and owner_of(file) is CodeOwner.USER:
            self._add_globals(vars(value), self._named(vars(value)))

    def _add_generator(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._key.append(id(value))
        self._hold(GeneratorState(name, value))

    def _add_iterator(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._key.append(id(value))
        self._iterators.append(f"{name}, a {type(value).__name__}")

    def _add_class_value(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._key.append(id(value))
        self._add_class(value)
        for method in ("__init__", "__new__", "__post_init__"):
            made = getattr(value, method, None)
            if isinstance(made, types.FunctionType):
                self._push(f"{name}.{method}", None, None, made)

    def _add_class(self, kind: type) -> None:
        for each in kind.__mro__:
            if each in self._classes or not _is_of_user(each):
                continue
            self._classes.add(each)
            held = vars(each)
            holder = self._hold(Slots(each.__name__, each, self._named(held)))
            for attribute in [*self._named(held), *filter(_is_called, held)]:
                value = held[attribute]
                if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
                    continue
                for function in _functions_of(value):
                    self._push(f"{each.__name__}.{attribute}", holder, attribute, function)

    def _add_object(self, name: str, holder: Holder | None, key: Any, value: Any) -> None:
        self._key.append(id(value))
        kind = type(value)
        if not _is_of_user(kind) and kind.__module__ not in _CONTAINERS:
            wrapped = _wrapped(value)
            if wrapped is not None:
                self._push(name, None, None, wrapped)
            return
        self._add_class(kind)
        is_mixed = any(_package(base) in _PACKAGES for base in kind.__mro__)
        if hasattr(value, "__dict__"):
            attributes = vars(value)
            named = self._named(attributes, all_of=not _is_of_user(kind))
            watched = [each for each in named if each[0] != "_"] if is_mixed else None
            held = Attributes(name, value, watched)
            self._push_all(self._hold(held), named)
        slots = [each for base in kind.__mro__ for each in getattr(base, "__slots__", ())]
        if slots and _is_of_user(kind):
            slots = [each for each in slots if each not in ("__dict__", "__weakref__")]
            self._push_all(self._hold(Slots(name, value, slots)), self._named(slots))

    def _named(self, names: Iterable[str], all_of: bool = False) -> list[str]:
        """Return those of some attributes that the functions name."""
        if all_of or _ANY in self._attributes:
            return [name for name in names if isinstance(name, str) and name[:2] != "__"]
        return sorted(self._attributes.intersection(names))

    # The trace

    @contextmanager
    def replaced(self, arrays: Sequence[Any] | None = None) -> Iterator[None]:
        """Trace the functions with other arrays; refuse and undo their changes of other values.

        Does nothing outside of a trace: there each change happens as often as Python does it.
        """
        if current_trace() is None:
            yield
            return
        if self._iterators:
            raise _refused(f"asks {self._iterators[0]}, for elements", _ITERATOR_HINT)
        holders = [*self._holders, *global_generators()]
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
        holders = [*self._holders, *global_generators()]
        for holder in holders:
            holder.begin()
        try:
            yield
        except Exception as error:
            if after(error):
                for holder in holders:
                    holder.restore()
            raise

    def _put(self, arrays: Sequence[Any]) -> list[tuple[_Input, Any, list[Any], Any]]:
        rest, put = iter(arrays), []
        for place in self._inputs:
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


_ANY = "*"
"""Stands for all names of attributes."""
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


def _functions_of(value: Any) -> list[Any]:
    """Return the functions behind an attribute of a class, or its value."""
    match value:
        case staticmethod() | classmethod():
            return [value.__func__]
        case property():
            return [each for each in (value.fget, value.fset) if each is not None]
        case functools.cached_property():
            return [value.func]
    return [value]


def _is_called(name: str) -> bool:
    """Return whether statements on an object may call a method: an operator, say."""
    return name[:2] == name[-2:] == "__" and name not in _UNCALLED


_UNCALLED = frozenset(
    (
        *("__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__"),
        *("__repr__", "__str__", "__format__", "__del__", "__sizeof__", "__dir__"),
        *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__"),
        *("__deepcopy__", "__doc__", "__module__", "__dict__", "__weakref__", "__slots__"),
        *("__annotations__", "__qualname__", "__match_args__", "__orig_bases__"),
        *("__parameters__", "__abstractmethods__", "__static_attributes__", "__firstlineno__"),
        *("__dataclass_fields__", "__dataclass_params__"),
    )
)
"""Attributes of classes that no statement on an object uses."""


def _wrapped(value: Any) -> Any:
    """Return the user's function behind an object that calls it, as `jax.jit` makes one."""
    try:
        return getattr(value, "__wrapped__", None) if callable(value) else None
    except Exception:
        return None


@functools.lru_cache(maxsize=4096)
def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


@functools.lru_cache(maxsize=4096)
def _is_of_user(kind: type) -> bool:
    package = _package(kind)
    return package not in _PACKAGES and package not in sys.stdlib_module_names


def _is_of_numbers(array: Any) -> bool:
    return not isinstance(array, np.ndarray | np.generic) or array.dtype.kind in "biufcV"


def _may_be_constant(array: Any) -> bool:
    """Return whether the numbers of an array can be part of a key."""
    if isinstance(array, np.ndarray | np.generic):
        return True
    return (
        isinstance(array, jax.Array)
        and array.size <= _MOST_NUMBERS
        and not jax.numpy.issubdtype(array.dtype, jax.dtypes.extended)
    )


_MOST_NUMBERS = 64
"""The size up to which an array of JAX is read, to be part of a key."""


def _plain_or_id(value: Any) -> Any:
    return (type(value), value) if isinstance(value, _PLAIN) else id(value)


def _hashable(structure: Any) -> Any:
    try:
        hash(structure)
    except TypeError:
        return str(structure)
    return structure


_Add = Callable[[PythonState, str, Any, Any, Any], None]
_MADE_WHEN_READ = (
    PythonState._add_plain,
    PythonState._add_arrays,
    PythonState._add_tree,
    PythonState._add_method,
)
"""Values that may be equal and not the same: their identity says nothing."""
_kinds: WeakKeyDictionary[type, _Add] = WeakKeyDictionary()
"""How a value is added, by its type."""


def _kind_of(value: Any) -> _Add:
    kind = _kinds.get(type(value))
    if kind is None:
        kind = _kinds[type(value)] = _new_kind(value)
    return kind


def _new_kind(value: Any) -> _Add:
    match value:
        case _ if isinstance(value, _PLAIN):
            return PythonState._add_plain
        case PerReplicaArray() | Mirrored():
            return PythonState._add_arrays
        case _ if isinstance(value, np.ndarray | np.generic | jax.Array):
            return PythonState._add_arrays
        case dict():
            return PythonState._add_dict
        case list() | deque() | set() | frozenset():
            return PythonState._add_elements
        case types.FunctionType():
            return PythonState._add_any_function
        case types.MethodType():
            return PythonState._add_method
        case functools.partial():
            return PythonState._add_partial
        case ContextVar():
            return PythonState._add_context
        case ReferenceType():
            return PythonState._add_reference
        case type():
            return PythonState._add_class_value
        case types.ModuleType():
            return PythonState._add_module
        case np.random.Generator() | np.random.RandomState() | random.Random():
            return PythonState._add_generator
    if not jax.tree_util.all_leaves([value]):
        return PythonState._add_tree
    is_iterator = hasattr(type(value), "__next__") and type(value).__module__ in _ITERATORS
    return PythonState._add_iterator if is_iterator else PythonState._add_object


_ITERATORS = ("builtins", "itertools")
