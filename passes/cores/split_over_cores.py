"""Splits the program of a replica over its cores: what each core runs, and what they exchange.

The cores of a replica hold a value in full, in shards along one dimension, or each holds a term of
a sum. A variable that the user shards, and a value that `experimental_split_to_logical_devices`
splits, are given; `automatic_cores.py` chooses for variables with `cores="auto"`. From there the
nodes follow in order: `core_choices.py` chooses how each one is computed, and `core_values.py`
converts its operands. A node without a row in the table of operations is computed in full on every
core, which is right for every operation.

The carries of a loop and the variables of a program are fixed points: one that begins in full and
becomes sharded is sharded from the start, since its shard is a slice without any exchange. So the
slots of an optimizer are sharded as their parameters, although only these are given.

The pass runs on the logical graph. The graph behind it is the program of one core, in which shapes
are those on a core. What follows between replicas is the same for the cores of each index: all
other passes know nothing of cores. Inputs and outputs of the program are full on every core.

The layouts follow Megatron-LM (Shoeybi et al., 2019, section 3) for a transformer whose first
products are sharded along their outputs and whose second ones along their inputs: two all_reduces
forward and two backward in each layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any  # Any: one of several literals

import numpy as np

from graphdist.ir import ops
from graphdist.ir.analyses import use_counts
from graphdist.ir.blocks_of_cores import on_blocks, over_cores
from graphdist.ir.builder import Builder
from graphdist.ir.errors import PlanError
from graphdist.ir.graph import Graph, GraphVariable, Node, Operand, Value
from graphdist.ir.kernel_shards import kernel_on_shards
from graphdist.ir.kernels import KERNEL
from graphdist.ir.loops import Carry, Scan, While
from graphdist.ir.op_parameters import Branching, Holding, OfVariable, OverCores, ReducingOverCores
from graphdist.ir.operation_table import on_shards
from graphdist.ir.sharded_parameters import stored_dimension
from graphdist.ir.types import MIRRORED, Layout, is_partial, numpy_dtype, partial
from graphdist.ir.value_numbering import NOT_REPEATABLE
from graphdist.ir.variable_storage import UNSHARDED, StoredInPack, StoredSharded, StoredUnsharded
from graphdist.passes.cores.automatic_cores import cheapest_dimensions, open_variables
from graphdist.passes.cores.borders import (
    is_padding_of_windows,
    with_borders,
    with_its_padding,
)
from graphdist.passes.cores.core_choices import CoreChoice, WantedOfProgram, cheapest_choice
from graphdist.passes.cores.core_values import NAME, CoreValues, type_on_core
from graphdist.passes.cores.nested_layouts import (
    NestedBody,
    in_all_branches,
    joined_carries,
    line_of_outputs,
    may_add_up,
    of_slice,
    of_stack,
    without_terms,
)
from graphdist.passes.cores.searched_shards import found_on_shards
from graphdist.passes.cores.values_in_full import values_in_full
from graphdist.passes.cores.wanted_blocks import wanted_blocks
from graphdist.passes.cores.wanted_layouts import terms_of_sums, wanted_layouts
from graphdist.passes.layouts.indexed_shards import indexing_over_cores, on_own_shard

_BETWEEN_REPLICAS = (ops.TO_REPLICAS, ops.REDUCE, ops.ALL_REDUCE, ops.COLLECTIVE_PERMUTE)
"""The operations between replicas that treat each element of a value alike."""
_ALONG = (ops.GATHER, ops.ALL_GATHER, ops.REDUCE_SCATTER)
"""The operations between replicas that treat one dimension, `axis`, differently."""


@dataclass(frozen=True)
class SplitOverCores:
    """The pass, with what a plan says of variables: the dimension along which each is sharded."""

    cores: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        return NAME

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph of one core of each replica.

        Raises `PlanError` for a plan that shards a dimension that cannot be.
        """
        if graph.num_cores == 1 or graph.is_split:
            return graph
        self._require_fits(graph)
        dimensions = {
            variable.name: self.cores.get(variable.name, variable.core)
            for variable in graph.variables
        }
        names = [name for name in open_variables(graph) if name not in self.cores]
        if names:
            dimensions |= cheapest_dimensions(
                graph, names, lambda chosen: self._split(graph, {**dimensions, **chosen})
            )
        return self._split(graph, dimensions)

    def declined(self, graph: Graph) -> list[str]:
        """Return the operations that take values of all cores in full, the largest first."""
        return values_in_full(self(graph)) if graph.num_cores > 1 and not graph.is_split else []

    def _split(self, graph: Graph, dimensions: Mapping[str, int | None]) -> Graph:
        """Return the program whose variables are sharded along these dimensions.

        A variable that is given in full and assigned in shards is sharded, too, unless the plan
        says that it is full.
        """
        while True:
            split = _Split(graph, dimensions)
            new = split.outermost()
            found = {
                name: core
                for name, core in split.assigned.items()
                if dimensions[name] is None and name not in self.cores
            }
            if not found:
                return new
            dimensions = {**dimensions, **found}

    def _require_fits(self, graph: Graph) -> None:
        types = {variable.name: variable.type for variable in graph.variables}
        for name, dimension in self.cores.items():
            if dimension is None:
                continue
            type = types[name]
            if type.layout is not MIRRORED or dimension >= len(type.shape):
                raise PlanError(f"the plan shards dimension {dimension} of {name}, a {type}")
            if type.shape[dimension] % graph.num_cores:
                raise PlanError(
                    f"the plan shards dimension {dimension} of {name}, which has "
                    f"{type.shape[dimension]} elements: {graph.num_cores} cores do not divide them"
                )


