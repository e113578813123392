"""Operations applied to shards of their operands, and held against what they give of the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, product
from typing import Any, NamedTuple, Self  # Any: arrays of JAX and NumPy

import jax
import numpy as np

from graphdist.ir import ops
from graphdist.ir.arrays import Array, Held, join_arrays, reduce_arrays
from graphdist.ir.builder import Builder
from graphdist.ir.compare import first_difference
from graphdist.ir.factors import Dimensions, Factors
from graphdist.ir.graph import Graph, Node, Operand, Stage, Value
from graphdist.ir.interpreter import interpret_placed
from graphdist.ir.operation_table import TABLE, divides, factors_of, on_shards
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques, print_graph
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, dtype_name, sharded
from graphdist.ir.verifier import verify
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.runtime.bind_primitive import bind_jax_node
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import random_array, wide

COUNTS = (2, 4)
FAST_COMPILER = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


@cache
def compiler_options() -> dict[str, bool | int] | None:
    """Return options with which XLA compiles in a third of the time, if this version has them."""
    try:
        jax.jit(lambda: 0, compiler_options=FAST_COMPILER)()
    except jax.errors.JaxRuntimeError:
        return None
    return FAST_COMPILER


class Applied(NamedTuple):
    """A node of an example, and what it took there."""

    node: Node
    operands: list[Array]

    def graph(self) -> Graph:
        """Return a graph of the node alone."""
        node, builder = self.node, Builder()
        inputs = tuple(Value(operand.type.with_layout(MIRRORED)) for operand in node.operands)
        types = None if node.op.rule else [value.type for value in node.results]
        results = builder.add(node.op, inputs, node.params, at=UNKNOWN, types=types)
        return graph_of_nodes(builder, inputs, results, 1)


def graph_of_nodes(
    builder: Builder, inputs: tuple[Value, ...], results: tuple[Operand, ...], num_replicas: int
) -> Graph:
    nodes, returned = tuple(builder.nodes), (True,) * len(results)
    return Graph("f", Stage.SPMD, num_replicas, inputs, nodes, results, (), returned)


def run(graphs: Sequence[Graph], inputs: Sequence[Sequence[Held]]) -> list[list[Held]]:
    """Interpret graphs, and return their outputs.

    All are compiled together, since JAX compiles operations one by one otherwise. Our own are
    NumPy's, and need no compiler.
    """
    evaluate: Any = bind_jax_node  # whose arrays are JAX's, as all others are here

    def interpreted(inputs: list[Sequence[Held]]) -> list[list[Held]]:
        pairs = zip(graphs, inputs, strict=True)
        return [interpret_placed(graph, held, evaluate) for graph, held in pairs]

    is_ours = all(node.op.rule for graph in graphs for node in graph.nodes)
    fn = interpreted if is_ours else jax.jit(interpreted, compiler_options=compiler_options())
    outputs: list[list[Held]] = jax.tree.map(np.asarray, fn(list(inputs)))
    return outputs


def nodes_of(graphs: Sequence[tuple[Graph, str]]) -> list[Applied]:
    """Return the nodes of an operation in each graph, and what they take of random numbers.

    Graphs are cut off behind these nodes: their operands are what the graphs return.
    """
    numbers, nodes = np.random.default_rng(7), list[Node]()
    cut, inputs = list[Graph](), list[list[Held]]()
    for graph, name in graphs:
        found = [node for node in graph.nodes if node.op.name == name]
        operands = tuple(operand for node in found for operand in node.operands)
        cut.append(eliminate_dead_code(graph.replace(outputs=operands)))
        inputs.append([[random_array(value.type, numbers)] for value in graph.inputs])
        nodes += found
    taken = iter([array for outputs in run(cut, inputs) for (array,) in outputs])
    return [Applied(node, list(islice(taken, len(node.operands)))) for node in nodes]


class Sharded(NamedTuple):
    """A node applied to the shards along a factor, and the shards."""

    case: Applied
    factors: Factors
    factor: int
    graph: Graph
    inputs: list[Held]

    @classmethod
    def all_of(cls, case: Applied) -> Iterator[Self]:
        """Yield a node applied to shards along each factor, of each count by which it divides."""
        factors = factors_of(case.node)
        if factors is None:
            return
        for factor, count in product(sorted(factors.numbers), COUNTS):
            if divides(case.node, factors, factor, count):
                yield cls.of(case, factors, factor, count)

    @classmethod
    def of(cls, case: Applied, factors: Factors, factor: int, count: int) -> Self:
        """Apply a node to so many shards, in a graph that verifies and survives its text."""
        types, inputs = list[Type](), list[Held]()
        for array, dims in zip(case.operands, factors.operands, strict=True):
            axis = Factors.dimension(dims, factor)
            held = [array] * count if axis is None else np.split(array, count, axis)
            layout = MIRRORED if axis is None else sharded(axis)
            types.append(Type(dtype_name(array.dtype), held[0].shape, layout))
            inputs.append(held)
        values, builder = tuple(map(Value, types)), Builder()
        results = on_shards(case.node, values, factor, count, builder)
        graph = graph_of_nodes(builder, values, results, count)
        verify(graph, full=True)
        text = parse(print_graph(graph), opaques(graph), resolve)
        assert first_difference(graph, text) is None
        return cls(case, factors, factor, graph, inputs)

    def check(self, results: Sequence[Held], whole: Sequence[Held]) -> None:
        """Compare what the shards give, put together, with what the node gives of the whole."""
        row = TABLE[self.case.node.op.name]
        # XLA divides by one row as it multiplies by its inverse, which it does not by several.
        tolerance = 0 if row.only_moves else 1e-6 if row.is_cheap else 1e-5
        for dims, held, (expected,), value in zip(
            self.factors.results, results, whole, self.graph.outputs, strict=True
        ):
            self.check_type(dims, value.type)
            for array in self.together(dims, held):
                check_close(array, expected, tolerance)

    def together(self, dims: Dimensions, held: Held) -> Held:
        """Return the result of shards or of terms, or of each replica if each has the result."""
        axis = Factors.dimension(dims, self.factor)
        if axis is not None:
            return [join_arrays(held, axis)]
        reducer = self.factors.summed.get(self.factor)
        return [reduce_arrays(held, reducer)] if reducer else held

    def check_type(self, dims: Dimensions, type: Type) -> None:
        axis, layout = Factors.dimension(dims, self.factor), type.layout
        if axis is not None:
            is_new = all(self.factor not in operand for operand in self.factors.operands)
            # A type rule does not see what is stated, where dimensions of size 1 leave a choice.
            is_open = self.case.node.op is ops.RESHAPE and layout is PER_REPLICA
            assert is_open or layout is (MIRRORED if is_new else sharded(axis))
        elif self.factor in self.factors.summed:
            assert layout is PER_REPLICA


class Compared(NamedTuple):
    """A node applied to shards, what these give, and what the node gives of the whole."""

    shards: Sharded
    results: list[Held]
    whole: list[Held]

    def check(self) -> None:
        """Check that the shards give the whole."""
        self.shards.check(self.results, self.whole)


def on_all_shards(cases: Sequence[Applied]) -> list[Compared]:
    """Apply nodes to what they take, and to all shards of it."""
    graphs, inputs = list[Graph](), list[list[Held]]()
    applications = [list(Sharded.all_of(case)) for case in cases]
    for case, shards in zip(cases, applications, strict=True):
        graphs += [case.graph(), *(each.graph for each in shards)]
        inputs += [[[array] for array in case.operands], *(each.inputs for each in shards)]
    outputs, found = iter(run(graphs, inputs)), list[Compared]()
    for shards in applications:
        whole = next(outputs)
        found += [Compared(each, next(outputs), whole) for each in shards]
    return found


def check_close(array: Array, expected: Array, tolerance: float) -> None:
    one: Any = wide(array)  # numbers, which the dtype of an `Array` does not say
    other: Any = wide(expected)
    np.testing.assert_allclose(one, other, tolerance, tolerance)
