"""Store small variables that are updated alike in one buffer, a pack.

For each argument of a step, JAX's dispatch on the host takes about 1.3 us on one device and 9 us on
8 CPU devices. So small variables that a step assigns share a buffer. The step unpacks
the buffer when it begins, so that everything else, derivatives included, is computed on the
pieces, and joins the new pieces at its end.

Before:  (%a: f32[2] = @a, %b: f32[3] = @b)  ..  return %a2 -> @a, %b2 -> @b
After:   (%p: f32[5] = @pack_0)  %a, %b = unpack(%p)  ..
         %p2 = pack(%a2, %b2)  return %p2 -> @pack_0

How it works. Variables that are stored in a pack already stay there. Another program has made that
pack, and if each program made its own packs, values would be moved back and forth. The parts of
such a pack that this program does not use are returned unchanged. Other variables are packed if
they are assigned, mirrored, small, and updated by the same computation, since `compute_on_packs`
can then update them as one.

The final graph of a program says how its variables are stored. Before the program runs, the runtime
stores them in this way (`graphdist.state.program_storage`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import NamedTuple

from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Operand, Value
from graphdist.ir.op_parameters import Unpacking
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.ops import ALL_REDUCE, PACK, UNPACK
from graphdist.ir.rewrite import Copier
from graphdist.ir.sharded_parameters import may_enter_pack
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED, Type
from graphdist.ir.variable_storage import PackOf, StoredInPack
from graphdist.passes.packs.pack_limits import PackLimits

NAME = "pack_variables"
FEWEST = 4
"""The fewest variables for a pack; measured on CPU with 100 variables on 2 devices."""


@dataclass(frozen=True, slots=True)
class PackVariables:
    """The pass for one target, whose limits say up to which size a variable is small."""

    limits: PackLimits

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with packs, which are its first variables, for packed variables."""
        packs = [*_existing(graph), *_new(graph, self.limits.largest_variable)]
        return self._packed(graph, packs) if packs else graph

    def _packed(self, graph: Graph, packs: Sequence[_Pack]) -> Graph:
        copier, inputs, assigned = Copier(NAME), graph.variable_inputs, graph.variable_outputs
        buffers = [Value(pack.variable.type, pack.variable.name) for pack in packs]
        parts_of: list[tuple[Value, ...]] = []
        for (pack, shapes), buffer in zip(packs, buffers, strict=True):
            at_run_time = self.limits.starts_at_run_time(len(shapes))
            params = Unpacking(shapes, starts_at_run_time=at_run_time)
            parts = copier.add(UNPACK, (buffer,), params, at=UNKNOWN)
            copier.environment.update(
                (inputs[name], part) for name, part in zip(pack.pieces, parts, strict=True) if name
            )
            parts_of.append(parts)
        for node in graph.nodes:
            copier.copy(node)
        outputs: list[Operand] = []
        for (pack, _), parts in zip(packs, parts_of, strict=True):
            if pack.assigned:  # a part that is not assigned keeps its value
                pieces = zip(pack.pieces, parts, strict=True)
                new = copier.now([assigned.get(name, part) for name, part in pieces])
                outputs += copier.add(PACK, new, at=UNKNOWN)
        inside = {name for pack in packs for name in pack.variable.pieces}
        alone = [variable for variable in graph.variables if variable.name not in inside]
        kept = [assigned[variable.name] for variable in alone if variable.assigned]
        outputs += copier.now([*kept, *graph.outputs[len(assigned) :]])
        entering = [*buffers, *(inputs[variable.name] for variable in alone)]
        return graph.replace(
            variables=(*(pack.variable for pack in packs), *alone),
            inputs=(*entering, *graph.inputs[len(graph.variables) :]),
            nodes=tuple(copier.nodes),
            outputs=tuple(outputs),
        )


class _Part(NamedTuple):
    """A part of a pack: a variable's name and shape; the name is "" for an unused part."""

    name: str
    shape: tuple[int, ...]


class _Pack(NamedTuple):
    """A buffer of several variables, and the shapes of its parts."""

    variable: GraphVariable
    shapes: tuple[tuple[int, ...], ...]


