"""Which values of a graph are needed whole, and which in slices, one a replica.

The analysis behind `shard_update.py`, which says what it is for. It goes from the outputs backwards
and through the branches of a `cond` that all replicas take alike: what is needed of a result is
needed of what each branch returns, and what any branch needs of an input is needed of the operand.
Which variables are worth it is in `slice_gains.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphdist.ir.analyses import has_effect
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.source import Source
from graphdist.passes.slice_kinds import is_cuttable, is_exact, is_shared, kind_of, reduced_by

WHOLE, SLICES, EITHER = 1, 2, 4

_CUT = frozenset({"elementwise", "all_reduce", "gathered", "stored", "branches", "passed"})
"""Of which kinds a value is made in slices where that is how it is needed."""


@dataclass
class Needs:
    """How each value is needed when the variables `wanted` are updated in slices.

    Reductions to a number take slices too; unless `reduces`, only those whose order is no matter.
    """

    graph: Graph
    wanted: frozenset[str]
    reduces: bool
    gathered: frozenset[Operand] = frozenset()
    """Operands of operations that need wholes, which are made in slices all the same."""
    flags: dict[Operand, int] = field(default_factory=dict)
    because: dict[Operand, Node | str] = field(default_factory=dict)
    """What needs a value whole, a node or in words."""
    sources: dict[Operand, Source] = field(default_factory=dict)
    kinds: dict[Operand, str] = field(default_factory=dict)
    """In what way what makes a value deals with slices; "stored" for a variable that is cut, and
    "passed" for an input of a branch."""
    reduced: dict[Node, tuple[Operand, ...]] = field(default_factory=dict)
    """The reductions that take slices, with what they reduce."""
    branching: dict[Node, None] = field(default_factory=dict)
    """The nodes whose branches are looked into; an outer one before those nested in it."""
    _asked: set[Graph] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Ask, from the outputs backwards."""
        graph = self.graph
        count = len(graph.assigned)
        for variable, output in zip(graph.assigned, graph.outputs, strict=False):
            is_slice = output.type.shape != variable.type.shape  # cut already
            is_wanted = not is_slice and is_cuttable(output, graph.num_replicas)
            if variable.name in self.wanted and is_wanted:
                self._need(output, SLICES)
            else:
                self._need(output, WHOLE, f"variable {variable.name!r} is stored whole")
        for output in graph.outputs[count:]:
            self._need(output, WHOLE, "the function returns it")
        self._ask_all(graph)
        for variable, value in zip(graph.variables, graph.inputs, strict=False):
            is_held_cut = variable.held(graph.num_replicas) != value.type
            if is_held_cut or variable.name in self.wanted:
                self.kinds[value] = "stored"
        self._settle()

    def of_node(self, node: Node) -> bool:
        """Return whether anything needs the node."""
        return has_effect(node) or any(self.flags.get(result) for result in node.results)

    def is_whole(self, value: Operand) -> bool:
        """Return whether something needs all of a value."""
        return bool(self.flags.get(value, 0) & WHOLE)

    def in_slices(self, value: Operand) -> bool:
        """Return whether a value is needed in slices, and nothing needs all of it."""
        return self.flags.get(value, 0) & (SLICES | WHOLE) == SLICES

    def is_cut(self, value: Operand) -> bool:
        """Return whether a value is made in slices, and never whole."""
        return self.in_slices(value) and self.kinds.get(value) in _CUT

    def why_whole(self, value: Operand) -> str:
        """Return what needs all of a value."""
        because = self.because[value]
        if isinstance(because, str):
            return because
        return f"{because.op.name} at {because.source} needs all of it"

    def operands_of(self, node: Node) -> Sequence[Operand]:
        """Return the operands of a node that something needs: of a `cond` those its branches do."""
        if node not in self.branching:
            return self.reduced.get(node, node.operands)
        index, *operands = node.operands
        inputs = node.graphs[0].inputs
        return [
            index,
            *(one for one, value in zip(operands, inputs, strict=True) if self.flags.get(value)),
        ]

    def scopes(self) -> Iterator[Graph]:
        """Yield the graph and the branches looked into, an outer one before its inner ones."""
        yield self.graph
        for node in self.branching:
            yield from node.graphs

    def meetings(self) -> Iterator[tuple[Operand, Operand]]:
        """Yield the pairs of values that are cut alike if both are cut.

        Results with operands where each element is computed by itself, factors of a sum of
        products, and what a branch takes and returns with what stands for it outside.
        """
        for scope in self.scopes():
            for node in scope.nodes:
                if node in self.branching:
                    yield from _passed(node)
                    yield from _returned(node)
                    continue
                for result in node.results:
                    if self.kinds.get(result) == "elementwise":
                        for operand in node.operands:
                            if type(operand) is Value:  # literals are slow to hash
                                yield result, operand
                if len(node.operands) == 2 and node in self.reduced:
                    first, second = self.reduced[node]
                    yield first, second

    def _need(self, operand: Operand, flags: int, because: Node | str = "") -> None:
        if type(operand) is Value:
            self.flags[operand] = self.flags.get(operand, 0) | flags
            if flags & WHOLE and operand not in self.because:
                self.because[operand] = because

    def _ask_all(self, graph: Graph) -> None:
        for node in reversed(graph.nodes):
            if self.of_node(node):
                self._ask(node, graph)

    def _ask(self, node: Node, graph: Graph) -> None:
        num_replicas = self.graph.num_replicas
        kind = kind_of(node, num_replicas)
        result = node.results[0] if len(node.results) == 1 else None
        self.sources.update(dict.fromkeys(node.results, node.source))
        self.kinds.update(dict.fromkeys(node.results, kind))
        if kind == "branches":
            if self._ask_branches(node):
                return
            self.kinds.update(dict.fromkeys(node.results, ""))
        because: Node | str = node
        flags = WHOLE
        operands = node.operands
        if result is not None:
            of_result = self.flags.get(result, 0)
            if kind == "elementwise":
                flags = of_result if not of_result & WHOLE else WHOLE
                because = self.because.get(result, because)
            elif kind == "reduction" and (self.reduces or is_exact(node)):
                flags = EITHER
                operands = self.reduced[node] = reduced_by(node, graph, num_replicas)
            elif kind == "sliced":
                flags = SLICES
        for operand in operands:
            self.sources.setdefault(operand, node.source)
            is_cut = is_cuttable(operand, num_replicas)
            if kind == "elementwise" and is_shared(operand, node.results[0], num_replicas):
                is_cut = False
            if not kind and operand in self.gathered:
                self._need(operand, SLICES)
            else:
                self._need(operand, flags if is_cut else WHOLE, because)

    def _ask_branches(self, node: Node) -> bool:
        """Ask through the branches; False if one of them stands elsewhere too."""
        if not self._asked.isdisjoint(node.graphs) or len(set(node.graphs)) < len(node.graphs):
            return False
        self._asked.update(node.graphs)
        self.branching[node] = None
        num_replicas = self.graph.num_replicas
        for result, output in _returned(node):
            flags = self.flags.get(result, 0)
            if flags:
                is_cut = is_cuttable(output, num_replicas) and not flags & WHOLE
                self._need(output, flags if is_cut else WHOLE, self.because.get(result, node))
        for branch in node.graphs:
            self._ask_all(branch)
        self._need(node.operands[0], WHOLE, node)
        for operand, *inputs in zip(
            node.operands[1:], *(branch.inputs for branch in node.graphs), strict=True
        ):
            flags = 0
            because: Node | str = node
            for value in inputs:
                flags |= self.flags.get(value, 0)
                because = self.because.get(value, because)
            if not flags:
                continue
            if not all(is_cuttable(one, num_replicas) for one in (operand, *inputs)):
                flags = WHOLE
            self.sources.setdefault(operand, node.source)
            self._need(operand, flags if not flags & WHOLE else WHOLE, because)
            for value in inputs:
                self.kinds[value] = "passed"
                self.sources.setdefault(value, node.source)
                self._need(value, flags, because)
        return True

    def _settle(self) -> None:
        """Cut what may be either way where it meets a slice, as operand or as result.

        Both ways, from value to value: what is left whole then shares no operation with a slice,
        so that nothing is computed whole and cut afterwards.
        """
        meets: dict[Operand, list[Operand]] = {}
        if EITHER not in self.flags.values():
            return
        for one, other in self.meetings():
            if EITHER in (self.flags.get(one), self.flags.get(other)):
                meets.setdefault(one, []).append(other)
                meets.setdefault(other, []).append(one)
        for value, kind in self.kinds.items():
            if kind in ("stored", "gathered") and self.flags.get(value) == EITHER:
                self.flags[value] = SLICES
        pending = [value for value in meets if self.is_cut(value)]
        while pending:
            for value in meets.get(pending.pop(), ()):
                if self.flags.get(value) == EITHER:
                    self.flags[value] = SLICES
                    if self.is_cut(value):
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
