"""Which values of a graph are needed whole, and which in slices, one a replica.

The analysis behind `shard_update.py`, which says what it is for. Along which dimension a value is
cut depends on its shape alone, so that all that meet in an update are cut alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from graphdist.ir.analyses import has_effect
from graphdist.ir.elementwise import ELEMENTWISE
from graphdist.ir.graph import Graph, Node, Operand, Value, Variable
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, OWN_SLICE
from graphdist.ir.source import Source
from graphdist.ir.types import MIRRORED

WHOLE, SLICES, EITHER = 1, 2, 4
REDUCERS = {"jax.reduce_sum": "sum", "jax.reduce_max": "max", "jax.reduce_min": "min"}
"""What reduces slices first and then over the replicas, and how."""

_CUT = frozenset({"elementwise", "all_reduce", "gathered", "stored"})
"""Of which kinds a value is made in slices where that is how it is needed."""

_ROUNDS = 16
"""How often variables are given up and the rest asked again, before all are."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Which variables are worth it: of `smallest` elements at least; not any if it is not on.

    Reductions to a scalar are shared out too unless `reduces` is False: it changes the order in
    which they add up.
    """

    is_on: bool = True
    smallest: int = 0
    reduces: bool = True


SHARDING = {
    "cpu": Sharding(smallest=2**18),
    "gpu": Sharding(smallest=2**18),
    "tpu": Sharding(smallest=2**18),
}
"""By platform, what is worth it."""


@cache
def cut_of(shape: tuple[int, ...], num_replicas: int) -> int | None:
    """Return the dimension along which values of a shape are cut; None if none divides.

    The first one if it divides, since slices of rows need no copy; else the longest that does, and
    the last only if no other does: accelerators pad a short last dimension to 128.

    >>> cut_of((8, 3), 4), cut_of((6, 8, 16), 4), cut_of((6, 16), 4), cut_of((6,), 4)
    (0, 1, 1, None)
    """
    divides = [i for i, size in enumerate(shape) if size and size % num_replicas == 0]
    if not divides or divides[0] == 0:
        return 0 if divides else None
    inner = [i for i in divides if i < len(shape) - 1]
    return max(inner or divides, key=lambda i: shape[i])


def kind_of(node: Node, num_replicas: int) -> str:
    """Return in what way a node deals with slices; "" for one that needs wholes."""
    name = node.op.name
    if name in ELEMENTWISE:
        return "elementwise" if _keeps_slices(node, num_replicas) else ""
    if name == "jax.broadcast_in_dim":
        is_scalar = len(node.operands) == 1 and not node.operands[0].type.shape
        return "broadcast" if is_scalar else ""
    if name in REDUCERS:
        return "reduction" if not node.results[0].type.shape else ""
    if node.op is ALL_REDUCE:
        return "all_reduce" if node.params["reducer"] in ("sum", "mean") else ""
    if node.op is ALL_GATHER:
        return "gathered" if _is_own_cut(node, node.results[0], num_replicas) else ""
    if node.op is OWN_SLICE:
        return "sliced" if _is_own_cut(node, node.operands[0], num_replicas) else ""
    return ""


def _is_own_cut(node: Node, whole: Operand, num_replicas: int) -> bool:
    axis = node.params["axis"]
    slice = node.operands[0] if node.op is ALL_GATHER else node.results[0]
    distribution = slice.type.distribution
    is_slice = distribution is not None and distribution.dimension == axis
    return is_slice and cut_of(whole.type.shape, num_replicas) == axis


def _keeps_slices(node: Node, num_replicas: int) -> bool:
    """Return whether a slice of the result takes slices, cut alike, and what all slices share."""
    result = node.results[0]
    shape, cut = result.type.shape, cut_of(result.type.shape, num_replicas)
    return bool(shape) and all(
        operand.type.shape == shape
        or is_shared(operand, result, num_replicas)
        or (cut is not None and cut_of(operand.type.shape, num_replicas) == cut)
        for operand in node.operands
    )


def is_shared(operand: Operand, result: Value, num_replicas: int) -> bool:
    """Return whether every slice of a result takes all of an operand: it has one element there."""
    if not operand.type.shape:
        return True
    cut = cut_of(result.type.shape, num_replicas)
    return cut is not None and operand.type.shape[cut] == 1


@dataclass
class Needs:
    """How each value is needed when the variables `wanted` are updated in slices."""

    graph: Graph
    wanted: frozenset[str]
    reduces: bool
    flags: dict[Operand, int] = field(default_factory=dict)
    because: dict[Operand, Node | str] = field(default_factory=dict)
    """What needs a value whole, a node or in words."""
    sources: dict[Operand, Source] = field(default_factory=dict)
    kinds: dict[Operand, str] = field(default_factory=dict)
    """In what way what makes a value deals with slices; "stored" for a variable that is cut."""

    def __post_init__(self) -> None:
        """Ask, from the outputs backwards."""
        graph = self.graph
        count = len(graph.assigned)
        for variable, output in zip(graph.assigned, graph.outputs, strict=False):
            is_slice = output.type.shape != variable.type.shape  # cut already
            is_cuttable = not is_slice and _is_cuttable(output, graph.num_replicas)
            if variable.name in self.wanted and is_cuttable:
                self._need(output, SLICES)
            else:
                self._need(output, WHOLE, f"variable {variable.name!r} is stored whole")
        for output in graph.outputs[count:]:
            self._need(output, WHOLE, "the function returns it")
        for node in reversed(graph.nodes):
            self._ask(node)
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

    def _need(self, operand: Operand, flags: int, because: Node | str = "") -> None:
        if type(operand) is Value:
            self.flags[operand] = self.flags.get(operand, 0) | flags
            if flags & WHOLE and operand not in self.because:
                self.because[operand] = because

    def _ask(self, node: Node) -> None:
        if not self.of_node(node):
            return
        num_replicas = self.graph.num_replicas
        kind = kind_of(node, num_replicas)
        result = node.results[0] if len(node.results) == 1 else None
        self.sources.update(dict.fromkeys(node.results, node.source))
        self.kinds.update(dict.fromkeys(node.results, kind))
        because: Node | str = node
        flags = WHOLE
        if result is not None:
            of_result = self.flags.get(result, 0)
            if kind == "elementwise":
                flags = of_result if not of_result & WHOLE else WHOLE
                because = self.because.get(result, because)
            elif kind == "reduction" and self.reduces:
                flags = EITHER
            elif kind == "sliced":
                flags = SLICES
        for operand in node.operands:
            self.sources.setdefault(operand, node.source)
            is_cut = _is_cuttable(operand, num_replicas)
            if kind == "elementwise" and is_shared(operand, node.results[0], num_replicas):
                is_cut = False
            self._need(operand, flags if is_cut else WHOLE, because)

    def _settle(self) -> None:
        """Cut what may be either way where it meets a slice, as operand or as result.

        Both ways, from value to value: what is left whole then shares no operation with a slice,
        so that nothing is computed whole and cut afterwards.
        """
        meets: dict[Operand, list[Operand]] = {}
        for node in self.graph.nodes:
            for result in node.results:
                if self.flags.get(result) == EITHER and self.kinds[result] == "elementwise":
                    meets.setdefault(result, []).extend(node.operands)
                    for operand in node.operands:
                        meets.setdefault(operand, []).append(result)
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


def _is_cuttable(operand: Operand, num_replicas: int) -> bool:
    type = operand.type
    return type.distribution is MIRRORED and cut_of(type.shape, num_replicas) is not None


def wanted_in_slices(graph: Graph, sharding: Sharding) -> tuple[Needs | None, dict[str, str]]:
    """Return what is needed when all variables that gain are in slices, and why others are not.

    None if there is none that gains.
    """
    reasons = {
        variable.name: _refusal(variable, graph.num_replicas, sharding)
        for variable in graph.assigned
    }
    for _ in range(_ROUNDS):
        wanted = frozenset(name for name, reason in reasons.items() if not reason)
        if not wanted:
            return None, reasons
        needs = Needs(graph, wanted, sharding.reduces)
        refused = _without_gain(graph, needs)
        if not refused:
            return needs, reasons
        reasons.update(refused)
    return None, dict.fromkeys(reasons, f"no agreement after {_ROUNDS} rounds")


def _refusal(variable: Variable, num_replicas: int, sharding: Sharding) -> str:
    if variable.sharded_along is not None:
        return ""
    type = variable.type
    if not sharding.is_on:
        return "shard_update is off"
    if type.distribution is not MIRRORED:
        return "each replica has its own"
    if not type.shape:
        return "it is one number"
    if type.size < max(sharding.smallest, 1):
        return f"its {type.size:,} elements are fewer than {sharding.smallest:,}"
    if cut_of(type.shape, num_replicas) is None:
        sizes = ", ".join(map(str, type.shape))
        return f"no dimension of [{sizes}] divides by {num_replicas} replicas"
    return ""


def _without_gain(graph: Graph, needs: Needs) -> dict[str, str]:
    """Return the variables into whose slices no reduce_scatter flows, with the reason."""
    scattered = _scattered(graph, needs)
    refused = {}
    made_by: dict[Operand, Node] = {result: node for node in graph.nodes for result in node.results}
    for variable, output in zip(graph.assigned, graph.outputs, strict=False):
        is_cut = variable.sharded_along is not None or output in scattered
        if variable.name in needs.wanted and not is_cut:
            refused[variable.name] = _why_not(output, needs, made_by)
    return refused


def _scattered(graph: Graph, needs: Needs) -> set[Operand]:
    """Return the values made in slices from what a reduce_scatter or a stored slice gave."""
    scattered: set[Operand] = set()
    for node in graph.nodes:
        result = node.results[0] if len(node.results) == 1 else None
        if result is None or not needs.in_slices(result):
            continue
        kind = kind_of(node, graph.num_replicas)
        if kind in ("all_reduce", "gathered") or (
            kind == "elementwise" and not scattered.isdisjoint(node.operands)
        ):
            scattered.add(result)
    return scattered


def _why_not(output: Operand, needs: Needs, made_by: dict[Operand, Node]) -> str:
    """Return why no reduce_scatter flows into an output: what is in its way, or that none is."""
    pending: list[Operand] = [output]
    seen: set[Operand] = set()
    found = "no reduced gradient flows into it element by element"
    while pending:
        value = pending.pop()
        node = made_by.get(value)
        if value in seen or node is None:
            continue
        seen.add(value)
        kind = kind_of(node, needs.graph.num_replicas)
        if needs.is_whole(value) and (kind == "all_reduce" or value is output):
            return f"{'its gradient' if kind == 'all_reduce' else 'it'}: {needs.why_whole(value)}"
        if kind == "elementwise":
            pending.extend(node.operands)
        elif not kind and value.type.shape:
            found = f"{node.op.name} at {node.source} is not computed slice by slice"
    return found
