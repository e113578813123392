"""Targets of the command-line tools: a function or a factory of a step, named as text.

A target is `file.py:make_step` or `package.module:make_step`; without a name after the colon it is
`make_step`. A file is run as Python runs a script, with its folder first on the path, but is not
`__main__`. Its output goes to stderr, because stdout is for the output of the tool.

A target that is not there, or whose program fails or ends itself, is an `ArgumentError`. A
`GraphdistError` that the program raises is passed on unchanged: it names the user's line already.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.machinery import SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeAlias  # Any: users' functions

import jax

from graphdist.errors import ArgumentError, GraphdistError
from graphdist.ir.source import Source, at_line
from graphdist.quoted import did_you_mean
from graphdist.tools.given_files import require_file
from graphdist.tracing.user_lines import here, where_raised
from graphdist.values.distributed import type_name

Factory: TypeAlias = Callable[..., Any]

_PREFIX = "graphdist_target_"
"""The beginning of the names of modules that are loaded from files."""
DEFAULT_NAME = "make_step"


def load_factory(target: str) -> Factory:
    """Return the factory that a target names.

    Raises `ArgumentError` for a file or module that does not exist or cannot be imported, for a
    compiled step, and for a name that the module does not have.

    >>> load_factory("json:dumps").__name__
    'dumps'
    """
    refuse_artifact(target)
    place, name = _split(target)
    module = import_target(place)
    factory = getattr(module, name, None)
    if not callable(factory):
        own = [
            other
            for other, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        makers = " or ".join(other for other in own if other.startswith("make"))
        form = f"a target is {place}:NAME, where NAME takes a strategy and returns (function, args)"
        what = "has no function" if factory is None else f"has a {type_name(factory)}, no function,"
        raise ArgumentError(
            f"{place} {what} {name!r}",
            hint=did_you_mean(name, own, f"did you mean {makers}?" if makers else form),
        )
    return factory


def refuse_artifact(target: str) -> None:
    """Raise `ArgumentError` for a target that is the file of a compiled step."""
    if target.endswith(".gdx"):
        require_file(Path(target))
        raise ArgumentError(
            f"{target} is the file of a step, which is compiled already",
            hint=f"graphdist-viz {target} shows it, gd.aot.load runs it, graphdist-compile "
            f"--list-variables {target} prints its variables; to compare another step with it, "
            f"name that step and --against {target}",
        )


def import_target(place: str) -> ModuleType:
    """Return the module of a file `file.py` or of a name; raises `ArgumentError` if it fails."""
    with redirect_stdout(sys.stderr):
        return _module_of_file(Path(place)) if place.endswith(".py") else _module(place)


def prepare_command() -> None:
    """Keep JAX from looking for accelerators: a command that only compiles needs none.

    Without accelerators, JAX's plugins would search for seconds, and print long messages.
    """
    if jax.config.values["jax_platforms"] is None:
        jax.config.update("jax_platforms", "cpu")


@contextmanager
def blamed(
    what: str, factory: Factory | None = None, *, when: str = "", hint: str = ""
) -> Iterator[None]:
    """Raise `ArgumentError` if a `with` block raises an error or calls `sys.exit`.

    The block runs a target's program. `what` names the target in the error, and `hint` is the
    error's hint. A `GraphdistError` is passed on unchanged.
    """
    try:
        yield
    except GraphdistError:
        raise
    except SystemExit as error:
        code = "" if error.code is None else repr(error.code)
        raise ArgumentError(
            f"{what} ended the program with sys.exit({code}){when}",
            source=source_of(error, factory),
            hint='put that, as what reads the command line, under if __name__ == "__main__"',
        ) from error
    except Exception as error:
        text = str(error.msg if isinstance(error, SyntaxError) else error).strip()
        said = f": {text.splitlines()[0]}" if text else ""
        raise ArgumentError(
            f"{what} raised {type(error).__name__}{said}{when}",
            source=source_of(error, factory),
            hint=_nearest_setting(error, factory) or hint,
        ) from error


_UNEXPECTED = re.compile(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'")


def _nearest_setting(error: Exception, factory: Factory | None) -> str:
    """Return a hint for a setting that a function of the factory's module does not take."""
    found = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    called = getattr(factory, "__globals__", {}).get(found[1]) if found else None
    if found is None or not callable(called):
        return ""
    known = list(inspect.signature(called).parameters)
    return did_you_mean(found[2], known, f"the settings are {', '.join(known)}")


def source_of(error: BaseException, factory: Factory | None = None) -> Source:
    """Return the innermost line of a traceback in a target's file, or else the factory's."""
    if isinstance(error, SyntaxError) and error.filename:
        return at_line(error.filename, error.lineno or 1)
    code = getattr(factory, "__code__", None)
    targets = [module for name, module in sys.modules.items() if name.startswith(_PREFIX)]
    files = {_escaped(str(module.__file__)) for module in targets}
    files.add(code.co_filename if code else "")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return at_line(frame.filename, frame.lineno or 1, frame.name)
    return where_raised(error) if code is None else defined_at(factory)


def defined_at(function: object) -> Source:
    """Return the line that defines a function, or else the user's current line."""
    code = getattr(function, "__code__", None)
    return at_line(code.co_filename, code.co_firstlineno) if code else here()


def _split(target: str) -> tuple[str, str]:
    place, colon, name = target.rpartition(":")
    if not colon or target.endswith(".py"):
        place, name = target, DEFAULT_NAME
    if not place or not name.isidentifier():
        raise ArgumentError(
            f"target {target!r} is neither file.py:name nor module:name",
            hint="write for instance examples/train_digits.py:make_step",
        )
    return place, name


class _Loader(SourceFileLoader):
    """Loads a file, even if its path is not in the encoding of the system.

    Python holds such a path with surrogates, which XLA does not accept in the name of a source
    file. So the file name of the code has escapes in place of surrogates.
    """

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the file."""
        escaped = _escaped(self.path)
        if escaped == self.path:
            return super().get_code(fullname)
        text = decode_source(self.get_data(self.path))
        lines = text.splitlines(keepends=True)
        linecache.cache[escaped] = (len(text), None, lines, escaped)  # for the lines in errors
        return compile(text, escaped, "exec", dont_inherit=True)


def _escaped(path: str) -> str:
    return path.encode(errors="backslashreplace").decode()


def _module_of_file(path: Path) -> ModuleType:
    require_file(path)
    path = path.resolve()
    name = f"{_PREFIX}{path.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # dataclasses look their module up
    try:
        with blamed(f"{path} cannot be imported: it"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]  # only now: `blamed` finds the program's line by `sys.modules`
        raise
    return module


def _module(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it; a console script does not
    with blamed(f"{name} cannot be imported: it"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or " "):
                raise
            raise ArgumentError(
                f"there is no module {error.name!r}",
                hint=f"install it, or name a file: {name.replace('.', '/')}.py:{DEFAULT_NAME}",
            ) from error
