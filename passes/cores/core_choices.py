"""The layouts over cores in which an operation may be computed, and the cheapest of them.

An operation with a row in the table of operations (`graphdist.ir.operation_table`) may be computed

* along a factor: each core computes one shard, of operands that are sharded along this factor or
  have the full value. If the factor is summed, each core computes one term of the result;
* on shards of blocks (`graphdist.ir.blocks_of_cores`), where a dimension holds several things one
  behind the other;
* by a search of each shard (`searched_shards.py`), for the largest or smallest elements;
* on terms: if the operation is linear in the operands of which each core has a term, its results
  are terms, too;
* in full, on every core.

Only factors are possible along which an operand is sharded already, or a result is wanted
(`wanted_layouts.py`). Where a kernel has no factor for a dimension that is sharded, all its factors
are possible. So nothing is sharded that the user or a variable does not ask for.

The price of a choice has the bytes that the cores send to convert the operands, those of the
reduction that a term will need, and the computation: `FLOPS_PER_BYTE` operations take as long as
sending a byte, or as reading `READS_PER_BYTE` bytes. A value is converted once for all operations
that need it in one layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphdist.ir.blocks_of_cores import (
    Blocks,
    BlocksOfValues,
    choices_by_blocks,
    is_alike,
    over_cores,
    scaled,
)
from graphdist.ir.cost import node_cost
from graphdist.ir.factors import Factors
from graphdist.ir.graph import Node, Operand, Value, is_zero
from graphdist.ir.kernel_shards import kernel_factors
from graphdist.ir.kernels import KERNEL
from graphdist.ir.operation_table import divides, factors_of, linear_operands
from graphdist.ir.types import MIRRORED, Layout, Type, is_partial, partial
from graphdist.passes.cores.borders import Borders, possible_borders
from graphdist.passes.cores.searched_shards import searched_dimension
from graphdist.passes.layouts.indexed_shards import GATHER, indexed_dimensions

FLOPS_PER_BYTE = 500
READS_PER_BYTE = 10
_OF_FULL_RANGE = ("f64", "f32", "bf16", "c128", "c64")
"""The inexact dtypes with at least the range of float32."""


@dataclass(frozen=True, slots=True)
class CoreChoice:
    """The layouts over cores of a node's operands and results.

    `factor` is the factor along which it is computed, `indexed` the dimension of the first operand
    that is sharded and indexed, `searched` that along which elements are searched, `borders` what a
    convolution or pool needs of neighbours; None if there is none. `is_by_blocks` says whether it
    keeps to the borders of the operands' blocks.
    """

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    factor: int | None = None
    indexed: int | None = None
    searched: int | None = None
    borders: Borders | None = None
    is_by_blocks: bool = False

    @property
    def is_on_shards(self) -> bool:
        """Return whether each core computes a part."""
        parts = (self.factor, self.indexed, self.searched, self.borders)
        return self.is_by_blocks or any(part is not None for part in parts)


@dataclass(frozen=True, slots=True)
class WantedOfProgram:
    """What the choices for all nodes of a program depend on, apart from the nodes themselves."""

    num_cores: int
    layouts: Mapping[Operand, Layout]
    """The layouts that values are wanted in."""
    blocks: BlocksOfValues
    read_in_parts: set[tuple[tuple[int, ...], int]] = field(default_factory=set)
    """The shapes of the values that were read on shards until now, and the dimensions."""
    terms: set[Value] = field(default_factory=set)
    """The values that a loop adds to a sum of terms, which is reduced once behind it."""


def bytes_sent(type: Type, held: Layout, wanted: Layout, num_cores: int) -> float:
    """Return the bytes that a core sends to convert a value of full type `type`."""
    share = type.bytes * (num_cores - 1) / num_cores
    if held.blocks != wanted.blocks and held.dimension is not None:
        return share
    if held == wanted or held is MIRRORED:
        return 0
    if is_partial(held):
        halves = held.reducer == "sum" and wanted is not MIRRORED
        return share if halves else 2 * share
    return share if wanted is MIRRORED else share / num_cores


def in_full(node: Node) -> CoreChoice:
    """Return the choice that computes a node on every core."""
    return CoreChoice((MIRRORED,) * len(node.operands), (MIRRORED,) * len(node.results))


def cheapest_choice(
    node: Node,
    layouts: Sequence[Layout],
    price: Callable[[Operand, Layout], float],
    num_uses: Callable[[Operand], int],
    wanted: WantedOfProgram,
) -> CoreChoice:
    """Return the cheapest choice for a node whose operands have these layouts.

    `price` returns the bytes that a core sends to have an operand in a layout, and `num_uses` how
    often a value is used: terms that several nodes use are reduced once for all.
    """
    num_cores = wanted.num_cores
    in_parts = list(_in_parts(node, layouts, wanted))
    is_wanted = any(result in wanted.layouts for result in node.results)
    if all(layout is MIRRORED for layout in layouts) and not is_wanted:
        return in_parts[0] if in_parts else in_full(node)
    flops = node_cost(node).total_flops
    read = sum(value.type.bytes for value in (*node.operands, *node.results))

    def bytes_of_result(value: Value, layout: Layout) -> float:
        if is_partial(layout) and value in wanted.terms:
            return 0
        if is_partial(layout) or not _has_blocks(value, layout, wanted):
            # Half of an all_reduce for each term: two terms that are added are reduced together.
            # What is in other blocks than are wanted is gathered behind the node.
            return value.type.bytes * (num_cores - 1) / num_cores
        aim = wanted.layouts.get(value, layout)
        is_there = aim.dimension == layout.dimension
        return 0 if is_there else bytes_sent(value.type, layout, aim, num_cores)

    def bytes_of_links(choice: CoreChoice) -> float:
        share = num_cores if choice.is_on_shards else 1
        sent = sum(map(price, node.operands, choice.operands))
        sent += sum(map(bytes_of_result, node.results, choice.results))
        return sent + (flops / FLOPS_PER_BYTE + read / READS_PER_BYTE) / share

    choices = [in_full(node), *_on_terms(node, layouts, num_uses, wanted)]
    choices += _in_space(node, layouts, num_cores)
    choices += _searched(node, layouts, num_cores)
    choices += _along_factors(node, layouts, num_uses, wanted)
    choices += in_parts
    choices += (
        CoreChoice(*found, is_by_blocks=True)
        for found in choices_by_blocks(node, layouts, wanted.blocks, num_cores)
    )
    return min(choices, key=bytes_of_links)


def _has_blocks(value: Value, layout: Layout, wanted: WantedOfProgram) -> bool:
    """Return whether a result has the blocks that it is wanted in, if the cores divide these."""
    if layout.dimension is None:
        return True
    sizes = wanted.blocks.get((value, layout.dimension), ())
    if sizes and not any(size % wanted.num_cores for size in sizes):
        return layout.blocks == sizes
    aim = wanted.layouts.get(value, layout)
    return aim == layout or aim.dimension != layout.dimension


def _along_factors(
    node: Node,
    layouts: Sequence[Layout],
    num_uses: Callable[[Operand], int],
    wanted: WantedOfProgram,
) -> Iterator[CoreChoice]:
    num_cores = wanted.num_cores
    is_kernel = node.op.name == KERNEL
    factors = kernel_factors(node) if is_kernel else factors_of(node)
    if factors is None:
        return
    held = zip(factors.operands, layouts, strict=True)
    asked = zip(factors.results, map(wanted.layouts.get, node.results), strict=True)
    found = {
        dims[layout.dimension]
        for dims, layout in (*held, *asked)
        if layout is not None and layout.dimension is not None
    }
    if is_kernel and found == {None}:
        found |= factors.numbers
    for factor in sorted(factor for factor in found if factor is not None):
        if is_kernel and any(map(num_uses, _without(factor, factors, node.results))):
            continue
        if divides(node, factors, factor, num_cores) and not _is_over_replicas(
            node, factors, factor
        ):
            for each in _possible_blocks(node, factors, factor, layouts, wanted.blocks):
                choice = _along_factor(node, factors, factor, each, num_cores)
                if choice is not None:
                    yield choice


def along_dimension(node: Node, layout: Layout, num_cores: int) -> CoreChoice | None:
    """Return the choice in which a node's result has a layout, if there is one along a factor."""
    factors = factors_of(node)
    if factors is None or layout.dimension is None or (layout.blocks and not is_alike(node)):
        return None
    factor = factors.results[0][layout.dimension]
    if factor is None or not divides(node, factors, factor, num_cores):
        return None
    return _along_factor(node, factors, factor, layout.blocks, num_cores)


