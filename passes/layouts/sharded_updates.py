"""Which variables are updated sharded, and why the others are not.

Data-parallel training all_reduces a gradient; then every replica makes the same update of all
parameters, and keeps all of the optimizer's state. In a sharded update the gradient is
reduce_scattered, each replica updates its shard, and the new parameters are gathered. Each of R
replicas computes 1/R of the elements, and sends as many bytes as with an all_reduce. Variables that
only updates read, such as an optimizer's slots, are stored sharded. (Xu et al. 2020, "Automatic
Cross-Replica Sharding of Weight Update in Data-Parallel Training"; stage 1 of Rajbhandari et al.
2020, "ZeRO".)

Variables that a strategy stores sharded stay sharded. At first the update of every other large
variable is sharded. A variable gains if its new value is computed from the shards of a
reduce_scatter. A gradient stays unsharded if its shards would send more bytes: the bytes of the
values computed from it that are gathered, and of the new values that are needed unsharded. The
updates of variables that gain nothing become unsharded, and the analysis is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from graphdist.ir.analyses import walk
from graphdist.ir.definitions import Definitions, ValueKind, definitions
from graphdist.ir.graph import Graph, GraphVariable, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, OWN_SLICE
from graphdist.ir.sharded_parameters import dimension_to_shard
from graphdist.ir.types import MIRRORED
from graphdist.ir.variable_storage import StoredElsewhere
from graphdist.passes.layouts.gather_positions import is_made_unsharded
from graphdist.passes.layouts.placed_values import PlacedValues, Rules, is_full_reduction
from graphdist.passes.layouts.sharding_analysis import analyze_sharding
from graphdist.passes.layouts.sharding_propagation import is_scanned

__all__ = ["UPDATE_SHARDING", "UpdateSharding", "choose_sharded_updates", "rules_of", "text_of"]

_ROUNDS = 16
"""The number of rounds, each with fewer variables, after which all variables stay unsharded."""

_SMALL = 4
"""A sharded gradient may send up to 1/4 more bytes, because it lets slots be sharded."""


@dataclass(frozen=True, slots=True)
class UpdateSharding:
    """Which variables may be updated sharded: those of at least `smallest` elements.

    If `is_on` is False, no variable is. Sums over shards are allowed only if `reduces`, because
    they change the order of additions.
    """

    is_on: bool = True
    smallest: int = 0
    reduces: bool = True


UPDATE_SHARDING = {
    "cpu": UpdateSharding(smallest=2**18),
    "gpu": UpdateSharding(smallest=2**18),
    "tpu": UpdateSharding(smallest=2**18),
}
"""Which variables are updated sharded, by platform."""


def rules_of(
    graph: Graph, sharding: UpdateSharding, smallest: int = 0, most_bytes: int = 0
) -> Rules:
    """Return the rules of the placement of a graph."""
    return Rules(graph.mesh, smallest, most_bytes, sharding.reduces)


def choose_sharded_updates(
    graph: Graph, sharding: UpdateSharding, rules: Rules
) -> tuple[PlacedValues, dict[str, str]]:
    """Return the placement in which all variables that gain are sharded, and a reason for each.

    The reason is why a variable is not sharded; "" for a sharded variable.
    """
    program = definitions(graph)
    inputs = dict(zip((variable.name for variable in graph.variables), graph.inputs, strict=False))
    outputs = dict(zip((variable.name for variable in graph.assigned), graph.outputs, strict=False))
    found = {
        variable.name: _candidate(variable, inputs[variable.name], program, sharding, rules)
        if type(outputs[variable.name]) is Value
        else "it is assigned a literal"
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
        sharded_inputs = frozenset(inputs[name] for name in dimensions)
        placed = analyze_sharding(graph, stages, rules, wanted, sharded_inputs, without.keys())
        made_unsharded = {
            name: "its operands are unsharded in any case"
            for name in dimensions
            if inputs[name] in placed.unsharded and is_made_unsharded(outputs[name], placed)
        }
        if made_unsharded:
            reasons.update(made_unsharded)
            dimensions = {
                name: each for name, each in dimensions.items() if name not in made_unsharded
            }
            continue
        expensive = dict(_expensive(placed))
        if expensive:
            without |= expensive
            continue
        gaining = _of_gradients(placed)
        beside = _beside(gaining, placed)
        refused = {
            name: _why_not(outputs[name], placed, without)
            for name in dimensions
            if not placed.is_derived(outputs[name])
            or outputs[name] not in (gaining if inputs[name] in placed.unsharded else beside)
        }
        if not refused:
            return placed, reasons
        reasons.update(refused)
        dimensions = {name: each for name, each in dimensions.items() if name not in refused}
    reasons.update(dict.fromkeys(dimensions, f"no agreement after {_ROUNDS} rounds"))
    return analyze_sharding(graph, [_of_collectives(graph)], rules), reasons


def _of_collectives(graph: Graph) -> Iterator[tuple[Value, int]]:
    """Yield the values that the program shards, then the values that it gathers.

    In this order the update of a variable is sharded along the dimension of the stored variable.
    """
    for node in walk(graph):
        if node.op is OWN_SLICE and type(node.operands[0]) is Value:
            yield node.operands[0], cast(int, node.params["axis"])
    for node in walk(graph):
        if node.op is ALL_GATHER:
            yield node.results[0], cast(int, node.params["axis"])


def _candidate(
    variable: GraphVariable,
    value: Value,
    program: Definitions,
    sharding: UpdateSharding,
    rules: Rules,
) -> int | str | None:
    """Return a variable's dimension to shard, or why it has none; None if it is sharded already."""
    type_ = variable.type
    if variable.sharded_along is not None:
        return None
    if not sharding.is_on:
        return "shard_update is off"
    if type_.layout is not MIRRORED:
        return "each replica has its own value"
    if isinstance(variable.storage, StoredElsewhere):
        return "another strategy stores it"
    if not type_.shape:
        return "it is a scalar"
    if type_.size < max(sharding.smallest, 1):
        return f"its {type_.size:,} elements are fewer than {sharding.smallest:,}"
    count = rules.mesh.group_size
    dimension = dimension_to_shard(type_.shape, count, is_scanned=is_scanned(program, value))
    if dimension is None:
        sizes = ", ".join(map(str, type_.shape))
        return f"no dimension of [{sizes}] divides by {count} replicas"
    return dimension


