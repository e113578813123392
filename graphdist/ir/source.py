"""The source of a node: the lines of the user's program that made it.

Every node has a `Source`. Rewrites keep it, and comparisons ignore it: two graphs that differ only
in their sources are the same program. Resolving a traceback to file and line is expensive, and most
sources are never shown, so a source is resolved on first use.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, field

_MOST_LINES = 8
"""The most lines of a statement that are shown."""

_TRANSPOSED, _REPLAYED = "transpose(", "rematted_computation"
"""What JAX writes into the name stack of a node of a backward pass, and of one that it repeats."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's program.

    >>> Frame("train.py", 41, "step")
    Frame(file='train.py', line=41, function='step')
    """

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """Return the source text of the line, stripped, or an empty string if the file is gone."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def code(self) -> str:
        """Return the text of the line, with the lines up to the end of its last bracket."""
        code = self.text
        for line in range(self.line + 1, self.line + _MOST_LINES):
            if sum(map(code.count, "([{")) <= sum(map(code.count, ")]}")):
                break
            more = linecache.getline(self.file, line).strip()
            code += more if code.endswith(("(", "[", "{")) or more[:1] in ")]}" else f" {more}"
        return code


@dataclass(slots=True, eq=False)
class Source:
    """The user's frames that made a node, innermost first, and the named scope around them.

    `resolve` is called at most once, when the frames are first read. `record` is JAX's own record
    of the frames and the scope, which profiles show; None if the node was not traced.

    >>> source = Source(resolve=lambda: ((Frame("train.py", 41, "step"),), "layer1"))
    >>> source.frame
    Frame(file='train.py', line=41, function='step')
    >>> source.scope
    'layer1'
    """

    resolve: Callable[[], tuple[tuple[Frame, ...], str]] = field(default=lambda: ((), ""))
    _resolved: tuple[tuple[Frame, ...], str] | None = None
    record: object | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the frames and the scope alone: JAX's record cannot be pickled."""
        return Source, (_nothing, self._get())

    def _get(self) -> tuple[tuple[Frame, ...], str]:
        if self._resolved is None:
            self._resolved = self.resolve()
            self.resolve = _nothing  # releases the equation of the jaxpr
        return self._resolved

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Return the user's frames, innermost first; () if unknown."""
        return self._get()[0]

    @property
    def frame(self) -> Frame | None:
        """Return the user's innermost frame; None if unknown."""
        return self.frames[0] if self.frames else None

    @property
    def scope(self) -> str:
        """Return the named scope, such as `encoder/layer1`; empty at the top level."""
        return self._get()[1]

    @property
    def is_transposed(self) -> bool:
        """Return whether JAX made the node by transposing a function: it is of a backward pass."""
        return _TRANSPOSED in self.scope

    @property
    def is_replayed(self) -> bool:
        """Return whether a `jax.checkpoint` computes the node again in a backward pass."""
        return _REPLAYED in self.scope

    def in_pass(self, *, is_backward: bool) -> Source:
        """Return the source of a copy of a node: in a forward pass, or again in a backward pass.

        >>> at_line("train.py", 41).in_pass(is_backward=True).is_replayed
        True
        """

        def resolve() -> tuple[tuple[Frame, ...], str]:
            if is_backward:
                scope = self.scope if self.is_replayed else f"transpose({_REPLAYED})/{self.scope}"
            else:
                scope = self.scope.replace(_TRANSPOSED, "(").replace(_REPLAYED, "")
            return self.frames, scope

        return Source(resolve=resolve, record=self.record)

    def __str__(self) -> str:
        frame = self.frame
        return f"{frame.file}:{frame.line}" if frame else "unknown source"


def _nothing() -> tuple[tuple[Frame, ...], str]:
    return (), ""


def at_line(file: str, line: int, function: str = "", scope: str = "") -> Source:
    """Return the source of one known line.

    >>> str(at_line("train.py", 41))
    'train.py:41'
    """
    frames = (Frame(file, line, function),)
    return Source(resolve=lambda: (frames, scope))


def joined_source(sources: tuple[Source, ...]) -> Source:
    """Return one source for a node that replaces several, with the frames of all in order.

    >>> str(joined_source((at_line("a.py", 1), at_line("b.py", 2))))
    'a.py:1'
    """

    def resolve() -> tuple[tuple[Frame, ...], str]:
        frames = dict.fromkeys(frame for source in sources for frame in source.frames)
        return tuple(frames), sources[0].scope if sources else ""

    return Source(resolve=resolve, record=sources[0].record if sources else None)


UNKNOWN = Source()
