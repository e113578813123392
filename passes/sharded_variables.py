"""Which variables are updated in shards, and why the others are not.

Data-parallel training reduces a gradient to every replica, and every replica then makes the same
update of all parameters and keeps all of the optimizer's state. In shards, a gradient is
reduce_scattered, each replica updates its shard, and the new parameters are gathered: R times fewer
elements are computed, as many bytes are sent, and what only updates read, an optimizer's slots, is
stored in shards between steps. (Xu et al. 2020, "Automatic Cross-Replica Sharding of Weight Update
in Data-Parallel Training"; stage 1 of Rajbhandari et al. 2020, "ZeRO".)

Variables that a strategy stores in shards stay so. Of the others all that are large enough are
tried at once. A variable gains if its new value is computed of shards that a reduce_scatter leaves.
A gradient is reduced in full if more bytes would be sent with it in shards: what is gathered of it,
and the new values of variables that something needs in full. What gains nothing is given up, and
the rest tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from graphdist.ir.analyses import walk
from graphdist.ir.choice_of_storage import dimension_to_shard
from graphdist.ir.definitions import Definitions, ValueKind, definitions
from graphdist.ir.graph import Graph, GraphVariable, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, OWN_SLICE
from graphdist.ir.types import MIRRORED
from graphdist.passes.asked_values import placed_values_of
from graphdist.passes.gathered_values import is_made_in_full
from graphdist.passes.placed_values import PlacedValues, Rules, is_reduced
from graphdist.passes.shard_dimensions import is_scanned

__all__ = ["SHARDING", "Sharding", "reason_of", "rules_of", "sharded_variables"]

_ROUNDS = 16
"""How often variables are given up and the rest tried again, before all are given up."""

_SMALL = 4
"""A quarter more may be sent of a gradient: the state of its update is in shards for it."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Which variables are worth it: at least `smallest` elements; none if `is_on` is False.

    Sums are not taken of shards unless `reduces`: that changes the order of additions.
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


def rules_of(graph: Graph, sharding: Sharding, smallest: int = 0, most_bytes: int = 0) -> Rules:
    """Return the rules of the placement of a graph."""
    copies = max((variable.num_copies for variable in graph.variables), default=1)
    count = graph.num_replicas // copies
    return Rules(count, copies, smallest, most_bytes, sharding.reduces)


def sharded_variables(
    graph: Graph, sharding: Sharding, rules: Rules
) -> tuple[PlacedValues, dict[str, str]]:
    """Return the placement with all variables that gain in shards; and why others are not.

    A variable in shards has the reason "".
    """
    program = definitions(graph)
    inputs = dict(zip((variable.name for variable in graph.variables), graph.inputs, strict=False))
    outputs = dict(zip((variable.name for variable in graph.assigned), graph.outputs, strict=False))
    found = {
        variable.name: _candidate(variable, inputs[variable.name], program, sharding, rules)
        if type(outputs[variable.name]) is Value
        else "it is set to a number"
        for variable in graph.assigned
    }
    reasons = {name: each if isinstance(each, str) else "" for name, each in found.items()}
    dimensions = {name: each for name, each in found.items() if isinstance(each, int)}
    without: dict[Value, str] = {}
    for _ in range(_ROUNDS):
        stages = [list(_of_collectives(graph))]
        for name, dimension in dimensions.items():
            stages.append([(cast(Value, outputs[name]), dimension), (inputs[name], dimension)])
        wanted = frozenset(cast(Value, outputs[name]) for name in dimensions)
        in_shards = frozenset(inputs[name] for name in dimensions)
        placed = placed_values_of(graph, stages, rules, wanted, in_shards, without.keys())
        made_in_full = {
            name: "what it is computed of is there in full"
            for name in dimensions
            if inputs[name] in placed.full and is_made_in_full(outputs[name], placed)
        }
        if made_in_full:
            reasons.update(made_in_full)
            dimensions = {
                name: each for name, each in dimensions.items() if name not in made_in_full
            }
            continue
        dear = dict(_dear(placed))
        if dear:
            without |= dear
            continue
        gaining = _of_gradients(placed)
        beside = _beside(gaining, placed)
        refused = {
            name: _why_not(outputs[name], placed, without)
            for name in dimensions
            if not placed.is_derived(outputs[name])
            or outputs[name] not in (gaining if inputs[name] in placed.full else beside)
        }
        if not refused:
            return placed, reasons
        reasons.update(refused)
        dimensions = {name: each for name, each in dimensions.items() if name not in refused}
    reasons.update(dict.fromkeys(dimensions, f"no agreement after {_ROUNDS} rounds"))
    return placed_values_of(graph, [_of_collectives(graph)], rules), reasons


def _of_collectives(graph: Graph) -> Iterator[tuple[Value, int]]:
    """Yield the values that the program takes shards of, then those that it gathers.

    In this order, what updates a variable is sharded as the variable is stored.
    """
    for node in walk(graph):
        if node.op is OWN_SLICE and type(node.operands[0]) is Value:
            yield node.operands[0], cast(int, node.params["axis"])
    for node in walk(graph):
        if node.op is ALL_GATHER:
            yield node.results[0], cast(int, node.params["axis"])


