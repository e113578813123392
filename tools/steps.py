"""The step that a target names, and its trace: one way for all tools.

* A *factory* takes the strategy, and keyword settings, and returns `(function, args)`: a
  `gd.function` and a tuple of what to call it with, arrays or their shapes. What it returns after
  these two is its own program's.
* A *function* is traced for arguments of the types that `--args` gives.
* A `gd.function` that its own program has called is taken as it was called last. It has the
  strategy and the arguments of that call, so that no other strategy can be chosen for it.

The program is loaded before the strategy is made: see `chosen_strategy.py`. An invalid step is an
`ArgumentError`; a `GraphdistError` of the user's program is passed on unchanged.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any, TypeAlias  # Any: users' settings and arguments

import jax

from graphdist.config import at_least_cpu_devices
from graphdist.errors import ArgumentError, GraphdistError
from graphdist.ir.source import Source, at_line
from graphdist.ir.types import numpy_dtype
from graphdist.program.function import BoundFunction, Function, function
from graphdist.program.stages import Traced
from graphdist.strategies.base import CommonStrategy
from graphdist.tools.chosen_strategy import ChosenStrategy
from graphdist.tools.targets import FAILS, Factory, failure, load_factory
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name

StepCall: TypeAlias = tuple[Function | BoundFunction, tuple[Any, ...]]

_ARGUMENT = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[0-9,\s]*)\]")
_MOST_DIGITS = 18


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the settings that `name=value` texts give; a value is a Python literal or a string.

    Raises `ArgumentError` for a text without a name, for a name that is there twice, and for a
    literal that cannot be made.

    >>> parse_settings(["batch_size=64", "rate=1e-3", "dtype=bfloat16", "remat=True"])
    {'batch_size': 64, 'rate': 0.001, 'dtype': 'bfloat16', 'remat': True}
    """
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ArgumentError(
                f"setting {text!r} is not of the form name=value",
                source=here(),
                hint="write for instance batch_size=64",
            )
        if name in settings:
            raise ArgumentError(f"setting {name!r} is given twice: leave one out", source=here())
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
        except (TypeError, RecursionError, MemoryError) as error:
            raise ArgumentError(
                f"setting {name!r} has a value that Python cannot read: {error}", source=here()
            ) from error
    return settings


def is_factory(target: Callable[..., Any]) -> bool:
    """Return whether a target makes a step: by its name, or since it takes a strategy first."""
    if isinstance(target, Function | BoundFunction):
        return False
    try:
        parameters = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        parameters = []
    named = getattr(target, "__name__", "").startswith("make")
    return named or (bool(parameters) and parameters[0] == "strategy")


def trace_target(
    target: str, chosen: ChosenStrategy, settings: Mapping[str, Any], types: str = ""
) -> Traced:
    """Return the step of a target, traced for the strategy that the command line chooses.

    Raises `ArgumentError` for what does not go with the target: settings of a function, another
    strategy for a function that its program has called.
    """
    with at_least_cpu_devices(chosen.cpu_devices):
        loaded = load_factory(target)
        if is_factory(loaded) and not types:
            strategy = chosen.make()
            return trace_step(target, strategy, make_step(target, strategy, settings))
        if settings:
            raise ArgumentError(
                f"--set {next(iter(settings))} is for a factory, and {target} is a function"
                f"{' of --args' if types else ''}: leave it out, or name a factory"
            )
        called = loaded.latest if isinstance(loaded, Function) and not types else None
        if called is not None:
            return _as_called(called, target, chosen)
        step = _step_of_function(target, loaded, types)
        return trace_step(target, chosen.make(), step, "types with --args")


def _as_called(called: Traced, target: str, chosen: ChosenStrategy) -> Traced:
    if chosen.option:
        raise ArgumentError(
            f"{target} has the strategy with which its own program called it, so that "
            f"{chosen.option} cannot choose another",
            hint=f"name a factory, which takes the strategy; without {chosen.option} "
            f"graphdist-viz shows the function as it was called",
        )
    return called


