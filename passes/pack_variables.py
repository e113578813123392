"""Take small variables that lie in one buffer from it, and put them back.

Each argument of a step costs the host (JAX's dispatch: about 1.3 us on one device, 9 us on 8 CPU
devices), so small variables are stored together (`graphdist.state.packs` says which). The step
takes the buffer apart when it begins, so that everything else, derivatives included, is of the
pieces, and joins the new pieces at its end.

Before:  (%a: f32[2] = @a, %b: f32[3] = @b)  ..  return %a2 -> @a, %b2 -> @b
After:   (%p: f32[5] = @pack)  %a, %b = unpack(%p)  ..  %p2 = pack(%a2, %b2)  return %p2 -> @pack

It comes after the pipeline, when it is known how the variables are stored; a piece that the program
does not know is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Operand, Value, Variable
from graphdist.ir.ops import PACK, UNPACK
from graphdist.ir.rewrite import substitute
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED, Type
from graphdist.passes.bucket_collectives import NO_PACKING, Packing

NAME = "pack_variables"


@dataclass(frozen=True)
class Pack:
    """A buffer of several variables: shapes of all pieces, and which variable is which piece."""

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    pieces: Mapping[str, int]

    @property
    def type(self) -> Type:
        """Return the type of the buffer."""
        return Type(self.dtype, (sum(Type("", shape).size for shape in self.shapes),), MIRRORED)


@dataclass(frozen=True)
class PackVariables:
    """The pass for variables stored in these packs."""

    packs: Sequence[Pack]
    packing: Packing = NO_PACKING

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph that takes and gives packs, which come first among its variables."""
        return _packed(graph, self.packs, self.packing) if self.packs else graph


def _packed(graph: Graph, packs: Sequence[Pack], packing: Packing) -> Graph:
    of_variables = dict(zip(graph.variables, graph.inputs, strict=False))
    entering = {variable.name: value for variable, value in of_variables.items()}
    assigned = dict(zip((one.name for one in graph.assigned), graph.outputs, strict=False))
    inside = {name for pack in packs for name in pack.pieces}
    builder = Builder(NAME)
    environment: dict[Operand, Operand] = {}
    inputs, variables, before = [], [], []
    for pack in packs:
        buffer = Value(pack.type, pack.name)
        apart = {"shapes": pack.shapes, **packing.apart(len(pack.shapes))}
        pieces = builder.add(UNPACK, (buffer,), apart, at=UNKNOWN)
        environment.update({entering[name]: pieces[i] for name, i in pack.pieces.items()})
        is_assigned = any(name in assigned for name in pack.pieces)
        variables.append(Variable(pack.name, pack.type, assigned=is_assigned))
        inputs.append(buffer)
        before.append(pieces)
    for node in graph.nodes:
        results = builder.keep(node, substitute(environment, node.operands), node.graphs)
        environment.update(zip(node.results, results, strict=True))
    now = {
        name: substitute(environment, (output,))[0]
        for name, output in assigned.items()
        if name in inside
    }
    joined: list[Operand] = []
    for pack, variable, pieces in zip(packs, variables, before, strict=True):
        if variable.assigned:
            new: list[Operand] = list(pieces)
            for name, i in pack.pieces.items():
                new[i] = now.get(name, new[i])
            joined += builder.add(PACK, new, at=UNKNOWN)
    alone = [variable for variable in graph.variables if variable.name not in inside]
    kept = [assigned[one.name] for one in alone if one.assigned]
    rest = graph.outputs[len(graph.assigned) :]
    return graph.replace(
        variables=(*variables, *alone),
        inputs=(
            *inputs,
            *(of_variables[one] for one in alone),
            *graph.inputs[len(graph.variables) :],
        ),
        nodes=tuple(builder.nodes),
        outputs=(*joined, *substitute(environment, (*kept, *rest))),
    )
