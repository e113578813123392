"""The base class of all errors of graphdist, and the errors of graphs and their steps.

An error has up to four parts, in this order:

1. what is wrong, with the two things that disagree, in words that can be understood alone;
2. the user's file, line, function and source text;
3. the node in the graph, and the pass that was running;
4. what to do.

`graphdist.errors` re-exports these classes and adds the classes of the public API. Each class also
derives from the built-in exception a user of `tf.distribute` would catch.
"""

from __future__ import annotations

from graphdist.ir.source import Frame, Source


class GraphdistError(Exception):
    """The base of all errors of graphdist.

    >>> print(GraphdistError("2 is not 3", hint="use 3"))
    2 is not 3
      hint: use 3
    """

    def __init__(
        self,
        what: str,
        *,
        source: Source | None = None,
        other: Source | None = None,
        node: str = "",
        where: str = "",
        hint: str = "",
    ) -> None:
        """Build the message from its parts.

        `node` is the printed node, and `where` names its graph and pass. If two of the user's lines
        disagree, `other` is the second. The message shows a line only once.
        """
        self.what, self.source, self.other = what, source or self.default_source(), other
        self.node, self.where, self.hint = node, where, hint
        super().__init__(what)

    @staticmethod
    def default_source() -> Source | None:
        """Return the source of an error that is raised without one."""
        return None

    def __str__(self) -> str:
        lines = [self.what]
        places = []
        for source in (self.source, self.other):
            if source is not None and (frame := source.frame) is not None:
                if (frame.file, frame.line) not in places:
                    lines += _user_line(frame)
                places.append((frame.file, frame.line))
        if self.where:
            lines.append(f"  {self.where}{':' if self.node else ''}")
        if self.node:
            lines += [f"    {line}" for line in self.node.splitlines()]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def _user_line(frame: Frame) -> list[str]:
    place = f"  {frame.file}:{frame.line}" + (f", in {frame.function}" if frame.function else "")
    return [place, f"    {frame.text}"] if frame.text else [place]


class RuntimeFailure(GraphdistError, RuntimeError):
    """A step that failed on the devices, or a buffer that no longer exists."""


class DistributionError(GraphdistError, ValueError):
    """A program that needs one value where the replicas have different values."""


class TypeRuleError(GraphdistError, TypeError):
    """An operation applied to operands it is not defined for."""


class ParseError(GraphdistError, ValueError):
    """Text that is not a graph."""


class VerifyError(GraphdistError, AssertionError):
    """A graph that breaks an invariant, because of a bug in the pass that made the graph."""


class PlanError(GraphdistError, ValueError):
    """A plan that cannot be read, or that does not fit the program."""
