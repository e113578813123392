"""The frame of every console tool: `--help`, `--version`, headings, errors, and the exit status.

The help of a tool opens with the first sentence of its module's docstring, and ends with the
examples there, which are the indented lines. Headings, the lines of a text that are not indented,
are bold on a terminal.

An error of graphdist or of the system is a message on stderr, with status 2. Ctrl-C is one line,
with status 130. If the reader of the output goes away, as `head` does, the tool ends without a
message, with status 141, which shells report for programs that SIGPIPE ends. An output that cannot
be written for another reason, as on a full disk, is a message and status 1. Status 0 would claim
that a verdict was printed, such as that a step fits.

Python ignores SIGPIPE and raises `BrokenPipeError`. The buffers of stdout and stderr are flushed
here, so that this error is raised here, too, and not at the exit of Python.
`graphdist.command_process` prepares the process of a tool.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from textwrap import TextWrapper, wrap
from typing import Any, NoReturn, TextIO, TypeAlias  # Any: what argparse leaves open

from graphdist.command_process import INTERRUPTED, interruptible, say_interrupted
from graphdist.config import wants_no_colour
from graphdist.errors import GraphdistError
from graphdist.quoted import did_you_mean
from graphdist.report.amounts import WIDTH
from graphdist.version import versions

_HELP_WIDTH = 78
OUTPUT_LOST = 1
BAD_INPUT = 2
READER_GONE = 128 + 13
"""The exit status if the reader of the output is gone: 128 and the number of SIGPIPE."""
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""The errors of the system for an output that cannot be written."""


class CommandParser(ArgumentParser):
    """The parser of a command line. `--version` prints all versions that a fault's report needs."""

    def __init__(self, documentation: str | None, prog: str | None = None) -> None:
        """Make the parser of a tool; `documentation` is the docstring of the tool's module."""
        paragraph = (documentation or "").partition("\n\n")[0].replace("\n", " ")
        sentence = re.sub(r"^`[^`]*`: ", "", paragraph)
        examples = re.findall(r"^    (?=graphdist|python)(.*)$", documentation or "", re.MULTILINE)
        name = re.match(r"python -m \S+|\S+|", examples[0] if examples else "")
        super().__init__(
            prog or (name and name[0]),
            description="\n".join(wrap(f"{sentence[:1].upper()}{sentence[1:]}", _HELP_WIDTH)),
            epilog="\n  ".join(["examples:", *examples]),
            formatter_class=RawDescriptionHelpFormatter,
        )
        found = {**versions(), "Python": platform.python_version()}
        text = ", ".join(f"{name} {version}" for name, version in found.items() if version)
        self.add_argument("--version", action="version", version=text)

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """Return the options. An unknown option is an error before any that is missing."""
        given = sys.argv[1:] if args is None else list(args)
        required = [action for action in self._actions if action.required]
        for action in required:  # argparse would say only that they are missing
            action.required = False
        _, unknown = self.parse_known_args(given, Namespace())
        for action in required:
            action.required = True
        option = next((text for text in unknown if text.startswith("-")), "").partition("=")[0]
        if option:
            known = [name for action in self._actions for name in action.option_strings]
            self.error(f"unknown option {option}", did_you_mean(option, known))
        return super().parse_args(given, namespace)

    def error(self, message: str, hint: str = "") -> NoReturn:
        """End the tool with a message about its command line."""
        hint = hint or f"{self.prog} --help prints the options"
        self.exit(BAD_INPUT, f"{self.prog}: {message}\n  hint: {hint}\n")


def print_report(*texts: object) -> None:
    """Print texts; on a terminal their headings, the lines without an indent, are bold."""
    text = "\n".join(map(str, texts))
    if sys.stdout.isatty() and not wants_no_colour():
        text = re.sub(r"^(?=\S).*$", "\033[1m\\g<0>\033[0m", text, flags=re.MULTILINE)
    print(text, flush=True)


Main: TypeAlias = Callable[..., int]
"""A tool. It takes its arguments, by default those of the process, and returns the exit status."""


def console_tool(name: str) -> Callable[[Main], Main]:
    """Return a decorator for the `main` of a tool. The decorated function prints errors.

    The messages begin with `name`, the name of the tool.
    """

    def framed(main: Main) -> Main:
        @wraps(main)
        def run(arguments: Sequence[str] | None = None) -> int:
            try:
                try:
                    return _status(name, main, arguments)
                finally:
                    for stream in _outputs():
                        stream.flush()
            except OSError as error:
                return _lost(name, error)

        return run

    return framed


def _status(name: str, main: Main, arguments: Sequence[str] | None) -> int:
    try:
        with interruptible():
            return main(arguments)
    except (GraphdistError, OSError) as error:
        if isinstance(error, BrokenPipeError) or getattr(error, "errno", None) in _LOST:
            raise
        print(f"{name}: {_message(error)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        with suppress(OSError):
            say_interrupted(name)
        _write_nowhere()
        return INTERRUPTED


def _message(error: GraphdistError | OSError) -> str:
    if isinstance(error, GraphdistError):
        return _with_short_hint(str(_without_our_line(error)))
    if error.strerror and error.filename is not None:
        return f"{error.strerror}: {str(error.filename)!r}"
    return error.strerror or str(error)


def _with_short_hint(message: str) -> str:
    """Return a message with its hint in lines, since a hint may list many names."""
    said, mark, hint = message.rpartition("\n  hint: ")
    if not mark:
        return message
    whole_words = TextWrapper(WIDTH, "  ", "    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join([said, *whole_words.wrap(f"hint: {hint}")])


def _without_our_line(error: GraphdistError) -> GraphdistError:
    """Return the error without a line if the line is in the tool's script, not in a user's file."""
    frame = error.source.frame if error.source else None
    if frame is not None:
        is_script = frame.file == str(Path(sys.argv[0]).absolute()) or "runpy" in frame.file
        if is_script or Path(frame.file).is_relative_to(Path(__file__).parent):
            error.source = None
    return error


def _lost(name: str, error: OSError) -> int:
    """Return the status of a tool that cannot write an output; print a message if possible."""
    _write_nowhere()
    if isinstance(error, BrokenPipeError):
        return READER_GONE
    with suppress(OSError):
        print(f"{name}: the output cannot be written: {_message(error)}", file=sys.stderr)
    _write_nowhere()
    return OUTPUT_LOST


def _write_nowhere() -> None:
    """Drop the output in the buffers, which Python would try to write again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in _outputs():
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):  # the stream may be no file
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _outputs() -> list[TextIO]:
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
