"""The step that a target names, and its trace: one way for all tools.

* A *factory* takes the strategy, and keyword settings, and returns `(function, args)`: a
  `gd.function` and a tuple of its arguments, arrays or their shapes. Further returned values are
  for the factory's own program.
* A *function* is traced for arguments of the types that `--args` gives.
* A `gd.function` that its own program has called has the strategy and the arguments of its last
  call. So no other strategy can be chosen for the function.

The program is loaded before the strategy is made: see `chosen_strategy.py`. An invalid step is an
`ArgumentError`; a `GraphdistError` of the user's program is passed on unchanged.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from typing import Any, TypeAlias  # Any: users' settings and arguments

import jax

from graphdist.config import at_least_cpu_devices
from graphdist.errors import ArgumentError
from graphdist.ir.types import numpy_dtype
from graphdist.program.function import BoundFunction, Function, function
from graphdist.program.stages import Traced
from graphdist.quoted import did_you_mean
from graphdist.strategies.base import CommonStrategy
from graphdist.tools.chosen_strategy import ChosenStrategy
from graphdist.tools.targets import DEFAULT_NAME, Factory, blamed, defined_at, load_factory
from graphdist.values.distributed import type_name

StepCall: TypeAlias = tuple[Function | BoundFunction, tuple[Any, ...]]

_ARGUMENT = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[0-9,\s]*)\]")
_MOST_DIGITS = 18
_BOOLEANS = {"true": "True", "false": "False"}


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the settings that `name=value` texts give; a value is a Python literal or a string.

    "true" and "false" are what they are in `--option`, since as strings both would be true.
    Raises `ArgumentError` for a text without a name, for a name that is given twice, and for a
    literal that Python cannot read.

    >>> parse_settings(["batch_size=64", "rate=1e-3", "dtype=bfloat16", "remat=false"])
    {'batch_size': 64, 'rate': 0.001, 'dtype': 'bfloat16', 'remat': False}
    """
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            what = f"setting {text!r} is not of the form name=value"
            raise ArgumentError(what, hint="write for instance batch_size=64")
        if name in settings:
            raise ArgumentError(f"setting {name!r} is given twice: leave one out")
        try:
            settings[name] = ast.literal_eval(_BOOLEANS.get(value, value))
        except (ValueError, SyntaxError):
            settings[name] = value
        except (TypeError, RecursionError, MemoryError) as error:
            what = f"setting {name!r} has a value that Python cannot read: {error}"
            raise ArgumentError(what) from error
    return settings


def is_factory(target: Callable[..., Any]) -> bool:
    """Return whether a target is a factory: named `make..`, or taking `strategy` first."""
    if isinstance(target, Function | BoundFunction):
        return False
    signature = _signature(target)
    first = next(iter(signature.parameters), "") if signature else ""
    return getattr(target, "__name__", "").startswith("make") or first == "strategy"


def makes_a_step(target: Callable[..., Any], settings: Collection[str]) -> bool:
    """Return whether a function makes a step from the strategy and these settings alone.

    Its name is `make_step`, or its first parameter is `strategy`. Another name that begins with
    `make` is not enough, since what is called here was not named by the user.
    """
    signature = _signature(target) or inspect.Signature()
    names = list(signature.parameters)
    needed = {
        each.name
        for each in [*signature.parameters.values()][1:]
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }
    is_maker = names[:1] == ["strategy"] or getattr(target, "__name__", "") == DEFAULT_NAME
    return is_maker and needed <= set(settings)


def trace_target(
    target: str, chosen: ChosenStrategy, settings: Mapping[str, Any], types: str = ""
) -> Traced:
    """Return the step of a target, traced for the strategy that the command line chooses.

    Raises `ArgumentError` for settings of a target that is no factory, and for a chosen strategy if
    the target is a function that its own program has called.
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
        if called is None:
            arguments = _arguments(types)
            _check_count(target, loaded, arguments)
            step = loaded if isinstance(loaded, Function | BoundFunction) else function(loaded)
            return trace_step(target, chosen.make(), (step, arguments), "types with --args")
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

    Raise `ArgumentError` for a target that is not there, for settings that its factory does not
    have, and for a factory that fails or returns anything else.
    """
    factory = load_factory(target)
    if isinstance(factory, Function | BoundFunction):
        raise ArgumentError(
            f"{target} is a gd.function, and no factory: a factory takes the strategy and returns "
            f"(function, args)",
            source=defined_at(factory),
        )
    _check_settings(target, factory, settings)
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    hint = f"its settings are {given or 'the defaults'}: give others with --set name=value"
    with blamed(target, factory, hint=hint), redirect_stdout(sys.stderr):
        made = factory(strategy, **settings)
    return _checked(target, made)


def trace_step(
    target: str,
    strategy: CommonStrategy,
    step: StepCall,
    others: str = "settings with --set name=value",
) -> Traced:
    """Return a step traced for its arguments. Raise `ArgumentError` if the trace fails.

    Errors say with `others` how the user can give the step other arguments.
    """
    function, arguments = step
    fn, hint = getattr(function, "fn", None), f"give it other {others}, or mend it"
    blames = blamed(target, fn, when=" when it was traced", hint=hint)
    with blames, strategy.scope(), redirect_stdout(sys.stderr):
        return function.trace(*arguments)


def _check_settings(target: str, factory: Factory, settings: Mapping[str, Any]) -> None:
    signature = _signature(factory)
    if signature is None:
        return
    parameters = list(signature.parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters[1:]]
    for name in settings:
        if name not in known:
            raise ArgumentError(
                f"{target} takes no setting {name!r}; its settings are "
                f"{', '.join(known) or 'none'}",
                source=defined_at(factory),
                hint=did_you_mean(name, known),
            )


def _signature(target: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function; None if it is unknown, as for some builtins."""
    with suppress(TypeError, ValueError):
        return inspect.signature(target)
    return None


def _checked(target: str, made: Any) -> StepCall:
    def refusal(returned: Any, what: str, hint: str) -> ArgumentError:
        return ArgumentError(f"{target} returned a {type_name(returned)}{what}", hint=hint)

    if not isinstance(made, tuple) or len(made) < 2:
        hint = "end the factory with: return step, (batch,)"
        raise refusal(made, ", not (function, args)", hint)
    function, args, *_ = made
    if not isinstance(function, Function | BoundFunction):
        hint = "decorate the step with @gd.function"
        raise refusal(function, " as its function, not a gd.function", hint)
    if not isinstance(args, tuple):
        hint = "write (batch,) for one argument"
        raise refusal(args, " as the arguments, not a tuple", hint)
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
                hint="write dtypes and shapes, such as 'f32[256,784] i32[256]'",
            )
        sizes = [size.strip() for size in match["shape"].split(",") if size.strip()]
        if (digits := max(map(len, sizes), default=0)) > _MOST_DIGITS:
            raise ArgumentError(f"--args: a size of {match['dtype']}[..] has {digits:,} digits")
        shape = tuple(map(int, sizes))
        try:
            found.append(jax.ShapeDtypeStruct(shape, numpy_dtype(match["dtype"])))
        except TypeError as error:
            raise ArgumentError(
                f"--args: {match['dtype']!r} is no dtype",
                hint="dtypes are written f32, bf16, i32, u8, bool",
            ) from error
        rest = rest[match.end() :].lstrip(" ,;")
    return tuple(found)


def _check_count(name: str, target: Any, arguments: Sequence[object]) -> None:
    """Raise `ArgumentError` if a function does not take as many arguments as are given."""
    signature = _signature(target)
    if signature is None:
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
            hint="give a type for each: --args 'f32[256,784] i32[256]'",
        ) from error
