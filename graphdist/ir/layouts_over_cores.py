"""How the cores of a replica hold each value of a split program, found from the nodes alone.

The pass that splits a program chooses a layout over cores for each value, and writes down nothing
but the nodes of one core. This analysis finds the layouts again, after any pass:

* mirrored: the value is the same on each core;
* `sharded(d) over core`: each core has its shard along dimension d;
* `partial(sum)`: each core has a term of the sum, or of another reduction;
* None: the cores have different values, and no more than that is known.

It begins with the inputs of the program, which are full, and the variables, which say along which
dimension they are sharded. An operation of JAX follows the table of operations, an exchange over
cores its parameters. The carries of loops are fixed points. What is the same on each core is proven
to be so. A shard that a core computes without its index, such as one of zeros, is the same on each
core, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

from graphdist.ir import ops
from graphdist.ir.analyses import has_zeros, kept_analysis
from graphdist.ir.blocks_of_cores import Blocks, choices_by_blocks, is_alike, over_cores
from graphdist.ir.factor_rules import dimensions_after_reshape
from graphdist.ir.fused_values import CONVOLUTION
from graphdist.ir.graph import Graph, Node, Op, Operand, Value, is_zero
from graphdist.ir.jax_parameters import parameter
from graphdist.ir.kernel_shards import kernel_factors
from graphdist.ir.kernels import KERNEL
from graphdist.ir.loops import Scan, While
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.operation_table import ELEMENTWISE, factors_of, linear_operands
from graphdist.ir.types import MIRRORED, Layout, is_partial, partial

_WINDOWS = (
    CONVOLUTION,
    "jax.reduce_window_max",
    "jax.reduce_window_min",
    "jax.reduce_window_sum",
    "jax.select_and_scatter_add",
)
CoreLayout: TypeAlias = Layout | None
Held: TypeAlias = "CoreLayout | tuple[Held, ...]"
"""The layout of a value, or the layouts of the values in a pack."""
Rule: TypeAlias = Callable[[Node, Sequence[Held]], Held]
Results: TypeAlias = Sequence[Held]


@kept_analysis
def layouts_over_cores(graph: Graph) -> Mapping[Value, CoreLayout]:
    """Return the layout over cores of each value of a split program, nested graphs included.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica split over 2 cores, stage logical
    ... (%x: f32[4,6] mirrored) {
    ...   %shard = slice_of_core(%x) {axis=1, num_cores=2} : f32[4,3] mirrored
    ...   %y = jax.reduce_sum(%shard) {axes=(1,), out_sharding=none} : f32[4] mirrored
    ...   %z = all_reduce_over_cores(%y) {reducer="sum", num_cores=2} : f32[4] mirrored
    ...   return %z
    ... }''')
    >>> for value, layout in layouts_over_cores(graph).items():
    ...     print(value.hint, layout)
    x mirrored
    shard sharded(1) over core
    y partial(sum)
    z mirrored
    """
    if not graph.is_split:
        return {}
    analysis = _Analysis()
    inputs: list[Held] = [MIRRORED] * len(graph.inputs)
    if graph.is_placed:
        inputs[: len(graph.variables)] = [_along(each.core) for each in graph.variables]
    analysis.add(graph, inputs)
    found = analysis.found.items()
    return {value: None if isinstance(held, tuple) else held for value, held in found}


def text_of_cores(graph: Graph, values: Sequence[Value]) -> str:
    """Return how the cores hold values, such as "sharded(0)"; "" in a graph that is not split."""
    layouts = layouts_over_cores(graph)
    found = [layouts[value] for value in values] if layouts else []
    kinds = ("differs" if each is None else each.kind_along for each in found)
    return ", ".join(dict.fromkeys(kinds))


def _along(dimension: int | None, blocks: Blocks = ()) -> Layout:
    return MIRRORED if dimension is None else over_cores(dimension, blocks)


def _join(held: Sequence[Held]) -> Held:
    """Return what is held of a value that is chosen from several, alike on each core."""
    others = set(held) - {MIRRORED}
    return MIRRORED if not others else others.pop() if len(others) == 1 else None


class _Analysis:
    """What is known of the values of a program, in the order of its nodes."""

    def __init__(self) -> None:
        self.found: dict[Value, Held] = {}
        self._components: dict[Value, int] = {}
        """The position of the index into a shard, in rows of indices on each core."""
        self._ordered: dict[Value, Blocks] = {}
        """The blocks, on a core, of values whose blocks are in the order of the cores."""

    def add(self, graph: Graph, inputs: Sequence[Held]) -> Results:
        """Add a graph whose inputs are held so; return what is held of its outputs."""
        self.found.update(zip(graph.inputs, inputs, strict=True))
        for node in graph.nodes:
            self.found.update(zip(node.results, self._results(node, graph), strict=True))
        return self.of(graph.outputs)

    def of(self, operands: Sequence[Operand]) -> list[Held]:
        """Return what is held of operands; a literal is the same on each core."""
        return [self.found[each] if type(each) is Value else MIRRORED for each in operands]

    def _results(self, node: Node, graph: Graph) -> Results:
        held = self.of(node.operands)
        if node.op in _NESTED:
            return _NESTED[node.op](self, node, graph)
        if node.op in _RULES:
            self._note(node)
            return [_RULES[node.op](node, held)] * len(node.results)
        if node.op in _SHARDS:
            return [self._shard(node)]
        if node.op in _UNPACKS:
            return held[0] if isinstance(held[0], tuple) else held * len(node.results)
        if all(each is MIRRORED for each in held):
            return [MIRRORED] * len(node.results)
        if node.op.is_identity or node.op is ops.BARRIER:
            return held
        if node.op.name.startswith("jax.scatter") and node.operands[1] in self._components:
            return [self._scattered(node, held)]
        if any(isinstance(each, tuple) for each in held):
            found = _join(held) if node.op.name in ELEMENTWISE else None
            return [found] * len(node.results)
        layouts = [each for each in held if not isinstance(each, tuple)]
        if any(map(is_partial, layouts)):
            return [_of_terms(node, layouts)] * len(node.results)
        return _on_shards(node, layouts)

    def _note(self, node: Node) -> None:
        """Keep what a later node needs of the parameters of this one."""
        (result, *_) = node.results
        if node.op is ops.INDEX_ON_CORE:
            self._components[result] = ops.INDEX_ON_CORE.of(node).component
        elif node.op is ops.ORDER_BY_CORE:
            params = ops.ORDER_BY_CORE.of(node)
            self._ordered[result] = tuple(size // params.num_cores for size in params.blocks)

    def _shard(self, node: Node) -> Held:
        """Return the layout of a shard, of a full value or of terms whose blocks may be ordered."""
        (operand,) = node.operands
        blocks = self._ordered.get(operand, ()) if type(operand) is Value else ()
        name = "split_axis" if node.op is ops.ALL_TO_ALL_OVER_CORES else "axis"
        return over_cores(cast(int, node.params[name]), blocks)

    def _scattered(self, node: Node, held: Sequence[Held]) -> Held:
        """Return the layout of what each core writes to its shard."""
        numbers = parameter(node, "dimension_numbers")
        if isinstance(numbers, Placeholder):
            return None
        component = self._components[cast(Value, node.operands[1])]
        shard = _along(numbers.scatter_dims_to_operand_dims[component])
        return shard if held[0] in (MIRRORED, shard) else None

    def _scan(self, node: Node, graph: Graph) -> Results:
        scan = Scan(node)
        constants = self.of([operand for operand, _ in scan.constants])
        scanned = map(_of_slice, self.of([operand for operand, _ in scan.scanned]))
        carries = self.of([carry.first for carry in scan.carries])
        of_body, count = [*scanned], len(carries)
        may_be_terms = {i for i, each in enumerate(scan.carries) if has_zeros(each.first, graph)}
        while True:
            outputs = self.add(scan.body, [*constants, *carries, *of_body])
            following = list(map(_join, zip(carries, outputs[:count], strict=True)))
            if following == carries:
                return [*carries, *map(_of_stack, outputs[count:])]
            # Zeros to which terms are added are terms of zeros.
            sums = {i for i in may_be_terms if following[i] is None}
            may_be_terms -= sums
            carries = [partial("sum") if i in sums else new for i, new in enumerate(following)]

    def _while(self, node: Node, graph: Graph) -> Results:
        loop, (condition, _), held = While(node), node.graphs, self.of(node.operands)
        carries = self.of([carry.first for carry in loop.carries])
        constants = held[: len(held) - len(carries)]
        of_condition = len(condition.inputs) - len(carries)
        while True:
            outputs = self.add(loop.body, [*constants[of_condition:], *carries])
            (predicate,) = self.add(condition, [*constants[:of_condition], *carries])
            following = list(map(_join, zip(carries, outputs, strict=True)))
            if predicate is not MIRRORED:
                following = [None] * len(carries)
            if following == carries:
                return carries
            carries = following

    def _cond(self, node: Node, graph: Graph) -> Results:
        index, *operands = self.of(node.operands)
        branches = [self.add(branch, operands) for branch in node.graphs]
        if index is not MIRRORED:
            return [None] * len(node.results)
        return list(map(_join, zip(*branches, strict=True)))


_NESTED: Mapping[Op, Callable[[_Analysis, Node, Graph], Results]] = {
    ops.SCAN: _Analysis._scan,
    ops.WHILE: _Analysis._while,
    ops.COND: _Analysis._cond,
}


def _of_slice(held: Held) -> Held:
    """Return what is held of one iteration's slice of a scanned operand."""
    if not isinstance(held, Layout) or held.dimension is None:
        return held
    return _along(held.dimension - 1) if held.dimension else None


def _of_stack(held: Held) -> Held:
    """Return what is held of the stack of what iterations return."""
    if not isinstance(held, Layout) or held.dimension is None:
        return held
    return _along(held.dimension + 1)


def _of_terms(node: Node, layouts: Sequence[CoreLayout]) -> CoreLayout:
    """Return the layout of what is computed from terms: terms of a sum stay so by linear ones."""
    terms = {i for i, layout in enumerate(layouts) if is_partial(layout)}
    zeros = {i for i, operand in enumerate(node.operands) if is_zero(operand)}
    are_of_sums = all(layouts[i] == partial("sum") for i in terms)
    others = {layout for i, layout in enumerate(layouts) if i not in terms}
    is_linear = any(set(together) - zeros == terms for together in linear_operands(node))
    return partial("sum") if is_linear and are_of_sums and others <= {MIRRORED} else None


def _on_shards(node: Node, layouts: Sequence[CoreLayout]) -> list[CoreLayout]:
    """Return the layouts of results on shards: of blocks, of positions, or along a factor."""
    shards = [layout for layout in layouts if layout is not None]
    if len(shards) != len(layouts):
        return [None] * len(node.results)
    for operands, results in choices_by_blocks(node, shards, {}, num_cores=1):
        if list(operands) == shards:
            return list(results)
    if node.op.name in ("jax.reshape", "reshape"):
        return [_reshaped(node, shards[0])]
    if node.op.name in _WINDOWS:
        return [_in_space(node, shards)]
    factors = kernel_factors(node) if node.op.name == KERNEL else factors_of(node)
    held = [] if factors is None else list(zip(factors.operands, shards, strict=True))
    found = {
        (dims[layout.dimension], layout.blocks)
        for dims, layout in held
        if layout.dimension is not None
    }
    factor, blocks = found.pop() if len(found) == 1 else (None, ())
    if factors is None or factor is None or (blocks and not is_alike(node)):
        return [None] * len(node.results)
    reducer = factors.summed.get(factor)
    return [
        _along(dims.index(factor), blocks)
        if factor in dims
        else partial(reducer)
        if reducer
        else None
        for dims in factors.results
    ]


def _in_space(node: Node, layouts: Sequence[Layout]) -> CoreLayout:
    """Return the layout of windows of shards of positions, whose borders were exchanged."""
    if node.op.name != CONVOLUTION:
        return layouts[0] if layouts[0].dimension is not None else layouts[1]
    numbers = parameter(node, "dimension_numbers")
    specs = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    image, weights = (
        None if layout.dimension is None else spec.index(layout.dimension)
        for spec, layout in zip(specs, layouts, strict=False)
    )
    if image is not None and weights is None and image != 1:
        return _along(specs[2][image])
    if weights == 0 and image is None:
        return _along(specs[2][1])
    is_summed = image == weights and image is not None and image > 1
    return partial("sum") if is_summed or (image, weights) == (1, 1) else None


def _reshaped(node: Node, layout: Layout) -> CoreLayout:
    """Return the layout of a reshaped shard: along the first of the dimensions that it may be.

    Several dimensions are possible where a core has one element of some of them, such as one head.
    """
    assert layout.dimension is not None
    shapes = node.operands[0].type.shape, node.results[0].type.shape
    found = dimensions_after_reshape(shapes[0], layout.dimension, shapes[1])
    return _along(found[0]) if found else None


def _full(node: Node, held: Sequence[Held]) -> Held:
    return MIRRORED


def _different(node: Node, held: Sequence[Held]) -> Held:
    return None


def _as_operand(node: Node, held: Sequence[Held]) -> Held:
    return held[0]


def _of_variable(node: Node, held: Sequence[Held]) -> Held:
    return _along(ops.variable_named_by(node).core)


def _packed(node: Node, held: Sequence[Held]) -> Held:
    kinds = set(held)
    is_one = len(kinds) == 1 and (held[0] is MIRRORED or held[0] == partial("sum"))
    return held[0] if is_one else tuple(held)


_RULES: Mapping[Op, Rule] = {
    ops.READ: _of_variable,
    ops.PACK: _packed,
    ops.PACK_SLICES: _packed,
    ops.EXCHANGE_BORDERS: lambda node, held: _along(ops.EXCHANGE_BORDERS.of(node).axis),
    ops.KEEP_ROWS_OF_CORE: lambda node, held: partial("sum"),
    **dict.fromkeys((ops.ALL_REDUCE_OVER_CORES, ops.ALL_GATHER_OVER_CORES), _full),
    ops.JOIN_AHEAD: _full,
    **dict.fromkeys((ops.CORE_ID, ops.INDEX_ON_CORE), _different),
    **dict.fromkeys((ops.ROTATE_OVER_CORES, ops.SLICE_AHEAD), _different),
    **dict.fromkeys((ops.ORDER_BY_CORE, ops.ORDER_BY_BLOCK), _as_operand),
    # Between replicas, the cores of each index do the same.
    **dict.fromkeys((ops.AGGREGATE, ops.TO_REPLICAS, ops.REDUCE, ops.GATHER), _as_operand),
    **dict.fromkeys((ops.ALL_REDUCE, ops.ALL_GATHER, ops.REDUCE_SCATTER), _as_operand),
    **dict.fromkeys((ops.COLLECTIVE_PERMUTE, ops.ALL_TO_ALL, ops.OWN_SLICE), _as_operand),
    **dict.fromkeys((ops.SELECT_REPLICA, ops.TO_PARTIAL, ops.SCALE, ops.COPY_TO), _as_operand),
    **dict.fromkeys((ops.INDEX_ON_REPLICA, ops.KEEP_ROWS_OF_REPLICA, ops.AS_SHARD), _as_operand),
    ops.TAKE_PART: _as_operand,
    ops.JOIN_PARTS: lambda node, held: _of_slice(held[0]),
}
_SHARDS = (
    ops.REDUCE_SCATTER_OVER_CORES,
    ops.SLICE_OF_CORE,
    ops.ALL_TO_ALL_OVER_CORES,
    ops.ADD_BORDERS,
)
_UNPACKS = (ops.UNPACK, ops.UNPACK_SLICES)
