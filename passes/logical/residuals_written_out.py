"""Change what the backward pass gets of a forward pass in the same graph, outside of loops.

The part of `choose_residuals` for layers that are written out. Kept values are read as the forward
pass has computed them. All others are computed again where a backward node reads them first: behind
a barrier, which joins the kept values that they are computed from with the latest gradient. Thus
the compiler neither merges them with those of the forward pass, nor computes them before the
gradient is there. What passes a barrier is in memory: the gradient is one that is there anyway, and
not the result of an operation that is computed where it is read.

Before:  %a = sin(%x)  ..  %g = ..  %d = mul(%g, %a)
After:   %a = sin(%x)  ..  %g = ..  %x1, %g1 = barrier(%x, %g)  %b = sin(%x1)  %d = mul(%g1, %b)

The barriers and the values that `jax.checkpoint` put there go. A kept value that only the backward
pass had is computed by the forward pass as soon as its operands are there. A value on the host goes
through a barrier, too, before it is copied back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from graphdist.ir.fused_values import FUSED, VIEWS
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.op_parameters import Copying
from graphdist.ir.ops import BARRIER, COPY_TO
from graphdist.ir.rewrite import Copier, renewed
from graphdist.ir.written_out import WrittenOut

_HOST, _DEVICE = Copying("host"), Copying("device")


@dataclass(frozen=True, eq=False)
class KeptValues:
    """The passes of a graph, and the numbers of the values that the first keeps for the second."""

    passes: WrittenOut
    numbers: Collection[int]
    on_host: Collection[int]
    """Those that wait in the memory of the host."""


def with_kept(graph: Graph, chosen: Mapping[Graph, KeptValues], origin: str) -> Graph:
    """Return the graph, nested graphs included, with the chosen values kept."""
    if graph in chosen:
        return _Rebuild(chosen[graph], chosen, Copier(origin)).run(graph)
    copier = Copier(origin)
    for node in graph.nodes:
        copier.copy(node, tuple(with_kept(nested, chosen, origin) for nested in node.graphs))
    return copier.changed(graph)


class _Rebuild:
    """A graph that is rebuilt, with the forward values that its backward pass has so far."""

    def __init__(
        self, kept: KeptValues, chosen: Mapping[Graph, KeptValues], copier: Copier
    ) -> None:
        self._kept, self._chosen, self._copier = kept, chosen, copier
        self._passes = kept.passes
        self._early: dict[int, Operand] = {}
        """The kept values, and those that they are computed from, in the forward pass."""
        self._on_host: dict[int, Operand] = {}
        self._late: dict[int, Operand] = {}
        """What has been computed, or has come through a barrier, for the backward pass."""
        dropped = (node for node in self._passes.graph.nodes if self._drops(node))
        self._dropped = {value for node in dropped for value in node.results}
        self._gradients: tuple[Operand, ...] = ()
        """The result of the latest node of the backward pass that writes its results to memory."""
        self._places = {number: place for place, number in enumerate(self._passes.values)}
        self._ready = self._ready_places()
        again = (number for number in self._passes.needed if number not in kept.numbers)
        self._wanted = sorted(again, key=self._ready.__getitem__)
        """What is computed again, and has passed no barrier yet."""

    def run(self, graph: Graph) -> Graph:
        """Return the rebuilt graph."""
        passes, copier = self._passes, self._copier
        early = self._early_places()
        self._keep(early[-1])
        for place, node in enumerate(graph.nodes):
            if node in passes.passed:
                for operand, result in zip(node.operands, node.results, strict=True):
                    if passes.numbers.of(result) is None:  # else it is had when it is read
                        copier.put((result,), copier.now((operand,)))
            elif not self._drops(node):
                self._require(node, node.operands)
                nested = (with_kept(each, self._chosen, copier.origin) for each in node.graphs)
                copier.copy(node, tuple(nested))
                if node in passes.backward:
                    self._have(node)
            self._keep(early[place])
        self._require(None, graph.outputs)
        return copier.changed(graph)

    def _drops(self, node: Node) -> bool:
        return node in self._passes.repeated or node in self._passes.passed

    def _ready_places(self) -> dict[int, int]:
        """Return the place of the node behind which each value can be in the forward pass."""
        passes = self._passes
        made = {value: place for place, n in enumerate(passes.graph.nodes) for value in n.results}
        places = {number: made.get(value, -1) for number, value in passes.there.items()}
        for number, value in passes.values.items():
            behind = (places.get(operand, -1) for operand in value.operands)
            places[number] = made[value.value] if value.is_forward else max(behind, default=-1)
        return places

    def _early_places(self) -> Mapping[int, list[int]]:
        """Return the kept values, and those behind them, by the places where they are ready."""
        values, found = self._passes.values, defaultdict[int, list[int]](list)
        pending, seen = list(self._kept.numbers), set[int]()
        while pending:
            number = pending.pop()
            if number not in seen and number in values:
                seen.add(number)
                pending += () if values[number].is_forward else values[number].operands
        for number in sorted(seen, key=self._places.__getitem__):
            found[self._ready[number]].append(number)
        return found

    def _keep(self, numbers: Iterable[int]) -> None:
        """Compute values in the forward pass that it has not, and send those to the host."""
        for number in numbers:
            value = self._passes.values[number]
            if value.is_forward:
                (self._early[number],) = self._copier.now((value.value,))
            elif number not in self._early:
                self._compute(value.node, self._early)
            if number in self._kept.on_host:
                (self._on_host[number],) = self._copier.add(
                    COPY_TO, (self._early[number],), _HOST, at=value.node.source
                )

    def _require(self, node: Node | None, operands: Iterable[Operand]) -> None:
        """Have the operands of a node, or outputs, that are no longer as they were."""
        passes = self._passes
        for operand in operands:
            number = passes.numbers.of(operand) if type(operand) is Value else None
            if number is not None and (
                operand in self._dropped or (node in passes.backward and number in passes.values)
            ):
                self._copier.environment[operand] = self._operand(number, node)

    def _have(self, node: Node) -> None:
        """Take the gradients of a node, or the results of a loop that is computed again."""
        numbers = self._passes.numbers
        for result in node.results:
            number = numbers.of(result)
            if number is not None and number not in self._kept.numbers:
                self._late.setdefault(number, self._copier.now((result,))[0])
        if node.op.name not in FUSED and node.op.name not in VIEWS:
            unnumbered = tuple(result for result in node.results if numbers.of(result) is None)
            self._gradients = unnumbered[-1:] or self._gradients

    def _operand(self, number: int, node: Node | None) -> Operand:
        """Return a forward value for a node of the backward pass."""
        if number not in self._late:
            is_on_device = number in self._kept.numbers and number not in self._kept.on_host
            if is_on_device or number in self._passes.there:
                return self._as_kept(number)
            again, behind = self._needed_for(number)
            self._pass_barrier(self._and_beside(behind), node)
            for each in again:
                if each not in self._late:
                    self._compute(self._passes.values[each].node, self._late)
        return self._late[number]

    def _needed_for(self, number: int) -> tuple[list[int], list[int]]:
        """Return what is computed for a value, in order, and the kept values behind it."""
        pending, again, behind = [number], set[int](), dict[int, None]()
        while pending:
            each = pending.pop()
            if each in self._late or each in again or each in behind:
                continue
            if each in self._kept.numbers or each in self._passes.there:
                behind[each] = None
            elif each in self._passes.values:  # else it is a literal
                again.add(each)
                pending += self._passes.values[each].operands
        return sorted(again, key=self._places.__getitem__), list(behind)

    def _and_beside(self, kept: list[int]) -> list[int]:
        """Return kept values, and those for all that is computed again behind the first of them.

        Thus a layer has one barrier, as `jax.checkpoint` makes it.
        """
        first = max(
            (self._ready[n] for n in kept if n in self._passes.values),
            default=len(self._ready) + len(self._passes.graph.nodes),
        )
        found = dict.fromkeys(kept)
        while self._wanted and self._ready[self._wanted[-1]] >= first:
            found.update(dict.fromkeys(self._needed_for(self._wanted.pop())[1]))
        return list(found)

    def _pass_barrier(self, numbers: Collection[int], node: Node | None) -> None:
        """Pass kept values through a barrier, with the latest gradient."""
        if not numbers:
            return
        copier, at = self._copier, self._passes.source if node is None else node.source
        operands = () if node is None else node.operands
        numbers_of = self._passes.numbers.of
        own = tuple(o for o in operands if type(o) is Value and numbers_of(o) is None)
        gradients = own[:1] or self._gradients
        operands = (*map(self._as_kept, numbers), *copier.now(gradients))
        results = copier.add(BARRIER, operands, at=at)
        copier.put(gradients, results[len(numbers) :])
        for number, result in zip(numbers, results, strict=False):
            self._late[number] = result
            if number in self._kept.on_host:
                (self._late[number],) = copier.add(COPY_TO, (result,), _DEVICE, at=at)

    def _as_kept(self, number: int) -> Operand:
        for had in (self._on_host, self._early):
            if number in had:
                return had[number]
        return self._copier.now((self._passes.there[number],))[0]

    def _compute(self, node: Node, had: dict[int, Operand]) -> None:
        """Add a node again, on operands of the pass that has `had`; its results are had, too."""
        numbers, is_late = self._passes.numbers, had is self._late
        operands = []
        for operand in node.operands:
            number = numbers.of(operand) if type(operand) is Value else None
            if number is None:
                operands.append(operand)
            else:
                operands.append(had[number] if number in had else self._as_kept(number))
        results = self._copier.add(
            node.op,
            operands,
            node.params,
            tuple(map(renewed, node.graphs)),
            at=node.source.in_pass(is_backward=is_late),
            types=None if node.op.rule else [result.type for result in node.results],
            hint=node.results[0].hint,
        )
        for old, new in zip(node.results, results, strict=True):
            number = numbers.of(old)
            if number is not None and not (is_late and number in self._kept.numbers):
                had.setdefault(number, new)
