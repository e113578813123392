"""Which layer of a stack of layers that is written out each forward value belongs to.

Values of all layers share a name (`graphdist/ir/written_out.py`). A layer takes what the layer
before made. So the names of a stack depend on each other in a circle, though no value depends on
itself: the strongly connected components of the names are the stacks. The first name of a component
of which one value depends on another is its *head*. A value is of the layer whose number is the
most heads on a path to it. Values that are the same in all layers, such as tables of sines, are in
no component, and what the gradients of a layer alone need is of its layer, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from graphdist.ir.forward_values import ForwardValues
from graphdist.ir.value_names import ValueName


class LayerNumbers:
    """The layers of the forward values of two passes."""

    def __init__(self, passes: ForwardValues) -> None:
        """Find the stacks of layers, and number the layers of each."""
        self._passes = passes
        self._stack_of: dict[ValueName, int] = {}
        self._layers: dict[int, dict[int, int]] = {}
        for index, names in enumerate(self._stacks()):
            self._stack_of.update(dict.fromkeys(names, index))
            counted = (self._counted(name) for name in names)
            self._layers[index] = next((each for each in counted if max(each.values()) > 1), {})

    def is_before(self, operand: int, number: int) -> bool:
        """Return whether an operand of a value is of a layer before that of the value."""
        of_operand, of_value = map(self._passes.name_of, (operand, number))
        stack = self._stack_of.get(of_value)
        if stack is None or self._stack_of.get(of_operand) != stack:
            return False
        layers = self._layers[stack]
        return layers.get(operand, 0) < layers.get(number, 0)

    def _stacks(self) -> Iterator[Sequence[ValueName]]:
        """Yield the names that depend on each other, in the order of the forward pass."""
        passes = self._passes
        names = list(passes.named)
        place = {name: i for i, name in enumerate(names)}
        edges = {
            (place[passes.name_of(operand)], place[value.name])
            for value in passes.values.values()
            for operand in value.operands
            if operand in passes.values
        }
        if not edges:
            return
        reading, read = zip(*edges, strict=True)
        cells = (np.ones(len(edges)), (reading, read))
        matrix = csr_array(cells, shape=(len(names), len(names)))
        _, component = connected_components(matrix, connection="strong")
        members = defaultdict[int, list[ValueName]](list)
        for name, index in zip(names, component, strict=True):
            members[index].append(name)
        yield from (each for each in members.values() if len(each) > 1)

    def _counted(self, head: ValueName) -> dict[int, int]:
        """Return the most values of the name `head` on a path to each value."""
        found: dict[int, int] = {}
        for number, value in self._passes.values.items():
            behind = max((found.get(operand, 0) for operand in value.operands), default=0)
            found[number] = behind + (value.name == head)
        return found
