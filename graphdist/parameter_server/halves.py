"""The two halves of a step: what its worker computes, and the updates that servers apply.

The step's placed graph takes the variables and returns their new values. The worker's half takes
the variables that it reads as further inputs, and returns what it sends as further outputs. An
update takes the values of one variable and its slots, and the sent values, and returns new values.

Before:  %g = all_reduce(%x)  %m1 = mul(%m, 0.9)  %m2 = add(%m1, %g)  %w2 = sub(%w, %m2)
         return %m2 -> @m, %w2 -> @w
Worker:  %g = all_reduce(%x)  return %g
Server:  %m1 = mul(%m, 0.9)  %m2 = add(%m1, %g)  %w2 = sub(%w, %m2)  return %m2, %w2

How it works. A value is *fresh* if it is a variable, or computed element by element from a fresh
value of its own shape: the server computes it, with the variable as it then is. From the new value
of a variable backwards, fresh values belong to its update. The other values that they take are
sent. A sent value may be computed element by element itself, then the server can do that too: of
all places to cut, the one with the fewest bytes is taken (a minimum cut), so that a gradient that
is used twice is sent once. Variables that one update needs together, such as a parameter and its
slots, are kept on one server.

A new value that is not fresh is sent in full and replaces the variable: so does one from a loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphdist.ir.analyses import producers
from graphdist.ir.elementwise import ELEMENTWISE
from graphdist.ir.graph import Graph, Node, Operand, Stage, Value
from graphdist.ir.types import MIRRORED
from graphdist.passes.eliminate_dead_code import eliminate_dead_code

_OF_SCALARS = frozenset({"jax.broadcast_in_dim", "jax.reshape"})
"""What makes an array of one number."""
_NUMBERS_PER_BYTE = 1 << 20
"""How many single numbers are sent rather than one byte more of an array.