def on_one_core(
    graph: Graph,
    inputs: Sequence[Layout],
    outputs: Sequence[Layout],
    wanted: Mapping[Operand, Layout],
) -> Graph:
    """Return what one core runs of a graph without variables, whose values are in layouts.

    `wanted` are layouts in which values should be computed.
    """
    return _Split(graph, {}, wanted).with_layouts(inputs, outputs)


class _Split:
    """The split of a program whose variables are sharded over cores along given dimensions."""

    def __init__(
        self,
        graph: Graph,
        dimensions: Mapping[str, int | None],
        wanted: Mapping[Operand, Layout] | None = None,
    ) -> None:
        self._graph, self._num_cores = graph, graph.num_cores
        self._variables = {
            variable.name: self._variable(variable, dimensions[variable.name])
            for variable in graph.variables
        }
        layouts = {**wanted_layouts(graph, dimensions), **(wanted or {})}
        self._wanted = WantedOfProgram(graph.num_cores, layouts, wanted_blocks(graph))
        self.assigned: dict[str, int] = {}
        """The dimensions along which values are sharded that are assigned to variables."""

    def outermost(self) -> Graph:
        """Return the new program."""
        graph = self._graph
        values = CoreValues(graph, self._num_cores)
        inputs = values.add_inputs([MIRRORED] * len(graph.inputs))
        self._nodes(graph, values)
        outputs = tuple(
            values.now(output, MIRRORED, line_of_outputs(graph)) for output in graph.outputs
        )
        return graph.replace(
            inputs=inputs,
            nodes=tuple(values.builder.nodes),
            outputs=outputs,
            variables=tuple(self._variables[variable.name] for variable in graph.variables),
            is_split=True,
        )

    def with_layouts(self, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> Graph:
        """Return the new program of a graph without variables, in these layouts."""
        return self._body(self._graph, inputs).returning(outputs)

    def _variable(self, variable: GraphVariable, dimension: int | None) -> GraphVariable:
        if dimension is None:
            return replace(variable, core=None)
        type = type_on_core(variable.type, over_cores(dimension), self._num_cores)
        storage, shards = variable.storage, self._graph.mesh.group_size
        if isinstance(storage, StoredSharded) and type.shape[storage.dimension] % shards:
            along = stored_dimension(type.shape, shards)
            storage = UNSHARDED if along is None else StoredSharded(along)
        if isinstance(storage, StoredInPack | StoredUnsharded):
            storage = StoredUnsharded(is_alone=True)  # a pack is full on each core
        return replace(variable, type=type, core=dimension, storage=storage)

    def _nodes(self, graph: Graph, values: CoreValues) -> None:
        for node in graph.nodes:
            values.note(node)
            if node.op in _NESTED:
                _NESTED[node.op](self, node, values)
            elif isinstance(node.params, OfVariable):
                self._of_variable(node, node.params, values)
            elif node.op is ops.SPLIT_OVER_CORES:
                self._request(node, values)
            elif node.op in _BETWEEN_REPLICAS or node.op in _ALONG:
                self._between_replicas(node, values)
            elif node.op.is_identity or node.op is ops.BARRIER:
                _pass_on(node, values)
            elif node.op.has_effect or node.op.name in NOT_REPEATABLE:
                self._on_first_core(graph, node, values)
            elif not is_padding_of_windows(node, graph, values.layout):
                self._computed(graph, with_its_padding(node, graph, values.layout), values)

    def _computed(self, graph: Graph, node: Node, values: CoreValues) -> None:
        """Add a node in the cheapest layouts."""
        layouts = [values.layout(operand) for operand in node.operands]
        counts = use_counts(graph)
        choice = cheapest_choice(
            node, layouts, values.price, lambda value: counts.get(value, 0), self._wanted
        )
        self._add(node, choice, values)

    def _add(self, node: Node, choice: CoreChoice, values: CoreValues) -> None:
        operands = [
            values.now(operand, layout, node.source)
            for operand, layout in zip(node.operands, choice.operands, strict=True)
        ]
        if choice.indexed is not None:
            self._wanted.read_in_parts.add((node.operands[0].type.shape, choice.indexed))
            shards = indexing_over_cores(self._num_cores)
            results = on_own_shard(node, operands, choice.indexed, shards, values.builder)
        elif choice.searched is not None:
            results = found_on_shards(
                node, operands[0], choice.searched, self._num_cores, values.builder
            )
        elif choice.borders is not None:
            results = with_borders(node, operands, choice.borders, self._num_cores, values.builder)
        elif choice.factor is not None and node.op.name == KERNEL:
            results = kernel_on_shards(
                node, operands, choice.factor, self._num_cores, values.builder
            )
        elif choice.is_by_blocks:
            results = on_blocks(node, operands, choice.results, self._num_cores, values.builder)
        elif choice.factor is not None:
            results = on_shards(node, operands, choice.factor, self._num_cores, values.builder)
        else:
            results = values.builder.again(node, operands)
        _put(values, node.results, results, choice.results)

    def _of_variable(self, node: Node, params: OfVariable, values: CoreValues) -> None:
        """Add a read, an assignment or an aggregation, in the layout of the variable."""
        name = params.variable.name
        variable = self._variables[name]
        layout = MIRRORED if variable.core is None else over_cores(variable.core)
        for operand in node.operands:
            held = values.layout(operand)
            is_one_value = variable.type.layout is MIRRORED
            if node.op is ops.ASSIGN and held.dimension is not None and is_one_value:
                self.assigned[name] = held.dimension
            if node.op is ops.AGGREGATE and variable.core is None and not is_partial(held):
                layout = held
        operands = [values.now(operand, layout, node.source) for operand in node.operands]
        results = values.builder.again(node, operands, variable=variable)
        _put(values, node.results, results, [layout] * len(results))

    def _request(self, node: Node, values: CoreValues) -> None:
        """Convert a value as the user asks."""
        axis = ops.SPLIT_OVER_CORES.of(node).axis
        (operand,), (result,) = node.operands, node.results
        is_free = axis is not None and result.type.size and result.type.sharded_along != axis
        layout = over_cores(axis) if axis is not None and is_free else MIRRORED
        values.put(result, values.now(operand, layout, node.source), layout)

    def _on_first_core(self, graph: Graph, node: Node, values: CoreValues) -> None:
        """Add an effect, such as a print or a callback, that core 0 of each replica has alone.

        The other cores have zeros for its results, and all cores then the sum.
        """
        add, at = values.builder.add, node.source
        operands = [values.now(operand, MIRRORED, at) for operand in node.operands]
        (core,) = add(ops.CORE_ID, (), OverCores(num_cores=self._num_cores), at=at)
        inside, beside = Builder(NAME), Builder(NAME)
        taken, ignored = (tuple(Value(operand.type) for operand in operands) for _ in range(2))
        results = inside.again(node, taken)
        zeros = [
            beside.add(
                ops.CONSTANT,
                (),
                Holding(np.zeros(value.type.shape, numpy_dtype(value.type.dtype))),
                at=at,
            )[0]
            for value in node.results
        ]
        nested = replace(graph, variables=(), returns_per_replica=())
        branches = (
            replace(
                nested, name="on_core_0", inputs=taken, nodes=tuple(inside.nodes), outputs=results
            ),
            replace(
                nested,
                name="on_others",
                inputs=ignored,
                nodes=tuple(beside.nodes),
                outputs=tuple(zeros),
            ),
        )
        found = add(ops.COND, (core, *operands), Branching(), branches, at=at)
        for value, term in zip(node.results, found, strict=True):
            reducer: Any = "max" if value.type.dtype == "bool" else "sum"
            params = ReducingOverCores(reducer, num_cores=self._num_cores)
            (shared,) = add(ops.ALL_REDUCE_OVER_CORES, (term,), params, at=at)
            values.put(value, shared, MIRRORED)

    def _between_replicas(self, node: Node, values: CoreValues) -> None:
        """Add an operation between replicas, on shards if it does not reach along them."""
        (operand,) = node.operands
        layout = values.layout(operand)
        along = node.params["axis"] if node.op in _ALONG else None
        if is_partial(layout):
            layout = self._wanted.layouts.get(node.results[0], MIRRORED)
        if layout.dimension is not None and layout.dimension == along:
            layout = MIRRORED
        results = values.builder.again(node, [values.now(operand, layout, node.source)])
        _put(values, node.results, results, [layout])

    def _scan(self, node: Node, values: CoreValues) -> None:
        scan = Scan(node)
        constants = [without_terms(values.layout(operand)) for operand, _ in scan.constants]
        scanned = [of_slice(values.layout(operand)) for operand, _ in scan.scanned]
        carries = [self._of_sum(carry, scan.body, values) for carry in scan.carries]
        while True:
            sums = [
                carry
                for carry, layout in zip(scan.carries, carries, strict=True)
                if is_partial(layout)
            ]
            added = terms_of_sums(scan.body, sums) - self._wanted.terms
            self._wanted.terms.update(added)
            body = self._body(scan.body, [*constants, *carries, *scanned])
            self._wanted.terms.difference_update(added)
            following = [body.values.layout(carry.following) for carry in scan.carries]
            joined = joined_carries(body.with_terms_of_sums(carries, scan.carries), following)
            outside = body.gathered_outside(constants, [value for _, value in scan.constants])
            if (joined, outside) == (carries, constants):
                break
            carries, constants = joined, outside
        stacked = [self._returned(output, body.values) for output, _ in scan.stacked]
        of_operands = [*constants, *carries, *map(of_stack, scanned)]
        graph = body.returning([*carries, *stacked])
        self._add_nested(node, of_operands, (graph,), [*carries, *map(of_stack, stacked)], values)

    def _of_sum(self, carry: Carry, body: Graph, values: CoreValues) -> Layout:
        """Return the first layout of a carry: terms if it may add up terms, from zero or others.

        They are reduced behind the loop. A sum that is wanted in shards has shards from the start,
        which take less memory.
        """
        layout, terms = values.layout(carry.first), partial("sum")
        is_sum = layout == terms or (layout is MIRRORED and values.has_zeros(carry.first))
        is_sum = is_sum and carry.last not in self._wanted.layouts and may_add_up(carry, body)
        return terms if is_sum else without_terms(layout)

    def _returned(self, output: Operand, values: CoreValues) -> Layout:
        """Return the layout of an output that a loop stacks; terms are reduced to wanted shards."""
        layout = values.layout(output)
        return self._wanted.layouts.get(output, layout) if is_partial(layout) else layout

    def _while(self, node: Node, values: CoreValues) -> None:
        loop, (condition, _) = While(node), node.graphs
        constants = [without_terms(values.layout(operand)) for operand, _ in loop.constants]
        carries = [without_terms(values.layout(carry.first)) for carry in loop.carries]
        split = len(condition.inputs) - len(carries)
        if not _is_alike(loop.predicate):  # cores of other replicas may have left the loop
            constants, carries = [MIRRORED] * len(constants), [MIRRORED] * len(carries)
        while True:
            body = self._body(loop.body, [*constants[split:], *carries])
            following = [body.values.layout(carry.following) for carry in loop.carries]
            joined = joined_carries(carries, following)
            inner = [value for _, value in loop.constants[split:]]
            outside = [*constants[:split], *body.gathered_outside(constants[split:], inner)]
            if (joined, outside) == (carries, constants):
                break
            carries, constants = joined, outside
        tested = self._body(condition, [*constants[:split], *carries])
        graphs = tested.returning([MIRRORED]), body.returning(carries)
        self._add_nested(node, [*constants, *carries], graphs, carries, values)

    def _cond(self, node: Node, values: CoreValues) -> None:
        index, *rest = node.operands
        layouts = [without_terms(values.layout(operand)) for operand in rest]
        if not _is_alike(index):  # cores of other replicas may take another branch
            layouts = [MIRRORED] * len(rest)
        branches = [self._body(branch, layouts) for branch in node.graphs]
        returned = (map(each.values.layout, each.graph.outputs) for each in branches)
        results = [in_all_branches(found) for found in zip(*returned, strict=True)]
        graphs = tuple(branch.returning(results) for branch in branches)
        self._add_nested(node, [MIRRORED, *layouts], graphs, results, values)

    def _body(self, graph: Graph, layouts: Sequence[Layout]) -> NestedBody:
        values = CoreValues(graph, self._num_cores)
        inputs = values.add_inputs(layouts)
        self._nodes(graph, values)
        return NestedBody(graph, inputs, values)

    def _add_nested(
        self,
        node: Node,
        operands: Sequence[Layout],
        graphs: tuple[Graph, ...],
        results: Sequence[Layout],
        values: CoreValues,
    ) -> None:
        new = [
            values.now(operand, layout, node.source)
            for operand, layout in zip(node.operands, operands, strict=True)
        ]
        found = values.builder.add(node.op, new, node.params, graphs, at=node)
        _put(values, node.results, found, results)


_NESTED = {ops.SCAN: _Split._scan, ops.WHILE: _Split._while, ops.COND: _Split._cond}


def _pass_on(node: Node, values: CoreValues) -> None:
    """Add a node whose results are its operands, in the layouts that they have."""
    layouts = [values.layout(operand) for operand in node.operands]
    operands = [
        values.now(operand, layout, node.source)
        for operand, layout in zip(node.operands, layouts, strict=True)
    ]
    types = [
        type_on_core(result.type, layout, values.num_cores)
        for result, layout in zip(node.results, layouts, strict=True)
    ]
    _put(values, node.results, values.builder.again(node, operands, types), layouts)


def _put(
    values: CoreValues,
    old: Sequence[Value],
    new: Sequence[Operand],
    layouts: Sequence[Layout],
) -> None:
    for value, operand, layout in zip(old, new, layouts, strict=True):
        values.put(value, operand, layout)


def _is_alike(choice: Operand) -> bool:
    return choice.type.layout is MIRRORED
