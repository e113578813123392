"""Find carries of a loop that become a linear combination of themselves and of reductions.

A running mean, `mean + (g - mean) / (i + 1)`, and an average that decays, `0.9 * mean + 0.1 * g`,
read their carry more than once, or scale it. Where every operation from the carry and from the
reductions to the carry's next value is linear in these together, each replica can combine its own
values, and the last carry is reduced (`hoist_accumulation.py`). A mean leaves alone what all
replicas add alike; a sum would add it up, so that with sums nothing else may be added.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from graphdist.ir.analyses import producers, use_counts
from graphdist.ir.flow import computed_of, reachable, uses
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.loops import Carry
from graphdist.ir.operation_table import row_of
from graphdist.ir.types import MIRRORED
from graphdist.passes.linear_chains import is_linear_reduction, keeps_dtype

_DTYPES = ("bf16", "f32", "f64")


@dataclass(frozen=True)
class RunningMean:
    """A carry that is combined linearly with reductions, whose operands may take their place."""

    carry: Carry
    reductions: tuple[Node, ...]

    @property
    def reduction(self) -> Node:
        """Return one of the reductions: all are of one kind."""
        return self.reductions[0]


def running_mean(body: Graph, carry: Carry) -> RunningMean | None:
    """Return how a carry is combined in a loop's body; None if it is otherwise."""
    old, new = carry.value, carry.following
    is_one_value = old.type.distribution is MIRRORED
    if type(new) is not Value or not is_one_value or old.type.dtype not in _DTYPES:
        return None
    varying = reachable(uses(body), [old, *_reduced(body)])
    found = _between(body, new, old, varying)
    if found is None:
        return None
    nodes, reductions = found
    if not reductions or any(made.params != reductions[0].params for made in reductions):
        return None
    reduced = [made.operands[0] for made in reductions]
    if old in reachable(computed_of(body), [value for value in reduced if type(value) is Value]):
        return None  # a gradient of the carry, as in training steps
    adds_alone = reductions[0].params["reducer"] == "mean"
    if not all(_is_linear(node, varying, adds_alone) for node in nodes):
        return None
    inside = Counter(
        operand for node in nodes for operand in node.operands if type(operand) is Value
    )
    inside[new] += 1
    own = [old, *(value for node in (*nodes, *reductions) for value in node.results)]
    counts = use_counts(body)
    if any(counts[value] != inside[value] for value in own):
        return None  # something else needs a value on the way
    return RunningMean(carry, tuple(reductions))


def _reduced(body: Graph) -> list[Value]:
    return [node.results[0] for node in body.nodes if is_linear_reduction(node)]


def _between(
    body: Graph, new: Value, carry: Value, varying: set[Value | Node]
) -> tuple[list[Node], list[Node]] | None:
    """Return the operations from a carry and reductions to its next value, and the reductions."""
    made_by, seen = producers(body), set[Node]()
    nodes, reductions, pending = list[Node](), list[Node](), [new]
    while pending:
        value = pending.pop()
        node = made_by.get(value)
        if value is carry or node in seen:
            continue
        if node is None:
            return None  # another carry
        seen.add(node)
        if is_linear_reduction(node):
            reductions.append(node)
            continue
        nodes.append(node)
        values = [operand for operand in node.operands if type(operand) is Value]
        pending += [value for value in values if value in varying]
    return nodes, reductions


def _is_linear(node: Node, varying: set[Value | Node], adds_alone: bool) -> bool:
    """Return whether a node is linear in its varying operands together."""
    row, result = row_of(node), node.results[0].type
    values = [(i, operand) for i, operand in enumerate(node.operands) if type(operand) is Value]
    places = {i for i, value in values if value in varying}
    if len(node.results) != 1 or result.distribution is not MIRRORED or result.dtype not in _DTYPES:
        return False
    if node.op.name == "jax.convert_element_type":
        return node.operands[0].type.dtype == "bf16"
    if row is None or not keeps_dtype(node):
        return False
    return any(
        places == set(together) or (adds_alone and places < set(together))
        for together in row.linear_in(node)
    )
