"""Distributed values: a value per replica, or one mirrored value.

Outside a function a `PerReplica` holds one array: the replicas' components concatenated along
dimension 0, where the scalars of R replicas are an array of shape [R]. If the compiler proved the
components equal, the array is mirrored instead. So a step takes and returns a `PerReplica` like any
other array. Inside a trace a per-replica value is a `TracedPerReplica`: a tracer with the shape of
one component. Only the traced form is a pytree. If the other form were one too, `jax.tree.map`
would apply a function to the concatenation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias  # Any: users' values and tracers

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.context import running_replica
from graphdist.errors import ArgumentError, ArgumentTypeError, GraphdistError
from graphdist.ir.types import PER_REPLICA, Layout, Type, dtype_name
from graphdist.tracing.slots import Slot
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.array_operators import ArrayOperators, is_refused_by_jax
from graphdist.values.copying import refuse_to_pickle
from graphdist.values.one_line import devices_of, values_of
from graphdist.values.per_replica_operators import PerReplicaOperators

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase


NumpyArray: TypeAlias = np.ndarray[Any, Any] | np.generic
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shape of a value on each replica, if the shapes differ."""


_JAX_OPERATOR = "_operator_"
"""The prefix of the names of the functions that implement the operators of `jax.Array`."""


class DistributedValues:
    """The base of values that belong to replicas."""

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the replicas' values, in replica order."""
        raise NotImplementedError