def _possible_blocks(
    node: Node,
    factors: Factors,
    factor: int,
    layouts: Sequence[Layout],
    blocks: BlocksOfValues,
) -> list[Blocks]:
    """Return the blocks along a factor that operands have, or results are wanted in; none first."""
    found: set[Blocks] = set()
    if is_alike(node):
        for dims, layout in zip(factors.operands, layouts, strict=True):
            if layout.dimension is not None and dims[layout.dimension] == factor:
                found.add(layout.blocks)
        for dims, result in zip(factors.results, node.results, strict=True):
            if factor in dims:
                found.add(blocks.get((result, dims.index(factor)), ()))
    return [(), *sorted(found - {()})]


def _along_factor(
    node: Node, factors: Factors, factor: int, blocks: Blocks, num_cores: int
) -> CoreChoice | None:
    """Return the choice along a factor in blocks; None if the cores do not divide one."""
    layouts: list[Layout] = []
    all_dims = (*factors.operands, *factors.results)
    for dims, value in zip(all_dims, (*node.operands, *node.results), strict=True):
        if factor not in dims:
            layouts.append(MIRRORED)
            continue
        dimension = dims.index(factor)
        own = scaled(blocks, value.type.shape[dimension]) if blocks else ()
        if own is None or any(size % num_cores for size in own):
            return None
        layouts.append(over_cores(dimension, own))
    count, reducer = len(node.operands), factors.summed.get(factor)
    results = layouts[count:] if reducer is None else [partial(reducer)] * len(node.results)
    return CoreChoice(tuple(layouts[:count]), tuple(results), factor)


