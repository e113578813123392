"""Checks the arguments of `gd.function` and `run`: the function, its arguments, options.

Only a function whose body runs when it is called can be traced. A call of a generator or an
`async def` returns before the body runs, so the trace would be empty.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any  # Any: users' functions and what they return

from graphdist.data.dataset_reduction import checked_steps
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.passes import Target, pipeline
from graphdist.passes.manager import Pass
from graphdist.passes.pipelines import cutting
from graphdist.passes.plans import NO_PLAN, Plan
from graphdist.program.argument_keys import StaticArgument
from graphdist.program.kept_programs import DEFAULT_MAX_PROGRAMS, require_limit
from graphdist.values.distributed import type_name, wrong_type

_ASYNC = "an async def: its body runs when it is awaited"
_YIELDS = "a generator: it has `yield`, and its body runs when it is iterated over"
_INSTEAD = {
    _ASYNC: "write def, and await outside: in the loop that calls it",
    _YIELDS: "return the values, in a list; yield outside, in the loop that calls it",
}


def require_function(fn: Any, what: str) -> None:
    """Raise `ArgumentTypeError` unless `fn` is a function whose body runs when it is called.

    `what` names the caller in the error, such as "gd.function".
    """
    if not callable(fn):
        raise ArgumentTypeError(
            f"{what} takes a function, not a value of type {type_name(fn)}",
            hint="give it the function itself, not the result of a call",
        )
    kind = _kind(fn)
    if kind:
        raise ArgumentTypeError(
            f"{what} is given {name_of(fn)}, which is {kind}", hint=_INSTEAD[kind]
        )


def require_call(fn: Any, args: Any, kwargs: Any, what: str) -> None:
    """Raise unless `fn` is a function, `args` a sequence and `kwargs` a mapping or None."""
    require_function(fn, what)
    if not isinstance(args, list | tuple):
        hint = "write args=(x,) for one argument"
        raise wrong_type("args", args, "a tuple or list", hint, ArgumentError)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        hint = "write kwargs={'name': value}"
        raise wrong_type("kwargs", kwargs, "a dict", hint, ArgumentError)


def require_result(result: Any, what: str) -> None:
    """Raise `ArgumentTypeError` for the result of a wrapped generator or `async def`.

    `what` names the function that returned the result.
    """
    if isinstance(result, CoroutineType):
        result.close()  # otherwise Python warns that nobody awaited it
        kind = _ASYNC
    elif isinstance(result, GeneratorType | AsyncGeneratorType):
        kind = _YIELDS
    else:
        return
    raise ArgumentTypeError(
        f"{what} returns the result of a call of {result.__name__}, which is {kind}",
        hint=_INSTEAD[kind],
    )


def _kind(fn: Any) -> str:
    """Return why the body of a function does not run when it is called; "" if it does."""
    while isinstance(fn, partial):
        fn = fn.func
    if not (inspect.isroutine(fn) or inspect.isclass(fn)):
        fn = type(fn).__call__
    if inspect.iscoroutinefunction(fn):
        return _ASYNC
    return _YIELDS if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn) else ""


def name_of(fn: Any) -> str:
    """Return the name of a function, or of the class of an object that is called."""
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


_OF_TENSORFLOW: Mapping[str, tuple[tuple[bool | None, ...], str]] = {
    "input_signature": (
        (None,),
        "leave it out: a program is compiled for each shape and dtype; f.trace(spec) with "
        "jax.ShapeDtypeStruct or gd.PerReplicaSpec makes one ahead of the first call",
    ),
    "jit_compile": (
        (True, None),
        "leave it out: every gd.function is compiled by XLA; with jax.disable_jit(): evaluates it "
        "node by node",
    ),
    "autograph": (
        (False,),
        "leave it out: loops over distributed datasets are compiled; elsewhere write jax.lax.cond, "
        "jax.lax.while_loop and jnp.where for if and while on arrays",
    ),
    "reduce_retracing": (
        (False, None),
        "leave it out: shapes are static; batches of one size, drop_remainder=True or padding, "
        "save compilations, and max_programs limits how many programs are kept",
    ),
}
"""For arguments of `tf.function`: the values that `gd.function` accepts and ignores, and a hint."""
_OF_TENSORFLOW_ALONE = (
    *("experimental_implements", "experimental_autograph_options", "experimental_attributes"),
    *("experimental_relax_shapes", "experimental_compile", "experimental_follow_type_hints"),
)


def refuse_others(options: Mapping[str, Any]) -> None:
    """Raise an error for arguments that `gd.function` does not have.

    An argument of `tf.function` is ignored if `gd.function` behaves as its value asks.
    """
    for name, value in options.items():
        if name not in _OF_TENSORFLOW and name not in _OF_TENSORFLOW_ALONE:
            raise ArgumentTypeError(
                f"gd.function takes no argument {name!r}",
                hint="help(gd.function) lists its arguments",
            )
        means_the_same, hint = _OF_TENSORFLOW.get(name, ((), "leave it out: it has no counterpart"))
        if not any(value is same for same in means_the_same):
            shown = f"{name}={value}" if isinstance(value, bool) else name
            raise ArgumentError(
                f"gd.function takes no {shown}, which is for tf.function", hint=hint
            )


@dataclass(frozen=True)
class FunctionOptions:
    """How a function is compiled. `pipeline_for` returns the passes for a target.

    Raises `ArgumentError` and `ArgumentTypeError` for options that cannot be used.
    """

    pipeline_for: Callable[[Target], Sequence[Pass]] = pipeline
    compiler_options: Mapping[str, Any] | None = None
    name: str | None = None
    python_numbers_are_static: bool = False
    max_programs: int | None = DEFAULT_MAX_PROGRAMS
    steps_per_execution: int | None = None
    plan: Plan = NO_PLAN

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str | None):
            hint = 'write name="train_step"'
            raise ArgumentTypeError(f"name is {name!r}, not a string", hint=hint)
        if not isinstance(self.compiler_options, Mapping | None):
            hint = "write compiler_options={'name of an option of XLA': value}"
            raise wrong_type("compiler_options", self.compiler_options, "a dict", hint)
        if not isinstance(self.plan, Plan):
            hint = "write plan=gd.Plan.from_json(text), or plan=gd.plan(..).plan"
            if self.plan is None:
                hint = "gd.plan(..).plan is None if no plan fits: print what gd.plan returns"
            raise wrong_type("plan", self.plan, "a gd.Plan", hint)
        checked_steps(self.steps_per_execution)
        require_limit(self.max_programs)


DEFAULT_OPTIONS = FunctionOptions()


def pipeline_of(
    passes: Sequence[Pass | Callable[..., Any]] | None, allow_reassociation: bool
) -> Callable[[Target], Sequence[Pass]]:
    """Return a function that returns the passes for a target: `passes`, or the default pipeline.

    The function raises `ArgumentError` for a target with a plan, if `passes` are given.
    """
    if passes is None:
        return partial(pipeline, allow_reassociation=allow_reassociation)
    chosen = tuple(map(_as_pass, passes if isinstance(passes, Iterable) else (passes,)))

    def chosen_for(target: Target) -> Sequence[Pass]:
        if target.plan != NO_PLAN:
            raise ArgumentError(
                "the function has passes of its own, and a plan is for those of the pipeline",
                hint="leave passes out: graphdist.passes.pipeline(target) takes the plan's target",
            )
        return cutting(chosen) if target.cuts_updates else chosen

    return chosen_for


def _as_pass(item: Pass | Callable[..., Any]) -> Pass:
    if isinstance(item, Pass):
        return item
    if not callable(item):
        raise ArgumentTypeError(
            f"a pass is a function from graph to graph, not a value of type {type_name(item)}",
            hint="take passes from graphdist.passes.pipeline(strategy.target), or write a function",
        )
    return Pass(getattr(item, "__name__", type(item).__name__), item)


def static_positions(fn: Callable[..., Any], names: Sequence[str] | str) -> dict[str, int]:
    """Return the position of every static argument; raises `ArgumentError` for an unknown name."""
    names = (names,) if isinstance(names, str) else names
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(
            f"static_argnames is {names!r}, not names of arguments",
            hint='write static_argnames=("training",)',
        )
    if not names:
        return {}
    known = list(inspect.signature(fn).parameters)
    for name in names:
        if name not in known:
            raise ArgumentError(
                f"static_argnames has {name!r}, the function takes {', '.join(known)}"
            )
    return {name: known.index(name) for name in names}


def hide_static(
    static: Mapping[str, int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments, with each static argument wrapped as one leaf."""
    names = {position: name for name, position in static.items()}
    hidden = tuple(
        StaticArgument(value, names[position]) if position in names else value
        for position, value in enumerate(args)
    )
    return hidden, {
        name: StaticArgument(value, name) if name in static else value
        for name, value in kwargs.items()
    }
