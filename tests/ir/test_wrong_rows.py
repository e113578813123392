"""Each wrong row of the table of operations fails a test, since an example notices it.

Each mutant of a row (`tests/ir/mutated_rows.py`) is checked as `tests/ir/test_operation_table.py`
checks the row itself. Those that no example notices are in `EQUIVALENT`, with the reason why they
are right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from graphdist.ir.arrays import Held
from graphdist.ir.factors import Factors
from graphdist.ir.graph import Graph
from graphdist.ir.interpreter import interpret_placed
from graphdist.ir.operation_table import TABLE, divides
from graphdist.runtime.bind_primitive import evaluate_jax_node
from tests.ir.linear_operations import Combined
from tests.ir.mutated_rows import WrongFactors, mutated_factors, mutated_linear_operands
from tests.ir.sharded_operations import COUNTS, Applied, Sharded
from tests.ir.test_operation_table import MOVES, NAMES, cases_of, elements

_OF_EACH = {"as .*": "each result depends on its own operand, so that two factors may be one"}
_OF_REFLECTORS = "no count divides the size n of the matrix and the n - 1 of the reflectors"

EQUIVALENT = {
    "barrier": _OF_EACH,
    "jax.device_put": _OF_EACH,
    "jax.optimization_barrier": _OF_EACH,
    "jax.hessenberg": {"(.* passes to )?result .*1[.]2( is new)?": _OF_REFLECTORS},
    "jax.tridiagonal": {"(.* passes to )?result .*[23][.]2( is new)?": _OF_REFLECTORS},
    "jax.reduce_or": {"factor 0 is reduced by sum": "a sum of booleans is their maximum in NumPy"},
    "jax.reshape": {"operand 0.1 passes to result 0.0": "a transposed reshape could have a factor"},
}
"""The mistakes that no example notices, as patterns, and why they are none."""

EQUIVALENT_LINEAR = {
    "jax.nextafter": {"linear in .0,.|as jax.sub": "up to rounding, it is its first operand"},
    "jax.scatter": {"as jax.scatter-sub": "on a CPU the last of equal indices counts"},
    "jax.select_and_gather_add": {"linear in .0,.": "JAX rounds this operand on some devices"},
    "jax.shift_left": {"linear in .0,.": "a shift is a product, but no partial values need it"},
}
"""The same of the operands in which results are linear."""

COMPARING = {
    f"jax.{name}"
    for name in (
        "clamp", "cummax", "cummin", "max", "min", "reduce_and", "reduce_max", "reduce_min",
        "reduce_window_max", "reduce_window_min", "scatter-max", "scatter-min",
        "select_and_gather_add", "sort",
    )
}  # fmt: skip
"""Operations whose results are elements of operands, but which have compared these."""


def evaluated(graph: Graph, inputs: list[Held]) -> list[Held]:
    return interpret_placed(graph, inputs, evaluate_jax_node)


def has_shards(case: Applied, whole: list[Held], factors: Factors, tried: Iterable[int]) -> bool:
    """Return whether shards give the whole, along these factors of a row that has them."""
    for factor, count in product(sorted(tried), COUNTS):
        if divides(case.node, factors, factor, count):
            try:
                shards = Sharded.of(case, factors, factor, count)
                shards.check(evaluated(shards.graph, shards.inputs), whole)
            except Exception:  # types that disagree, too
                return False
    return True


def is_linear(case: Applied, alternative: tuple[int, ...]) -> bool:
    try:
        combined = Combined.of(case, alternative, np.random.default_rng(3))
        combined.check([evaluated(case.graph(), inputs) for inputs in combined.runs])
    except AssertionError:
        return False
    return True


def check_unnoticed(mistakes: list[str], equivalent: dict[str, str]) -> None:
    """Check that the mistakes are equivalent, and that there is one of each kind."""
    kinds = {next((k for k in equivalent if re.fullmatch(k, each)), each) for each in mistakes}
    assert kinds == equivalent.keys(), mistakes


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_example_notices_each_wrong_factor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases, row = cases_of(name), TABLE[name]
    wholes = [evaluated(case.graph(), [[array] for array in case.operands]) for case in cases]

    def is_right(index: int, mutated: WrongFactors) -> bool:
        wrong_row = replace(row, factors=lambda node: mutated.factors)
        monkeypatch.setitem(TABLE, name, wrong_row)
        return has_shards(cases[index], wholes[index], *mutated)

    for index, case in enumerate(cases):
        factors = row.factors(case.node)
        assert is_right(index, WrongFactors(factors, factors.numbers))
    monkeypatch.setitem(TABLE, name, row)
    mutants = mutated_factors(name, [case.node for case in cases])
    unnoticed = [m for m, nodes in mutants.items() if all(is_right(*each) for each in nodes)]
    check_unnoticed(unnoticed, EQUIVALENT.get(name, {}))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_example_notices_each_wrong_linear_operand(name: str) -> None:
    cases = cases_of(name)
    mutants = mutated_linear_operands(name, [case.node for case in cases])
    unnoticed = [
        mistake
        for mistake, nodes in mutants.items()
        if all(is_linear(cases[index], alternative) for index, alternative in nodes)
    ]
    check_unnoticed(unnoticed, EQUIVALENT_LINEAR.get(name, {}))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(MOVES)))
def test_an_example_notices_what_does_not_only_move(name: str) -> None:
    moved = [
        elements(array for (array,) in evaluated(case.graph(), inputs)) <= elements(case.operands)
        for case in cases_of(name)
        for inputs in [[[array] for array in case.operands]]
    ]
    assert all(moved) is (name in COMPARING)
