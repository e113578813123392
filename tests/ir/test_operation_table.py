"""Each row of the table of operations, held against the interpreter.

Each node of a row's operation in its examples is applied to shards along each of its factors. What
the shards give is put together, and is what the node gives of the whole. The traits are checked in
the same way: the operands in which it is linear, and that it only moves elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any  # Any: pytrees of arrays

import numpy as np
import pytest

from graphdist.ir.arrays import Array
from graphdist.ir.builder import Builder
from graphdist.ir.factor_rules import bitcast, elementwise
from graphdist.ir.factors import Factors
from graphdist.ir.graph import Value
from graphdist.ir.linearity import nowhere
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.operation_table import TABLE, factors_of
from graphdist.ir.parser import parse
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import PER_REPLICA, Type, sharded
from graphdist.ir.verifier import verify
from graphdist.tracing.jax_ops import resolve
from tests.ir.linear_operations import Combined
from tests.ir.operation_examples import EXAMPLES, NOT_IN_THIS_JAX
from tests.ir.sharded_operations import Applied, Compared, nodes_of, on_all_shards, run

NAMES = sorted(EXAMPLES)
GROUP = 12
WITHOUT_FACTORS = {"pack", "unpack"}
LINEAR = sorted(
    name for name, row in TABLE.items() if row.linear_in is not nowhere and name in EXAMPLES
)
MOVES = sorted(name for name, row in TABLE.items() if row.only_moves and name in EXAMPLES)


def group_of(name: str) -> tuple[str, ...]:
    """Return the operations that are compiled together with one, ours alone."""
    alike = [other for other in NAMES if other.startswith("jax.") is name.startswith("jax.")]
    start = alike.index(name) // GROUP * GROUP
    return tuple(alike[start : start + GROUP])


def cases_of(name: str) -> list[Applied]:
    """Return the nodes of an operation in its examples, which are run on random numbers."""
    return _cases_of(group_of(name))[name]


@cache
def _cases_of(names: tuple[str, ...]) -> dict[str, list[Applied]]:
    examples = [(name, example()) for name in names for example in EXAMPLES[name]]
    cases: dict[str, list[Applied]] = {name: [] for name in names}
    for case in nodes_of([(graph, name) for name, graph in examples]):
        cases[case.node.op.name].append(case)
    return cases


def test_every_row_has_examples() -> None:
    assert TABLE.keys() - EXAMPLES.keys() == NOT_IN_THIS_JAX
    assert EXAMPLES.keys() <= TABLE.keys()


@cache
def compared(names: tuple[str, ...]) -> dict[str, list[Compared]]:
    """Return all nodes of operations in their examples, applied to shards."""
    found: dict[str, list[Compared]] = {name: [] for name in names}
    for each in on_all_shards([case for name in names for case in cases_of(name)]):
        found[each.shards.case.node.op.name].append(each)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_shards_give_is_what_the_whole_gives(name: str) -> None:
    cases = compared(group_of(name))[name]
    for case in cases:
        case.check()
    assert bool(cases) is (name not in WITHOUT_FACTORS)


def test_elementwise_rows_have_the_factors_of_elements() -> None:
    rules = {row.factors for row in TABLE.values() if row.is_elementwise}
    assert rules == {elementwise, bitcast}


@pytest.mark.parametrize("name", LINEAR)
def test_results_are_linear_in_what_the_row_says(name: str) -> None:
    numbers = np.random.default_rng(3)
    combined = [
        Combined.of(case, alternative, numbers)
        for case in cases_of(name)
        for alternative in TABLE[name].linear_in(case.node)
    ]
    graphs = [each.case.graph() for each in combined for _ in each.runs]
    outputs = run(graphs, [inputs for each in combined for inputs in each.runs])
    for each, start in zip(combined, range(0, len(outputs), 3), strict=True):
        each.check(outputs[start : start + 3])
    assert combined


@pytest.mark.parametrize("name", MOVES)
def test_each_element_of_a_result_is_one_of_an_operand(name: str) -> None:
    cases = cases_of(name)
    outputs = run(
        [case.graph() for case in cases], [[[array] for array in case.operands] for case in cases]
    )
    for case, results in zip(cases, outputs, strict=True):
        assert elements(array for (array,) in results) <= elements(case.operands)


def elements(arrays: Iterable[Array]) -> set[tuple[np.dtype[Any], bytes]]:
    return {(array.dtype, x.tobytes()) for array in arrays for x in array.ravel()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("jax.add", Factors(((0, 1), (0, 1)), ((0, 1),))),
        ("jax.broadcast_in_dim", Factors(((1, 2),), ((0, 1, 2),))),
        (
            "jax.conv_general_dilated",
            Factors(((0, None, None, 2), (None, None, 2, 1)), ((0, None, None, 1),), {2: "sum"}),
        ),
        ("jax.dot_general", Factors(((0, 1, 2), (3, 2, 0)), ((0, 1, 3),), {2: "sum"})),
        ("jax.gather", Factors(((None, 1), (2, 3, None)), ((2, 3, 1),))),
        ("jax.reduce_sum", Factors(((0, 1, 2),), ((1,),), {0: "sum", 2: "sum"})),
        ("jax.reshape", Factors(((0, None),), ((0,),))),
        ("jax.scatter-add", Factors(((None, 1), (None, None), (None, 1)), ((None, 1),))),
        ("jax.scatter-max", Factors(((None, 1), (2, None), (2, 1)), ((None, 1),), {2: "max"})),
        ("jax.triangular_solve", Factors(((0, None, None), (0, None, 2)), ((0, None, 2),))),
    ],
)
def test_factors_of_the_first_example(name: str, expected: Factors) -> None:
    assert factors_of(cases_of(name)[0].node) == expected


def test_the_result_of_shards_is_sharded_where_a_factor_passes_through() -> None:
    graph = parse(
        """
