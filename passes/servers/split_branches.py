"""Split a branch over several variables into one per variable: part of the pass `cut_updates.py`.

An update that is made only if a condition holds, such as "all gradients are finite", is a `cond`
that returns new values of all variables. No server has all variables. So the results are grouped by
the variables whose new values need them, and each group gets its own `cond`, with the operands that
it needs. All of them take the same index of the branch.

Before:  %w1, %v1 = cond(%i, %w, %v, %g, %h)
After:   %w1 = cond(%i, %w, %g)   %v1 = cond(%i, %v, %h)

Left alone: branches with effects or collectives, and results that several updates need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphdist.ir.analyses import collectives, has_effect
from graphdist.ir.builder import Builder
from graphdist.ir.flow import reachable, uses
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import COND
from graphdist.ir.rewrite import Copier
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.servers.update_groups import UpdateGroups

NAME = "cut_updates"


def split_branches(graph: Graph, *, reads_all: bool = False) -> Graph:
    """Return the graph with branches over several variables split; the same graph without any.

    `reads_all` is passed to `UpdateGroups`.
    """
    parts = _Parts(graph, reads_all).found
    if not parts:
        return graph
    copier = Copier(NAME)
    for node in graph.nodes:
        if node not in parts:
            copier.copy(node)
            continue
        for positions in parts[node]:
            results = _add_part(copier, node, copier.now(node.operands), positions)
            copier.put([node.results[position] for position in positions], results)
    return copier.changed(graph)


class _Parts:
    """The branches of a graph to split, with the indices of the results of each part."""

    def __init__(self, graph: Graph, reads_all: bool) -> None:
        self.graph, self.reads_all = graph, reads_all
        branches = [node for node in graph.nodes if _is_splittable(node)]
        self.found: Mapping[Node, Sequence[Sequence[int]]] = {}
        if branches:
            self._groups = self._group_of_outputs()
            split = {node: self._of(node) for node in branches}
            self.found = {node: parts for node, parts in split.items() if len(parts) > 1}

    def _group_of_outputs(self) -> Mapping[Operand, int]:
        """Return, for each new value, the index of the group of its variable."""
        found = UpdateGroups(self.graph, reads_all=self.reads_all)
        indices = {name: index for index, names in enumerate(found.groups) for name in names}
        return {output: indices[name] for name, output in found.new.items()}

    def _of(self, node: Node) -> list[list[int]]:
        parts: dict[frozenset[int], list[int]] = {}
        for position, result in enumerate(node.results):
            ends = reachable(uses(self.graph), [result])
            needed = {group for output, group in self._groups.items() if output in ends}
            if any(output in ends for output in self.graph.outputs[len(self._groups) :]):
                needed.add(-1)
            parts.setdefault(frozenset(needed), []).append(position)
        return list(parts.values())


def _is_splittable(node: Node) -> bool:
    if node.op is not COND or len(node.results) < 2 or has_effect(node):
        return False
    return not any(collectives(branch) for branch in node.graphs)


def _add_part(
    builder: Builder, node: Node, operands: Sequence[Operand], positions: Sequence[int]
) -> tuple[Value, ...]:
    """Add a branch that returns the results at `positions`, and takes the operands they need."""
    branches = [
        eliminate_dead_code(branch.replace(outputs=tuple(branch.outputs[p] for p in positions)))
        for branch in node.graphs
    ]
    taken = [
        index
        for index in range(len(operands) - 1)
        if any(_takes(branch, branch.inputs[index]) for branch in branches)
    ]
    narrow = tuple(
        branch.replace(inputs=tuple(branch.inputs[index] for index in taken)) for branch in branches
    )
    needed = (operands[0], *(operands[1 + index] for index in taken))
    return builder.add(COND, needed, node.params, narrow, at=node.source)


def _takes(branch: Graph, value: Operand) -> bool:
    return value in branch.outputs or any(value in node.operands for node in branch.nodes)
