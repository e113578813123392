"""What runs a program, as JAX is set: compiled, or evaluated node by node, or checked for nan.

1. Under `jax.disable_jit()` a program is not compiled, but evaluated node by node.
2. Under other settings than it was made for, a step raises `OtherSettings`.
3. Under `jax_debug_nans` and `jax_debug_infs` a step takes no buffers over, so that variables get
   back what they held if what it gives is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any  # Any: settings of JAX have no type

import jax

from graphdist.errors import UnsupportedError
from graphdist.ir.graph import Graph, Variable
from graphdist.passes.pack_variables import Pack
from graphdist.program.interface import Interface
from graphdist.program.jax_settings import checked_numbers
from graphdist.program.signature import is_static
from graphdist.program.stages import Lowered
from graphdist.runtime.evaluated import evaluated
from graphdist.runtime.executable import Step, preceded
from graphdist.runtime.invalid_numbers import Named, NumberCheck
from graphdist.tracing.sources import here


def step_of(
    lowered: Lowered, interface: Interface, packs: Sequence[Pack], require: Callable[[], None]
) -> Step:
    """Return what runs a program whose variables are in these packs.

    `require` raises for other settings. Raises `UnsupportedError` under `jax.disable_jit()` on
    several workers.
    """
    graph, devices, refused = lowered.graph, lowered.devices, checked_numbers()
    step: Step
    if _jit_is_disabled():
        if devices.workers is not None:
            raise UnsupportedError(
                f"jax.disable_jit() is on, and {graph.name!r} runs on {len(devices.workers)} "
                f"workers: node by node it is evaluated in one process",
                source=here(),
                hint="look at it on one worker",
            )
        step = Step(graph, devices, evaluated(graph, devices))
        step.function = preceded(require, step.function)
    else:
        step = replace(lowered, donates=not refused, when_traced=require).compile().executable
        if devices.workers is not None:  # whose steps JAX does not trace again
            step.function = preceded(require, step.function)
    if refused:
        inputs, outputs = _in_words(graph, interface, packs)
        step.check = NumberCheck(graph, devices, refused, inputs, outputs)
        step.function = step.check.watched(step.function)
    return step


def _jit_is_disabled() -> bool:
    settings: Any = jax.config
    return bool(settings.jax_disable_jit)


def _in_words(
    graph: Graph, interface: Interface, packs: Sequence[Pack]
) -> tuple[list[Named], list[Named]]:
    """Return what inputs and outputs of a placed graph are."""
    pieces = {pack.name: pack for pack in packs}

    def variable(one: Variable) -> Named:
        pack = pieces.get(one.name)
        if pack is None:
            return [(f"variable {one.name!r}", one.type.size)]
        sizes = [prod(shape) for shape in pack.shapes]
        names = {piece: f"variable {name!r}" for name, piece in pack.pieces.items()}
        return [(names.get(i, "a variable"), size) for i, size in enumerate(sizes)]

    dynamic = [i for i, key in enumerate(interface.keys) if not is_static(key)]
    arguments = [f"argument {interface.names[i]!r}" for i in dynamic]
    results = len(graph.outputs) - len(graph.assigned)
    return (
        [*map(variable, graph.variables), *([(name, 0)] for name in arguments)],
        [
            *map(variable, graph.assigned),
            *([(f"result {i}" if results > 1 else "the result", 0)] for i in range(results)),
        ],
    )
