"""`@gd.function`: a Python function compiled for the strategy it uses, once for each signature.

A call flattens the arguments, looks up the program of their signature and runs it. For a new
signature the function is compiled first: traced (`tracing`), transformed (`passes`), emitted and
compiled (`runtime`).

A method is compiled for each object, since the object is part of the program. Objects are told
apart by identity, since objects of a dataclass may be equal and have no hash. The function for an
object refers to it weakly, and is kept as long as the object exists. `object.method` is a `Method`,
which refers to the object and to its function. If the object is a pytree, or has no weak
references, it is an argument of the function instead, and `object.method` is a `BoundFunction`.
"""

from __future__ import annotations

import copy
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, update_wrapper, wraps

# Any: users' functions, objects, arguments and results
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import jax
from jax.tree_util import tree_flatten, tree_leaves

from graphdist.context import current_entry
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.iterators import DatasetInTrace
from graphdist.data.looped_datasets import stacked_specs
from graphdist.errors import ArgumentError, UnsupportedError
from graphdist.passes.manager import Pass
from graphdist.passes.plan import NO_PLAN, Plan
from graphdist.program.argument_keys import ARRAY_KEYS, KEYS, UnusableLeaf, refusal
from graphdist.program.kept_programs import DEFAULT_MAX_PROGRAMS, KeptPrograms, Signature, next_call
from graphdist.program.looping_function import LoopingFunction, dataset_behind, undone_if_met
from graphdist.program.program import RunnableProgram, compile_program
from graphdist.program.progress import compiling
from graphdist.program.stages import Traced, dump_of, next_function
from graphdist.program.step_functions import (
    DEFAULT_OPTIONS,
    FunctionOptions,
    hide_static,
    pipeline_of,
    refuse_others,
    require_function,
    static_positions,
)
from graphdist.program.trace import TraceRequest, trace_program
from graphdist.tracebacks import frames_hidden, hide_frames
from graphdist.tracing.jax_settings import OtherSettings, settings_of_calls
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.copying import refuse_to_pickle
from graphdist.values.type_variables import Parameters, Result_co

Others = ParamSpec("Others")
"""The parameters of a method, without the instance."""
Result = TypeVar("Result")


