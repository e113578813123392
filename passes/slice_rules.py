"""What each operation does with slices: one rule for each kind of operation, and the table of them.

A rule says three things about an operation.

* `need`: how an operand is needed, given how the result is: in full, in slices, or either way.
* `slice`: how a replica makes its slice of the result, if only slices of the result are needed.
* `results`: how a replica makes the full results, possibly from slices of the operands.

To add an operation, write a line in `RULES`, and a rule if none of these fits. An operation that is
not in the table takes its operands in full and gives its results in full (`UNSLICED`), which is
always right. `slices.py` asks the rules from the outputs backwards, and `shard_update.py` builds
the graph with them. Both follow the branches of a `cond` themselves: its rule says that they may.

A slice that is stored in a variable must be typed as one. The type of one of JAX's operations says
so if `graphdist.ir.operation_table` has the operation; without that its slices can be reduced, and
combined with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Protocol, cast

from graphdist.ir.analyses import producers
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, COND, OWN_SLICE, REDUCE_SCATTER, is_over_all
from graphdist.ir.types import MIRRORED, Type, sharded
from graphdist.passes.cuts import Cuts


class Need(IntEnum):
    """How a value is needed. Where several operations need it, the greatest need counts."""

    NOTHING = 0
    EITHER = 1
    """In full or in slices, in whichever form it is made."""
    SLICES = 2
    FULL = 3


class Forms(Protocol):
    """The graph that is built, and the forms in which it has the values of the old one."""

    @property
    def builder(self) -> Builder:
        """The builder of the new graph."""

    @property
    def cuts(self) -> Cuts:
        """How values are cut."""

    def full(self, operand: Operand) -> Operand:
        """Return all of a value."""

    def slice(self, operand: Operand) -> Operand:
        """Return a replica's slice of a value."""

    def has_slice(self, operand: Operand) -> bool:
        """Return whether a slice is there, or can be made without the full value."""

    def keep_slice(self, operand: Operand, slice: Operand) -> None:
        """Remember a slice of a value that is there in full, too."""

    def reduced(self, node: Node) -> tuple[Operand, ...] | None:
        """Return what a reduction may take in slices; None if it may not."""

    def is_cut(self, operand: Operand) -> bool:
        """Return whether a value is made in slices, and never in full."""


class SliceRule:
    """What an operation does with slices; this rule: nothing. Operands and results are in full."""

    hands_on = False
    """Whether slices of the result are made of slices of operands, which are needed as it is."""
    starts_slices = False
    """Whether slices begin here: a collective gives them."""
    has_slices = False
    """Whether slices are there at no cost: they are taken where either form will do."""
    reduces = False
    """Whether it makes a number of the operands, in either form."""
    on_demand = False
    """Whether the result costs little enough to be made in the form, and where, it is needed."""
    reorders = False
    """Whether numbers are added up in another order in slices, which may round them otherwise."""

    @property
    def gives_slices(self) -> bool:
        """Whether the result is never made in full where only slices are needed."""
        return self.hands_on or self.starts_slices or self.has_slices

    def applies(self, node: Node, cuts: Cuts) -> bool:
        """Return whether the rule holds for a node of an operation that it stands for."""
        return True

    def need(self, node: Node, operand: Operand, of_result: Need, cuts: Cuts) -> Need:
        """Return how an operand that can be cut is needed, if the result is needed like that."""
        return Need.FULL

    def operands(self, node: Node, graph: Graph, cuts: Cuts) -> tuple[Operand, ...]:
        """Return what the node takes if it takes slices."""
        return node.operands

    def cut_alike(
        self, node: Node, operands: Sequence[Operand]
    ) -> Iterator[tuple[Operand, Operand]]:
        """Yield pairs of the values of a node of which both are cut, or none should be."""
        return iter(())

    def slice(self, node: Node, forms: Forms) -> Operand:
        """Add what makes a replica's slice of the result."""
        raise NotImplementedError

    def results(self, node: Node, forms: Forms) -> Sequence[Operand]:
        """Add what makes all of the results."""
        return forms.builder.keep(node, tuple(map(forms.full, node.operands)), node.graphs)


class Elementwise(SliceRule):
    """A slice of the result is made of slices of the operands; of numbers, all slices take all."""

    hands_on = True

    def applies(self, node: Node, cuts: Cuts) -> bool:
        """Return whether each operand is cut like the result, or each slice takes all of it."""
        result = node.results[0]
        shape, cut = result.type.shape, cuts.of(result.type.shape)
        return bool(shape) and all(
            operand.type.shape == shape
            or cuts.is_shared(operand, result)
            or (cut is not None and cuts.of(operand.type.shape) == cut)
            for operand in node.operands
        )

    def need(self, node: Node, operand: Operand, of_result: Need, cuts: Cuts) -> Need:
        """Hand on how the result is needed."""
        return Need.FULL if cuts.is_shared(operand, node.results[0]) else of_result

    def cut_alike(
        self, node: Node, operands: Sequence[Operand]
    ) -> Iterator[tuple[Operand, Operand]]:
        """Pair the result with each operand."""
        for operand in operands:
            if type(operand) is Value:  # literals are slow to hash
                yield node.results[0], operand

    def slice(self, node: Node, forms: Forms) -> Operand:
        """Do the same with slices."""
        result, cuts = node.results[0], forms.cuts
        operands = [
            (forms.full if cuts.is_shared(operand, result) else forms.slice)(operand)
            for operand in node.operands
        ]
        return _again(node, operands, node.params, cuts.slice_type(result.type), forms)