A gradient is then sent as it is, with the norm that it is divided by, and not divided.
"""


@dataclass(frozen=True)
class ServerUpdate:
    """What a server does with some variables: a graph of their values and of sent values.

    The first inputs are `variables`, the others the values at the places `sent` of all that the
    worker sends. The outputs are the new values of `assigned`. Without a graph the variable is
    replaced by the value that is sent.
    """

    variables: tuple[str, ...]
    assigned: tuple[str, ...]
    sent: tuple[int, ...]
    graph: Graph | None = None


@dataclass(frozen=True)
class Halves:
    """A step in two halves.

    `worker` has the step's inputs and then one for each of the variables `reads`, the step's
    results and then `num_sent` more.
    """

    worker: Graph
    reads: tuple[str, ...]
    num_sent: int
    updates: tuple[ServerUpdate, ...]


def halves_of(graph: Graph) -> Halves:
    """Return the halves of a placed graph, whose variables are all on servers."""
    return _Cut(graph).run()


class _Cut:
    """The cut of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = producers(graph)
        count = len(graph.variables)
        self.variables = dict(zip(graph.inputs[:count], graph.variables, strict=True))
        self.values = {v.name: value for value, v in self.variables.items()}
        self.new = {
            variable.name: output
            for variable, output in zip(graph.assigned, graph.outputs, strict=False)
        }
        self.sent: dict[Operand, int] = {}
        self._fresh: dict[Operand, frozenset[str]] = {}

    def run(self) -> Halves:
        """Return the halves."""
        updates = tuple(self._update(group) for group in self._groups())
        results = self.graph.outputs[len(self.graph.assigned) :]
        return self._with_worker(updates, results)

    def _with_worker(
        self, updates: tuple[ServerUpdate, ...], results: tuple[Operand, ...]
    ) -> Halves:
        graph = self.graph
        outputs = (*results, *self.sent)
        half = Graph(
            f"{graph.name}_on_worker", Stage.PLACED, graph.num_replicas, graph.inputs, graph.nodes,
            outputs, (), (*graph.returns_per_replica, *(False for _ in self.sent)),
        )  # fmt: skip
        half = eliminate_dead_code(half)
        needed = {operand for node in half.nodes for operand in node.operands} | set(outputs)
        read = [value for value in self.variables if value in needed]
        half = half.replace(inputs=(*graph.inputs[len(self.variables) :], *read))
        reads = tuple(self.variables[value].name for value in read)
        return Halves(half, reads, len(self.sent), updates)

    def fresh(self, operand: Operand) -> frozenset[str]:
        """Return the variables that an operand is computed from, element by element."""
        if not isinstance(operand, Value):
            return frozenset()
        for value in self._from_the_first(operand):
            if value not in self._fresh:
                self._fresh[value] = self._fresh_here(value)
        return self._fresh[operand]

    def _fresh_here(self, value: Value) -> frozenset[str]:
        if value in self.variables:
            return frozenset({self.variables[value].name})
        node = self.producers.get(value)
        if node is None or not _is_elementwise(node):
            return frozenset()
        own = [operand for operand in _values(node) if operand.type.shape == value.type.shape]
        return frozenset().union(*(self._fresh.get(operand, frozenset()) for operand in own))

    def _from_the_first(self, value: Value) -> list[Value]:
        """Return the elementwise ancestors of a value and the value, producers first."""
        order: list[Value] = []
        stack: list[tuple[Value, bool]] = [(value, False)]
        seen: set[Value] = set()
        while stack:
            now, is_done = stack.pop()
            if is_done:
                order.append(now)
                continue
            if now in seen:
                continue
            seen.add(now)
            stack.append((now, True))
            node = self.producers.get(now)
            if node is not None and _is_elementwise(node):
                stack += [(operand, False) for operand in _values(node)]
        return order

    def _groups(self) -> list[list[str]]:
        """Return the assigned variables by what must be updated together."""
        leaders: dict[str, str] = {
            variable.name: variable.name for variable in self.graph.variables
        }

        def leader(name: str) -> str:
            while leaders[name] != name:
                name = leaders[name]
            return name

        for name, output in self.new.items():
            found = self.fresh(output)
            for other in found if name in found else ():
                leaders[leader(other)] = leader(name)
        groups: dict[str, list[str]] = {}
        for name in self.new:
            groups.setdefault(leader(name), []).append(name)
        return list(groups.values())

    def _update(self, names: Sequence[str]) -> ServerUpdate:
        """Return the update of variables that belong together."""
        outputs = [self.new[name] for name in names]
        is_replaced = [name not in self.fresh(self.new[name]) for name in names]
        if len(names) == 1 and is_replaced[0]:
            return ServerUpdate(tuple(names), tuple(names), (self._place_of(outputs[0]),))
        inside = self._inside(outputs)
        boundary = self._boundary(inside)
        inside |= self._beyond(inside, boundary)
        nodes = tuple(
            node for node in self.graph.nodes if any(result in inside for result in node.results)
        )
        taken = {operand for node in nodes for operand in node.operands} | set(outputs)
        taken_values = [
            value for value in taken if isinstance(value, Value) and value not in inside
        ]
        held = [
            value
            for value in self.variables
            if value in taken_values and value in self._held(names)
        ]
        replaced = [value for value in outputs if value in taken_values and value not in held]
        rest = list(dict.fromkeys((*boundary, *replaced)))
        rest = [value for value in rest if value in taken_values and value not in held]
        sent = tuple(self._place_of(value) for value in rest)
        graph = Graph(
            f"{self.graph.name}_on_server", Stage.SPMD, 1, (*held, *rest), nodes, tuple(outputs)
        )
        variables = tuple(self.variables[value].name for value in held)
        return ServerUpdate(variables, tuple(names), sent, graph)

    def _held(self, names: Sequence[str]) -> set[Operand]:
        """Return the variables that are on the server of these."""
        together = frozenset(names).union(*(self.fresh(self.new[name]) for name in names))
        return {value for value, variable in self.variables.items() if variable.name in together}

    def _place_of(self, value: Operand) -> int:
        return self.sent.setdefault(value, len(self.sent))

    def _inside(self, outputs: Iterable[Operand]) -> set[Operand]:
        """Return the fresh values that new values are computed from, variables left out."""
        inside: set[Operand] = set()
        stack = [output for output in outputs if isinstance(output, Value)]
        while stack:
            value = stack.pop()
            if value in inside or value in self.variables or not self.fresh(value):
                continue
            inside.add(value)
            stack += [
                operand
                for operand in _values(self.producers[value])
                if operand.type.shape == value.type.shape
            ]
        return inside

    def _boundary(self, inside: set[Operand]) -> list[Value]:
        """Return the values to send: those with the fewest bytes that `inside` can be made of."""
        import networkx  # slow to import

        flow = networkx.DiGraph()
        stack = [
            operand
            for value in inside
            if isinstance(value, Value)
            for operand in _values(self.producers[value])
            if operand not in inside
        ]
        flow.add_nodes_from(("from", "to"))
        for value in stack:
            flow.add_edge((value, "out"), "to")
        seen: set[Value] = set()
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            flow.add_edge((value, "in"), (value, "out"), capacity=_cost(value))
            node = self.producers.get(value)
            if value in self.variables or node is None or not _is_elementwise(node):
                flow.add_edge("from", (value, "in"))
                continue
            for operand in _values(node):
                flow.add_edge((operand, "out"), (value, "in"))
                stack.append(operand)
        own = self._own_inputs(inside)
        for value in own & seen:  # the server has them
            flow[(value, "in")][(value, "out")]["capacity"] = 0
        # Of equal cuts the function takes the one nearest to its second node. Here that is where
        # values come from: a server that rounds all of an update rounds as one program would.
        _, (far, _) = networkx.minimum_cut(flow.reverse(), "to", "from")
        cut = [value for value in seen if (value, "out") in far and (value, "in") not in far]
        order = {value: i for i, value in enumerate(self._in_order())}
        return sorted(cut, key=lambda value: order[value])

    def _own_inputs(self, inside: set[Operand]) -> set[Value]:
        names = frozenset().union(*(self.fresh(value) for value in inside))
        return {value for value, variable in self.variables.items() if variable.name in names}

    def _in_order(self) -> list[Value]:
        return [*self.graph.inputs, *(r for node in self.graph.nodes for r in node.results)]

    def _beyond(self, inside: set[Operand], boundary: Sequence[Value]) -> set[Operand]:
        """Return the values between the boundary and `inside`, which the server computes."""
        found: set[Operand] = set()
        stack = [
            operand
            for value in inside
            if isinstance(value, Value)
            for operand in _values(self.producers[value])
        ]
        while stack:
            value = stack.pop()
            if value in inside or value in found or value in boundary or value in self.variables:
                continue
            found.add(value)
            stack += _values(self.producers[value])
        return found


def _is_elementwise(node: Node) -> bool:
    """Return whether a server can compute the node: element by element, of equal shapes."""
    if len(node.results) != 1 or node.graphs:
        return False
    (result,) = node.results
    if result.type.distribution not in (MIRRORED, None):
        return False
    if node.op.name in _OF_SCALARS:
        return all(not operand.type.shape for operand in node.operands)
    return node.op.name in ELEMENTWISE


def _cost(value: Value) -> int:
    """Return what it costs to send a value: bytes, or next to nothing for a number."""
    return value.type.bytes * _NUMBERS_PER_BYTE if value.type.shape else 1


def _values(node: Node) -> list[Value]:
    return [operand for operand in node.operands if isinstance(operand, Value)]


def colocated(updates: Iterable[ServerUpdate]) -> list[tuple[str, ...]]:
    """Return the variables that must be on one server, group by group."""
    return [
        tuple(dict.fromkeys((*update.assigned, *update.variables)))
        for update in updates
        if len({*update.assigned, *update.variables}) > 1
    ]