def _candidate(
    variable: GraphVariable, value: Value, program: Definitions, sharding: Sharding, rules: Rules
) -> int | str | None:
    """Return along which dimension a variable may be sharded, or why not; None if it is already."""
    type_ = variable.type
    if variable.sharded_along is not None:
        return None
    if not sharding.is_on:
        return "shard_update is off"
    if type_.distribution is not MIRRORED:
        return "each replica has its own"
    if variable.num_copies != rules.num_copies:
        return "it is of another strategy"
    if not type_.shape:
        return "it is one number"
    if type_.size < max(sharding.smallest, 1):
        return f"its {type_.size:,} elements are fewer than {sharding.smallest:,}"
    dimension = dimension_to_shard(type_.shape, rules.count, is_scanned=is_scanned(program, value))
    if dimension is None:
        sizes = ", ".join(map(str, type_.shape))
        return f"no dimension of [{sizes}] divides by {rules.count} replicas"
    return dimension


def _dear(placed: PlacedValues) -> Iterator[tuple[Value, str]]:
    """Yield the reduced values with which more is sent in shards than in full, and why.

    What is small beside the value, as the sums of its rows, does not count.
    """
    graph = placed.graph
    stored = dict(zip((v.name for v in graph.variables), graph.inputs, strict=False))
    gathered_at_end = {
        cast(Value, output)
        for variable, output in zip(graph.assigned, graph.outputs, strict=False)
        if output in placed.wanted and stored[variable.name] in placed.full
    }
    for value in placed.derived:
        node = placed.program.of[value].node
        if not is_reduced(node) or value not in placed.shards:
            continue
        if value in placed.gathered:
            # One all_reduce sends as much as a reduce_scatter and an all_gather.
            yield value, _text(placed.because.get(value, ""))
            continue
        behind = _behind([value], placed)
        if any(_is_stored_in_shards(each, placed) for each in behind):
            continue
        at_once = _bytes_per_step(value, placed)
        gathered = [each for each in placed.gathered if each in behind and each.type.shape]
        at_end = [each for each in gathered_at_end if each in behind]
        sent = sum(_bytes_per_step(each, placed) for each in (*gathered, *at_end))
        if sent > at_once + at_once / _SMALL:
            most = max(gathered, key=lambda each: each.type.bytes, default=value)
            yield value, _text(placed.because.get(most, "more is gathered of it than reduced"))


def _bytes_per_step(value: Value, placed: PlacedValues) -> float:
    return value.type.bytes * placed.program.of[value].times


def _of_gradients(placed: PlacedValues) -> set[Operand]:
    """Return the values that are computed of shards which a reduce_scatter leaves."""
    return _behind(
        (
            value
            for value in placed.derived
            if is_reduced(placed.program.of[value].node) and value in placed.shards
        ),
        placed,
    )


def _beside(values: Iterable[Operand], placed: PlacedValues) -> set[Operand]:
    """Return the values that are computed on shards together with some, maybe through others.

    What is only compared with a parameter is stored as the parameter is.
    """

    def following(value: Value) -> Iterator[Operand]:
        for node in placed.program.nodes.get(value, ()):
            yield from (*node.operands, *node.results)

    return placed.spread(values, following)


def _behind(values: Iterable[Operand], placed: PlacedValues) -> set[Operand]:
    """Return the values that are computed of the shards of some, in shards themselves."""
    program = placed.program

    def following(value: Value) -> Iterator[Operand]:
        for node in program.nodes.get(value, ()):
            yield from node.results
        yield from program.children.get(value, ())

    return placed.spread(values, following)


def _is_stored_in_shards(value: Operand, placed: PlacedValues) -> bool:
    nodes = placed.program.nodes.get(value, ()) if type(value) is Value else ()
    return any(node.op is OWN_SLICE for node in nodes)


def _why_not(output: Operand, placed: PlacedValues, without: Mapping[Value, str]) -> str:
    """Return why a new value is not computed of shards: the node in the way, if there is one."""
    why = "no reduced gradient flows into it element by element"
    pending: list[Operand] = [output]
    seen: set[Operand] = set()
    while pending:
        operand = pending.pop()
        if type(operand) is not Value or operand in seen:
            continue
        seen.add(operand)
        definition = placed.program.of[operand]
        node = definition.node
        if operand in without:
            return f"its gradient: {without[operand]}"
        if definition.kind is not ValueKind.COMPUTED or node is None:
            pending += definition.parents
        elif placed.factor(operand) is not None:
            pending += node.operands
        elif (
            operand.type.shape
            and operand.type.distribution is MIRRORED
            and not node.op.is_collective
        ):
            why = f"{node.op.name} at {node.source} is not computed on shards"
    return why


def _text(because: Node | str) -> str:
    return because if isinstance(because, str) else reason_of(because)


def reason_of(node: Node) -> str:
    """Return that a node needs a value in full."""
    return f"{node.op.name} at {node.source} needs all of it"