def _without(factor: int, factors: Factors, results: Sequence[Value]) -> list[Value]:
    """Return the results that do not have a factor."""
    pairs = zip(factors.results, results, strict=True)
    return [value for dims, value in pairs if factor not in dims]


def _is_over_replicas(node: Node, factors: Factors, factor: int) -> bool:
    """Return whether a dimension of a factor is sharded over replicas already."""
    all_dims = zip(
        (*factors.operands, *factors.results), (*node.operands, *node.results), strict=True
    )
    return any(
        (along := value.type.sharded_along) is not None and dims[along] == factor
        for dims, value in all_dims
    )


def _in_parts(
    node: Node, layouts: Sequence[Layout], wanted: WantedOfProgram
) -> Iterator[CoreChoice]:
    """Yield the choices of a gather or scatter on shards of a dimension that is indexed."""
    for dimension in indexed_dimensions(node):
        shard, shape = over_cores(dimension), node.operands[0].type.shape
        is_free = node.operands[0].type.sharded_along != dimension
        if not is_free or shape[dimension] % wanted.num_cores:
            continue
        was_read = (shape, dimension) in wanted.read_in_parts
        if layouts[0] == shard or (node.op.name != GATHER and was_read):
            result = partial("sum") if node.op.name == GATHER else shard
            others = (MIRRORED,) * (len(layouts) - 1)
            yield CoreChoice((shard, *others), (result,), indexed=dimension)


def _in_space(node: Node, layouts: Sequence[Layout], num_cores: int) -> Iterator[CoreChoice]:
    """Yield the choices of a convolution or pool whose positions are sharded."""
    for borders in possible_borders(node, num_cores):
        operands = tuple(
            MIRRORED if along is None else over_cores(along) for along in borders.operands
        )
        result = partial("sum") if borders.result is None else over_cores(borders.result)
        is_held = any(
            held == wanted is not MIRRORED for held, wanted in zip(layouts, operands, strict=True)
        )
        is_free = all(
            each.type.layout is None or each.type.sharded_along is None for each in node.operands
        )
        if is_held and is_free:
            yield CoreChoice(operands, (result,), borders=borders)


def _searched(node: Node, layouts: Sequence[Layout], num_cores: int) -> Iterator[CoreChoice]:
    """Yield the choice that finds elements along a sharded dimension, if there is one."""
    dimension = searched_dimension(node, num_cores)
    if dimension is None or layouts[0] != over_cores(dimension):
        return
    if node.operands[0].type.sharded_along is None:
        yield CoreChoice((layouts[0],), (MIRRORED,) * len(node.results), searched=dimension)


def _on_terms(
    node: Node,
    layouts: Sequence[Layout],
    num_uses: Callable[[Operand], int],
    wanted: WantedOfProgram,
) -> Iterator[CoreChoice]:
    """Yield the choice that computes on terms of a sum, if there is one."""
    operands = node.operands
    terms = {i for i, layout in enumerate(layouts) if layout == partial("sum")}
    zeros = {i for i, operand in enumerate(operands) if is_zero(operand)}
    are_last = all(num_uses(operands[i]) == 1 for i in terms)
    is_added_up = wanted.terms.issuperset(node.results)
    if not terms or not are_last or (_widens(node) and not is_added_up):
        return
    if any(set(together) - zeros == terms for together in linear_operands(node)):
        yield CoreChoice(
            tuple(layout if i in terms else MIRRORED for i, layout in enumerate(layouts)),
            (partial("sum"),) * len(node.results),
        )


def _widens(node: Node) -> bool:
    """Return whether a conversion makes terms longer, or changes the range of their numbers.

    Terms in a dtype of a smaller range may overflow where their sum does not.
    """
    if node.op.name != "jax.convert_element_type":
        return False
    (operand,), (result,) = node.operands, node.results
    return result.type.bytes > operand.type.bytes or result.type.dtype not in _OF_FULL_RANGE
