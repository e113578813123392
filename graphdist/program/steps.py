"""The step of a program, for the current settings of JAX.

1. Under `jax.disable_jit()` a program is not compiled, but evaluated node by node.
2. A step that is called under other settings raises `OtherSettings`.
3. Under `jax_debug_nans` and `jax_debug_infs` a step donates no buffers, so that variables keep
   their old values if an output is nan or infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any  # Any: settings of JAX have no type

import jax

from graphdist.config import value_check_interval
from graphdist.errors import UnsupportedError
from graphdist.ir.graph import Graph, GraphVariable
from graphdist.program.interface import Interface
from graphdist.program.jax_settings import checked_numbers
from graphdist.program.stages import Lowered
from graphdist.runtime.executable import Step, preceded
from graphdist.runtime.interpreted_step import interpreted_step
from graphdist.runtime.invalid_numbers import Named, NumberCheck
from graphdist.runtime.value_agreement import ValueAgreement


def step_of(lowered: Lowered, require: Callable[[], None]) -> Step:
    """Return the step of a program; `require` raises `OtherSettings` if JAX's settings changed.

    Raises `UnsupportedError` under `jax.disable_jit()` on several workers.
    """
    graph, devices, interface = lowered.graph, lowered.devices, lowered.traced.interface
    refused = checked_numbers()
    settings: Any = jax.config
    step: Step
    if settings.jax_disable_jit:
        if devices.workers is not None:
            raise UnsupportedError(
                f"jax.disable_jit() is on, and {graph.name!r} runs on {len(devices.workers)} "
                f"workers: evaluation node by node runs in one process",
                hint="evaluate it on one worker",
            )
        step = Step(graph, devices, interpreted_step(graph, devices))
        step.function = preceded(require, step.function)
    else:
        step = replace(lowered, donates=not refused, when_traced=require).compile().executable
        if devices.workers is not None:
            compare_values(step, graph, interface, lowered.logical)
            # Workers call the executable, so JAX never traces again and never calls `require`.
            step.function = preceded(require, step.function)
    if refused:
        inputs, outputs = _names(graph, interface, lowered.logical)
        step.check = NumberCheck(graph, devices, refused, inputs, outputs)
        step.function = step.check.watched(step.function)
    return step


def compare_values(
    step: Step, graph: Graph, interface: Interface, logical: Graph | None = None
) -> None:
    """Make a step compare its mirrored inputs between workers, before its first call and later.

    `logical`, the graph before all passes, has the names of variables in packs. With one worker
    nothing is compared.
    """
    if step.devices.workers is not None:
        inputs, _ = _names(graph, interface, logical)
        agreement = ValueAgreement(graph, step.devices, inputs, value_check_interval())
        step.function = agreement.watched(step.function)


def _names(
    graph: Graph, interface: Interface, logical: Graph | None
) -> tuple[list[Named], list[Named]]:
    """Return the user's names of the inputs and outputs of the final graph."""
    variables = () if logical is None else logical.variables
    sizes = {variable.name: variable.type.size for variable in variables}
    starts = {variable.name: variable.piece for variable in variables}

    def variable(held: GraphVariable) -> Named:
        if not held.pieces:
            return [(f"variable {held.name!r}", held.type.size)]
        named: list[tuple[str, int]] = []
        end = 0
        for name in filter(None, held.pieces):
            piece = starts[name]
            if piece is not None and piece.start > end:
                named.append(("a variable", piece.start - end))
            named.append((f"variable {name!r}", sizes[name]))
            end = sum(size for _, size in named)
        return [*named, ("a variable", held.type.size - end)]

    arguments = [f"argument {interface.names[i]!r}" for i in interface.dynamic]
    results = len(graph.outputs) - len(graph.assigned)
    return (
        [*map(variable, graph.variables), *([(name, 0)] for name in arguments)],
        [
            *map(variable, graph.assigned),
            *([(f"result {i}" if results > 1 else "the result", 0)] for i in range(results)),
        ],
    )
