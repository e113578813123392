"""Which variables of a step are updated together, and which a worker must read.

This is the analysis of the pass `cut_updates.py`, whose docstring has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from graphdist.ir.flow import Vertex, reachable, uses
from graphdist.ir.graph import Graph, Value
from graphdist.ir.minimum_cut import connected_values
from graphdist.ir.ops import COND
from graphdist.passes.servers.by_element import is_by_element, is_movable


class UpdateGroups:
    """The variables of a placed graph, grouped by the values that depend on them."""

    def __init__(self, graph: Graph, *, reads_all: bool = False) -> None:
        """Store the graph.

        If `reads_all`, the worker reads all variables that it combines with arguments.
        """
        self.graph = graph
        self.reads_all = reads_all
        self.held = dict(zip(graph.inputs, graph.variables, strict=False))
        """The variables, by the inputs of the graph that have their values."""
        self.inputs = {variable.name: value for value, variable in self.held.items()}
        self.new = {
            variable.name: output
            for variable, output in zip(graph.assigned, graph.outputs, strict=False)
        }
        """The new values of the assigned variables."""
        self.results = graph.outputs[len(self.new) :]

    @cached_property
    def reached(self) -> Mapping[str, frozenset[str]]:
        """Return the assigned variables that depend on each variable; "" stands for a result."""
        ends = [*self.new.items(), *(("", output) for output in self.results)]
        found = {}
        for value, variable in self.held.items():
            values = reachable(uses(self.graph), [value])
            found[variable.name] = frozenset(name for name, end in ends if end in values)
        return found

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Return the variables that the worker reads, since results or gradients depend on them.

        Some optimizers multiply gradients with statistics. So a variable that the worker combines
        with arguments is still a slot, if it changes a variable on which results depend.
        """
        of_results = {name for name in self.new if "" in self.reached[name]}
        return frozenset(
            name
            for name in self.new
            if name in of_results
            or (
                (self.reads_all or of_results.isdisjoint(self.reached[name]))
                and self._is_combined_with_arguments(name)
            )
        )

    @cached_property
    def _from_outside(self) -> set[Vertex]:
        """Return the values that depend on arguments, or on variables that the step only reads."""
        assigned = {self.inputs[name] for name in self.new}
        starts = [value for value in self.graph.inputs if value not in assigned]
        return reachable(uses(self.graph), starts)

    def _is_combined_with_arguments(self, name: str) -> bool:
        """Return whether a node combines a variable and values from outside, as gradients do.

        Elementwise operations, and operations with a single element from outside, do not count.
        """
        after = reachable(uses(self.graph), [self.inputs[name]])
        values = {value for value in after if isinstance(value, Value)}
        sizes = {self.new[other].type.size for other in self.reached[name] if other}
        combined = [
            node
            for node in self.graph.nodes
            if not values.isdisjoint(node.results)
            and not is_by_element(node, values, sizes)
            and not (node.op is COND and is_movable(node))
        ]
        operands = {value for node in combined for value in node.operands}
        return any(value.type.size > 1 for value in operands & (self._from_outside - values))

    @cached_property
    def slots(self) -> Mapping[str, str]:
        """Return the variable that each slot belongs to."""
        found: dict[str, str] = {}
        for name in self.new:
            others = self.reached[name] - {name, ""}
            if name in self.parameters or not others:
                continue
            owners = others & self.parameters
            if len(owners) == 1:
                found[name] = next(iter(owners))
            elif not owners and len(others) == 1:
                found[name] = next(iter(others))
        return found

    @cached_property
    def groups(self) -> list[list[str]]:
        """Return the assigned variables in groups that are updated together, in order.

        In each group a parameter comes first, if there is one.
        """
        together = {name: self._followers(name) for name in self.new}
        for slot, owner in self.slots.items():
            together[slot] += [owner, *(self.reached[slot] - self.parameters - {""})]
        order = {name: index for index, name in enumerate(self.new)}
        groups = [
            sorted(names, key=lambda name: (name not in self.parameters, order[name]))
            for names in connected_values(together)
        ]
        return sorted(groups, key=lambda names: order[names[0]])

    def _followers(self, name: str) -> list[str]:
        """Return the variables, other than parameters, computed from a variable's new value.

        A follower is, for example, the average of a parameter's new values.
        """
        output = self.new[name]
        if not isinstance(output, Value) or output in self.held or output.type.size == 1:
            return []
        after = reachable(uses(self.graph), [output])
        return [
            other
            for other, value in self.new.items()
            if other not in self.parameters and other != name and value in after
        ]