def make_step(target: str, strategy: CommonStrategy, settings: Mapping[str, Any]) -> StepCall:
    """Return the function and the arguments that the factory of a target makes for a strategy.

    Raises `ArgumentError` for a target that is not there, settings that its factory does not take,
    a factory that fails, and one that returns something else.
    """
    factory = load_factory(target)
    if isinstance(factory, Function | BoundFunction):
        raise ArgumentError(
            f"{target} is a gd.function, and no factory: a factory takes the strategy and returns "
            f"(function, args)",
            source=_definition(factory),
        )
    _check_settings(target, factory, settings)
    try:
        with redirect_stdout(sys.stderr):
            made = factory(strategy, **settings)
    except GraphdistError:
        raise
    except FAILS as error:
        given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        hint = f"its settings are {given or 'the defaults'}: give others with --set name=value"
        raise failure(target, error, factory, hint=hint) from error
    return _checked(target, made)


def trace_step(
    target: str,
    strategy: CommonStrategy,
    step: StepCall,
    others: str = "settings with --set name=value",
) -> Traced:
    """Return a step traced for its arguments; raises `ArgumentError` where that fails.

    `others` says what gives the step other arguments.
    """
    function, arguments = step
    try:
        with strategy.scope(), redirect_stdout(sys.stderr):
            traced: Traced = function.trace(*arguments)
    except GraphdistError:
        raise
    except FAILS as error:
        hint = f"give it other {others}, or mend it"
        fn, when = getattr(function, "fn", None), " when it was traced"
        raise failure(target, error, fn, when=when, hint=hint) from error
    return traced


def _check_settings(target: str, factory: Factory, settings: Mapping[str, Any]) -> None:
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # some builtins
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters[1:]]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            raise ArgumentError(
                f"{target} takes no setting {name!r}; its settings are "
                f"{', '.join(known) or 'none'}",
                source=_definition(factory),
                hint=f"did you mean {' or '.join(near)}?" if near else "",
            )


def _definition(factory: Factory) -> Source:
    code = getattr(factory, "__code__", None)
    return at_line(code.co_filename, code.co_firstlineno) if code else here()


def _checked(target: str, made: Any) -> StepCall:
    if not isinstance(made, tuple) or len(made) < 2:
        raise ArgumentError(
            f"{target} returned a {type_name(made)}, not (function, args)",
            source=here(),
            hint="end the factory with: return step, (batch,)",
        )
    function, args, *_ = made
    if not isinstance(function, Function | BoundFunction):
        raise ArgumentError(
            f"{target} returned a {type_name(function)} as its function, not a gd.function",
            source=here(),
            hint="decorate the step with @gd.function",
        )
    if not isinstance(args, tuple):
        raise ArgumentError(
            f"{target} returned a {type_name(args)} as the arguments, not a tuple",
            source=here(),
            hint="write (batch,) for one argument",
        )
    return function, args


def _arguments(types: str) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return arguments of the types that `--args` gives."""
    found = []
    rest = types.strip()
    while rest:
        match = _ARGUMENT.match(rest)
        if match is None:
            raise ArgumentError(
                f"--args: {rest!r} does not begin with a type",
                source=here(),
                hint="write dtypes and shapes, such as 'f32[256,784] i32[256]'",
            )
        sizes = [size.strip() for size in match["shape"].split(",") if size.strip()]
        if (digits := max(map(len, sizes), default=0)) > _MOST_DIGITS:
            raise ArgumentError(
                f"--args: a size of {match['dtype']}[..] has {digits:,} digits", source=here()
            )
        shape = tuple(map(int, sizes))
        try:
            found.append(jax.ShapeDtypeStruct(shape, numpy_dtype(match["dtype"])))
        except TypeError as error:
            raise ArgumentError(
                f"--args: {match['dtype']!r} is no dtype",
                source=here(),
                hint="dtypes are written f32, bf16, i32, u8, bool",
            ) from error
        rest = rest[match.end() :].lstrip(" ,;")
    return tuple(found)


def _step_of_function(target: str, loaded: Factory, types: str) -> StepCall:
    """Return a function and arguments of these types; raises `ArgumentError` for another number."""
    arguments = _arguments(types)
    _check_count(target, loaded, arguments)
    step = loaded if isinstance(loaded, Function | BoundFunction) else function(loaded)
    return step, arguments


def _check_count(name: str, target: Any, arguments: Sequence[object]) -> None:
    """Raise `ArgumentError` if a function does not take as many arguments as are given."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        needed = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        given = len(arguments)
        missing = ", ".join(needed[given:])
        raise ArgumentError(
            f"{name} takes {', '.join(needed) or 'no arguments'}; "
            f"{given or 'no'} argument{' is' if given == 1 else 's are'} given with --args"
            + (f", {missing} missing" if missing else ""),
            source=here(),
            hint="give a type for each: --args 'f32[256,784] i32[256]'",
        ) from error
