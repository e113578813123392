"""Checks of variables: their options, initial values, and the values assigned to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: values of users

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.context import in_replica_context_of_a_run
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError
from graphdist.ir.sharded_parameters import (
    LARGEST_UNSHARDED,
    dimension_to_shard,
    smallest_sharded,
    stored_dimension,
)
from graphdist.ir.types import MIRRORED
from graphdist.options import VariableAggregation, VariableSynchronization
from graphdist.state.declaration import Declaration
from graphdist.state.initial_values import host_array, made_in_slices
from graphdist.tracing.trace_in_progress import TraceError, current_trace
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import PerReplica, checked_array


def checked_name(name: Any) -> str:
    """Return the name of a variable; raise `ArgumentTypeError` unless it is a string or None."""
    if not isinstance(name, str | None):
        raise ArgumentTypeError(
            f"name of a variable is {name!r}, not a string",
            hint="gd.Variable takes a value, then a name; write dtype=... for a dtype",
        )
    return "variable" if name is None else name


def check_options(variable: Declaration) -> None:
    """Raise `ArgumentError` for options that contradict each other."""
    if variable.is_plain:
        return
    if variable.synchronization is VariableSynchronization.NONE:
        raise ArgumentError(
            f"variable {variable.name!r} has synchronization NONE on {variable.strategy}",
            hint="use ON_READ for a variable each replica keeps for itself",
        )
    aggregation, dtype = variable.aggregation, variable.dtype
    is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if aggregation is not VariableAggregation.NONE and is_key:
        raise ArgumentError(
            f"variable {variable.name!r} has aggregation {aggregation.name} and dtype "
            f"{dtype}: random keys cannot be combined",
            hint="leave aggregation away: assign one key on all replicas, or make it ON_READ",
        )
    if aggregation is VariableAggregation.MEAN and jnp.issubdtype(dtype, jnp.integer):
        raise ArgumentError(
            f"variable {variable.name!r} has aggregation MEAN and dtype {dtype}: "
            f"the mean of integers is not an integer",
            hint="give it a float dtype, or the aggregation SUM",
        )


def checked_cores(variable: Declaration, cores: Any) -> tuple[int | None, bool]:
    """Return, of a user's `cores=`, the dimension that cores shard, and whether it is "auto".

    Raises `ArgumentError` unless `cores` is "auto", or has None or "sharded" for each dimension,
    "sharded" at most once, and for a dimension that the cores do not divide.
    """
    if cores is None:
        return None, False
    count = variable.strategy.devices.num_cores
    if isinstance(cores, str) and cores == "auto":
        return None, variable.layout is MIRRORED and count > 1
    dimension = checked_core(variable.name, variable.shape, cores, count)
    if dimension is not None and variable.layout is not MIRRORED:
        raise ArgumentError(
            f"cores of variable {variable.name!r} is {cores!r}, and its replicas have different "
            f"values",
            hint="leave cores out for a variable with synchronization ON_READ",
        )
    return dimension, False


def checked_core(name: str, shape: Sequence[int], cores: Any, count: int) -> int | None:
    """Return the dimension of a variable of which each of `count` cores has a shard.

    None if each core has the full value. Raises `ArgumentError` as `checked_cores` does.
    """
    what = f"cores of variable {name!r} is {cores!r}"
    hint = (
        'give one entry for each dimension, at most one of them sharded: cores=(None, "sharded"); '
        'or "auto"'
    )
    if not isinstance(cores, tuple | list) or len(cores) != len(shape):
        raise ArgumentError(f"{what}, for a shape of {len(shape)} dimensions", hint=hint)
    for entry in cores:
        if entry not in (None, "sharded"):
            raise ArgumentError(f"{what}: {entry!r} is neither None nor 'sharded'", hint=hint)
    sharded = [dimension for dimension, entry in enumerate(cores) if entry is not None]
    if len(sharded) > 1:
        raise ArgumentError(f"{what}: {len(sharded)} dimensions are sharded", hint=hint)
    if not sharded or count == 1 or 0 in shape:
        return None
    if shape[sharded[0]] % count:
        raise ArgumentError(
            f"{what}: dimension {sharded[0]} has {shape[sharded[0]]} elements, which {count} cores "
            f"do not divide",
            hint=f"make it a multiple of {count}, or shard another dimension",
        )
    return sharded[0]


def checked_dimension(variable: Declaration) -> int | None:
    """Return the dimension along which a new variable is sharded; None if it is unsharded.

    Raises `ArgumentError` for a variable that is too large to be unsharded and cannot be sharded.
    """
    if not variable.may_be_sharded or jnp.issubdtype(variable.dtype, jax.dtypes.prng_key):
        return None
    count = variable.strategy.devices.group_size
    shape = list(variable.shape)
    if variable.core is not None:
        shape[variable.core] //= variable.strategy.devices.num_cores
    dimension = stored_dimension(tuple(shape), count)
    if dimension is None and count > 1 and variable.size > LARGEST_UNSHARDED:
        raise _no_dimension_divides(variable, count)
    return dimension


def _no_dimension_divides(variable: Declaration, count: int) -> ArgumentError:
    padded = [*variable.shape]
    longest = max(range(len(padded)), key=lambda i: padded[i])
    padded[longest] += -padded[longest] % count
    divisors = (size for size in range(count - 1, 1, -1) if count % size == 0)
    fits = (size for size in divisors if dimension_to_shard(variable.shape, size) is not None)
    other = next((f"share it over groups: shard_parameters={size}" for size in fits), "")
    return ArgumentError(
        f"variable {variable.name!r} of shape {list(variable.shape)} cannot be stored in "
        f"slices: no dimension divides by {count} replicas",
        hint=f"pad a dimension, to {padded}, or "
        f"{other or 'use a number of replicas that divides one'}; "
        f"only variables of at most {LARGEST_UNSHARDED:,} elements are stored unsharded",
    )


def why_unsharded(variable: Declaration) -> str:
    """Return why a variable is unsharded although large enough; "" for any other variable."""
    count = variable.strategy.devices.group_size
    is_large = variable.size >= smallest_sharded(count)
    if not (variable.may_be_sharded and is_large):
        return ""
    if dimension_to_shard(variable.shape, count) is not None:
        return ""
    return f"unsharded, since no dimension divides by {count}"


def checked_value(variable: Declaration, value: Any) -> Any:
    """Return the assigned value as an array of the variable's shape and dtype.

    Outside a function, a value that will be sharded becomes a NumPy array.
    """
    if isinstance(value, PerReplica) and not in_replica_context_of_a_run():
        raise ArgumentTypeError(
            f"a PerReplica is assigned to variable {variable.name!r}, which takes one array",
            hint="make it one value first: strategy.reduce('MEAN', value, axis=None)",
        )
    array: Any = None if current_trace() is not None else _on_host(value, None, variable)
    if array is None:
        array = checked_array(value, f"variable {variable.name!r} is assigned")
    if array.shape != variable.shape:
        raise ArgumentError(
            f"variable {variable.name!r} has shape {list(variable.shape)}, "
            f"the value assigned to it has shape {list(array.shape)}",
            hint=f"reshape it: value.reshape({variable.shape})"
            if array.size == variable.size
            else f"broadcast it: jnp.broadcast_to(value, {variable.shape})"
            if not array.shape
            else "",
        )
    is_weak = getattr(array, "weak_type", False)
    if array.dtype != variable.dtype and not (is_weak and _fits(array, variable.dtype)):
        raise ArgumentError(
            f"variable {variable.name!r} has dtype {variable.dtype}, "
            f"the value assigned to it has dtype {array.dtype}",
            hint=f"convert it: jnp.asarray(value, {str(variable.dtype)!r})"
            if jax.dtypes.canonicalize_dtype(variable.dtype) == variable.dtype
            else "set jax_enable_x64, as it was when the variable was made",
        )
    return _of_dtype(array, variable.dtype)


def _fits(array: jax.Array, dtype: Any) -> bool:
    """Return whether `dtype` can hold the Python number in `array`: integers hold no floats."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return jnp.issubdtype(dtype, jnp.complexfloating)
    return jnp.issubdtype(dtype, jnp.inexact) or not jnp.issubdtype(array.dtype, jnp.floating)


