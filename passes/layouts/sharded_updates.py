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

A table that gradient descent moves by the rows that were looked up is updated unsharded: the rows
are sent (`lookups_on_shards`) and added (`add_rows_to_tables`), and the table is not gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from graphdist.ir.analyses import producer_of, walk
from graphdist.ir.definitions import ValueKind, definitions
from graphdist.ir.graph import Graph, GraphVariable, Operand, Value
from graphdist.ir.ops import ALL_GATHER, OWN_SLICE
from graphdist.ir.sharded_parameters import dimension_to_shard
from graphdist.ir.types import MIRRORED
from graphdist.ir.variable_storage import StoredElsewhere
from graphdist.passes.layouts.add_rows_to_tables import ADDITIONS, multiplied_by_number
from graphdist.passes.layouts.gather_positions import is_made_unsharded
from graphdist.passes.layouts.lookups_on_shards import LookupsOnShards
from graphdist.passes.layouts.placed_values import (
    PlacedValues,
    Rules,
    is_full_reduction,
    text_of,
)
from graphdist.passes.layouts.sharding_analysis import analyze_sharding
from graphdist.passes.layouts.sharding_propagation import is_scanned

_ROUNDS = 16
"""The number of rounds, each with fewer variables, after which all variables stay unsharded."""

_SMALL = 4
"""A sharded gradient may send up to 1/4 more bytes, because it lets slots be sharded."""


@dataclass(frozen=True, slots=True)
class UpdateSharding:
    """Which variables may be updated sharded: those of at least `smallest` elements.

    If `is_on` is False, no variable is. Sums over shards are allowed only if `reduces`, because
    they change the order of additions. `lookups` is the pass that sends rows of tables, if any.
    """

    is_on: bool = True
    smallest: int = 0
    reduces: bool = True
    lookups: LookupsOnShards | None = None


UPDATE_SHARDING = dict.fromkeys(("cpu", "gpu", "tpu"), UpdateSharding(smallest=2**18))
"""Which variables are updated sharded, by platform."""


def choose_sharded_updates(
    graph: Graph, sharding: UpdateSharding, smallest: int = 0, most_bytes: int = 0
) -> tuple[PlacedValues, dict[str, str]]:
    """Return the placement in which all variables that gain are sharded, and a reason for each.

    The reason is why a variable is not sharded; "" for a sharded variable. `Rules` describes
    `smallest` and `most_bytes`.
    """
    rules = Rules(graph.mesh, smallest, most_bytes, sharding.reduces)
    inputs, new = graph.variable_inputs, graph.variable_outputs
    outputs = {name: output for name, output in new.items() if type(output) is Value}
    found = {
        variable.name: _candidate(variable, inputs[variable.name], graph, sharding)
        if variable.name in outputs
        else "it is assigned a literal"
        for variable in graph.assigned
    }
    reasons = {name: each if isinstance(each, str) else "" for name, each in found.items()}
    dimensions = {name: each for name, each in found.items() if isinstance(each, int)}
    without: dict[Value, str] = {}
    for _ in range(_ROUNDS):
        stages = [list(_of_collectives(graph))]
        stages += [[(outputs[name], at), (inputs[name], at)] for name, at in dimensions.items()]
        wanted = frozenset(outputs[name] for name in dimensions)
        sharded_inputs = frozenset(inputs[name] for name in dimensions)
        placed = analyze_sharding(graph, stages, rules, wanted, sharded_inputs, without.keys())
        refused = {
            name: "its operands are unsharded in any case"
            for name in dimensions
            if inputs[name] in placed.unsharded and is_made_unsharded(outputs[name], placed)
        }
        if not refused:
            expensive = dict(_expensive(placed))
            if expensive:
                without |= expensive
                continue
            gaining = _behind(_scattered(placed), placed)
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
            yield node.operands[0], OWN_SLICE.of(node).axis
    for node in walk(graph):
        if node.op is ALL_GATHER:
            yield node.results[0], ALL_GATHER.of(node).axis


