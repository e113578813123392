"""The user's lines behind an equation.

JAX keeps a traceback with every equation. Of its frames the user's are those that are neither JAX's
nor ours; what an installed library did (an optimizer, say) is left out too, unless nothing else
remains. Ours are recognised by module, not by folder: the source folders lie beside examples and
tests.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any  # tracebacks of jaxlib have no public type

import jax

from graphdist.ir.source import Frame, Source

_JAX_FOLDER = str(Path(jax.__file__).parent)
_TYPED_IN = ("<stdin>", "<console>", "<ipython-input", "<python-input", "<doctest")
_INSTALLED = tuple(
    {sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def source_of(source_info: Any) -> Source:
    """Return the lazily resolved source of an equation's `source_info`."""

    def resolve() -> tuple[tuple[Frame, ...], str]:
        frames = [] if source_info.traceback is None else source_info.traceback.frames
        return _users(
            tuple(
                Frame(f.file_name, f.line_num, f.function_name.rpartition(".")[2]) for f in frames
            )
        ), str(source_info.name_stack)

    return Source(resolve=resolve)


def here() -> Source:
    """Return the source of the line of the user's that is being executed."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append(Frame(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    users = _users(tuple(frames))
    return Source(resolve=lambda: (users, ""))


def _users(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    ours = _our_files(len(sys.modules))
    outside = [
        frame
        for frame in frames
        if frame.file not in ours and not frame.file.startswith(_JAX_FOLDER)
        # Generated and frozen code has names in angle brackets, but so has what a user types.
        if not frame.file.startswith("<") or frame.file.startswith(_TYPED_IN)
    ]
    own = [frame for frame in outside if not frame.file.startswith(_INSTALLED)]
    return tuple(own or outside)


@cache
def _our_files(loaded: int) -> frozenset[str]:
    """Return the files of our modules; `loaded`, the number of modules, keys the cache."""
    return frozenset(
        module.__file__
        for name, module in list(sys.modules.items())
        if (name == "graphdist" or name.startswith("graphdist."))
        and getattr(module, "__file__", None) is not None
        and module.__file__ is not None
    )
