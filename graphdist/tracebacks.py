"""Tracebacks that show the user's lines: frames of ours and of JAX's are hidden.

A mistake in a replica function is raised below a dozen functions of ours and of JAX's, which say
nothing of it. Where the public functions hand an error to their caller, these frames are taken out
of its traceback, and out of those of its causes.

1. JAX's setting decides, as for JAX's own frames: `jax_traceback_filtering`, or the environment
   variable `JAX_TRACEBACK_FILTERING`. "off" hides nothing. "tracebackhide", and "auto" in IPython,
   marks the frames, which IPython and pytest then leave out. Any other takes them out.
2. An error whose last line outside of JAX and of installed libraries is one of ours is our mistake,
   or the compiler's: its traceback is left whole. So is that of a `VerifyError`. Other errors of
   ours are about the user's program, and what they were raised from is too.
3. Frames of the user's and of other libraries stay. Ctrl-C and the like are left alone.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any  # Any: settings of JAX have no type

import jax

from graphdist.errors import GraphdistError, VerifyError
from graphdist.tracing.sources import CodeOwner, owner_of
from graphdist.tracing.state import current_trace

_SWITCH = "JAX_TRACEBACK_FILTERING"
NOTE = f"graphdist has left its own lines and JAX's out of this traceback: {_SWITCH}=off shows them"
_STACK_OF_JAX = "UnfilteredStackTrace"
"""The class of the cause by which JAX shows all frames, where it is asked to."""


class _FramesHidden:
    """Hides our frames in errors that leave a `with` block."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            hide_frames(error)


frames_hidden = _FramesHidden()
"""Hides our frames in errors that leave a `with` block.

>>> def users_function():
...     raise ValueError("a mistake of the user's")
>>> with frames_hidden:
...     users_function()
Traceback (most recent call last):
...
ValueError: a mistake of the user's
"""


def hide_frames(error: Exception) -> None:
    """Hide our frames in an error's traceback and in those of its causes; then raise it on.

    In a function that is being traced nothing is done: the caller of that function hides them all.
    """
    mode = _mode()
    if mode == "off" or current_trace() is not None:
        return
    errors = list(_users_errors(error))
    for one in errors:
        if mode == "tracebackhide":
            _mark(one)
        elif _take_out(one) and one is error:
            _say_so(one)


def _mode() -> str:
    settings: Any = jax.config
    mode = settings.jax_traceback_filtering
    if mode in (None, "auto"):
        return "tracebackhide" if hasattr(builtins, "get_ipython") else "quiet_remove_frames"
    return str(mode)


def _users_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield those about the user's program of an error, its causes, and what was being handled.

    What an error of ours about the user's program was raised from is about it too.
    """
    pending: list[tuple[BaseException | None, bool]] = [(error, False)]
    seen: set[int] = set()
    while pending:
        one, explains_ours = pending.pop()
        if one is None or id(one) in seen or type(one).__name__ == _STACK_OF_JAX:
            continue
        seen.add(id(one))
        is_ours = isinstance(one, GraphdistError) and not isinstance(one, VerifyError)
        if is_ours or explains_ours or _is_raised_by_user(one):
            yield one
        pending += ((cause, is_ours or explains_ours) for cause in (one.__cause__, one.__context__))


def _is_raised_by_user(error: BaseException) -> bool:
    """Return whether the last line that is the user's or ours is the user's."""
    if isinstance(error, VerifyError):
        return False
    owners = (_owner(entry.tb_frame) for entry in reversed(_entries(error)))
    return next((one for one in owners if one in _WRITERS), None) is CodeOwner.USER


_WRITERS = (CodeOwner.USER, CodeOwner.GRAPHDIST)


def _entries(error: BaseException) -> list[TracebackType]:
    entries, entry = [], error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def _owner(frame: FrameType) -> CodeOwner:
    return owner_of(frame.f_code.co_filename)


def _is_hidden(entry: TracebackType) -> bool:
    file = entry.tb_frame.f_code.co_filename
    return file == contextlib.__file__ or owner_of(file) in (CodeOwner.GRAPHDIST, CodeOwner.JAX)


def _take_out(error: BaseException) -> bool:
    """Take the frames out; return whether there were any."""
    entries = _entries(error)
    kept = [entry for entry in entries if not _is_hidden(entry)]
    following: TracebackType | None = None
    for entry in reversed(kept):
        following = TracebackType(following, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = following
    return len(kept) < len(entries)


def _say_so(error: BaseException) -> None:
    """Note that frames are hidden, unless JAX has: our own errors show the user's line as it is."""
    notes = getattr(error, "__notes__", ())
    if not isinstance(error, GraphdistError) and not any(_SWITCH in note for note in notes):
        error.add_note(NOTE)


def _mark(error: BaseException) -> None:
    for entry in _entries(error):
        if _is_hidden(entry):
            entry.tb_frame.f_locals["__tracebackhide__"] = True