class PerReplica(PerReplicaOperators, DistributedValues):
    """One value for each replica, possibly different; operators apply to each replica's value.

    Made by `Strategy.run`, by distributed datasets and by
    `experimental_distribute_values_from_function`.

    >>> import graphdist as gd
    >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    >>> strategy.experimental_distribute_values_from_function(
    ...     lambda context: context.replica_id_in_sync_group * 10)
    <PerReplica: 0 | 10>
    """

    def __init__(self, values: Sequence[Any]) -> None:
        """Store a value per replica. A step copies arrays to the devices."""
        if not isinstance(values, Iterable) or isinstance(values, str):
            raise ArgumentTypeError(
                f"a PerReplica takes a sequence with a value per replica, not {type_name(values)}",
                hint="write gd.PerReplica([value of replica 0, value of replica 1])",
            )
        self._values: tuple[Any, ...] | None = tuple(values)

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the replicas' values, in replica order; arrays on their devices are not copied."""
        assert self._values is not None
        return self._values

    @property
    def __jax_array__(self) -> Callable[[], jax.Array]:
        """Return a function that returns the replica's component, in a replica function.

        This is a property, because JAX may only check that the attribute exists, and raise another
        error. If an array is the left operand of an operator, the attribute must not exist for
        JAX, so that Python calls the reflected operator of the `PerReplica`.
        """
        if sys._getframe(1).f_code.co_name.startswith(_JAX_OPERATOR):
            raise AttributeError("left to the operator of the PerReplica")
        context = running_replica()
        if context is None or context.num_replicas_in_sync != len(self.values):
            raise _not_one_array()
        if is_refused_by_jax(sys._getframe(1)):
            raise ArgumentError(
                "a PerReplica that is not an argument of the replica function is given to a "
                "function of JAX, which takes arrays",
                hint="pass it to the replica function through the args of run",
            )
        component = self.values[context.known_replica_id()]
        return lambda: checked_array(
            np.asarray(component), "the replica's component of a PerReplica is"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise _not_one_array()

    def __repr__(self) -> str:
        arrays = [value for value in self.values if isinstance(value, jax.Array)]
        place = f" on {devices_of(arrays)}" if arrays else ""
        return f"<PerReplica{place}{values_of(self.values)}>"


def no_values_yet() -> ArgumentError:
    """Return the error for a read of the components in a trace."""
    return ArgumentError(
        "the values of a PerReplica are read inside a function, where they do not exist yet",
        hint="use strategy.experimental_local_results, strategy.reduce or strategy.gather",
    )


def _not_one_array() -> ArgumentError:
    return ArgumentError(
        "a PerReplica is used as one array, but it has a value per replica",
        hint="pass it to the replica function through the args of run, "
        "or make it one value with strategy.reduce or strategy.gather",
    )


class PerReplicaArray(PerReplica):
    """An array per replica, of one dtype and rank, stored as one array on the strategy's devices.

    If the replicas' arrays differ in shape, each is padded to the largest shape, since all shards
    of an array have one shape. `shapes` then has the true shapes.
    """

    def __init__(
        self,
        array: jax.Array,
        strategy: StrategyBase,
        shape: tuple[int, ...],
        layout: Layout = PER_REPLICA,
        shapes: Shapes | None = None,
        rows: tuple[int, ...] | None = None,
    ) -> None:
        """Wrap `array`; `shape` is the padded shape of one component.

        `rows` has each replica's number of rows if the value was computed from unequal rows.
        """
        self.array = array
        self.strategy = strategy
        self.type = Type(dtype_name(array.dtype), shape, layout)
        self.shapes = shapes
        self.signature = (strategy, self.type, shapes)
        self.rows = rows

    def __copy__(self) -> Self:
        return self  # it never changes

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(
            "a PerReplica, which is arrays on devices of this process,",
            "pickle its values: [np.asarray(x) for x in "
            "strategy.experimental_local_results(value)]",
        )

    def __repr__(self) -> str:
        dtype = self.type.dtype
        shapes = [self.type.shape] if self.shapes is None else self.shapes
        types = " | ".join(str(Type(dtype, tuple(shape))) for shape in shapes)
        devices = self.strategy.devices
        values = "" if devices.is_absent else values_of(self.values)
        return f"<PerReplica {types} on {devices}{values}>"

    @cached_property
    def values(self) -> tuple[jax.Array, ...]:
        """Return the arrays of this process's replicas, each on its device, in replica order."""
        if self.strategy.devices.is_absent:
            self.strategy.devices.refuse_to_run("the value of a PerReplica")
        shards = self.strategy.devices.shards_of_replicas(self.array)
        with jax.ensure_compile_time_eval():  # otherwise they would be tracers in a trace
            parts = [shard.data.reshape(self.type.shape) for shard in shards]
            if self.shapes is None:
                return tuple(parts)
            local = self.strategy.devices.local_replicas
            return tuple(
                jax.lax.slice(part, (0,) * len(shape), shape)
                for part, shape in zip(parts, self.shapes[local.start : local.stop], strict=True)
            )


class TracedValue(PerReplica):
    """A per-replica value inside a trace."""

    @property
    def values(self) -> tuple[Any, ...]:
        """Raise an error, since inside a function the arrays are only on the devices."""
        raise no_values_yet()


@jax.tree_util.register_pytree_node_class
class TracedPerReplica(TracedValue):
    """A per-replica value inside a trace: a tracer with the shape of one component.

    If the replicas' shapes differ, the tracer is padded with zeros to the largest shape, and
    `shapes` has the true shapes.
    """

    def __init__(self, local: Any, shapes: Shapes | None = None) -> None:
        """Wrap a tracer."""
        self.local, self.shapes = local, shapes

    def shape_on(self, replica: int) -> tuple[int, ...]:
        """Return the shape of a replica's component, without padding."""
        return tuple(np.shape(self.local)) if self.shapes is None else self.shapes[replica]

    def __repr__(self) -> str:
        return f"PerReplica({self.local!r})"

    def tree_flatten(self) -> tuple[tuple[Any], Shapes | None]:
        """Return the tracer as the only child."""
        trace = current_trace()
        if trace is not None and self.shapes is None:
            trace.note_taken_apart(self.local)
        return (self.local,), self.shapes

    @classmethod
    def tree_unflatten(cls, shapes: Shapes | None, children: Sequence[Any]) -> Any:
        """Rebuild from the only child. What a method of the strategy made of it stays as it is."""
        (local,), trace = children, current_trace()
        is_one = trace is not None and trace.is_one_value(local)
        return local if is_one or is_distributed(local) else cls(local, shapes)


@jax.tree_util.register_pytree_node_class
class TracedParts(TracedValue):
    """A per-replica value inside a trace: component i is a Python value or a `Slot`.

    All replicas trace the array of a slot. On replica i the array is component i. On other replicas
    the array has no meaning.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        """Hold the replicas' components."""
        self.parts = tuple(parts)

    def __repr__(self) -> str:
        return f"PerReplica{self.parts!r}"

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the arrays as children."""
        arrays = [part.array for part in self.parts if isinstance(part, Slot)]
        return arrays, tuple(
            part.shape if isinstance(part, Slot) else _Static(part) for part in self.parts
        )

    @classmethod
    def tree_unflatten(cls, parts: tuple[Any, ...], arrays: Sequence[Any]) -> TracedParts:
        """Rebuild from the arrays."""
        rest = iter(arrays)
        return cls(
            [part.value if isinstance(part, _Static) else Slot(next(rest), part) for part in parts]
        )


@dataclass(frozen=True)
class _Static:
    """A Python value among the parts, in a wrapper, because a plain tuple is an array's shape."""

    value: Any


class Mirrored(ArrayOperators, DistributedValues):
    """One value that every replica holds; operators apply to that value."""

    def __init__(self, array: jax.Array, num_replicas: int) -> None:
        """Wrap an array replicated on the strategy's devices."""
        self.array = array
        self.num_replicas = num_replicas

    def _as_array(self) -> jax.Array:
        return self.array

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the value once for every replica."""
        return (self.array,) * self.num_replicas

    def __repr__(self) -> str:
        type = Type(dtype_name(self.array.dtype), self.array.shape)
        return f"<Mirrored {type} on {devices_of([self.array])}{values_of([self.array])}>"


def largest(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape to which arrays of these shapes, all of one rank, are padded.

    >>> largest([(4, 2), (1, 3)])
    (4, 3)
    """
    return tuple(map(max, zip(*shapes, strict=True)))


def unequal(shapes: Sequence[tuple[int, ...]]) -> Shapes | None:
    """Return the replicas' shapes, or None if all are the same.

    >>> unequal([(4,), (1,)])
    ((4,), (1,))
    >>> unequal([(4,), (4,)])
    """
    return None if len(set(shapes)) == 1 else tuple(shapes)


def type_name(value: Any) -> str:
    """Return the name of a value's type for users: "jax.Array" for every array of JAX."""
    return "jax.Array" if isinstance(value, jax.Array) else type(value).__name__


def wrong_type(
    name: str,
    value: Any,
    expected: str,
    hint: str = "",
    error: type[GraphdistError] = ArgumentTypeError,
) -> GraphdistError:
    """Return the error for an argument that is of another type than expected."""
    return error(f"{name} is of type {type_name(value)}, not {expected}", hint=hint)


def put_together(leaf: Any) -> Any:
    """Return the `PerReplica` that `jax.tree` took apart into a leaf; any other leaf unchanged."""
    trace = current_trace()
    is_part = trace is not None and trace.was_taken_apart(leaf)
    return TracedPerReplica(leaf) if is_part else leaf


def is_distributed(leaf: Any) -> bool:
    """Return whether a leaf of a pytree is a distributed value."""
    return isinstance(leaf, DistributedValues)


def structure_text(structure: Any) -> str:
    """Return the structure of a pytree as text, with a star for each leaf.

    >>> structure_text(jax.tree.structure({"w": 1, "b": [2]}))
    "{'b': [*], 'w': *}"
    """
    return str(structure).removeprefix("PyTreeDef(").removesuffix(")")


def require_one_structure(
    what: str, structures: Sequence[Any], replicas: Sequence[int], at: str = "on"
) -> None:
    """Raise `ArgumentError` unless the replicas' pytrees have one structure.

    The error begins with `what`. The word before "replica" in the error is `at`.
    """
    for replica, structure in zip(replicas, structures, strict=True):
        if structure != structures[0]:
            raise ArgumentError(
                f"{what} {structure_text(structures[0])} {at} replica {replicas[0]} and "
                f"{structure_text(structure)} {at} replica {replica}: the structures differ"
            )


def is_array(value: Any) -> bool:
    """Return whether a value is an array that devices can hold, unlike a float0 gradient."""
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        return False
    return bool(value.dtype != jax.dtypes.float0)


def checked_array(value: Any, what: str, dtype: Any = None) -> jax.Array:
    """Return a value as an array; raises `ArgumentTypeError`, whose message begins with `what`."""
    if isinstance(value, np.ndarray):
        value = np.array(value)  # JAX may read it later, after the caller has changed it
    try:
        return jnp.asarray(value, dtype)
    except GraphdistError:
        raise
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"{what} a {type_name(value)}, which is not an array or a number"
            f"{'' if dtype is None else f' of dtype {dtype}'}"
        ) from error
