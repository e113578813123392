"""A random program gives what `jax.jit` gives, bit by bit: its arithmetic is exact."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from tests.properties.exact import check_arrays, random_arrays
from tests.properties.programs import programs
from tests.properties.steps import Body


def check_equal(given: Any, expected: Any) -> None:
    """Compare two lists of arrays."""
    assert len(given) == len(expected)
    for position, (one, other) in enumerate(zip(given, expected, strict=True)):
        check_arrays(one, other, f"output {position}")


@pytest.mark.long
@given(programs(), st.integers(0, 9))
def test_without_a_strategy(program: Body, seed: int) -> None:
    arrays = random_arrays(program.takes, seed)
    given = gd.function(lambda *inputs: program(*inputs))(*arrays)
    check_equal(given, jax.jit(program)(*arrays))


@pytest.mark.long
@given(programs(), st.integers(0, 9))
def test_on_one_device(program: Body, seed: int) -> None:
    arrays = random_arrays(program.takes, seed)
    strategy = gd.OneDeviceStrategy("cpu:1")
    given = gd.function(lambda *inputs: strategy.run(program, inputs))(*arrays)
    check_equal(given, jax.jit(program)(*arrays))
