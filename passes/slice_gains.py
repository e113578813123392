"""Which variables are worth updating in slices, and why the others are not.

All variables that may be updated in slices are tried at once: `slices.py` says how each value is
needed then. A variable gains if a reduce_scatter flows into its slices. It also gains if only its
slices are needed, together with slices that gain: a value that is only ever compared with a
parameter is stored like the parameter. Variables that gain nothing are given up. That may change
what others need, so the analysis is repeated until all gain. Before any variable is given up,
operands of operations that need full values are tried in slices (`gathered_values.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdist.ir.graph import Graph, GraphVariable, Node, Operand
from graphdist.ir.types import MIRRORED
from graphdist.passes.cuts import Cuts, cuts_of
from graphdist.passes.gathered_values import Gathered, gatherable, worth_gathering
from graphdist.passes.slice_rules import ALL_REDUCED, UNSLICED
from graphdist.passes.slices import Needs, needs_of

_ROUNDS = 16
"""How often variables are given up and the rest tried again, before all are given up."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Which variables are worth it: at least `smallest` elements; none if `is_on` is False.

    Sums to a scalar are shared out too unless `reduces` is False: that changes the order of
    additions.
    """

    is_on: bool = True
    smallest: int = 0
    reduces: bool = True


SHARDING = {
    "cpu": Sharding(smallest=2**18),
    "gpu": Sharding(smallest=2**18),
    "tpu": Sharding(smallest=2**18),
}
"""Which variables are worth it, by platform."""


def wanted_in_slices(graph: Graph, sharding: Sharding) -> tuple[Needs | None, dict[str, str]]:
    """Return how values are needed with all variables that gain in slices; and why others do not.

    The first is None if no variable gains. A variable that gains has the reason "".
    """
    reasons = {
        variable.name: _refusal(variable, cuts_of(graph), sharding) for variable in graph.assigned
    }
    is_stored = any(variable.sharded_along is not None for variable in graph.assigned)
    gathered: Gathered | None = None
    for _ in range(_ROUNDS):
        wanted = frozenset(name for name, reason in reasons.items() if not reason)
        if not wanted:
            return None, reasons
        needs = needs_of(graph, wanted, reorders=sharding.reduces, gathered=gathered or ())
        scattered: set[Operand] = set()
        _scatter(graph, needs, scattered)
        if gathered:
            before, gathered = gathered, worth_gathering(gathered, needs, scattered)
            if len(gathered) < len(before):
                continue
        refused = _without_gain(needs, scattered)
        if gathered is None and (refused or is_stored):
            gathered = gatherable(needs)
            if gathered:
                continue
        if not refused:
            return needs, reasons
        reasons.update(refused)
    return None, dict.fromkeys(reasons, f"no agreement after {_ROUNDS} rounds")


def _refusal(variable: GraphVariable, cuts: Cuts, sharding: Sharding) -> str:
    if variable.sharded_along is not None:
        return ""
    type = variable.type
    if not sharding.is_on:
        return "shard_update is off"
    if type.distribution is not MIRRORED:
        return "each replica has its own"
    if variable.num_copies != cuts.num_copies:
        return "it is of another strategy"
    if not type.shape:
        return "it is one number"
    if type.size < max(sharding.smallest, 1):
        return f"its {type.size:,} elements are fewer than {sharding.smallest:,}"
    if cuts.of(type.shape) is None:
        sizes = ", ".join(map(str, type.shape))
        return f"no dimension of [{sizes}] divides by {cuts.num_slices} replicas"
    return ""


def _without_gain(needs: Needs, scattered: set[Operand]) -> dict[str, str]:
    """Return the variables that gain nothing, and why."""
    graph = needs.graph
    doubtful = []
    names = (variable.name for variable in graph.variables)
    inputs = dict(zip(names, graph.inputs, strict=False))
    for variable, output in zip(graph.assigned, graph.outputs, strict=False):
        is_cut = variable.sharded_along is not None or output in scattered
        if variable.name in needs.wanted and not is_cut:
            doubtful.append((variable.name, output))
    if any(not needs.is_full(inputs[name]) for name, _ in doubtful):
        beside = _beside(needs, scattered)
        doubtful = [
            (name, output)
            for name, output in doubtful
            if needs.is_full(inputs[name]) or inputs[name] not in beside
        ]
    made_by = _makers(needs) if doubtful else {}
    return {name: _why_not(output, needs, made_by) for name, output in doubtful}


def _scatter(graph: Graph, needs: Needs, scattered: set[Operand]) -> None:
    """Add the values made in slices from what a reduce_scatter or a stored slice gave."""
    for node in graph.nodes:
        if node in needs.branching:
            _scatter_branches(node, needs, scattered)
            continue
        result = node.results[0] if len(node.results) == 1 else None
        if result is None or not needs.in_slices(result):
            continue
        rule = needs.rule(result)
        if rule.starts_slices or (rule.hands_on and not scattered.isdisjoint(node.operands)):
            scattered.add(result)


def _scatter_branches(node: Node, needs: Needs, scattered: set[Operand]) -> None:
    for branch in node.graphs:
        for operand, value in zip(node.operands[1:], branch.inputs, strict=True):
            if operand in scattered and needs.in_slices(value):
                scattered.add(value)
        _scatter(branch, needs, scattered)
        for result, output in zip(node.results, branch.outputs, strict=True):
            if output in scattered and needs.in_slices(result):
                scattered.add(result)


def _beside(needs: Needs, scattered: set[Operand]) -> set[Operand]:
    """Return the values in slices that come together with scattered ones, maybe through others."""
    neighbours: dict[Operand, list[Operand]] = {}
    for first, second in needs.cut_alike():
        if needs.in_slices(first) and needs.in_slices(second):
            neighbours.setdefault(first, []).append(second)
            neighbours.setdefault(second, []).append(first)
    found = set(scattered)
    pending = list(scattered)
    while pending:
        for value in neighbours.get(pending.pop(), ()):
            if value not in found:
                found.add(value)
                pending.append(value)
    return found


def _makers(needs: Needs) -> dict[Operand, tuple[Node | None, tuple[Operand, ...]]]:
    """Return the node that makes each value, and the values that it is made of.

    A result of a `cond` is made of what its branches return, an input of a branch of the operand.
    """
    made_by: dict[Operand, tuple[Node | None, tuple[Operand, ...]]] = {}
    for scope in needs.scopes():
        for node in scope.nodes:
            if node not in needs.branching:
                made_by.update(dict.fromkeys(node.results, (node, node.operands)))
                continue
            returned = zip(*(branch.outputs for branch in node.graphs), strict=True)
            for result, outputs in zip(node.results, returned, strict=True):
                made_by[result] = (node, outputs)
            for branch in node.graphs:
                for value, operand in zip(branch.inputs, node.operands[1:], strict=True):
                    made_by[value] = (None, (operand,))
    return made_by


def _why_not(
    output: Operand,
    needs: Needs,
    made_by: dict[Operand, tuple[Node | None, tuple[Operand, ...]]],
) -> str:
    """Return why no reduce_scatter flows into an output: the node in its way, if there is one."""
    pending: list[Operand] = [output]
    seen: set[Operand] = set()
    found = "no reduced gradient flows into it element by element"
    while pending:
        value = pending.pop()
        if value in seen or value not in made_by:
            continue
        seen.add(value)
        node, made_of = made_by[value]
        rule = needs.rule(value)
        is_gradient = rule is ALL_REDUCED
        if needs.is_full(value) and (is_gradient or value is output):
            return f"{'its gradient' if is_gradient else 'it'}: {needs.why_full(value)}"
        if rule.hands_on:
            pending.extend(made_of)
        elif node is not None and rule is UNSLICED and value.type.shape:
            found = f"{node.op.name} at {node.source} is not computed slice by slice"
    return found
