"""The user's lines behind an equation.

JAX keeps a traceback with every equation. The user's frames are neither JAX's nor graphdist's.
Frames of an installed library, such as an optimizer, are left out too if there are other frames. If
there are none, as in the steps of Keras, the user's line that called the function comes after them,
and in place of them for the operations of graphdist, which the library does not know. It stands
alone for what has no frames at all, such as the reads of Keras's weights.
graphdist's files are recognised by module, not by folder, since in the source tree graphdist's
folders are beside examples and tests.
"""

from __future__ import annotations

import builtins
import enum
import inspect
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any  # tracebacks of jaxlib have no public type

import jax
from jax.extend import source_info_util

from graphdist.ir.source import Frame, Source

_JAX_FOLDER = str(Path(jax.__file__).parent)
source_info_util.register_exclusion(f"{Path(__file__).parents[1]}/")  # JAX excludes its own
_TYPED_IN = ("<stdin>", "<console>", "<ipython-input", "<python-input", "<doctest")
_INSTALLED = tuple(
    {sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def source_of_equation(equation: Any) -> Source:
    """Return the source of an equation of a jaxpr, which is resolved when it is first used.

    Resolving a traceback is slow, and most sources are never shown.
    """
    source_info, caller = equation.source_info, _caller.get()

    def resolve() -> tuple[tuple[Frame, ...], str]:
        calls = source_info.traceback
        frames = _users_in(calls) if calls else ()
        if caller and not frames:
            frames = caller
        elif caller and frames[0].file.startswith(_INSTALLED):
            frames = caller if _is_ours(calls) else frames + caller
        return frames, str(source_info.name_stack)

    return Source(resolve=resolve, record=source_info)


_caller: ContextVar[tuple[Frame, ...]] = ContextVar("caller", default=())


@contextmanager
def called_here() -> Iterator[None]:
    """Add the user's current line to equations of which only a library has lines."""
    frames = [frame for frame in here().frames if not frame.file.startswith(_INSTALLED)]
    # The command of a tool, a file without a suffix, is no line of the user's program.
    token = _caller.set(tuple(frame for frame in frames if not _is_command(frame.file)))
    try:
        yield
    finally:
        _caller.reset(token)


def _is_command(file: str) -> bool:
    return file == sys.argv[0] and not file.endswith(".py")


def _is_ours(calls: Any) -> bool:
    """Return whether graphdist made an equation, and not its caller."""
    files = (frame.file_name for frame in calls.frames)
    inner = next((file for file in files if not file.startswith(_JAX_FOLDER)), "")
    return inner in _our_files(len(sys.modules))


def traced_at(source: Source) -> AbstractContextManager[object]:
    """Return a context in which JAX records operations as of the lines and scopes of a source."""
    record: Any = source.record
    if record is None:
        return _AS_IT_IS
    within = source_info_util.current_name_stack()
    return source_info_util.user_context(record.traceback, name_stack=within + record.name_stack)


_AS_IT_IS = nullcontext()


def source_of_value(value: Any) -> Source | None:
    """Return where a value of a trace was computed; None if JAX does not say."""
    source_info = getattr(value, "_line_info", None)  # no public name, so it may be missing
    calls = getattr(source_info, "traceback", None)
    return Source(resolve=lambda: (_users_in(calls), "")) if calls else None


def code_of(fn: Any) -> CodeType | None:
    """Return the code object of a function, or of the function that it wraps, if any."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return code if isinstance(code, CodeType) else None


def source_of_function(fn: Any) -> Source:
    """Return where a function is defined; the user's current line if it has no code object."""
    code = code_of(fn)
    if code is None:
        return here()
    frame = _frame(code.co_filename, code.co_firstlineno, code.co_name)
    return Source(resolve=lambda: ((frame,), ""))


def with_lines_of(call: Any, equation: Any) -> Any:
    """Return an equation of a jaxpr that `call` runs, with the call's lines if it has no better.

    JAX traces a function of its own that is jitted, such as `jnp.linalg.norm`, without the frames
    that call it. Lines of the user are better than those of a library, and these than none.
    """
    outer, inner = call.source_info.traceback, equation.source_info.traceback
    if outer is None or (inner is not None and _outermost(inner) == _outermost(outer)):
        return equation
    if inner is not None and _worth(inner) >= _worth(outer):
        return equation
    return equation.replace(source_info=equation.source_info.replace(traceback=outer))


def _outermost(calls: Any) -> tuple[CodeType, int]:
    """Return the code and the instruction in which the calls began."""
    codes, instructions = calls.raw_frames()
    return codes[-1], instructions[-1]


def within_scope_of(call: Any, equation: Any) -> Any:
    """Return an equation of a call's jaxpr, with the named scope of the call around its own.

    JAX keeps the scopes inside a jaxpr relative to the equation that calls it.
    """
    outer, inner = call.source_info.name_stack, equation.source_info
    if not outer.stack:
        return equation
    return equation.replace(source_info=inner.replace(name_stack=outer + inner.name_stack))


@lru_cache(maxsize=4096)  # equations of one call, and of all iterations, have equal tracebacks
def _users_in(calls: Any) -> tuple[Frame, ...]:
    return _users([(f.file_name, f.line_num, f.function_name) for f in calls.frames])


@lru_cache(maxsize=4096)
def _worth(calls: Any) -> int:
    """Return 2 for calls with lines of the user, 1 with lines of a library alone, 0 without any."""
    frames = _users_in(calls)
    return 0 if not frames else 1 if frames[0].file.startswith(_INSTALLED) else 2


def here() -> Source:
    """Return the user's line that is being executed."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    users = _users(frames)
    return Source(resolve=lambda: (users, ""))


def where_raised(error: BaseException) -> Source:
    """Return the user's line in which an error was raised."""
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    users = _users(frames[::-1])
    return Source(resolve=lambda: (users, ""))


class CodeOwner(enum.Enum):
    """Who wrote a file of source text."""

    USER = "user"
    GRAPHDIST = "graphdist"
    JAX = "jax"
    LIBRARY = "library"
    """Other installed packages, Python's own library, and generated code."""


def owner_of(file: str) -> CodeOwner:
    """Return who wrote a file of source text.

    >>> owner_of("<stdin>"), owner_of(jax.__file__), owner_of(__file__)
    (<CodeOwner.USER: 'user'>, <CodeOwner.JAX: 'jax'>, <CodeOwner.GRAPHDIST: 'graphdist'>)
    """
    if file in _our_files(len(sys.modules)):
        return CodeOwner.GRAPHDIST
    if file.startswith(_JAX_FOLDER):
        return CodeOwner.JAX
    is_installed = file.startswith(_INSTALLED)
    return CodeOwner.USER if _is_outside(file) and not is_installed else CodeOwner.LIBRARY


def _users(frames: Sequence[tuple[str, int, str]]) -> tuple[Frame, ...]:
    """Return the user's frames; if the user has no frame, those of other installed packages.

    Each of `frames` is a file, a line and the qualified name of a function.
    """
    ours = _our_files(len(sys.modules))
    outside = [frame for frame in frames if frame[0] not in ours and _is_outside(frame[0])]
    own = [frame for frame in outside if not frame[0].startswith(_INSTALLED)]
    return tuple(_frame(file, line, name.rpartition(".")[2]) for file, line, name in own or outside)


def _frame(file: str, line: int, function: str) -> Frame:
    return _kept_frame(_cell_of(file), line, function)


_kept_frame = lru_cache(maxsize=65536)(Frame)  # all equations share the outer frames


def _cell_of(file: str) -> str:
    """Return the name of a file; for a notebook's cell, such as `In[3]`, the name that IPython has.

    `linecache` then has the lines of the cell under this name, too.
    """
    get_ipython = getattr(builtins, "get_ipython", None)
    shell = get_ipython() if get_ipython else None
    label = shell.compile.format_code_name(file) if shell is not None else None
    if label is None:
        return file
    cell = str(label[1])  # the label is ("Cell", "In[3]")
    if file in linecache.cache:
        linecache.cache[cell] = linecache.cache[file]
    return cell


@lru_cache(maxsize=4096)  # cells of a notebook are files
def _is_outside(file: str) -> bool:
    """Return whether a file is neither JAX's nor generated."""
    # Generated and frozen code has names in angle brackets. So has code that a user types in.
    typed_in = file.startswith(_TYPED_IN)
    return not file.startswith(_JAX_FOLDER) and (typed_in or not file.startswith("<"))


@lru_cache(maxsize=1)
def _our_files(loaded: int) -> frozenset[str]:
    """Return the files of graphdist's loaded modules.

    The number of loaded modules is an argument so that the cache is renewed after an import.
    """
    return frozenset(
        module.__file__
        for name, module in list(sys.modules.items())
        if (name == "graphdist" or name.startswith("graphdist."))
        and getattr(module, "__file__", None) is not None
        and module.__file__ is not None
    )
