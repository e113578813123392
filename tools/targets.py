"""Targets of the command-line tools: the step to compile, named as text.

A target is `file.py:make_step` or `package.module:make_step`; without a name after the colon it is
`make_step`. It names a *factory*: a function that takes the strategy, and keyword settings, and
returns `(function, args)`: a `gd.function` and a tuple of what to call it with, arrays or their
shapes. A file is run as Python runs a script, with its folder first on the path, but is not
`__main__`.

An invalid target, or a failure in it, is an `ArgumentError`. A `GraphdistError` that the factory
raises is passed on unchanged: it names the user's line already.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias  # Any: users' settings and arguments

import jax

from graphdist.errors import ArgumentError, GraphdistError
from graphdist.ir.source import Source, at_line
from graphdist.program.function import BoundFunction, Function
from graphdist.program.stages import Traced
from graphdist.strategies.base import CommonStrategy
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name

Factory: TypeAlias = Callable[..., Any]
StepCall: TypeAlias = tuple[Function | BoundFunction, tuple[Any, ...]]

DEFAULT_NAME = "make_step"


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the settings that `name=value` texts give; a value is a Python literal or a string.

    Raises `ArgumentError` for a text without a name.

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
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


def load_factory(target: str) -> Factory:
    """Return the factory that a target names.

    Raises `ArgumentError` for a file or module that is not there or cannot be imported, and for a
    name that it does not have.

    >>> load_factory("json:dumps").__name__
    'dumps'
    """
    place, name = _split(target)
    module = import_target(place)
    factory = getattr(module, name, None)
    if not callable(factory):
        own = [
            other
            for other, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        near = difflib.get_close_matches(name, own, n=3) or [
            other for other in own if other.startswith("make")
        ]
        what = "has no function" if factory is None else f"has a {type_name(factory)}, no function,"
        raise ArgumentError(
            f"{place} {what} {name!r}",
            source=here(),
            hint=f"did you mean {' or '.join(near)}?"
            if near
            else f"a target is {place}:NAME, where NAME takes a strategy and returns "
            f"(function, args)",
        )
    return factory


def import_target(place: str) -> ModuleType:
    """Return the module of a file `file.py` or of a name; raises `ArgumentError` if it fails."""
    return _module_of_file(Path(place)) if place.endswith(".py") else _module(place)


def takes_strategy(target: Callable[..., Any]) -> bool:
    """Return whether a target makes a step: by its name, or since it takes a strategy first."""
    try:
        parameters = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        parameters = []
    named = getattr(target, "__name__", "").startswith("make")
    return named or (bool(parameters) and parameters[0] == "strategy")


def make_step(target: str, strategy: CommonStrategy, settings: Mapping[str, Any]) -> StepCall:
    """Return the function and the arguments that the factory of a target makes for a strategy.

    Raises `ArgumentError` for a target that is not there, settings that its factory does not take,
    a factory that fails, and one that returns something else.
    """
    factory = load_factory(target)
    _check_settings(target, factory, settings)
    try:
        made = factory(strategy, **settings)
    except GraphdistError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"{target} raised {_one_line(error)}",
            source=_source_of(error, factory),
            hint="its settings are "
            + (", ".join(f"{name}={value!r}" for name, value in settings.items()) or "the defaults")
            + ": give others with --set name=value",
        ) from error
    return _checked(target, made)


def trace_step(target: str, strategy: CommonStrategy, step: StepCall) -> Traced:
    """Return a step traced for its arguments; raises `ArgumentError` where that fails."""
    function, arguments = step
    try:
        with strategy.scope():
            traced: Traced = function.trace(*arguments)
    except GraphdistError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"the step of {target} raised {_one_line(error)} when it was traced",
            source=_source_of(error, getattr(function, "fn", None)),
            hint="give it other settings with --set name=value, or mend it",
        ) from error
    return traced


def prepare_command() -> None:
    """Keep JAX from looking for accelerators: a command that only compiles needs none.

    Without hardware their compilers would look for it for seconds, and say so at length.
    """
    if jax.config.values["jax_platforms"] is None:
        jax.config.update("jax_platforms", "cpu")


def without_our_line(error: Exception) -> Exception:
    """Return the error without the line of a command, which passes for the user's as a script."""
    if isinstance(error, GraphdistError) and error.source is not None:
        frame = error.source.frame
        own = (
            str(Path(sys.argv[0]).absolute()),
            *(str(path) for path in Path(__file__).parent.glob("*.py")),
        )
        if frame is None or frame.file in own or "runpy" in frame.file:
            error.source = None
    return error


def _split(target: str) -> tuple[str, str]:
    place, colon, name = target.rpartition(":")
    if not colon or target.endswith(".py"):
        place, name = target, DEFAULT_NAME
    if not place or not name.isidentifier():
        raise ArgumentError(
            f"target {target!r} is neither file.py:name nor module:name",
            source=here(),
            hint="write for instance examples/train_digits.py:make_step",
        )
    return place, name


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        folder = path.parent
        there = sorted(other.name for other in folder.glob("*.py")) if folder.is_dir() else []
        near = difflib.get_close_matches(path.name, there, n=3)
        raise ArgumentError(
            f"there is no file {path}",
            source=here(),
            hint=f"did you mean {' or '.join(str(folder / other) for other in near)}?"
            if near
            else "give the path from the current folder, or an absolute one",
        )
    path = path.resolve()
    name = f"graphdist_target_{path.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        refusal = None
        if isinstance(error, Exception) and not isinstance(error, GraphdistError):
            refusal = _not_imported(str(path), error)
        del sys.modules[name]
        if refusal is None:
            raise
        raise refusal from error
    return module


def _module(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it; a console script does not
    try:
        return importlib.import_module(name)
    except GraphdistError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and name.startswith(error.name or " "):
            raise ArgumentError(
                f"there is no module {error.name!r}",
                source=here(),
                hint=f"install it, or name a file: {name.replace('.', '/')}.py:{DEFAULT_NAME}",
            ) from error
        raise _not_imported(name, error) from error


def _not_imported(place: str, error: Exception) -> ArgumentError:
    return ArgumentError(
        f"{place} cannot be imported: it raised {_one_line(error)}", source=_source_of(error)
    )


def _one_line(error: Exception) -> str:
    text = str(error.msg if isinstance(error, SyntaxError) else error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _source_of(error: Exception, factory: Factory | None = None) -> Source:
    """Return the line of the target's file that an error came through last, or the factory's."""
    if isinstance(error, SyntaxError) and error.filename:
        return at_line(error.filename, error.lineno or 1)
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(factory, "__code__", None)
    files = {module.__file__ for name, module in sys.modules.items() if _is_target(name)}
    files.add(code.co_filename if code else None)
    for frame in reversed(frames):
        if frame.filename in files:
            return at_line(frame.filename, frame.lineno or 1, frame.name)
    return here() if code is None else at_line(code.co_filename, code.co_firstlineno)


def _is_target(name: str) -> bool:
    return name.startswith("graphdist_target_")


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
    if not isinstance(made, tuple) or len(made) != 2:
        raise ArgumentError(
            f"{target} returned a {type_name(made)}, not (function, args)",
            source=here(),
            hint="end the factory with: return step, (batch,)",
        )
    function, args = made
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
