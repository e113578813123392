"""Each row of the table of operations, held against the interpreter.

Each node of a row's operation in its examples is applied to shards along each of its factors. What
the shards give is put together, and is what the node gives of the whole. The traits are checked in
the same way: the operands in which it is linear, and that it only moves elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple, Self  # Any: pytrees of arrays

import jax
import numpy as np
import pytest

from graphdist.ir import ops
from graphdist.ir.arrays import Array, Held, join_arrays, literal_array, reduce_arrays
from graphdist.ir.builder import Builder
from graphdist.ir.compare import first_difference
from graphdist.ir.factors import Dimensions, Factors
from graphdist.ir.graph import Graph, Node, Operand, Stage, Value
from graphdist.ir.interpreter import interpret_placed
from graphdist.ir.linear_operands import nowhere
from graphdist.ir.operation_table import TABLE, divides, factors_of, on_shards
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques, print_graph
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, dtype_name, sharded
from graphdist.ir.verifier import verify
from graphdist.runtime.evaluate import bind_jax_node
from graphdist.tracing.jax_ops import resolve
from tests.ir.operation_examples import EXAMPLES
from tests.passes.execution import random_array, wide

COUNTS = (2, 4)
WITHOUT_FACTORS = {"pack", "unpack"}
LINEAR = sorted(name for name, row in TABLE.items() if row.linear_in is not nowhere)
MOVES = sorted(name for name, row in TABLE.items() if row.only_moves)
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
        inputs = tuple(Value(operand.type.distributed(MIRRORED)) for operand in node.operands)
        types = None if node.op.rule else [value.type for value in node.results]
        results = builder.add(node.op, inputs, node.params, at=UNKNOWN, types=types)
        return graph_of_nodes(builder, inputs, results, 1)


def graph_of_nodes(
    builder: Builder, inputs: tuple[Value, ...], results: tuple[Operand, ...], num_replicas: int
) -> Graph:
    nodes, returned = tuple(builder.nodes), (True,) * len(results)
    return Graph("f", Stage.SPMD, num_replicas, inputs, nodes, results, (), returned)


def run(
    graphs: Sequence[Graph], inputs: Sequence[Sequence[Held]], observed: str = ""
) -> tuple[list[list[Held]], list[Applied]]:
    """Interpret graphs; return their outputs, and the nodes of one operation with their operands.

    All are compiled together, since JAX compiles operations one by one otherwise. Our own are
    NumPy's, and need no compiler.
    """
    nodes: list[Node] = []

    evaluate: Any = bind_jax_node  # whose arrays are JAX's, as all others are here

    def interpreted(inputs: Any) -> Any:
        taken: list[list[Array]] = []

        def observe(node: Node, operands: Sequence[Held], *_: object) -> None:
            if node.op.name == observed:
                nodes.append(node)
                taken.append([held[0] for held in operands])

        outputs = [
            interpret_placed(graph, held, evaluate, observe)
            for graph, held in zip(graphs, inputs, strict=True)
        ]
        return outputs, taken

    is_ours = all(node.op.rule for graph in graphs for node in graph.nodes)
    fn = interpreted if is_ours else jax.jit(interpreted, compiler_options=compiler_options())
    outputs, taken = jax.tree.map(np.asarray, fn(list(inputs)))
    return outputs, [Applied(*each) for each in zip(nodes, taken, strict=True)]


@cache
def cases_of(name: str) -> list[Applied]:
    """Return the nodes of an operation in its examples, which are run on random numbers."""
    numbers, cases = np.random.default_rng(7), list[Applied]()
    graphs, inputs = list[Graph](), list[list[Held]]()
    for example in EXAMPLES[name]:
        graph = example()
        arrays = [random_array(value.type, numbers) for value in graph.inputs]
        if len(graph.nodes) == 1:  # there is nothing to run before it
            known = dict(zip(graph.inputs, arrays, strict=True))
            node = graph.nodes[0]
            operands = [
                known[operand] if isinstance(operand, Value) else literal_array(operand)
                for operand in node.operands
            ]
            cases.append(Applied(node, operands))
        else:
            graphs.append(graph)
            inputs.append([[array] for array in arrays])
    return [*cases, *(run(graphs, inputs, name)[1] if graphs else ())]


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
            distribution = MIRRORED if axis is None else sharded(axis)
            types.append(Type(dtype_name(array.dtype), held[0].shape, distribution))
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
            check_close(self.together(dims, held), expected, tolerance)

    def together(self, dims: Dimensions, held: Held) -> Array:
        """Return a result of which each replica has a shard, a term, or all of it."""
        axis = Factors.dimension(dims, self.factor)
        if axis is not None:
            return join_arrays(held, axis)
        reducer = self.factors.summed.get(self.factor)
        return reduce_arrays(held, reducer) if reducer else held[0]

    def check_type(self, dims: Dimensions, type: Type) -> None:
        axis, distribution = Factors.dimension(dims, self.factor), type.distribution
        if axis is not None:
            is_new = all(self.factor not in operand for operand in self.factors.operands)
            # A type rule does not see what is stated, where dimensions of size 1 leave a choice.
            is_open = self.case.node.op is ops.RESHAPE and distribution is PER_REPLICA
            assert is_open or distribution is (MIRRORED if is_new else sharded(axis))
        elif self.factor in self.factors.summed:
            assert distribution is PER_REPLICA


def check_close(array: Array, expected: Array, tolerance: float) -> None:
    one: Any = wide(array)  # numbers, which the dtype of an `Array` does not say
    other: Any = wide(expected)
    np.testing.assert_allclose(one, other, tolerance, tolerance)


def combination(x: Any, y: Any) -> Array:
    return np.asarray(2 * x - 3 * y, x.dtype)


def test_every_row_has_examples() -> None:
    assert TABLE.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_what_shards_give_is_what_the_whole_gives(name: str) -> None:
    cases = [shards for case in cases_of(name) for shards in Sharded.all_of(case)]
    wholes = {id(shards.case): shards.case for shards in cases}
    graphs = [shards.graph for shards in cases] + [case.graph() for case in wholes.values()]
    inputs = [shards.inputs for shards in cases]
    inputs += [[[array] for array in case.operands] for case in wholes.values()]
    outputs, _ = run(graphs, inputs)
    results = dict(zip(wholes, outputs[len(cases) :], strict=True))
    for shards, held in zip(cases, outputs[: len(cases)], strict=True):
        shards.check(held, results[id(shards.case)])
    assert bool(cases) is (name not in WITHOUT_FACTORS)


@pytest.mark.parametrize("name", LINEAR)
def test_results_are_linear_in_what_the_row_says(name: str) -> None:
    numbers, graphs, inputs = np.random.default_rng(3), list[Graph](), list[list[Held]]()
    for case in cases_of(name):
        for alternative in TABLE[name].linear_in(case.node):
            x, y = case.operands, list(case.operands)
            for place in alternative:
                y[place] = random_array(case.node.operands[place].type, numbers)
            combined = [
                combination(a, b) if place in alternative else a
                for place, (a, b) in enumerate(zip(x, y, strict=True))
            ]
            graphs += [case.graph()] * 3
            inputs += [[[array] for array in arrays] for arrays in (x, y, combined)]
    outputs, _ = run(graphs, inputs)
    for of_x, of_y, of_both in zip(outputs[::3], outputs[1::3], outputs[2::3], strict=True):
        for (a,), (b,), (both,) in zip(of_x, of_y, of_both, strict=True):
            check_close(both, combination(a, b), 1e-4)
    assert graphs


@pytest.mark.parametrize("name", MOVES)
def test_each_element_of_a_result_is_one_of_an_operand(name: str) -> None:
    cases = cases_of(name)
    outputs, _ = run(
        [case.graph() for case in cases], [[[array] for array in case.operands] for case in cases]
    )
    for case, results in zip(cases, outputs, strict=True):
        assert elements(array for (array,) in results) <= elements(case.operands)


def elements(arrays: Iterable[Array]) -> set[tuple[np.dtype[Any], bytes]]:
    return {(array.dtype, x.tobytes()) for array in arrays for x in array.ravel()}
