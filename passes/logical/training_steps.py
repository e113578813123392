"""Find what makes a graph a training step: the reductions of gradients, and the parameters.

This is the analysis of the pass `local_steps.py`, whose docstring has the rules.

A mean of gathered gradients, all_gather(g).mean(0), is a reduction, too: a sum along the dimension
in which values are joined is the sum over the replicas of each replica's own sum. So
`reduced_sums_of_gathers` replaces such sums before the analysis.

Before:  %all = all_gather(%g) {axis=0}   %s = jax.reduce_sum(%all) {axes=(0,)}
After:   %own = jax.reduce_sum(%g) {axes=(0,)}   %s = all_reduce(%own) {reducer="sum"}

A conversion in between, as in a mean of bfloat16, is applied before the reduction. Left alone:
gathers whose values have other uses, and sums that are not along the joined dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphdist.ir.analyses import walk
from graphdist.ir.flow import computed_of, reachable, uses
from graphdist.ir.graph import Graph, GraphVariable, Node, Op, Operands, Value
from graphdist.ir.jax_parameters import parameter
from graphdist.ir.op_parameters import AlongAxis, Reducing
from graphdist.ir.ops import (
    AGGREGATE,
    ALL_GATHER,
    ALL_REDUCE,
    ASSIGN,
    COND,
    GATHER,
    READ,
    REDUCE,
    reducer_of,
    variable_named_by,
)
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.ir.source import Source
from graphdist.ir.types import MIRRORED, is_inexact
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code

OF_GATHERS = (
    ': write all_reduce("MEAN", x) for the mean of what is gathered, all_reduce("SUM", x) for its '
    "sum"
)
"""The hint for a gather whose values are averaged or added up."""

_REDUCTIONS: dict[Op, Op] = {GATHER: REDUCE, ALL_GATHER: ALL_REDUCE}
_CONVERT, _SUM = "jax.convert_element_type", "jax.reduce_sum"


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """The parts of a training step that the pass needs."""

    removed: frozenset[Node]
    """The reductions whose operand replaces their result."""
    redundant: frozenset[Node]
    """The sums and means of values that were mirrored, and may differ between replicas now."""
    parameters: tuple[str, ...]
    """The names of the variables that are synchronized."""
    bodies: frozenset[Graph]
    """The graphs that run once in each step, and assign the parameters."""
    source: Source
    """The user's line of the first removed reduction."""


def find_step(graph: Graph) -> TrainingStep | None:
    """Return the training step of a logical graph; None if it has none."""
    assignments = [
        node for node in walk(graph) if node.op is ASSIGN and is_mirrored(variable_named_by(node))
    ]
    needed = reachable(computed_of(graph), assignments)
    reductions = [
        node
        for node in walk(graph)
        if reducer_in_step(node) in ("sum", "mean") and is_inexact(node.operands[0].type.dtype)
        if not needed.isdisjoint(node.results)
    ]
    is_one = graph.num_replicas == 1
    removed = [
        node for node in reductions if is_one or node.operands[0].type.layout is not MIRRORED
    ]
    reduced = [operand for node in removed for operand in node.operands]
    before = reachable(computed_of(graph), [value for value in reduced if isinstance(value, Value)])
    assigned = {variable_named_by(node).name for node in assignments}
    read = (variable_named_by(node) for node in _reads(graph) if node.results[0] in before)
    parameters = dict.fromkeys(variable.name for variable in read if variable.name in assigned)
    if not parameters:
        return None
    updates = {node for node in assignments if variable_named_by(node).name in parameters}
    bodies = frozenset(_bodies(graph, updates))
    redundant = frozenset(reductions).difference(removed)
    return TrainingStep(frozenset(removed), redundant, tuple(parameters), bodies, removed[0].source)


