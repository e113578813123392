"""Tracebacks that show the user's lines: frames of graphdist and of JAX are hidden.

A mistake in a replica function is raised below a dozen frames of graphdist and JAX, which do not
help to find it. The public functions remove these frames from the traceback of an error that leaves
them, and from the tracebacks of its causes.

1. JAX's setting decides, as for JAX's own frames: `jax_traceback_filtering`, or the environment
   variable `JAX_TRACEBACK_FILTERING`. "off" hides nothing. "tracebackhide", and "auto" in IPython,
   mark the frames, and IPython and pytest leave marked frames out. Any other setting removes them.
2. If the last line outside JAX and installed libraries is a line of graphdist, the error is a
   mistake of graphdist, and its traceback stays complete. So does the traceback of a `VerifyError`.
   Every other `GraphdistError` is about the user's program, and so are the errors that caused it.
3. Frames of the user and of other libraries stay. Ctrl-C and the like are left alone.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any  # Any: settings of JAX have no type

import jax

from graphdist.errors import GraphdistError, VerifyError
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.tracing.user_lines import CodeOwner, owner_of

_SWITCH = "JAX_TRACEBACK_FILTERING"
NOTE = f"graphdist has left its own lines and JAX's out of this traceback: {_SWITCH}=off shows them"
_STACK_OF_JAX = "UnfilteredStackTrace"
"""The class of the cause in which JAX shows all frames, if its setting asks for them."""


class _FramesHidden:
    """Hides frames of graphdist and JAX in errors that leave a `with` block."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            hide_frames(error)


frames_hidden = _FramesHidden()
"""Hides frames of graphdist and JAX in errors that leave a `with` block.

>>> def users_function():
...     raise ValueError("a mistake of the user's")
>>> with frames_hidden:
...     users_function()
Traceback (most recent call last):
...
ValueError: a mistake of the user's
"""


def hide_frames(error: Exception) -> None:
    """Hide the frames of graphdist and of JAX in the tracebacks of an error and of its causes.

    The error is not raised here. While a function is traced, this does nothing, since the outermost
    `with frames_hidden`, around the trace, hides the frames.
    """
    mode = _mode()
    if mode == "off" or current_trace() is not None:
        return
    for users_error in list(_users_errors(error)):
        if mode == "tracebackhide":
            _mark(users_error)
        elif _remove_frames(users_error) and users_error is error:
            _note_removal(users_error)


def _mode() -> str:
    settings: Any = jax.config
    mode = settings.jax_traceback_filtering
    if mode in (None, "auto"):
        return "tracebackhide" if hasattr(builtins, "get_ipython") else "quiet_remove_frames"
    return str(mode)


def _users_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors about the user's program among an error, its causes and its contexts.

    The causes of a `GraphdistError` about the user's program are about this program, too.
    """
    pending: list[tuple[BaseException | None, bool]] = [(error, False)]
    seen: set[int] = set()
    while pending:
        each, explains_ours = pending.pop()
        if each is None or id(each) in seen or type(each).__name__ == _STACK_OF_JAX:
            continue
        seen.add(id(each))
        is_ours = isinstance(each, GraphdistError) and not isinstance(each, VerifyError)
        if is_ours or explains_ours or _is_raised_by_user(each):
            yield each
        causes = (each.__cause__, each.__context__)
        pending += ((cause, is_ours or explains_ours) for cause in causes)


def _is_raised_by_user(error: BaseException) -> bool:
    """Return whether the last line of the user or of graphdist is a line of the user."""
    if isinstance(error, VerifyError):
        return False
    files = (entry.tb_frame.f_code.co_filename for entry in reversed(_entries(error)))
    owners = map(owner_of, files)
    return next((owner for owner in owners if owner in _WRITERS), None) is CodeOwner.USER


_WRITERS = (CodeOwner.USER, CodeOwner.GRAPHDIST)


def _entries(error: BaseException) -> list[TracebackType]:
    entries, entry = [], error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def _is_hidden(entry: TracebackType) -> bool:
    file = entry.tb_frame.f_code.co_filename
    return file == contextlib.__file__ or owner_of(file) in (CodeOwner.GRAPHDIST, CodeOwner.JAX)


def _remove_frames(error: BaseException) -> bool:
    """Remove the hidden frames; return whether there were any."""
    entries = _entries(error)
    kept = [entry for entry in entries if not _is_hidden(entry)]
    following: TracebackType | None = None
    for entry in reversed(kept):
        following = TracebackType(following, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = following
    return len(kept) < len(entries)


def _note_removal(error: BaseException) -> None:
    """Add a note that frames are hidden, unless JAX has added one.

    Errors of graphdist get no note, since they name the user's line anyway.
    """
    notes = getattr(error, "__notes__", ())
    if not isinstance(error, GraphdistError) and not any(_SWITCH in note for note in notes):
        error.add_note(NOTE)


def _mark(error: BaseException) -> None:
    for entry in _entries(error):
        if _is_hidden(entry):
            entry.tb_frame.f_locals["__tracebackhide__"] = True