def _pack_of(name: str, dtype: str, parts: Sequence[_Part], graph: Graph) -> _Pack:
    """Return the pack with these parts in order, which is assigned if a part of it is."""
    names, shapes = tuple(part.name for part in parts), tuple(part.shape for part in parts)
    is_assigned = not set(names).isdisjoint(variable.name for variable in graph.assigned)
    type = Type(dtype, (sum(map(prod, shapes)),), MIRRORED)
    return _Pack(GraphVariable(name, type, assigned=is_assigned, role=PackOf(names)), shapes)


def _existing(graph: Graph) -> Iterator[_Pack]:
    """Yield the packs in which variables of the graph are stored already, with unused parts."""
    found: dict[str, list[tuple[StoredInPack, GraphVariable]]] = defaultdict(list)
    for variable in graph.variables:
        if variable.piece is not None:
            found[variable.piece.pack].append((variable.piece, variable))
    for name, pieces in found.items():
        parts: list[_Part] = []
        end = size = 0
        for piece, variable in sorted(pieces, key=lambda item: item[0].start):
            if piece.start > end:
                parts.append(_Part("", (piece.start - end,)))
            parts.append(_Part(variable.name, variable.type.shape))
            end, size = piece.start + variable.type.size, piece.size
        if size > end:
            parts.append(_Part("", (size - end,)))
        yield _pack_of(name, pieces[0][1].type.dtype, parts, graph)


def _new(graph: Graph, largest: int) -> Iterator[_Pack]:
    """Yield packs for small assigned variables that are in no pack yet."""
    alike: dict[tuple[str, int], list[_Part]] = defaultdict(list)
    candidates = [variable for variable in graph.assigned if may_enter_pack(variable, largest)]
    kinds = _update_kinds(graph) if len(candidates) >= FEWEST else {}
    for variable in candidates if kinds else ():
        part = _Part(variable.name, variable.type.shape)
        alike[variable.type.dtype, kinds[variable.name]].append(part)
    taken = {variable.name for variable in graph.variables}
    taken |= {variable.piece.pack for variable in graph.variables if variable.piece is not None}
    free = (name for name in map("pack_{}".format, count()) if name not in taken)
    for (dtype, _), parts in alike.items():
        if len(parts) >= FEWEST:
            yield _pack_of(next(free), dtype, parts, graph)


def _update_kinds(graph: Graph) -> dict[str, int]:
    """Return a key for each assigned variable. Variables with the same update have equal keys.

    Such variables can be updated as one if they share a buffer.
    """
    numbers: dict[Hashable, int] = {}
    kinds: dict[Operand, int] = {}

    def number(*kind: Hashable) -> int:
        return numbers.setdefault(kind, len(numbers))

    def of(operand: Operand) -> int:
        if isinstance(operand, Literal):
            return number("literal", repr(operand.value), operand.type)
        if operand not in kinds:
            kinds[operand] = number("scalar", operand) if not operand.type.shape else number("any")
        return kinds[operand]

    inputs, outputs = graph.variable_inputs, graph.variable_outputs
    kinds.update(dict.fromkeys(inputs.values(), number("variable")))
    packs = {inputs[variable.name] for variable in graph.variables if variable.pieces}
    updating = set(outputs.values())
    for node in reversed(graph.nodes):
        if _is_alike(node) and not updating.isdisjoint(node.results):
            updating.update(node.operands)
    for node in graph.nodes:
        if updating.isdisjoint(node.results):
            continue
        if node.op is ALL_REDUCE:
            kinds[node.results[0]] = number(ALL_REDUCE.name, _params(node))
        elif node.op is UNPACK and node.operands[0] in packs:
            kinds.update(dict.fromkeys(node.results, number("variable")))
        elif _is_alike(node):
            params = () if node.op.name == _BROADCAST else _params(node)
            kinds[node.results[0]] = number(node.op.name, params, *map(of, node.operands))
    return {name: of(output) for name, output in outputs.items()}


def _is_alike(node: Node) -> bool:
    """Return whether nodes like this one, on values of other shapes, may become one on a pack."""
    is_broadcast = node.op.name == _BROADCAST and node.results[0].type.shape
    return node.op.name in ELEMENTWISE or bool(is_broadcast)


_BROADCAST = "jax.broadcast_in_dim"


def _params(node: Node) -> Hashable:
    return tuple(sorted((name, repr(value)) for name, value in node.params.items()))