graph f on 4 replicas, stage spmd
(%x: f32[4,1] sharded(0) over member, %w: f32[4,1] sharded(1) over member, %c: f32[4,1] mirrored) {
  %back = jax.transpose(%x) {permutation=(1, 0)} : f32[1,4] sharded(1) over member
  %both = jax.add(%x, %c) : f32[4,1] sharded(0) over member
  %two = jax.add(%x, %w) : f32[4,1] per_replica
  %rows = jax.reduce_max(%x) {axes=(1,), out_sharding=none} : f32[4] sharded(0) over member
  %term = jax.reduce_max(%x) {axes=(0,), out_sharding=none} : f32[1] per_replica
  %part = jax.slice(%x) {start_indices=(0, 0), limit_indices=(2, 1)} : f32[2,1] per_replica
  %along = jax.cumsum(%x) {axis=0, reverse=false} : f32[4,1] per_replica
  %front = jax.reshape(%w) {new_sizes=(4, 1, 1)} : f32[4,1,1] sharded(1) over member
  %last = jax.reshape(%w) {new_sizes=(4, 1, 1)} : f32[4,1,1] sharded(2) over member
  %flat = reshape(%x) {shape=(2, 2)} : f32[2,2] sharded(0) over member
  %open = reshape(%w) {shape=(4, 1, 1)} : f32[4,1,1] per_replica
  %beside = concatenate(%x, %c) {axis=1} : f32[4,2] sharded(0) over member
  %behind = concatenate(%x, %c) {axis=0} : f32[8,1] per_replica
  return
}""",
        ops=resolve,
    )
    verify(graph, full=True)


def test_a_reshape_of_shards_that_states_nothing_is_per_replica_where_it_has_a_choice() -> None:
    shards, stated = Value(Type("f32", (4, 1), sharded(1))), Type("f32", (4, 1, 1))
    params = {"new_sizes": (4, 1, 1), "dimensions": None, "sharding": None}
    op = resolve("jax.reshape")
    (result,) = Builder().add(op, [shards], params, at=UNKNOWN, types=[stated])
    assert result.type.layout is PER_REPLICA


def test_a_parameter_that_the_text_does_not_hold_leaves_no_factor() -> None:
    (node,) = parse(
        """
graph f on 1 replica, stage spmd
(%x: f32[4,6] mirrored, %w: f32[3,3] mirrored) {
  %y = jax.conv_general_dilated(%x, %w) {dimension_numbers=<0: Numbers>} : f32[4,6] mirrored
  return
}""",
        PLACEHOLDERS,
    ).nodes
    assert factors_of(node) is None
