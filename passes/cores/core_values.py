"""The values of a graph as the cores of a replica hold them, and the conversions between layouts.

A value has one layout in which it is computed. It is converted where a node first needs it in
another layout, and the result serves all later nodes. The conversions:

| from | to | operation |
| --- | --- | --- |
| full | sharded | `slice_of_core`; of a broadcast, the shard is broadcast |
| sharded | full | `all_gather_over_cores` |
| sharded | sharded along another dimension | `all_to_all_over_cores` |
| terms of a sum | full | `all_reduce_over_cores` |
| terms of a sum | sharded | `reduce_scatter_over_cores` |

Full values and terms that become shards in blocks are ordered by core first, and what is gathered
from shards in blocks is ordered by block behind it. Shards in blocks become others by full values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphdist.ir import ops
from graphdist.ir.analyses import has_zeros, producer_of
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Op, Operand, Value
from graphdist.ir.op_parameters import (
    AlongAxisOverCores,
    ExchangingOverCores,
    OrderingBlocks,
    ReducingOverCores,
)
from graphdist.ir.operation_table import ELEMENTWISE, on_shards
from graphdist.ir.source import Source
from graphdist.ir.types import MIRRORED, Layout, Type, is_partial
from graphdist.passes.cores.core_choices import along_dimension, bytes_sent

NAME = "split_over_cores"
_SPREADS = ("jax.broadcast_in_dim", "jax.iota")
"""The operations whose shards are computed without the full result."""
_DEEPEST = 32
"""A shard is a slice if this many nodes would be needed to compute it."""


def type_on_core(type: Type, layout: Layout, num_cores: int) -> Type:
    """Return the type that a core sees of a value of full type `type`.

    >>> from graphdist.ir.blocks_of_cores import over_cores
    >>> print(type_on_core(Type("f32", (8, 3)), over_cores(0), 4))
    f32[2,3]
    """
    if layout.dimension is None:
        return type
    return type.resized(layout.dimension, type.shape[layout.dimension] // num_cores)


class CoreValues:
    """The values of an old graph in the new graph that one core runs, which is built here."""

    def __init__(self, graph: Graph, num_cores: int) -> None:
        """Start with no values."""
        self.builder = Builder(NAME)
        self.num_cores = num_cores
        self._graph = graph
        self._computed: dict[Operand, Layout] = {}
        self._forms: dict[Operand, dict[Layout, Operand]] = {}
        self._depths: dict[Operand, int] = {}

    def note(self, node: Node) -> None:
        """Note how many nodes behind a broadcast, or behind numbers that count up, a node is.

        A shard of its result is computed from shards or small values alone.
        """
        if node.op.name in _SPREADS:
            self._depths[node.results[0]] = 0
        elif node.op.name in ELEMENTWISE:
            shaped = [each for each in node.operands if each.type.shape]
            depths = [self._depths.get(each, _DEEPEST) for each in shaped]
            if max(depths, default=_DEEPEST) < _DEEPEST:
                self._depths[node.results[0]] = max(depths) + 1

    def put(self, value: Value, operand: Operand, layout: Layout) -> None:
        """Set the operand of the new graph for a value, and the layout that it has."""
        self._computed[value] = layout
        self._forms[value] = {layout: operand}

    def add_inputs(self, layouts: Sequence[Layout]) -> tuple[Value, ...]:
        """Make the inputs of the new graph, in these layouts."""
        inputs = []
        for value, layout in zip(self._graph.inputs, layouts, strict=True):
            new = Value(type_on_core(value.type, layout, self.num_cores), value.hint)
            self.put(value, new, layout)
            inputs.append(new)
        return tuple(inputs)

    def layout(self, operand: Operand) -> Layout:
        """Return the layout in which an operand is computed."""
        return self._computed[operand] if type(operand) is Value else MIRRORED

    def price(self, operand: Operand, layout: Layout) -> float:
        """Return the bytes that a core sends to convert an operand to a layout."""
        forms = self._forms.get(operand) if type(operand) is Value else None
        if forms is None or layout in forms or MIRRORED in forms:
            return 0
        held = self._source(forms, self.layout(operand))
        return bytes_sent(operand.type, held, layout, self.num_cores)

    def _source(self, forms: Iterable[Layout], held: Layout) -> Layout:
        """Return the layout from which a value is converted: terms, or shards of their sum."""
        shards = [form for form in forms if form.dimension is not None]
        return shards[0] if is_partial(held) and shards else held

    def is_gathered(self, value: Value) -> bool:
        """Return whether a value that is computed in shards is needed in full, too."""
        return self._computed[value].dimension is not None and MIRRORED in self._forms[value]

    def is_converted(self, operand: Operand) -> bool:
        """Return whether an operand is used in another layout than that in which it is computed."""
        return type(operand) is Value and len(self._forms[operand]) > 1

    def has_zeros(self, operand: Operand) -> bool:
        """Return whether an operand is zero, or has zeros alone."""
        return has_zeros(operand, self._graph)

    def now(self, operand: Operand, layout: Layout, at: Source) -> Operand:
        """Return the operand of the new graph for one of the old graph, in a layout."""
        if type(operand) is not Value:
            assert layout is MIRRORED or self.has_zeros(operand), f"a literal is not {layout}"
            return operand
        forms = self._forms[operand]
        if is_partial(layout) and layout not in forms:
            assert self.has_zeros(operand), f"{operand} is not {layout}"
            layout = MIRRORED  # zeros are terms of zeros
        if layout not in forms:
            forms[layout] = self._converted(operand, layout, at)
        return forms[layout]

    def _converted(self, value: Value, layout: Layout, at: Source) -> Operand:
        forms, cores, to = self._forms[value], self.num_cores, layout.dimension
        held = self._source(forms, self._computed[value])
        if MIRRORED in forms or (is_partial(held) and held.reducer != "sum" and to is not None):
            assert to is not None, f"{value} is full, not {layout}"
            return self._shard(value, layout, at)
        source = forms[held]
        if held.dimension is not None and to is not None and (held.blocks or layout.blocks):
            self.now(value, MIRRORED, at)
            return self._shard(value, layout, at)
        if is_partial(held):
            if to is None:
                params = ReducingOverCores(held.reducer, num_cores=cores)  # type: ignore[arg-type]
                return self.builder.add(ops.ALL_REDUCE_OVER_CORES, (source,), params, at=at)[0]
            scatter = AlongAxisOverCores(to, num_cores=cores)
            source = self._ordered(ops.ORDER_BY_CORE, source, layout, at)
            return self.builder.add(ops.REDUCE_SCATTER_OVER_CORES, (source,), scatter, at=at)[0]
        assert held.dimension is not None, f"{value} is {held}"
        if to is None:
            gather = AlongAxisOverCores(held.dimension, num_cores=cores)
            (full,) = self.builder.add(ops.ALL_GATHER_OVER_CORES, (source,), gather, at=at)
            return self._ordered(ops.ORDER_BY_BLOCK, full, held, at)
        exchange = ExchangingOverCores(to, held.dimension, num_cores=cores)
        return self.builder.add(ops.ALL_TO_ALL_OVER_CORES, (source,), exchange, at=at)[0]

    def _ordered(self, op: Op, operand: Operand, layout: Layout, at: Source) -> Operand:
        """Return a full value with its blocks in the order of the cores, or back."""
        if layout.dimension is None or not layout.blocks:
            return operand
        params = OrderingBlocks(layout.dimension, layout.blocks, num_cores=self.num_cores)
        return self.builder.add(op, (operand,), params, at=at)[0]

    def _shard(self, value: Value, layout: Layout, at: Source) -> Operand:
        """Return the core's shard of a value that each core has in full."""
        spread = self._spread(value, layout)
        if spread is not None:
            return spread
        assert layout.dimension is not None, f"{value} is {layout}"
        full = self._ordered(ops.ORDER_BY_CORE, self.now(value, MIRRORED, at), layout, at)
        params = AlongAxisOverCores(layout.dimension, num_cores=self.num_cores)
        return self.builder.add(ops.SLICE_OF_CORE, (full,), params, at=at)[0]

    def _spread(self, value: Value, layout: Layout) -> Operand | None:
        """Return the shard of a broadcast, of numbers that count up, or computed from these.

        None if the value is computed in another way, and its shard is a slice.
        """
        node = producer_of(value, self._graph)
        if node is None or self._depths.get(value, _DEEPEST) == _DEEPEST:
            return None
        choice = along_dimension(node, layout, self.num_cores)
        if choice is None or choice.factor is None:
            return None
        operands = [
            self.now(operand, own, node.source)
            for operand, own in zip(node.operands, choice.operands, strict=True)
        ]
        return on_shards(node, operands, choice.factor, self.num_cores, self.builder)[0]