def gathered_updates(graph: Graph) -> list[Node]:
    """Return the gathers whose values update parameters, if the graph reduces nothing.

    Such a graph is no training step, though a mean over the gathered values would make it one.
    """
    if graph.num_replicas == 1 or find_step(graph) is not None:
        return []
    updates = [
        node for node in walk(graph) if node.op is ASSIGN and _is_parameter(variable_named_by(node))
    ]
    needed = reachable(computed_of(graph), updates)
    computed = reachable(uses(graph), [node.results[0] for node in _reads(graph)])
    return [
        node
        for node in walk(graph)
        if node.op in (GATHER, ALL_GATHER) and is_inexact(node.results[0].type.dtype)
        if node.results[0] in needed and node.results[0] in computed
    ]


def _reads(graph: Graph) -> list[Node]:
    """Return the nodes that read a mirrored trainable variable of floats."""
    reads = (node for node in walk(graph) if node.op is READ)
    return [node for node in reads if _is_parameter(variable_named_by(node))]


def is_mirrored(variable: GraphVariable) -> bool:
    """Return whether a variable of the user has one value for all replicas."""
    return variable.type.layout is MIRRORED and not variable.is_local


def _is_parameter(variable: GraphVariable) -> bool:
    return variable.trainable and is_mirrored(variable) and is_inexact(variable.type.dtype)


def reducer_in_step(node: Node) -> str:
    """Return the reducer of a reduction over the replicas, or of values written to a variable."""
    if node.op is AGGREGATE and is_mirrored(variable_named_by(node)):
        is_of_replicas = AGGREGATE.of(node).context == "replica"
        return variable_named_by(node).aggregation if is_of_replicas else "none"
    return reducer_of(node) if node.op in (ALL_REDUCE, REDUCE) else ""


def why_kept(node: Node) -> str:
    """Return why a collective of a training step still runs in every step."""
    if node.op not in (ALL_REDUCE, REDUCE):
        return f"only sums and means are made local{OF_GATHERS * (node.op in (GATHER, ALL_GATHER))}"
    if reducer_of(node) not in ("sum", "mean"):
        return f"a {reducer_of(node)} is not made local"
    if not is_inexact(node.operands[0].type.dtype):
        return "reductions of integers are not made local"
    return "no assigned variable depends on it"


def _bodies(graph: Graph, updates: set[Node]) -> Iterator[Graph]:
    """Yield the outermost bodies of loops that assign parameters, or `graph` if it assigns them.

    A branch belongs to the body that contains it.
    """
    if any(_assigns(node, updates) for node in graph.nodes):
        yield graph
        return
    for node in graph.nodes:
        for nested in node.graphs:
            yield from _bodies(nested, updates)


def _assigns(node: Node, updates: set[Node]) -> bool:
    """Return whether a node is in `updates`, or is a `cond` with an update outside any loop."""
    if node.op is not COND:
        return node in updates
    return any(_assigns(inner, updates) for branch in node.graphs for inner in branch.nodes)


def reduced_sums_of_gathers(graph: Graph) -> Graph:
    """Return the graph with reductions in place of gathers whose values are only added up."""
    made = rewrite(graph, _reduced, "local_steps", {_SUM})
    return graph if made is graph else eliminate_dead_code(made)


def _reduced(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    conversion = rewriter.definition(operands[0], _CONVERT)
    gathered = operands[0] if conversion is None else conversion.operands[0]
    gather = rewriter.definition(gathered, GATHER.name, ALL_GATHER.name)
    if gather is None or rewriter.uses(gathered) > 1 or rewriter.uses(operands[0]) > 1:
        return None
    params = AlongAxis.of(gather)
    if params.axis not in parameter(node, "axes"):
        return None
    own: Operands = gather.operands
    if conversion is not None:
        own = rewriter.again(conversion, own, [operands[0].type.shaped(own[0].type.shape)])
    own = rewriter.again(node, own)
    total = Reducing("sum", group_size=params.group_size)
    return rewriter.add(_REDUCTIONS[gather.op], own, total, at=gather.source)
