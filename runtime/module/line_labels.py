"""The user's lines in a compiled module: how emission writes them, and how they are read back.

Emission names operations after their phase of the step and the user's line that they came from,
such as `forward(train.py:41)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from graphdist.ir.graph import Graph, Node
from graphdist.ir.source import Source
from graphdist.runtime.module.instructions import CompiledModule, Instruction

RECOMPUTED = "recomputed"
"""The phase of values that the backward pass computes again."""
_EARLIER = {"again": RECOMPUTED}
"""The names of phases in modules that earlier versions compiled."""
_STEP = "step"
_SCOPES = {"rematted_computation": RECOMPUTED, "transpose(": "backward", "jvp(": "forward"}
"""The phase of a step that a scope of JAX stands for, by a part of the scope's name.

The first match counts: recomputed operations are in the scope of the backward pass, too.
"""
_LABEL = re.compile(r"(\w+)\(([^/()]+:\d+)\)")
_MATMULS = ("convolution", "dot")


def phase_and_line(source: Source) -> tuple[str, str]:
    """Return the phase of the step, and the user's line; "" for an unknown line.

    >>> from graphdist.ir.source import at_line
    >>> phase_and_line(at_line("programs/train.py", 41, scope="jvp(loss)"))
    ('forward', 'train.py:41')
    """
    frame, scope = source.frame, source.scope
    phase = next((phase for part, phase in _SCOPES.items() if part in scope), _STEP)
    return phase, "" if frame is None else f"{PurePath(frame.file).name}:{frame.line}"


def places_of(graph: Graph) -> Mapping[Node, tuple[str, str]]:
    """Return the phase and the line of each node, also of nested graphs.

    A node in a loop that has no phase of its own has that of the loop.
    """
    places: dict[Node, tuple[str, str]] = {}
    pending: list[tuple[Graph, str]] = [(graph, _STEP)]
    while pending:
        nested, outer = pending.pop()
        for node in nested.nodes:
            phase, line = phase_and_line(node.source)
            places[node] = outer if phase == _STEP else phase, line
            pending += ((inner, places[node][0]) for inner in node.graphs)
    return places


class Labels:
    """The user's lines of a module's instructions."""

    def __init__(self, module: CompiledModule) -> None:
        self._module = module

    def of(self, instruction: Instruction) -> tuple[str, str]:
        """Return the phase and the user's line of an instruction.

        A fusion has the line of its matrix multiplication.
        """
        inner = (each for name in instruction.called for each in self._module[name])
        matmul = next((each for each in inner if each.opcode in _MATMULS and each.op_name), None)
        labels = _LABEL.findall((matmul or instruction).op_name)
        names = [_EARLIER.get(name, name) for name, _ in labels]
        phases = [name for name in names if name in _SCOPES.values()]
        phase = RECOMPUTED if RECOMPUTED in phases else next(iter(phases), _STEP)
        return phase, labels[-1][1] if labels else ""