def _on_host(value: Any, dtype: Any, variable: Declaration) -> np.ndarray[Any, Any] | None:
    """Return a NumPy value that will be sharded as an array on the host; None for another value.

    Only the shards of such an array are placed on devices.
    """
    count = variable.strategy.num_replicas_in_sync
    is_cut = stored_dimension(np.shape(value), count) is not None
    return host_array(value, dtype) if is_cut and variable.may_be_sharded else None


def _of_dtype(array: jax.Array, dtype: Any) -> jax.Array:
    """Return the array with this dtype, not weakly typed, so that no operand changes the dtype."""
    if array.dtype == dtype and not getattr(array, "weak_type", False):  # keys have no weak_type
        return array
    return jax.lax.convert_element_type(array, dtype)


def require_no_jax_trace(variable: Declaration, array: jax.Array, done: str) -> None:
    """Raise `TraceError` for an array that JAX traces outside of any `gd.function`."""
    if isinstance(array, jax.core.Tracer):
        if not isinstance(jnp.zeros(()), jax.core.Tracer):
            raise TraceError(
                f"variable {variable.name!r} is {done} a value that was computed while a function "
                f"was traced: it stands for no numbers",
                source=here(),
                hint="return it from the function that computed it, or assign it there",
            )
        raise TraceError(
            f"variable {variable.name!r} is {done} inside a function that JAX is tracing, "
            f"outside of every gd.function",
            source=here(),
            hint="make it a gd.function, with jax.jit, jax.grad and jax.lax inside",
        )


def initial_value_of(value: Any, dtype: Any, variable: Declaration) -> Any:
    """Return the concrete initial value; a shape if only a shape is given or devices are absent.

    Raises `ContextError` in every trace of a function but the first.
    """
    name = variable.name
    trace = current_trace()
    if trace is not None and not trace.is_first:
        raise ContextError(
            f"variable {name!r} is made when its function is traced again",
            hint="make variables once, outside the function, or guard the creation: "
            "if self.w is None: self.w = gd.Variable(...)",
        )
    if variable.strategy.devices.is_absent and callable(value):
        value = jax.eval_shape(value)  # nothing is computed for absent devices
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape, value.dtype if dtype is None else dtype)
    if callable(value) and variable.may_be_sharded:
        value = made_in_slices(value, variable)
    with jax.ensure_compile_time_eval():
        value = value() if callable(value) else value
        if isinstance(value, jax.core.Tracer):
            if trace is not None:
                trace.retry_by_replica_id()
            raise ArgumentTypeError(
                f"variable {name!r} is made from a value that exists only in the trace",
                hint="give the initial value as a function: gd.Variable(lambda: jnp.zeros(3))",
            )
        on_host = _on_host(value, dtype, variable)
        if on_host is not None:
            return on_host
        array = checked_array(value, f"variable {name!r} is made from", dtype)
        return _of_dtype(array, array.dtype)