class Function(Generic[Parameters, Result_co]):
    """A compiled function; see `function`."""

    def __init__(
        self,
        fn: Callable[Parameters, Result_co],
        static_argnames: Sequence[str] | str = (),
        options: FunctionOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Wrap `fn`; nothing is traced before the first call."""
        require_function(fn, "gd.function")

        update_wrapper(self, fn)
        self.fn = fn
        self.name = options.name or str(getattr(fn, "__name__", "function"))
        self.options = replace(options, name=self.name)
        self._static = static_positions(fn, static_argnames)
        self._kept = KeptPrograms(fn, self.name, options.max_programs)
        self._programs = self._kept.current
        self._id = next_function()
        self._looping: LoopingFunction | None = None
        self._methods: dict[int, tuple[weakref.ref[Any], Function[..., Any]]] = {}
        """The functions of a method by the ids of their objects."""

    def __repr__(self) -> str:
        return f"<gd.function {self.name}>"

    def __copy__(self) -> Function[..., Any]:
        return self._like(self.fn)

    def __deepcopy__(self, memo: dict[int, Any]) -> Function[..., Any]:
        """Return a function without programs. The method of a copied object belongs to the copy."""
        return self._like(copy.deepcopy(self.fn, memo))

    def __reduce__(self) -> str:
        """Return the name by which another process finds the function in its module."""
        path = str(getattr(self, "__qualname__", ""))
        named: Any = sys.modules.get(str(getattr(self, "__module__", "")))
        for name in path.split("."):
            named = getattr(named, name, None)
        if named is not self:
            refuse_to_pickle(
                f"{self!r}, which is compiled by this process and has no name in a module,",
                "define it at the top level of a module that the other process imports, or call "
                "gd.function there",
            )
        return path

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(
        self: Function[Concatenate[Any, Others], Result],
        instance: object,
        owner: type | None = None,
    ) -> Method[Others, Result] | BoundFunction[Others, Result]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        function = self._method_of(instance)
        return BoundFunction(self, instance) if function is None else Method(function, instance)

    @property
    def function(self) -> Function[Parameters, Result_co]:
        """Return the function that keeps the programs; a method has one function per object."""
        return self

    def _method_of(self, instance: Any) -> Function[..., Any] | None:
        """Return the function for an object; None if the object is an argument of this function."""
        key, functions = id(instance), self._methods
        entry = functions.get(key)
        if entry is not None:  # an entry is removed before another object can have its id
            return entry[1]
        if not jax.tree_util.all_leaves([instance]):  # a pytree: its arrays are arguments
            return None
        try:
            reference = weakref.ref(instance, lambda _: functions.pop(key, None))
        except TypeError:
            return None
        return functions.setdefault(key, (reference, self._bound_to(reference)))[1]

    def _bound_to(self, instance: Callable[[], Any]) -> Function[..., Any]:
        """Return the function for one object. The function refers to the object weakly."""
        fn: Callable[..., Any] = self.fn

        @wraps(fn)
        def method(*args: Any, **kwargs: Any) -> Any:
            return fn(instance(), *args, **kwargs)

        vars(method)["instance"] = instance  # for `loop_conversion.py`, which converts `fn`
        first, *others = inspect.signature(fn).parameters.values()
        vars(method)["__signature__"] = inspect.Signature(others)
        return self._like(method, without=first.name)

    def _like(self, fn: Callable[..., Any], without: str = "") -> Function[..., Any]:
        """Return a `Function` of `fn` with the same options and static arguments but `without`."""
        return Function(fn, [name for name in self._static if name != without], self.options)

    @property
    def definition(self) -> tuple[Any, ...]:
        """Return the arguments that make an equal `Function`, also in another process."""
        return self.fn, list(self._static), self.options

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result_co:
        """Run the function on these arguments. Inside another compiled function it is inlined."""
        if current_trace() is not None:
            return self.fn(*args, **kwargs)
        if self._looping is not None:
            return self._looping(*args, **kwargs)
        try:
            leaves, signature = self._signature(args, kwargs)
            program = self._programs.get(signature)
            if program is not None:
                try:
                    result = program.call(leaves)
                except OtherSettings:
                    pass  # compiled under other settings of JAX, so look for another program
                else:
                    program.last_call = next_call()
                    return result
            # This reference keeps the program alive if another thread drops it from `_kept`.
            program = self._program(args, kwargs, signature)
            return program.call(leaves)
        except Exception as error:
            met = dataset_behind(error, (args, kwargs))
            if met is None:
                hide_frames(error)
                raise
            self._looping = self._looped(met)
        return self._looping(*args, **kwargs)

    def _looped(self, met: DatasetInTrace) -> LoopingFunction:
        if self.options.plan != NO_PLAN:
            raise ArgumentError(
                f"{self.name} loops over a dataset, and a plan is for one step",
                hint="make the body of the loop a gd.function with plan=..",
            )
        steps = self.options.steps_per_execution
        return LoopingFunction(self.fn, self.name, steps, self._part, met)

    def _part(self, fn: Callable[..., Any], name: str) -> Function[..., Any]:
        """Return a part of the function, compiled with the same options."""
        options = self.options
        part = FunctionOptions(options.pipeline_for, options.compiler_options, name)
        return Function(fn, (), part)

    def _program(self, args: Any, kwargs: Any, signature: Signature) -> RunnableProgram:
        """Return the program for the current settings of JAX; compile a new one if needed."""
        program = self._kept.for_context(signature)
        if program is None:
            with compiling(self.name):
                traced = self._trace(args, kwargs, signature)
                why = partial(self._kept.reason, signature, args, kwargs)
                program = compile_program(traced, dump_of(self._id, why))
            self._kept.keep(signature, program, args, kwargs)
        return program

    @property
    def latest(self) -> Traced | None:
        """Return the trace of the latest call's program; None before the first call."""
        program = self._kept.latest
        return None if program is None else program.traced

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace the function for these arguments: arrays, distributed values, or their shapes.

        Shapes are `jax.ShapeDtypeStruct` and `gd.PerReplicaSpec`.
        """
        with frames_hidden:
            _, signature = self._signature(args, kwargs)
            try:
                return self._trace(args, kwargs, signature)
            except DatasetInTrace as met:
                return self._trace_of_loops(args, kwargs, met)

    def _trace_of_loops(self, args: Any, kwargs: Any, met: DatasetInTrace) -> Traced:
        """Trace the function with its loops over datasets, each for the elements of one program."""
        specs = stacked_specs((args, kwargs), self.options.steps_per_execution)
        if not any(isinstance(leaf, DistributedDataset) for leaf in tree_leaves((args, kwargs))):
            raise UnsupportedError(
                f"{self.name} loops over a dataset that is no argument: its graph has no elements",
                source=met.source,
                hint="give it the dataset as an argument, or trace the function of one step",
            )
        looping = self._looping or self._looped(met)
        return self._like(looping.fn).trace(*specs[0], **specs[1])

    def _signature(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], Signature]:
        """Return the leaves of the arguments, and the signature that selects the program."""
        if self._static:
            args, kwargs = hide_static(self._static, args, kwargs)
        entry = current_entry()
        strategy = None if entry is None else entry.strategy
        try:
            if not kwargs:
                # Most steps get only arrays. Flattening them costs more than the rest of a call.
                keys = []
                for leaf in args:
                    key_of = ARRAY_KEYS[type(leaf)]
                    if key_of is None:
                        break
                    keys.append(key_of(leaf))
                else:
                    return args, (len(args), tuple(keys), strategy, settings_of_calls())
            leaves, structure = tree_flatten((args, kwargs))
            key_of_type = KEYS[self.options.python_numbers_are_static]
            keys = [key_of_type[type(leaf)](leaf) for leaf in leaves]
        except UnusableLeaf:
            are_static = self.options.python_numbers_are_static
            raise refusal(self.fn, self.name, args, kwargs, are_static) from None
        return leaves, (structure, tuple(keys), strategy, settings_of_calls())

    def _trace(self, args: Any, kwargs: Any, signature: Signature) -> Traced:
        if self._static:
            args, kwargs = hide_static(self._static, args, kwargs)
        request = TraceRequest(self.fn, args, kwargs, signature[1], self.options)
        with undone_if_met(self.fn, (args, kwargs)):
            return trace_program(request, is_first=not self._kept.num_compiled)


class BoundFunction(Generic[Parameters, Result_co]):
    """A `Function` looked up on an object that is its first argument."""

    def __init__(self, function: Function[..., Result_co], instance: Any) -> None:
        """Bind the function."""
        self.function, self._instance = function, instance

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result_co:
        """Run the function."""
        with frames_hidden:
            return self.function(self._instance, *args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace the function."""
        with frames_hidden:
            return self.function.trace(self._instance, *args, **kwargs)


class Method(Function[Parameters, Result_co]):
    """A `Function` looked up on an object. It refers to the object, like a method of Python."""

    __slots__ = ("_function", "_instance")

    def __init__(self, function: Function[Parameters, Result_co], instance: Any) -> None:
        """Share the state of `function`, which is kept for `instance`."""
        self.__dict__ = function.__dict__
        self._function, self._instance = function, instance

    @property
    def function(self) -> Function[Parameters, Result_co]:
        """Return the function of the object, which keeps the programs."""
        return self._function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and self.function is other.function

    def __hash__(self) -> int:
        return hash(self.function)

    def _like(self, fn: Callable[..., Any], without: str = "") -> Function[..., Any]:
        return Method(super()._like(fn, without), self._instance)


@overload
def function(
    fn: Callable[Others, Result],
    *,
    static_argnames: Sequence[str] | str = (),
    passes: Sequence[Pass | Callable[..., Any]] | None = None,
    allow_reassociation: bool = True,
    compiler_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    max_programs: int | None = DEFAULT_MAX_PROGRAMS,
    steps_per_execution: int | None = None,
    plan: Plan = NO_PLAN,
) -> Function[Others, Result]: ...


@overload
def function(
    *,
    static_argnames: Sequence[str] | str = (),
    passes: Sequence[Pass | Callable[..., Any]] | None = None,
    allow_reassociation: bool = True,
    compiler_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    max_programs: int | None = DEFAULT_MAX_PROGRAMS,
    steps_per_execution: int | None = None,
    plan: Plan = NO_PLAN,
) -> Callable[[Callable[Others, Result]], Function[Others, Result]]: ...


def function(
    fn: Callable[..., Any] | None = None,
    *,
    static_argnames: Sequence[str] | str = (),
    passes: Sequence[Pass | Callable[..., Any]] | None = None,
    allow_reassociation: bool = True,
    compiler_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    max_programs: int | None = DEFAULT_MAX_PROGRAMS,
    steps_per_execution: int | None = None,
    plan: Plan = NO_PLAN,
    **others: Any,
) -> Any:
    """Compile a Python function for the strategy it uses.

    Use it as `@gd.function` or `@gd.function(...)`. Arrays, pytrees of them and distributed values
    are inputs, Python numbers are weakly typed scalars, other values are static: the function is
    compiled once for each signature. `static_argnames` names more static arguments. `passes`
    replaces the default pipeline (`graphdist.passes.pipeline`). If `allow_reassociation` is False,
    the default pipeline omits the passes that change the rounding of results. `compiler_options`
    are options of XLA. The function keeps at most `max_programs` programs, or all for None. Beyond
    the limit it drops the least recently called program, and compiles it again for its next call.
    Loops over distributed datasets run `steps_per_execution` steps in a program. None chooses a
    number that saves time. `plan` says what the compiler chooses about the step (`gd.plan` finds
    one).

    Raises `TraceError` or `DistributionError` for a program that cannot be compiled, before it
    runs.

    >>> import jax
    >>> @function
    ... def double(x):
    ...     return x * 2
    >>> double(jax.numpy.arange(3))
    Array([0, 2, 4], dtype=int32)
    >>> print(double.trace(jax.numpy.arange(3)).lower().as_text("graph"))
    graph double on 1 replica, stage spmd
    (%x: i32[3] mirrored) {
      %0 = jax.mul(%x, 2:i32) {out_dtype=none} : i32[3] mirrored
      return %0
    }
    """
    refuse_others(others)

    def wrap(fn: Callable[..., Any]) -> Function[..., Any]:
        options = FunctionOptions(
            pipeline_of(passes, allow_reassociation),
            compiler_options,
            name,
            max_programs=max_programs,
            steps_per_execution=steps_per_execution,
            plan=plan,
        )
        return Function(fn, static_argnames, options)

    return wrap if fn is None else wrap(fn)
