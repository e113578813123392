"""The interpreter of `scan`, `while` and `cond`.

A branch runs on the replicas that chose it, and the body of a loop on the replicas whose loop goes
on. A replica whose loop has ended keeps its carry while the loops of other replicas go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from graphdist.ir.arrays import Array, Held, Replicas, on_each, stack_arrays
from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.loops import returned_parts, scan_parts, while_parts
from graphdist.ir.op_parameters import Looping, Scanning
from graphdist.ir.types import numpy_dtype

RunGraph: TypeAlias = Callable[[Graph, Sequence[Held], Replicas], list[Held]]
"""A function of (graph, inputs, replicas) that runs a nested graph and returns its outputs."""


def run_scan(run: RunGraph, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
    """Run the body on each slice of the scanned operands, from the last if `reverse` is set."""
    (body,) = node.graphs
    params = Scanning.of(node)
    constants, carry, scanned = scan_parts(params, operands)
    steps = range(params.length)
    slices = []  # the slices that the body returned, by iteration
    for step in reversed(steps) if params.reverse else steps:
        x = [_on_each([held], replicas, itemgetter((step, ...))) for held in scanned]
        carry, outputs = returned_parts(params, run(body, [*constants, *carry, *x], replicas))
        slices.append(outputs)
    if params.reverse:
        slices.reverse()
    ys = [
        _on_each([at[number] for at in slices], replicas, lambda *arrays: stack_arrays(arrays))
        if slices
        else [_empty(output)] * len(replicas)
        for number, output in enumerate(body.outputs[len(carry) :])
    ]
    return [*carry, *ys]


def _on_each(operands: list[Held], replicas: Replicas, compute: Callable[..., Array]) -> Held:
    """Return the array that `compute` returns for each replica's operands."""
    return on_each(operands, replicas, lambda arrays: [compute(*arrays)])[0]


def _empty(output: Operand) -> Array:
    return np.empty((0, *output.type.shape), numpy_dtype(output.type.dtype))


def run_while(run: RunGraph, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
    """Run the body until the condition fails, independently on each replica."""
    condition, body = node.graphs
    of_condition, of_body, first = while_parts(Looping.of(node), operands)
    carry = [list(held) for held in first]
    positions = list(range(len(replicas)))  # indices of the replicas whose loop goes on
    while positions:
        (goes_on,) = _run_at(positions, run, condition, [*of_condition, *carry], replicas)
        kept = zip(positions, goes_on, strict=True)
        positions = [position for position, predicate in kept if bool(predicate)]
        if positions:
            _put(carry, positions, _run_at(positions, run, body, [*of_body, *carry], replicas))
    return carry


def run_cond(run: RunGraph, node: Node, operands: list[Held], replicas: Replicas) -> list[Held]:
    """Run on each replica the branch that it chose. An index out of range is clamped."""
    index, *rest = operands
    last = len(node.graphs) - 1
    chosen = [min(max(int(number), 0), last) for number in index]
    results: list[Held] = [[np.empty(0)] * len(replicas) for _ in node.results]
    for branch in dict.fromkeys(chosen):
        positions = [position for position, number in enumerate(chosen) if number == branch]
        parts = _run_at(positions, run, node.graphs[branch], rest, replicas)
        _put(results, positions, parts)
    return results


def _run_at(
    positions: Sequence[int], run: RunGraph, graph: Graph, inputs: list[Held], replicas: Replicas
) -> list[Held]:
    """Run a graph on the replicas at `positions` alone, with their arrays of `inputs`."""
    active = tuple(replicas[position] for position in positions)
    return run(graph, [[held[position] for position in positions] for held in inputs], active)


def _put(target: list[Held], positions: Sequence[int], parts: Sequence[Held]) -> None:
    """Replace in each value of `target` the arrays of the replicas at `positions`."""
    for held, part in zip(target, parts, strict=True):
        for position, array in zip(positions, part, strict=True):
            held[position] = array
