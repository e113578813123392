"""Checks steps for nan and infinity, and finds the node that made one.

Users turn this on with `jax_debug_nans` and `jax_debug_infs`. The numbers for which these settings
raise an error are called *refused*. If a result of a step has a refused number, the variables get
their old values back, and the graph is evaluated node by node on the same inputs. The search starts
at the results of the step and follows values with refused numbers back to their origin: an input,
or a node whose operands have no refused number. A nan that is computed but not used, as in the
branch of a `jnp.where` that is not taken, is no mistake.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias  # Any: arrays of JAX

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.ir.analyses import producers
from graphdist.ir.arrays import Array, Held, Replicas
from graphdist.ir.errors import GraphdistError
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.printer import print_node
from graphdist.ir.types import MIRRORED
from graphdist.runtime.devices import Devices
from graphdist.runtime.interpreted_step import evaluate_graph, held_inputs

Named: TypeAlias = Sequence[tuple[str, int]]
"""An input or output in words, with its size. A packed value has an entry for each piece."""


class InvalidNumberError(GraphdistError, FloatingPointError):
    """A step that gives nan, or infinity, where `jax_debug_nans` or `jax_debug_infs` is set."""


class _Step(threading.local):
    """The inputs and outputs of the last step of each thread."""

    taken: Sequence[Any] = ()
    given: Sequence[jax.Array] = ()


@dataclass(frozen=True, eq=False)
class NumberCheck:
    """The check of a program's steps for numbers that are `refused`: "nan", "inf" or both.

    `inputs` and `outputs` describe the inputs and outputs of the graph in words. No step may donate
    its inputs, which the search needs. A step is checked after its dispatch, when the lock of the
    variables is free. If a thread waited for a device while holding the lock, it could wait for a
    callback that reads a variable.
    """

    graph: Graph
    devices: Devices
    refused: Collection[str]
    inputs: Sequence[Named]
    outputs: Sequence[Named]
    _step: _Step = field(default_factory=_Step)

    def watched(self, function: Callable[..., list[jax.Array]]) -> Callable[..., list[jax.Array]]:
        """Return a function that runs a step and keeps its inputs and outputs for the check."""

        def run(*arrays: Any) -> list[jax.Array]:
            # Otherwise JAX raises first, and names a line of graphdist instead of the user's.
            with jax.debug_nans(False), jax.debug_infs(False):
                results = function(*arrays)
            self._step.taken, self._step.given = arrays, results
            return results

        return run

    def last_step(self) -> tuple[Sequence[Any], Sequence[jax.Array]]:
        """Return the inputs and outputs of this thread's last step, and forget them."""
        arrays, results = self._step.taken, self._step.given
        self._step.taken = self._step.given = ()
        return arrays, results

    def error(
        self, arrays: Sequence[Any], results: Sequence[jax.Array]
    ) -> InvalidNumberError | None:
        """Return the error for a step's inputs and results; None if no number is refused."""
        with jax.debug_nans(False), jax.debug_infs(False):
            for i, result in enumerate(results):
                shards = (shard.data for shard in result.addressable_shards)
                if any(bool(_wrong(shard, self.refused, jnp).any()) for shard in shards):
                    return _Search(self).error(arrays, result, i)
        return None


def _wrong(array: Any, refused: Collection[str], numpy: Any = np) -> Any:
    """Return a mask of the elements that are refused numbers; False alone if there can be none.

    `numpy` may be the module of JAX.
    """
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return np.zeros((), bool)
    nan = numpy.isnan(array) if "nan" in refused else False
    return nan | numpy.isinf(array) if "inf" in refused else nan


@dataclass(frozen=True, slots=True)
class _Event:
    """A node that made a refused number from operands that have none."""

    node: Node
    operands: Sequence[Held]
    results: Sequence[Held]
    replicas: Replicas


