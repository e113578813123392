"""Split a branch over several variables into one per variable: part of the pass `cut_updates.py`.

An update that is made only if a condition holds, such as "all gradients are finite", is a `cond`
that returns new values of all variables. No server has all variables. So the results are grouped by
the variables whose new values need the results. Each group gets its own `cond`, with the operands
that the group needs. All these `cond` take the same index of the branch.

Before:  %w1, %v1 = cond(%i, %w, %v, %g, %h)
After:   %w1 = cond(%i, %w, %g)   %v1 = cond(%i, %v, %h)

Left alone: branches with effects or collectives, and results that several updates need.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from graphdist.ir.analyses import collectives, has_effect, use_counts
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
    branches = [node for node in graph.nodes if _is_splittable(node)]
    if not branches:
        return graph
    groups = _groups_of_outputs(graph, reads_all)
    parts = {node: _parts(graph, node, groups) for node in branches}
    copier = Copier(NAME)
    for node in graph.nodes:
        if len(parts.get(node, ())) < 2:
            copier.copy(node)
            continue
        for positions in parts[node]:
            results = _add_part(copier, node, copier.now(node.operands), positions)
            copier.put([node.results[position] for position in positions], results)
    return copier.changed(graph)


def _groups_of_outputs(graph: Graph, reads_all: bool) -> Sequence[tuple[Operand, int]]:
    """Return each output with the index of its variable's group; a result of the step has -1."""
    found = UpdateGroups(graph, reads_all=reads_all)
    indices = {name: index for index, names in enumerate(found.groups) for name in names}
    of_new = [(output, indices[name]) for name, output in found.new.items()]
    return [*of_new, *((result, -1) for result in found.results)]


def _parts(graph: Graph, node: Node, groups: Sequence[tuple[Operand, int]]) -> list[list[int]]:
    """Return the positions of a node's results, split by the groups that need the results."""
    parts: dict[frozenset[int], list[int]] = {}
    for position, result in enumerate(node.results):
        ends = reachable(uses(graph), [result])
        needed = frozenset(group for output, group in groups if output in ends)
        parts.setdefault(needed, []).append(position)
    return list(parts.values())


def _is_splittable(node: Node) -> bool:
    if node.op is not COND or len(node.results) < 2 or has_effect(node):
        return False
    return not any(collectives(branch) for branch in node.graphs)


def _add_part(
    builder: Builder, node: Node, operands: Sequence[Operand], positions: Sequence[int]
) -> tuple[Value, ...]:
    """Add a `cond` that returns the results at `positions`, and takes the operands they need."""
    branches = [
        eliminate_dead_code(branch.replace(outputs=tuple(branch.outputs[p] for p in positions)))
        for branch in node.graphs
    ]
    used = [use_counts(branch) for branch in branches]
    is_taken = [
        any(value in counts for value, counts in zip(values, used, strict=True))
        for values in zip(*(branch.inputs for branch in branches), strict=True)
    ]
    narrow = tuple(
        branch.replace(inputs=tuple(compress(branch.inputs, is_taken))) for branch in branches
    )
    needed = (operands[0], *compress(operands[1:], is_taken))
    return builder.add(COND, needed, node.params, narrow, at=node.source)
