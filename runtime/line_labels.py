"""What a node is called after: its part in a step, and the line of the user's that it came from."""

from __future__ import annotations

from pathlib import PurePath

from graphdist.ir.source import Source

_PHASES = {"rematted_computation": "again", "transpose(": "backward", "jvp(": "forward"}
"""What a scope of JAX says of an operation's part in a step, by a part of its name.

The first that is found counts: recomputed operations are in the scope of the backward pass too.
"""


def phase_and_line(source: Source) -> tuple[str, str]:
    """Return the part in a step, and the line, "" if it is not known.

    >>> from graphdist.ir.source import at_line
    >>> phase_and_line(at_line("programs/train.py", 41, scope="jvp(loss)"))
    ('forward', 'train.py:41')
    """
    frame, scope = source.frame, source.scope
    phase = next((phase for part, phase in _PHASES.items() if part in scope), "step")
    return phase, "" if frame is None else f"{PurePath(frame.file).name}:{frame.line}"
