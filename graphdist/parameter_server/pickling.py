"""The pickling of functions and arguments for another process.

Functions are pickled by value, with the objects that they refer to. This holds for functions of the
user's modules, too, since a worker does not import the coordinator's program. A variable becomes
the worker's variable for the same value, and the strategy becomes the worker's strategy. Among
arguments, an iterator over a per-worker dataset becomes the worker's own iterator; a function
cannot refer to one, because a trace would take its element as a constant. A `gd.function` becomes a
new `gd.function`, which the worker compiles for its devices.
"""

from __future__ import annotations

import io
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any  # Any: objects of all kinds

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.parameter_server.input import PerWorkerValues
from graphdist.parameter_server.ray_cluster import ray
from graphdist.parameter_server.storage import ServerStorage
from graphdist.parameter_server.strategy import ParameterServerBase
from graphdist.parameter_server.worker import object_here, strategy_here, variable_here
from graphdist.program.function import Function
from graphdist.state.variable import Variable
from graphdist.strategies.base import CommonStrategy
from graphdist.tracing.user_lines import CodeOwner, owner_of

of_other_libraries: list[Callable[[Any, ParameterServerBase], Any]] = []
"""Return how a worker recreates objects of other libraries; higher packages add functions."""


def as_bytes(value: Any, strategy: ParameterServerBase, of: Any = None) -> bytes:
    """Return arguments, or the function `of` and its object, as bytes.

    The module of the function is pickled by value.
    """
    buffer = io.BytesIO()
    with _by_value(of):
        try:
            _pickler_class()(buffer, strategy, of is not None).dump(value)
        except ArgumentError:
            raise
        except (TypeError, AttributeError, ArgumentTypeError) as error:
            first_line = str(error).partition("\n")[0]
            raise ArgumentTypeError(
                f"a scheduled function cannot be sent to a worker: {first_line}",
                hint="create objects that belong to one process inside the function",
            ) from error
    return buffer.getvalue()


@cache
def _pickler_class() -> Any:
    """Return a pickler that extends Ray's, which pickles functions by value."""
    ray()
    base: Any = import_module("ray.cloudpickle").CloudPickler

    class Pickler(base):  # type: ignore[misc]
        def __init__(self, buffer: Any, strategy: ParameterServerBase, is_function: bool) -> None:
            super().__init__(buffer)
            self.strategy, self.is_function = strategy, is_function

        def reducer_override(self, value: Any) -> Any:
            if self.is_function and isinstance(value, PerWorkerValues):
                raise ArgumentError(
                    f"a scheduled function refers to a {type(value).__name__}, of which each "
                    "worker has its own",
                    hint="give it as an argument: coordinator.schedule(step, args=(iterator,))",
                )
            found = _reduced(value, self.strategy)
            return super().reducer_override(value) if found is None else found

    return Pickler


def _reduced(value: Any, strategy: ParameterServerBase) -> Any:
    """Return how a worker recreates an object; None for the default."""
    if isinstance(value, Function):
        return Function, value.definition
    if isinstance(value, Variable):
        return variable_here, _reference(value, strategy)
    if isinstance(value, CommonStrategy):
        if value is strategy:
            return strategy_here, ()
        raise ArgumentError(
            f"a scheduled function uses {value}, which is no strategy of its worker",
            hint=f"use {strategy}",
        )
    if isinstance(value, PerWorkerValues):
        return object_here, (value.number,)
    if isinstance(value, weakref.ReferenceType):
        return partial, (_itself, value())  # a function that returns the object, too
    found = (reduce(value, strategy) for reduce in of_other_libraries)
    return next((reduced for reduced in found if reduced is not None), None)


def _reference(variable: Variable, strategy: ParameterServerBase) -> tuple[Any, ...]:
    storage = variable.storage
    if not isinstance(storage, ServerStorage) or storage.strategy is not strategy:
        raise ArgumentError(
            f"a scheduled function uses variable {variable.name!r}, which is on no server of "
            f"{strategy}",
            other=variable.made_at,
            hint="make it inside strategy.scope()",
        )
    return storage.key, variable.spec(variable.name), variable.synchronization.name


def _itself(value: Any) -> Any:
    return value


@contextmanager
def _by_value(function: Any) -> Iterator[None]:
    """Pickle the module of a function by value within the context, if the module is the user's."""
    module = sys.modules.get(str(getattr(function, "__module__", "")))
    if module is None or not _is_users(module):
        yield
        return
    cloudpickle = import_module("ray.cloudpickle")
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_users(module: ModuleType) -> bool:
    """Return whether a module belongs to the user's program, not to an installed package."""
    file = getattr(module, "__file__", None)
    is_named = module.__name__ != "__main__" and file is not None
    return is_named and owner_of(str(file)) is CodeOwner.USER