class _Search:
    """The search for the origin of a refused number."""

    def __init__(self, program: NumberCheck) -> None:
        self.program = program
        self.graph, self.devices = program.graph, program.devices
        self.wrong: set[Operand] = set()
        self.events: list[_Event] = []
        self.first_event: dict[Node, int] = {}  # by node, its nested nodes included
        self._top = set(self.graph.nodes)
        self._begun = 0

    def error(self, arrays: Sequence[Any], result: jax.Array, output: int) -> InvalidNumberError:
        """Return the error for an output of a step on these inputs."""
        if self.devices.workers is not None:  # no process holds the values of all replicas
            return self._unexplained(result, output, "the node is looked for on one worker alone")
        if isinstance(self.graph.outputs[output], Literal):
            return self._unexplained(result, output, "the program says so")
        held = held_inputs(self.graph, self.devices, arrays)
        self._add_wrong(self.graph.inputs, held)
        evaluate_graph(self.graph, self.devices, held, self._observe)
        origin = self._origin()
        if isinstance(origin, Value):
            place = self.graph.inputs.index(origin)
            return self._given(origin, held[place], self.program.inputs[place])
        if origin is not None:
            return self._made(origin)
        why = "evaluated node by node it is not, XLA computes it otherwise"
        return self._unexplained(result, output, why)

    def _add_wrong(self, values: Sequence[Value], held: Sequence[Held]) -> None:
        """Add the values of which a replica holds a refused number."""
        pairs = zip(values, held, strict=True)
        self.wrong.update(value for value, of_each in pairs if self._any_wrong([of_each]))

    def _observe(
        self, node: Node, operands: Sequence[Held], results: Sequence[Held], replicas: Replicas
    ) -> None:
        if self._any_wrong(results):
            self._add_wrong(node.results, results)
            if not self._any_wrong(operands):
                self.events.append(_Event(node, operands, results, replicas))
        if node in self._top:
            self.first_event[node], self._begun = self._begun, len(self.events)

    def _any_wrong(self, values: Sequence[Held]) -> bool:
        distinct = {id(array): array for held in values for array in held}
        return any(_wrong(array, self.program.refused).any() for array in distinct.values())

    def _origin(self) -> Value | Node | None:
        """Return the first input or node that the refused numbers in outputs come from."""
        made_by = producers(self.graph)
        reached: set[Value] = set()
        pending = [output for output in self.graph.outputs if output in self.wrong]
        nodes: set[Node] = set()
        while pending:
            value = pending.pop()
            if type(value) is not Value or value in reached:
                continue
            reached.add(value)
            if value in made_by:
                node = made_by[value]
                before = [operand for operand in node.operands if operand in self.wrong]
                pending += before
                if not before:
                    nodes.add(node)
        origins = (*self.graph.inputs, *self.graph.nodes)
        return next((each for each in origins if each in reached or each in nodes), None)

    def _made(self, node: Node) -> InvalidNumberError:
        """Return the error for a node that made the number, or for the first such nested node."""
        event = self.events[self.first_event[node]]
        place, which, array = self._first_wrong(event.results)
        operands = [held[place] for held in event.operands]
        where = self._where(which, event.replicas[place])
        of = ["operands that hold none"]
        if event.node.op.name in ELEMENTWISE:
            of = [str(each[which] if each.shape == array.shape else each[()]) for each in operands]
        return InvalidNumberError(
            f"{event.node.op.name} gives {array[which]}{where}, of {' and '.join(of)}",
            source=event.node.source,
            node=print_node(event.node, self.graph),
            where=f"in graph {self.graph.name!r}",
            hint=self._hint(),
        )

    def _given(self, value: Value, held: Held, named: Named) -> InvalidNumberError:
        replica, which, array = self._first_wrong([held])
        name, within = _piece(named, which)
        on = None if value.type.layout is MIRRORED else replica
        return InvalidNumberError(
            f"{name} holds {array[which]} before the step{self._where(within, on)}",
            hint=self._hint(),
        )

    def _unexplained(self, result: jax.Array, output: int, why: str) -> InvalidNumberError:
        shards = [np.asarray(shard.data) for shard in result.addressable_shards]
        _, which, array = self._first_wrong([shards])
        name, _ = _piece(self.program.outputs[output], which)
        what = f"{name} is {array[which]} after the step: {why}"
        return InvalidNumberError(what, hint=self._hint())

    def _first_wrong(self, values: Sequence[Held]) -> tuple[int, tuple[int, ...], Array]:
        """Return the replica that holds the first refused number, its index, and its array."""
        return next(
            (place, tuple(map(int, np.argwhere(wrong)[0])), array)
            for held in values
            for place, array in enumerate(held)
            if (wrong := _wrong(array, self.program.refused)).any()
        )

    def _where(self, which: tuple[int, ...], replica: int | None) -> str:
        at = f" at {list(which)}" if which else ""
        count = self.graph.num_replicas
        return f"{at} on replica {replica} of {count}" if replica is not None and count > 1 else at

    def _hint(self) -> str:
        refused = [name for name in ("nan", "inf") if name in self.program.refused]
        names = " and ".join(f"jax.debug_{name}s" for name in refused)
        return f"the variables hold what they held before the step; {names} is what asks for this"


def _piece(named: Named, which: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the name of the packed piece that has an element, and the element's index in it."""
    if len(named) == 1:
        return named[0][0], which
    name, _, element = piece_with(which[0], named)
    return name, (element,)


def piece_with(element: int, named: Named) -> tuple[str, int, int]:
    """Return name and size of the piece that has an element of a pack, and the index in the piece.

    >>> piece_with(3, [("variable 'b'", 2), ("variable 'w'", 4)])
    ("variable 'w'", 4, 1)
    """
    starts = [0, *accumulate(size for _, size in named)]
    piece = bisect_right(starts[:-1], element) - 1
    return (*named[piece], element - starts[piece])