class Broadcast(SliceRule):
    """A number broadcast to a slice is the slice of what it is broadcast to."""

    on_demand = True

    def applies(self, node: Node, cuts: Cuts) -> bool:
        """Return whether a number is broadcast."""
        return len(node.operands) == 1 and not node.operands[0].type.shape

    def slice(self, node: Node, forms: Forms) -> Operand:
        """Broadcast the number to the shape of a slice."""
        type = forms.cuts.slice_type(node.results[0].type)
        operands = tuple(map(forms.full, node.operands))
        return _again(node, operands, {**node.params, "shape": type.shape}, type, forms)


class Reduction(SliceRule):
    """All of the operands is reduced to a number: a slice first, then over the replicas."""

    reduces = True

    def __init__(self, reducer: str) -> None:
        """Reduce over the replicas by `reducer`."""
        self.reducer = reducer
        self.reorders = reducer == "sum"

    def applies(self, node: Node, cuts: Cuts) -> bool:
        """Return whether the result is a number, made of operands that are cut alike."""
        if node.results[0].type.shape:
            return False
        first = node.operands[0].type
        if node.op.name in ("jax.reduce_and", "jax.reduce_or"):
            return first.dtype == "bool"  # of integers they are of each bit
        return node.op.name != "jax.dot_general" or _is_sum_of_products(node)

    def need(self, node: Node, operand: Operand, of_result: Need, cuts: Cuts) -> Need:
        """Take whatever form it is made in."""
        return Need.EITHER

    def operands(self, node: Node, graph: Graph, cuts: Cuts) -> tuple[Operand, ...]:
        """Return the operands, or the values that these are flattened forms of.

        `jnp.vdot` flattens both factors, which may be cut along another dimension than what they
        are made of; a sum of products takes them as they were.
        """
        operands = node.operands
        if len(operands) == 1 or len(operands[0].type.shape) > 1:
            return operands
        makers = [producers(graph).get(cast(Value, operand)) for operand in operands]
        flattened = [
            maker.operands[0]
            for maker in makers
            if maker is not None
            and maker.op.name == "jax.reshape"
            and maker.params.get("dimensions") is None
            and cuts.is_cuttable(maker.operands[0])
        ]
        is_alike = len({operand.type.shape for operand in flattened}) == 1
        return tuple(flattened) if len(flattened) == len(operands) and is_alike else operands

    def cut_alike(
        self, node: Node, operands: Sequence[Operand]
    ) -> Iterator[tuple[Operand, Operand]]:
        """Pair the factors of a sum of products."""
        if len(operands) == 2:
            yield operands[0], operands[1]

    def results(self, node: Node, forms: Forms) -> Sequence[Operand]:
        """Reduce a replica's slice, then what the replicas have of it; or all there is."""
        operands = forms.reduced(node)
        if operands is None:
            return super().results(node, forms)
        is_cut = any(map(forms.is_cut, operands))
        given = tuple(map(forms.slice if is_cut else forms.full, operands))
        if not is_cut and given == node.operands:
            return forms.builder.keep(node, given, ())
        result = node.results[0]
        local = _again(node, given, _params_of_reduction(node, operands), result.type, forms)
        if not is_cut:
            return (local,)
        params = {"reducer": self.reducer, **forms.cuts.of_groups}
        return forms.builder.add(ALL_REDUCE, (local,), params, at=node.source, hint=result.hint)


class AllReduce(SliceRule):
    """A slice of a sum or mean over the replicas is a reduce_scatter."""

    starts_slices = True

    def applies(self, node: Node, cuts: Cuts) -> bool:
        """Return whether there is a reduce_scatter of the kind: not by max or min."""
        return is_over_all(node) and node.params["reducer"] in ("sum", "mean")

    def slice(self, node: Node, forms: Forms) -> Operand:
        """Scatter the reduced values in place of giving all to each."""
        result = node.results[0]
        axis = forms.cuts.dimension(result.type)
        operands = list(map(forms.full, node.operands))
        params = {**node.params, **forms.cuts.params(axis)}
        return forms.builder.add(
            REDUCE_SCATTER, operands, params, at=node.source, hint=result.hint
        )[0]


