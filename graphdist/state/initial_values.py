"""Initial values of sharded variables, which no device ever holds unsharded.

A value in the memory of the host stays there until its shards are placed. If a function makes the
initial value, the function is traced, and then the operations of the trace run one by one. Each
operation is compiled so that large results are sharded. JAX runs operations outside a compiled
function in the same way, so the rounding is the same. Only sums over a sharded dimension may be
added up in another order.

A function that cannot be traced, such as one that uses NumPy, is called without a trace. If a
function keeps values of JAX between calls, such as a key that is split in each call, the second
call raises an error, because the kept value exists only in the trace.

Several workers run the operations together, and must run the same operations. Arrays that the
function closes over are taken from worker 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any  # Any: values of users, and jaxprs, which are opaque here

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from graphdist.errors import ArgumentError
from graphdist.ir.sharded_parameters import stored_dimension
from graphdist.ir.types import MIRRORED, Layout
from graphdist.runtime.program_agreement import agree_on_operations
from graphdist.runtime.supervised_steps import supervised
from graphdist.tracing.user_lines import here

if TYPE_CHECKING:
    from graphdist.state.declaration import Declaration
    from graphdist.strategy_base import StrategyBase


def host_array(value: Any, dtype: Any) -> np.ndarray[Any, Any] | None:
    """Return a NumPy array in the dtype of the array that JAX would make of it.

    None for a value that is no NumPy array, for elements that are no numbers, and for a `dtype` of
    a lower kind, such as integers for an array of floats.
    """
    if type(value) not in (np.ndarray, np.memmap):
        return None
    try:
        wanted = jax.dtypes.canonicalize_dtype(value.dtype if dtype is None else dtype)
        is_cast = np.can_cast(value.dtype, wanted, "same_kind")
    except TypeError:  # not a dtype of arrays: a later check raises the error
        return None
    is_number = wanted == np.bool_ or jnp.issubdtype(wanted, jnp.number)
    return np.asarray(value, wanted) if is_cast and is_number else None


def made_in_slices(make: Callable[[], Any], variable: Declaration) -> Any:
    """Return the result of an initial value's function, with large arrays sharded.

    Raises `ArgumentError` for a function that keeps values of JAX from an earlier call.
    """
    settings: Any = jax.config
    if settings.jax_disable_jit:  # JAX compiles nothing under this setting
        return _called(make, variable)
    concrete: list[Any] = []

    def traced() -> Any:
        result = make()
        if isinstance(result, jax.core.Tracer):
            return result
        concrete.append(result)
        return ()

    try:
        program = jax.make_jaxpr(traced)()
    except Exception:  # any library may raise any error when it is traced
        return _called(make, variable)
    if concrete and isinstance(concrete[0], jax.Array | np.ndarray | np.generic | int | float):
        return concrete[0]
    if concrete or any(isinstance(constant, jax.core.Tracer) for constant in program.consts):
        return _called(make, variable)
    name = f"the initial value of variable {variable.name!r}"
    return _Operations(variable.strategy, program, name).run()


def _called(make: Callable[[], Any], variable: Declaration) -> Any:
    try:
        with jax.ensure_compile_time_eval():
            return make()
    except jax.errors.UnexpectedTracerError as error:
        raise ArgumentError(
            f"the initial value of variable {variable.name!r} is made by a function that keeps "
            f"values of JAX from one call to the next",
            hint="split keys outside the function: key = next(keys), then "
            "gd.Variable(lambda: jax.random.normal(key, shape))",
        ) from error


class _Operations:
    """The operations of a traced function, which run one after the other."""

    def __init__(self, strategy: StrategyBase, program: Any, name: str) -> None:
        self.strategy, self.jaxpr, self.constants = strategy, program.jaxpr, program.consts
        self.name = name

    def run(self) -> Any:
        """Run the operations and return the result."""
        jaxpr = self.jaxpr
        (result,) = jaxpr.outvars
        is_cut = self._dimension(result.aval.shape) is not None
        values = dict(zip(jaxpr.constvars, self.constants, strict=True))
        if is_cut:
            agree_on_operations(str(jaxpr), self.name, self.strategy.devices, here())
            values = {name: self._moved(constant) for name, constant in values.items()}
        last_use = {id(operand): equation for equation in jaxpr.eqns for operand in equation.invars}
        for equation in jaxpr.eqns:
            operands = [_value(operand, values) for operand in equation.invars]
            # Values are dropped after their last use, since a device may have room for few.
            for name in [name for name in values if last_use.get(id(name)) is equation]:
                if name is not result:
                    del values[name]
            results = (self._in_slices if is_cut else _as_jax_places)(equation, operands)
            values.update(zip(equation.outvars, results, strict=True))
            del operands, results
        return _value(result, values)

    def _dimension(self, shape: tuple[int, ...]) -> int | None:
        return stored_dimension(shape, self.strategy.devices.group_size)

    def _distribution(self, shape: tuple[int, ...]) -> Layout:
        dimension = self._dimension(shape)
        return MIRRORED if dimension is None else self.strategy.devices.slices(dimension)

    def _moved(self, constant: Any) -> Any:
        value = constant if hasattr(constant, "dtype") else np.asarray(constant)
        with jax.ensure_compile_time_eval():
            return self.strategy.place_variable(value, self._distribution(value.shape))

    def _in_slices(self, equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of an equation of a jaxpr, large ones sharded."""
        devices, described = self.strategy.devices, tuple(map(_described, operands))
        shardings = tuple(
            devices.sharding(self._distribution(value.aval.shape)) for value in equation.outvars
        )
        key = (equation.primitive, tuple(equation.params.items()), described, shardings)
        try:
            compiled = _compiled(*key)
        except TypeError:  # the parameters are not hashable
            compiled = _compiled.__wrapped__(*key)
        line = here()
        results: Sequence[Any] = supervised(compiled, self.name, devices, lambda: ("", line))(
            *operands
        )
        return results


def _value(operand: Any, values: Mapping[Any, Any]) -> Any:
    return operand.val if hasattr(operand, "val") else values[operand]  # a literal has `val`


def _as_jax_places(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    with jax.ensure_compile_time_eval():
        return _bound(equation.primitive, equation.params)(*operands)


def _described(operand: Any) -> jax.ShapeDtypeStruct:
    type: Any = jax.typeof(operand)
    sharding = operand.sharding if isinstance(operand, jax.Array) else None
    weak = getattr(type, "weak_type", False)
    return jax.ShapeDtypeStruct(type.shape, type.dtype, sharding=sharding, weak_type=weak)


@lru_cache(maxsize=512)
def _compiled(
    primitive: Any,
    params: tuple[tuple[str, Any], ...],
    operands: tuple[jax.ShapeDtypeStruct, ...],
    shardings: tuple[Sharding, ...],
) -> Any:
    """Return a cached executable for an operation, since layers of a model repeat operations.

    A jitted function would not do, since a call during a trace would become a part of the trace.
    """
    bound = jax.jit(_bound(primitive, dict(params)), out_shardings=shardings)
    return bound.lower(*operands).compile()


def _bound(primitive: Any, params: dict[str, Any]) -> Callable[..., Sequence[Any]]:
    def bound(*operands: Any) -> Sequence[Any]:
        taken = primitive.get_bind_params(params)
        # A pair in JAX 0.10.0: the functions among the parameters, and the other parameters.
        functions, kept = taken if isinstance(taken, tuple) else ((), taken)
        results = primitive.bind(*functions, *operands, **kept)
        return tuple(results) if primitive.multiple_results else (results,)

    return bound