def _candidate(
    variable: GraphVariable, value: Value, graph: Graph, sharding: UpdateSharding
) -> int | str:
    """Return a variable's dimension to shard, or why it has none; "" if it is sharded already."""
    type_ = variable.type
    if variable.sharded_along is not None:
        return ""
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
    count, is_of_layers = graph.mesh.group_size, is_scanned(definitions(graph), value)
    dimension = dimension_to_shard(type_.shape, count, is_scanned=is_of_layers)
    if dimension is None:
        sizes = ", ".join(map(str, type_.shape))
        return f"no dimension of [{sizes}] divides by {count} replicas"
    if sharding.lookups is not None and _moves_rows(variable, graph, sharding.lookups):
        return "only the rows that were looked up move, and these are sent"
    return dimension


def _moves_rows(variable: GraphVariable, graph: Graph, lookups: LookupsOnShards) -> bool:
    """Return whether a variable's new value is the old one and reduced rows times a number."""
    addition = producer_of(graph.variable_outputs[variable.name], graph)
    if addition is None or addition.op.name not in ADDITIONS:
        return False
    old = graph.variable_inputs[variable.name]
    moves = [each for each in addition.operands if each is not old]
    made = producer_of(moves[0], graph) if len(moves) == 1 else None
    while made is not None and not is_full_reduction(made):
        multiplied = multiplied_by_number(made)
        made = None if multiplied is None else producer_of(multiplied, graph)
    return made is not None and lookups.sends_rows(made, graph)


def _scattered(placed: PlacedValues) -> Iterator[Value]:
    """Yield the results of reductions whose shards are computed by reduce_scatters."""
    for value in placed.derived:
        if value in placed.sharded and is_full_reduction(placed.program.of[value].node):
            yield value


def _expensive(placed: PlacedValues) -> Iterator[tuple[Value, str]]:
    """Yield the reductions that would send more bytes sharded than unsharded, and why.

    Up to a quarter more bytes is accepted (`_SMALL`): small values, such as sums of rows, may be
    gathered.
    """
    graph, nodes = placed.graph, placed.program.nodes
    stored = graph.variable_inputs
    gathered_at_end = [
        output
        for name, output in graph.variable_outputs.items()
        if output in placed.wanted and stored[name] in placed.unsharded
    ]
    gathered_in_order = [value for value in placed.derived if value in placed.gathered]
    for value in _scattered(placed):
        if value in placed.gathered:
            # One all_reduce sends as much as a reduce_scatter and an all_gather.
            yield value, text_of(placed.because.get(value, ""))
            continue
        behind = _behind([value], placed)
        if any(node.op is OWN_SLICE for each in behind for node in nodes.get(each, ())):
            continue  # it is stored sharded
        at_once = _bytes_per_step(value, placed)
        gathered = [each for each in gathered_in_order if each in behind and each.type.shape]
        at_end = [each for each in gathered_at_end if each in behind]
        sent = sum(_bytes_per_step(each, placed) for each in (*gathered, *at_end))
        if sent > at_once + at_once / _SMALL:
            most = max(gathered, key=lambda each: each.type.bytes, default=value)
            yield value, text_of(placed.because.get(most, "more bytes are gathered than reduced"))


def _bytes_per_step(value: Value, placed: PlacedValues) -> float:
    return value.type.bytes * placed.program.of[value].times


def _beside(values: Iterable[Value], placed: PlacedValues) -> set[Value]:
    """Return the values that nodes combine on shards with these values, directly or indirectly.

    A variable that is only compared with a parameter is stored like the parameter.
    """

    def following(value: Value) -> Iterator[Operand]:
        for node in placed.program.nodes.get(value, ()):
            yield from (*node.operands, *node.results)

    return placed.spread(values, following)


def _behind(values: Iterable[Value], placed: PlacedValues) -> set[Value]:
    """Return the sharded values that are computed from the shards of these values."""
    children = placed.program.children
    return placed.spread(values, lambda v: chain(placed.results_of(v), children.get(v, ())))


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
        if operand in without:
            return f"its gradient: {without[operand]}"
        definition = placed.program.of[operand]
        node = definition.node if definition.kind is ValueKind.COMPUTED else None
        if node is None or placed.factor(operand) is not None:
            pending += definition.parents
        elif operand.type.shape and operand.type.layout is MIRRORED and not node.op.is_collective:
            why = f"{node.op.name} at {node.source} is not computed on shards"
    return why
