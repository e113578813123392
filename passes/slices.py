"""How each value of a graph is needed: in full, in slices (one for each replica), or either way.

This is the analysis of the pass `shard_update.py`. The rule of an operation
(`slice_rules.py`) says how it needs its operands. The analysis goes from the outputs backwards, and
through the branches of a `cond` that all replicas take alike: each branch's output is needed as the
result is, and the operand as any branch needs its input. A value that several operations need is
needed in the form that suits all: in full, if one needs all of it. At the end, a value that may be
either way is cut where it comes together with slices.

Which variables are worth it is in `slice_gains.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from graphdist.ir.analyses import has_effect
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.source import Source
from graphdist.passes.cuts import Cuts, cuts_of
from graphdist.passes.slice_rules import (
    BRANCH_INPUT,
    BRANCHES,
    STORED_INPUT,
    UNSLICED,
    Need,
    SliceRule,
    rule_for,
)


@dataclass
class Needs:
    """How each value is needed when the variables `wanted` are updated in slices."""

    graph: Graph
    wanted: frozenset[str]
    needed: dict[Operand, Need] = field(default_factory=dict)
    """How a value is needed; a value that is not here is not needed."""
    because: dict[Operand, Node | str] = field(default_factory=dict)
    """What needs a value in full: a node, or in words."""
    sources: dict[Operand, Source] = field(default_factory=dict)
    rules: dict[Operand, SliceRule] = field(default_factory=dict)
    """The rule of what makes a value, of those that are needed."""
    reduced: dict[Node, tuple[Operand, ...]] = field(default_factory=dict)
    """The operations that take their operands in either form, with what they then take."""
    branching: dict[Node, None] = field(default_factory=dict)
    """The nodes whose branches are looked into; an outer one before those nested in it."""

    @property
    def cuts(self) -> Cuts:
        """Return how values are cut."""
        return cuts_of(self.graph)

    def need(self, value: Operand) -> Need:
        """Return how a value is needed."""
        return self.needed.get(value, Need.NOTHING)

    def of_node(self, node: Node) -> bool:
        """Return whether anything needs the node."""
        return has_effect(node) or any(map(self.need, node.results))

    def is_full(self, value: Operand) -> bool:
        """Return whether something needs all of a value."""
        return self.need(value) is Need.FULL

    def in_slices(self, value: Operand) -> bool:
        """Return whether a value is needed in slices, and nothing needs all of it."""
        return self.need(value) is Need.SLICES

    def is_cut(self, value: Operand) -> bool:
        """Return whether a value is made in slices, and never in full."""
        return self.in_slices(value) and self.rule(value).gives_slices

    def rule(self, value: Operand) -> SliceRule:
        """Return the rule of what makes a value."""
        return self.rules.get(value, UNSLICED)

    def rule_of(self, node: Node) -> SliceRule:
        """Return the rule of a node."""
        return self.rule(node.results[0]) if node.results else UNSLICED

    def why_full(self, value: Operand) -> str:
        """Return what needs all of a value."""
        because = self.because[value]
        if isinstance(because, str):
            return because
        return f"{because.op.name} at {because.source} needs all of it"

    def operands_of(self, node: Node) -> Sequence[Operand]:
        """Return the operands of a node that are needed: of a `cond` those its branches need."""
        if node not in self.branching:
            return self.reduced.get(node, node.operands)
        index, *operands = node.operands
        inputs = node.graphs[0].inputs
        needed = [
            operand for operand, value in zip(operands, inputs, strict=True) if self.need(value)
        ]
        return [index, *needed]

    def scopes(self) -> Iterator[Graph]:
        """Yield the graph and the branches looked into, an outer one before its inner ones."""
        yield self.graph
        for node in self.branching:
            yield from node.graphs

    def cut_alike(self) -> Iterator[tuple[Operand, Operand]]:
        """Yield the pairs of values that come together: if both are cut, they are cut alike.

        Results with operands where each element is computed by itself, factors of a sum of
        products, and what a branch takes and returns with what stands for it outside.
        """
        for scope in self.scopes():
            for node in scope.nodes:
                if node in self.branching:
                    yield from _passed(node)
                    yield from _returned(node)
                else:
                    operands = self.reduced.get(node, node.operands)
                    yield from self.rule_of(node).cut_alike(node, operands)


def needs_of(
    graph: Graph,
    wanted: frozenset[str],
    *,
    reorders: bool,
    gathered: Iterable[Operand] = (),
) -> Needs:
    """Return how each value is needed when the variables `wanted` are updated in slices.

    `gathered` are operands of operations that need them in full, which are made in slices all the
    same. Unless `reorders`, nothing is reduced in slices whose order of additions shows.
    """
    needs = Needs(graph, wanted)
    _Analysis(needs, reorders, frozenset(gathered)).run()
    return needs


class _Analysis:
    """Finds the needs: from the outputs backwards."""

    def __init__(self, needs: Needs, reorders: bool, gathered: frozenset[Operand]) -> None:
        self.needs, self.reorders, self.gathered = needs, reorders, gathered
        self.cuts = needs.cuts
        self.asked: set[Graph] = set()

    def run(self) -> None:
        """Fill in the needs."""
        needs, graph = self.needs, self.needs.graph
        self._ask_of_outputs(graph)
        self._ask_all(graph)
        for variable, value in zip(graph.variables, graph.inputs, strict=False):
            is_held_cut = variable.held(graph.num_replicas) != value.type
            if is_held_cut or variable.name in needs.wanted:
                needs.rules[value] = STORED_INPUT
        _settle(needs)

    def _ask_of_outputs(self, graph: Graph) -> None:
        for variable, output in zip(graph.assigned, graph.outputs, strict=False):
            is_slice = output.type.shape != variable.type.shape  # cut already
            is_wanted = variable.name in self.needs.wanted and not is_slice
            if is_wanted and self.cuts.is_cuttable(output):
                self._ask_for(output, Need.SLICES)
            else:
                self._ask_for(output, Need.FULL, f"variable {variable.name!r} is stored unsharded")
        for output in graph.outputs[len(graph.assigned) :]:
            self._ask_for(output, Need.FULL, "the function returns it")

    def _ask_for(self, operand: Operand, need: Need, because: Node | str = "") -> None:
        if type(operand) is Value:
            self.needs.needed[operand] = max(self.needs.need(operand), need)
            if need is Need.FULL:
                self.needs.because.setdefault(operand, because)

    def _ask_all(self, graph: Graph) -> None:
        for node in reversed(graph.nodes):
            if self.needs.of_node(node):
                self._ask(node, graph)

    def _ask(self, node: Node, graph: Graph) -> None:
        needs = self.needs
        rule = rule_for(node, self.cuts)
        if rule is BRANCHES and not self._may_look_into(node):
            rule = UNSLICED
        needs.sources.update(dict.fromkeys(node.results, node.source))
        needs.rules.update(dict.fromkeys(node.results, rule))
        if rule is BRANCHES:
            self._ask_branches(node)
            return
        takes_slices = self.reorders or not rule.reorders
        of_result = needs.need(node.results[0]) if node.results else Need.NOTHING
        operands = node.operands
        if rule.reduces and takes_slices:
            operands = needs.reduced[node] = rule.operands(node, graph, self.cuts)
        for operand in operands:
            needs.sources.setdefault(operand, node.source)
            if rule is UNSLICED and operand in self.gathered:
                need = Need.SLICES
            elif takes_slices and self.cuts.is_cuttable(operand):
                need = rule.need(node, operand, of_result, self.cuts)
            else:
                need = Need.FULL
            self._ask_for(operand, need, self._because(node, rule))

    def _because(self, node: Node, rule: SliceRule) -> Node | str:
        """Return what to say needs an operand in full: what needs the result so, or the node."""
        return self.needs.because.get(node.results[0], node) if rule.hands_on else node

    def _may_look_into(self, node: Node) -> bool:
        """Return whether the branches stand nowhere else: a graph has one form for all its uses."""
        graphs = set(node.graphs)
        return len(graphs) == len(node.graphs) and self.asked.isdisjoint(graphs)

    def _ask_branches(self, node: Node) -> None:
        """Ask through the branches, from the results of a `cond` to its operands."""
        needs = self.needs
        self.asked.update(node.graphs)
        needs.branching[node] = None
        for result, output in _returned(node):
            need = needs.need(result)
            if need:
                cuttable = self.cuts.is_cuttable(output)
                self._ask_for(
                    output, need if cuttable else Need.FULL, needs.because.get(result, node)
                )
        for branch in node.graphs:
            self._ask_all(branch)
        self._ask_for(node.operands[0], Need.FULL, node)
        inputs = zip(*(branch.inputs for branch in node.graphs), strict=True)
        for operand, of_branches in zip(node.operands[1:], inputs, strict=True):
            self._ask_for_passed(node, operand, of_branches)

    def _ask_for_passed(self, node: Node, operand: Operand, inputs: Sequence[Value]) -> None:
        """Ask for an operand, and for the inputs that it becomes, what any of these needs."""
        needs = self.needs
        need = max(map(needs.need, inputs))
        if not need:
            return
        if not all(self.cuts.is_cuttable(value) for value in (operand, *inputs)):
            need = Need.FULL
        reasons = [needs.because[value] for value in inputs if value in needs.because]
        because = reasons[-1] if reasons else node
        needs.sources.setdefault(operand, node.source)
        self._ask_for(operand, need, because)
        for value in inputs:
            needs.rules[value] = BRANCH_INPUT
            needs.sources.setdefault(value, node.source)
            self._ask_for(value, need, because)


def _settle(needs: Needs) -> None:
    """Cut values that may be either way where they come together with a slice.

    From operands to results and back, until nothing changes: a value left in full then shares no
    operation with a slice, so that nothing is computed in full and cut afterwards.
    """
    needed = needs.needed
    if Need.EITHER not in needed.values():
        return
    neighbours: dict[Operand, list[Operand]] = {}
    for first, second in needs.cut_alike():
        if Need.EITHER in (needs.need(first), needs.need(second)):
            neighbours.setdefault(first, []).append(second)
            neighbours.setdefault(second, []).append(first)
    for value, rule in needs.rules.items():
        if rule.has_slices and needs.need(value) is Need.EITHER:
            needed[value] = Need.SLICES
    pending = [value for value in neighbours if needs.is_cut(value)]
    while pending:
        for value in neighbours.get(pending.pop(), ()):
            if needs.need(value) is Need.EITHER:
                needed[value] = Need.SLICES
                if needs.is_cut(value):
                    pending.append(value)


def _returned(node: Node) -> Iterator[tuple[Value, Operand]]:
    """Yield each result of a node with what each branch returns for it."""
    for branch in node.graphs:
        yield from zip(node.results, branch.outputs, strict=True)


def _passed(node: Node) -> Iterator[tuple[Operand, Value]]:
    """Yield each operand of a node with the inputs of the branches, and these with each other."""
    first, *others = node.graphs
    yield from zip(node.operands[1:], first.inputs, strict=True)
    for branch in others:
        yield from zip(first.inputs, branch.inputs, strict=True)