class AllGather(SliceRule):
    """A slice of a gathered value, along the dimension of the gather, is the operand."""

    starts_slices = True
    has_slices = True
    on_demand = True

    def applies(self, node: Node, cuts: Cuts) -> bool:
        """Return whether the gathered slices are the slices that the result is cut in."""
        return _is_own_cut(node, node.results[0], node.operands[0], cuts)

    def slice(self, node: Node, forms: Forms) -> Operand:
        """Return what went in."""
        return forms.full(node.operands[0])

    def results(self, node: Node, forms: Forms) -> Sequence[Operand]:
        """Gather, and remember that what went in is the slice."""
        results = super().results(node, forms)
        forms.keep_slice(node.results[0], forms.full(node.operands[0]))
        return results


class OwnSlice(SliceRule):
    """A replica's slice along the dimension of the cut is the slice that the operand is made in."""

    def applies(self, node: Node, cuts: Cuts) -> bool:
        """Return whether the slice is one of the slices that the operand is cut in."""
        return _is_own_cut(node, node.operands[0], node.results[0], cuts)

    def need(self, node: Node, operand: Operand, of_result: Need, cuts: Cuts) -> Need:
        """Take slices."""
        return Need.SLICES

    def results(self, node: Node, forms: Forms) -> Sequence[Operand]:
        """Return the slice, if there is one; else cut it, and remember it."""
        operand = node.operands[0]
        if forms.has_slice(operand):
            return (forms.slice(operand),)
        results = super().results(node, forms)
        forms.keep_slice(operand, results[0])
        return results


class Branches(SliceRule):
    """The branches of a `cond` take slices and return slices."""

    hands_on = True

    def applies(self, node: Node, cuts: Cuts) -> bool:
        """Return whether all replicas take the same branch: it may come to hold a collective."""
        return node.operands[0].type.distribution is MIRRORED


class BranchInput(SliceRule):
    """An input of a branch has the form in which the operand is handed in."""

    hands_on = True


class StoredInput(SliceRule):
    """A variable that is stored in slices comes in slices."""

    has_slices = True


UNSLICED = SliceRule()
BRANCHES = Branches()
BRANCH_INPUT = BranchInput()
STORED_INPUT = StoredInput()
ALL_REDUCED = AllReduce()
OWN_SLICED = OwnSlice()

RULES: Mapping[str, SliceRule] = {
    **dict.fromkeys(ELEMENTWISE, Elementwise()),
    "jax.broadcast_in_dim": Broadcast(),
    "jax.dot_general": Reduction("sum"),
    "jax.reduce_and": Reduction("min"),
    "jax.reduce_max": Reduction("max"),
    "jax.reduce_min": Reduction("min"),
    "jax.reduce_or": Reduction("max"),
    "jax.reduce_sum": Reduction("sum"),
    ALL_GATHER.name: AllGather(),
    ALL_REDUCE.name: ALL_REDUCED,
    COND.name: BRANCHES,
    OWN_SLICE.name: OWN_SLICED,
}
"""By operation; all others are `UNSLICED`."""


def rule_for(node: Node, cuts: Cuts) -> SliceRule:
    """Return the rule that says what a node does with slices."""
    rule = RULES.get(node.op.name, UNSLICED)
    return rule if rule.applies(node, cuts) else UNSLICED


def _is_own_cut(node: Node, full: Operand, slice: Operand, cuts: Cuts) -> bool:
    """Return whether a node goes between a value and the slices that the value is cut in."""
    axis, distribution = node.params["axis"], slice.type.distribution
    is_slice = distribution is sharded(cast(int, axis), cuts.num_copies)
    return is_slice and cuts.of(full.type.shape) == axis


def _is_sum_of_products(node: Node) -> bool:
    """Return whether a product multiplies the elements in one place, and adds up all of these."""
    (left, right), _ = cast(
        "tuple[tuple[tuple[int, ...], ...], object]", node.params["dimension_numbers"]
    )
    shapes = {operand.type.shape for operand in node.operands}
    return len(shapes) == 1 and tuple(left) == tuple(right) and bool(node.operands[0].type.shape)


def _params_of_reduction(node: Node, operands: Sequence[Operand]) -> dict[str, object]:
    """Return the parameters with which a reduction takes `operands`, flattened or as they were."""
    params = dict(node.params)
    if len(operands) > 1:
        dimensions = tuple(range(len(operands[0].type.shape)))
        params["dimension_numbers"] = ((dimensions, dimensions), ((), ()))
    return params


def _again(
    node: Node,
    operands: Sequence[Operand],
    params: Mapping[str, object],
    type: Type,
    forms: Forms,
) -> Operand:
    """Add the node's operation to other operands, with a result of this type."""
    types, hint = None if node.op.rule else [type], node.results[0].hint
    return forms.builder.add(node.op, operands, params, at=node.source, types=types, hint=hint)[0]