def _expensive(placed: PlacedValues) -> Iterator[tuple[Value, str]]:
    """Yield the reductions that would send more bytes sharded than unsharded, and why.

    Up to a quarter more bytes is accepted (`_SMALL`): small values, such as sums of rows, may be
    gathered.
    """
    graph = placed.graph
    stored = dict(zip((v.name for v in graph.variables), graph.inputs, strict=False))
    gathered_at_end = {
        cast(Value, output)
        for variable, output in zip(graph.assigned, graph.outputs, strict=False)
        if output in placed.wanted and stored[variable.name] in placed.unsharded
    }
    for value in placed.derived:
        node = placed.program.of[value].node
        if not is_full_reduction(node) or value not in placed.sharded:
            continue
        if value in placed.gathered:
            # One all_reduce sends as much as a reduce_scatter and an all_gather.
            yield value, text_of(placed.because.get(value, ""))
            continue
        behind = _behind([value], placed)
        if any(_is_stored_sharded(each, placed) for each in behind):
            continue
        at_once = _bytes_per_step(value, placed)
        gathered = [each for each in placed.gathered if each in behind and each.type.shape]
        at_end = [each for each in gathered_at_end if each in behind]
        sent = sum(_bytes_per_step(each, placed) for each in (*gathered, *at_end))
        if sent > at_once + at_once / _SMALL:
            most = max(gathered, key=lambda each: each.type.bytes, default=value)
            yield value, text_of(placed.because.get(most, "more bytes are gathered than reduced"))


def _bytes_per_step(value: Value, placed: PlacedValues) -> float:
    return value.type.bytes * placed.program.of[value].times


def _of_gradients(placed: PlacedValues) -> set[Operand]:
    """Return the values that are computed from the shards of a reduce_scatter."""
    return _behind(
        (
            value
            for value in placed.derived
            if is_full_reduction(placed.program.of[value].node) and value in placed.sharded
        ),
        placed,
    )


def _beside(values: Iterable[Operand], placed: PlacedValues) -> set[Operand]:
    """Return the values that nodes combine on shards with these values, directly or indirectly.

    A variable that is only compared with a parameter is stored like the parameter.
    """

    def following(value: Value) -> Iterator[Operand]:
        for node in placed.program.nodes.get(value, ()):
            yield from (*node.operands, *node.results)

    return placed.spread(values, following)


def _behind(values: Iterable[Operand], placed: PlacedValues) -> set[Operand]:
    """Return the sharded values that are computed from the shards of these values."""
    program = placed.program

    def following(value: Value) -> Iterator[Operand]:
        for node in program.nodes.get(value, ()):
            yield from node.results
        yield from program.children.get(value, ())

    return placed.spread(values, following)


def _is_stored_sharded(value: Operand, placed: PlacedValues) -> bool:
    nodes = placed.program.nodes.get(value, ()) if type(value) is Value else ()
    return any(node.op is OWN_SLICE for node in nodes)


def _why_not(output: Operand, placed: PlacedValues, without: Mapping[Value, str]) -> str:
    """Return why a new value is not computed on shards, with the node that prevents it, if any."""
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
        elif operand.type.shape and operand.type.layout is MIRRORED and not node.op.is_collective:
            why = f"{node.op.name} at {node.source} is not computed on shards"
    return why


def text_of(because: Node | str) -> str:
    """Return the text of a reason, a node or a text, for which a value is unsharded."""
    if isinstance(because, str):
        return because
    return f"{because.op.name} at {because.source} needs the full value"
