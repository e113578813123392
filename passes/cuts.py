"""Along which dimension the values of a graph are cut in slices, one for each replica of a group.

The shape alone decides within a graph, so that all values of a shape that come together in an
update are cut alike, whichever operations they come from.

* If variables of the shape are stored in slices, the values are cut like these.
* The slices of a value that a loop walks along, such as the weights of stacked layers, are cut
  inside each step of the loop and never along dimension 0: then each step gathers, or scatters,
  what belongs to it (`collectives_into_loops.py`).
* Else dimension 0 if it divides, since slices of rows need no copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphdist.ir.analyses import kept_analysis, walk
from graphdist.ir.graph import Graph, Operand, Value
from graphdist.ir.loops import Scan
from graphdist.ir.ops import SCAN, of_groups
from graphdist.ir.stored_slices import dimension_to_cut
from graphdist.ir.types import MIRRORED, Type, own_slice

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cuts:
    """How values are cut in `num_slices`, by shape.

    `stored` are the dimensions along which variables are stored in slices, `walked` the shapes that
    loops walk along. Each of `num_copies` groups of replicas has all slices.
    """

    num_slices: int
    stored: Mapping[Shape, int] = field(default_factory=dict)
    walked: frozenset[Shape] = frozenset()
    num_copies: int = 1

    def of(self, shape: Shape) -> int | None:
        """Return the dimension along which values of a shape are cut; None if none divides.

        >>> cuts = Cuts(4, walked=frozenset([(8, 16, 4)]))
        >>> cuts.of((8, 3)), cuts.of((8, 16, 4)), cuts.of((6, 16)), cuts.of((6,))
        (0, 1, 1, None)
        """
        found = self.stored.get(shape)
        if found is not None:
            return found
        return dimension_to_cut(shape, self.num_slices, is_walked=shape in self.walked)

    def dimension(self, type: Type) -> int:
        """Return the dimension along which a value that can be cut is cut."""
        dimension = self.of(type.shape)
        assert dimension is not None
        return dimension

    def is_cuttable(self, operand: Operand) -> bool:
        """Return whether a value is the same on all replicas, and can be cut in slices."""
        type = operand.type
        return type.distribution is MIRRORED and self.of(type.shape) is not None

    def slice_type(self, type: Type) -> Type:
        """Return the type of a replica's slice of a value."""
        return own_slice(type, self.dimension(type), self.num_slices, self.num_copies)

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas in all groups."""
        return self.num_slices * self.num_copies

    @property
    def of_groups(self) -> dict[str, object]:
        """Return the parameters of a collective of each group."""
        return of_groups(self.num_slices, self.num_copies)

    def params(self, axis: int) -> dict[str, object]:
        """Return the parameters of a node that cuts or gathers along a dimension."""
        return {"axis": axis, **self.of_groups}

    def is_shared(self, operand: Operand, result: Value) -> bool:
        """Return whether every slice of a result takes all of an operand.

        It does if the operand is a scalar, or has size 1 along the cut.
        """
        if not operand.type.shape:
            return True
        cut = self.of(result.type.shape)
        return cut is not None and operand.type.shape[cut] == 1


@kept_analysis
def cuts_of(graph: Graph) -> Cuts:
    """Return how the values of a graph are cut."""
    stored: dict[Shape, int] = {}
    for variable in graph.variables:
        along, shape = variable.sharded_along, variable.type.shape
        if along is not None:
            stored[shape] = max(along, stored.get(shape, along))
    copies = max((variable.num_copies for variable in graph.variables), default=1)
    return Cuts(graph.num_replicas // copies, stored, walked_shapes(graph), copies)


@kept_analysis
def walked_shapes(graph: Graph) -> frozenset[Shape]:
    """Return the shapes of the values that loops take apart along dimension 0, or stack up."""
    found: set[Shape] = set()
    for node in walk(graph):
        if node.op is SCAN:
            scan = Scan(node)
            stacks = [*(taken.operand for taken in scan.scanned), *(s.result for s in scan.stacked)]
            found.update(stack.type.shape for stack in stacks if len(stack.type.shape) > 1)
    return frozenset(found)
