"""The signature of a call: the keys of its leaves, which select the program.

The key of an array or a distributed value has its shape and dtype. The key of a Python number has
its class, since the number becomes a weakly typed scalar, as in JAX. Every other leaf is static:
its key has the value, which must have a hash. One program is compiled for each signature.

Two static values have the same key if they make the same program. So 1, 1.0 and True have different
keys although they are equal, and so have 0.0 and -0.0. All nans have one key, although nan is not
equal to itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias  # Any: arguments are whatever users pass

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.context import current_entry
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, dtype_name, numpy_dtype
from graphdist.values.distributed import (
    Mirrored,
    PerReplica,
    PerReplicaArray,
    Shapes,
    TracedPerReplica,
    largest,
    type_name,
    unequal,
)
from graphdist.values.pytrees import argument_name
from graphdist.values.specs import ArraySpec, PerReplicaSpec

LeafKey: TypeAlias = tuple[Any, ...]

_ARRAY, _PER_REPLICA, _COMPONENTS = "array", "per_replica", "components"
_NUMBER, _STATIC = "number", "static"
_NUMBERS = (int, float, complex)
_ARRAYS = (np.ndarray, np.generic, jax.Array)
_LEAKED = "return it from the function that computed it, or keep it in a gd.Variable"


class UnusableLeaf(Exception):
    """A leaf cannot be an argument. `refusal` makes the user's error, with the argument's name."""


class StaticValue:
    """A value that is part of a program. Two such values are equal if they make one program."""

    def __init__(self, value: Any) -> None:
        """Wrap the value; raises `TypeError` if it has no hash."""
        self.value = value
        self._identity = _identity(value)
        self._hash = hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticValue) and self._identity == other._identity

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(self.value)


def _identity(value: Any) -> Any:
    """Return an object that is equal for values that make the same program.

    For most classes this is the pair of the class and the value itself. So the `__eq__` of the
    class decides.
    """
    kind = type(value)
    if isinstance(value, float):
        return kind, value.hex()
    if isinstance(value, complex):
        return kind, value.real.hex(), value.imag.hex()
    if isinstance(value, np.generic) and not isinstance(item := value.item(), np.generic):
        return kind, _identity(item)
    if isinstance(value, tuple):
        return kind, *map(_identity, value)
    if isinstance(value, frozenset):
        return kind, frozenset(map(_identity, value))
    return kind, value


class StaticArgument(StaticValue):
    """An argument that the user named as static; it is one leaf even if it is a pytree."""

    def __init__(self, value: Any, name: str) -> None:
        """Wrap the value; raises `ArgumentTypeError` if it has no hash."""
        try:
            super().__init__(value)
        except TypeError:
            raise ArgumentTypeError(
                f"static argument {name!r} is a {type_name(value)}, which has no hash",
                hint="pass a value with a hash, such as a tuple instead of a list",
            ) from None


def static_key(value: Any) -> LeafKey:
    """Return the key of a static leaf; raises `TypeError` for a value that has no hash."""
    return _STATIC, value if isinstance(value, StaticArgument) else StaticValue(value)


def leaf_key(leaf: Any, python_numbers_are_static: bool) -> LeafKey:
    """Return the key of a leaf: the properties that select the program."""
    return KEYS[python_numbers_are_static][type(leaf)](leaf)


class _Keys(dict[type, Callable[[Any], LeafKey]]):
    """The functions that return keys, by the type of the leaf.

    Every call looks up the function of each leaf, so the look-up must be fast. A chain of
    `isinstance` would take longer than making the key.
    """

    def __missing__(self, kind: type) -> Callable[[Any], LeafKey]:
        self[kind] = key_of = _key_function(kind)
        return key_of


KEYS = (_Keys({kind: lambda leaf: (_NUMBER, type(leaf)) for kind in _NUMBERS}), _Keys())
"""Two tables: `KEYS[False]` if Python numbers are inputs, `KEYS[True]` if they are static."""


class _ArrayKeys(dict[type, Callable[[Any], LeafKey] | None]):
    """The functions that return keys, by the type of the leaf; None for types other than arrays.

    An array is always a leaf of a pytree, so arguments that are arrays need no flattening.
    """

    def __missing__(self, kind: type) -> Callable[[Any], LeafKey] | None:
        key_of = _key_function(kind)
        self[kind] = key_of if key_of in (_jax_key, _array_key, _per_replica_key) else None
        return self[kind]


ARRAY_KEYS = _ArrayKeys()


def _key_function(kind: type) -> Callable[[Any], LeafKey]:
    if issubclass(kind, jax.core.Tracer):
        return _tracer_key
    if issubclass(kind, PerReplicaArray):
        return _per_replica_key
    if issubclass(kind, np.ndarray | np.generic):
        return _array_key
    return _jax_key if issubclass(kind, jax.Array) else _rare_key


def _per_replica_key(leaf: Any) -> LeafKey:
    return _PER_REPLICA, *leaf.signature


def _jax_key(leaf: Any) -> LeafKey:
    aval = leaf.aval
    return _ARRAY, aval.shape, aval.dtype, aval.weak_type


def refusal(
    fn: Callable[..., Any], name: str, args: Any, kwargs: Any, python_numbers_are_static: bool
) -> ArgumentTypeError:
    """Return the error for the first argument that cannot be used, with its name."""
    for path, leaf in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        try:
            leaf_key(leaf, python_numbers_are_static)
        except UnusableLeaf as unusable:
            what, hint = unusable.args
            which = f"argument {argument_name(fn, path)!r} of {name}"
            return ArgumentTypeError(f"{which} {what}", hint=hint)
    raise AssertionError("every argument can be used")


def _tracer_key(leaf: Any) -> LeafKey:
    if not isinstance(jnp.zeros(()), jax.core.Tracer):
        raise UnusableLeaf(
            "was computed while a function was traced: it belongs to that trace and has no numbers",
            _LEAKED,
        )
    raise UnusableLeaf(
        "is a value that JAX is tracing",
        "use jax.jit, jax.grad or jax.vmap inside a gd.function instead of around one",
    )


def _array_key(leaf: Any) -> LeafKey:
    if leaf.dtype.kind not in "biufcV":
        raise UnusableLeaf(
            f"is an array of dtype {leaf.dtype}, which devices cannot hold",
            "encode it as numbers, or leave it out of the arguments",
        )
    return _ARRAY, leaf.shape, leaf.dtype, False


def _rare_key(leaf: Any) -> LeafKey:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        if isinstance(leaf, ArraySpec) and leaf.traced_shape is None:
            raise _unknown_dimension(leaf)
        shape = leaf.traced_shape if isinstance(leaf, ArraySpec) else tuple(leaf.shape)
        return _ARRAY, shape, leaf.dtype, bool(leaf.weak_type)
    if isinstance(leaf, PerReplicaSpec):
        shapes = leaf.traced_shapes
        if shapes is None:
            raise _unknown_dimension(leaf)
        strategy = leaf.strategy
        if strategy is None and (entry := current_entry()) is not None:
            strategy = entry.strategy
        if strategy is not None and strategy.num_replicas_in_sync == 1:
            return _ARRAY, shapes[0], leaf.dtype, False  # the replica's part is the whole value
        padded = Type(dtype_name(leaf.dtype), largest(shapes), PER_REPLICA)
        return _PER_REPLICA, strategy, padded, unequal(shapes)
    if isinstance(leaf, Mirrored):
        return _ARRAY, leaf.array.shape, leaf.array.dtype, False
    if isinstance(leaf, PerReplica):
        return _components_key(leaf)
    try:
        return static_key(leaf)
    except TypeError:
        raise UnusableLeaf(
            f"is a {type_name(leaf)}, which is neither an array nor hashable",
            "declare the class @dataclass(eq=False), which compares objects by identity, or make "
            "it a pytree with jax.tree_util.register_dataclass"
            if dataclasses.is_dataclass(leaf)
            else "pass arrays, pytrees of them, or hashable values such as strings and tuples",
        ) from None


def _unknown_dimension(spec: ArraySpec | PerReplicaSpec) -> UnusableLeaf:
    return UnusableLeaf(
        f"is {spec}, with a dimension that is not known",
        "write the spec with the size that the function is traced for",
    )


def _components_key(leaf: PerReplica) -> LeafKey:
    """Return the key of a `PerReplica`: arrays and numbers are inputs, other values are static."""
    if all(isinstance(value, _NUMBERS + _ARRAYS) for value in leaf.values):
        try:
            arrays = [np.asarray(value) for value in leaf.values]
            return _COMPONENTS, tuple(_array_key(array)[1:3] for array in arrays)
        except UnusableLeaf as unusable:
            what, hint = unusable.args
            raise UnusableLeaf(f"is a PerReplica with a component that {what}", hint) from None
    for value in leaf.values:
        if isinstance(value, _ARRAYS):
            raise UnusableLeaf(
                "is a PerReplica of which some components are arrays and others are not",
                "give all replicas an array, or none",
            )
        try:
            hash(value)
        except TypeError:
            raise UnusableLeaf(
                f"is a PerReplica with a component of type {type_name(value)}, which is neither "
                f"an array nor hashable",
                "give all replicas arrays, or hashable values such as strings and tuples",
            ) from None
    return static_key((PerReplica, *leaf.values))


def is_static(key: LeafKey) -> bool:
    """Return whether the leaf is part of the program, not an input."""
    return key[0] is _STATIC


def is_per_replica(key: LeafKey) -> bool:
    """Return whether the leaf is per-replica."""
    return key[0] in (_PER_REPLICA, _COMPONENTS)


def is_components(key: LeafKey) -> bool:
    """Return whether the leaf is a `PerReplica` of arrays that are not on the devices yet."""
    return key[0] is _COMPONENTS


def is_number(key: LeafKey) -> bool:
    """Return whether the leaf is a Python number that becomes a scalar of the program."""
    return key[0] is _NUMBER


def input_type(leaf: Any, key: LeafKey, num_replicas: int, name: str) -> Type:
    """Return the type of an input in the graph.

    Raises `ArgumentError` if the components of a `PerReplica` differ in rank or dtype, or if there
    are more or fewer components than replicas.
    """
    if key[0] is _PER_REPLICA:
        type = Type(program_dtype(key[2].dtype), *key[2][1:])
        return type.with_layout(MIRRORED) if num_replicas == 1 else type
    if key[0] is _COMPONENTS:
        if len(key[1]) != num_replicas:
            raise ArgumentError(
                f"argument {name!r} has {len(key[1])} components, "
                f"the strategy {num_replicas} replicas"
            )
        ((shape, dtype), *_) = key[1]
        for replica, (other_shape, other_dtype) in enumerate(key[1]):
            if (len(other_shape), other_dtype) != (len(shape), dtype):
                raise ArgumentError(
                    f"argument {name!r} is {dtype}{list(shape)} on replica 0 and "
                    f"{other_dtype}{list(other_shape)} on replica {replica}",
                    hint="give all replicas arrays of one rank and dtype",
                )
        name = program_dtype(dtype_name(dtype))
        shape = largest([shape for shape, _ in key[1]])
        return Type(name, shape, MIRRORED if num_replicas == 1 else PER_REPLICA)
    aval = input_aval(leaf, key)
    return Type(dtype_name(aval.dtype), tuple(aval.shape), MIRRORED)


def program_dtype(dtype: str) -> str:
    """Return the dtype that `dtype` becomes in a program: 32-bit if `jax_enable_x64` is off.

    >>> program_dtype("i64"), program_dtype("bf16")
    ('i32', 'bf16')
    """
    if dtype not in ("f64", "i64", "u64", "c128"):
        return dtype
    return dtype_name(jax.dtypes.canonicalize_dtype(numpy_dtype(dtype)))


def is_converted(key: LeafKey) -> bool:
    """Return whether a 64-bit leaf becomes a 32-bit input, since `jax_enable_x64` is now off."""
    if key[0] not in (_PER_REPLICA, _ARRAY):
        return False
    name = key[2].dtype if key[0] is _PER_REPLICA else dtype_name(key[2])
    return program_dtype(name) != name


def input_aval(leaf: Any, key: LeafKey) -> jax.ShapeDtypeStruct:
    """Return shape, dtype and weak type of an input that all replicas share."""
    if key[0] is _NUMBER:
        return jax.ShapeDtypeStruct((), jnp.result_type(key[1]), weak_type=True)
    _, shape, dtype, weak = key
    return jax.ShapeDtypeStruct(shape, canonical_dtype(dtype), weak_type=weak)


def canonical_dtype(dtype: Any) -> Any:
    """Return the dtype that an array of `dtype` gets in JAX. Random keys keep their dtype."""
    is_key = jnp.issubdtype(dtype, jax.dtypes.extended)
    return dtype if is_key else jax.dtypes.canonicalize_dtype(dtype)


def traced_leaf(key: LeafKey, tracer: Any, num_replicas: int) -> Any:
    """Return the value that the traced function gets for the input `tracer`."""
    if not is_per_replica(key) or num_replicas == 1:
        return tracer
    return TracedPerReplica(tracer, _shapes(key))


def _shapes(key: LeafKey) -> Shapes | None:
    """Return the shape of a per-replica input on each replica; None if all shapes are equal."""
    return unequal([shape for shape, _ in key[1]]) if key[0] is _COMPONENTS else key[3]


def rows_of(leaf: Any, key: LeafKey) -> tuple[int, ...] | None:
    """Return the number of rows of an input on each replica; None if all numbers are equal.

    If the input was computed from a value with unequal rows, return that value's numbers of rows.
    """
    shapes = _shapes(key) if is_per_replica(key) else None
    if shapes is None:
        return leaf.rows if isinstance(leaf, PerReplicaArray) else None
    rows = tuple(shape[0] for shape in shapes)
    return rows if len(set(rows)) > 1 else None
