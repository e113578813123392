"""A total that is assigned or restored is shared out over replicas, and reads back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import graphdist as gd
from graphdist.state.aggregation import _short_quotient

DTYPES = ["float32", "bfloat16", "float16", "int32", "int8", "uint8", "complex64"]
SIZE = 600


def total(value: Any, replicas: int) -> gd.Variable:
    strategy = gd.MirroredStrategy([f"cpu:{number}" for number in range(replicas)])
    with strategy.scope():
        return gd.Variable(
            jnp.zeros_like(value),
            synchronization=gd.VariableSynchronization.ON_READ,
            aggregation=gd.VariableAggregation.SUM,
        )


def values_of(dtype: str) -> Any:
    random = np.random.default_rng(0)
    if jnp.issubdtype(dtype, jnp.integer):
        limits: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        found = random.integers(limits.min, limits.max, SIZE, endpoint=True)
        return jnp.asarray(found, dtype)
    if dtype == "complex64":
        return jnp.asarray(random.standard_normal(SIZE) + 1j * random.standard_normal(SIZE), dtype)
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    scales = 2.0 ** random.integers(limits.minexp, limits.maxexp - 2, SIZE)
    corners = [0.0, limits.max, limits.min, limits.tiny, -limits.tiny, np.inf, -np.inf, np.nan]
    found = np.concatenate([random.standard_normal(SIZE) * scales, np.array(corners)])
    array = jnp.asarray(found, dtype)
    return jnp.where(jnp.abs(array) < limits.tiny, 0, array)  # CPUs take these for zero


@pytest.mark.long
@pytest.mark.parametrize("replicas", [2, 3, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_assigned_reads_back(dtype: str, replicas: int) -> None:
    value = values_of(dtype)
    variable = total(value, replicas)
    variable.assign(value, read_value=False)
    np.testing.assert_array_equal(np.asarray(variable, complex), np.asarray(value, complex))


def test_shares_are_even_where_they_can_be() -> None:
    variable = total(jnp.zeros(4), 2)
    variable.assign([3.0, 5.0, 0.1, 0.0], read_value=False)
    first, second = variable.values
    assert first[:2].tolist() == second[:2].tolist() == [1.5, 2.5]
    assert float(first[2]) + float(second[2]) == float(jnp.float32(0.1))
    counts = total(jnp.zeros(3, jnp.int32), 3)
    counts.assign(jnp.asarray([7, -7, 2], jnp.int32), read_value=False)
    assert [part.tolist() for part in counts.values] == [[3, -2, 1], [2, -2, 1], [2, -3, 0]]


@pytest.mark.parametrize("replicas", [5, 64, 1000, 2048])
def test_any_order_of_adding_up(replicas: int) -> None:
    value = values_of("float32")
    value = value[jnp.isfinite(value)]
    quotient = np.asarray(_short_quotient(value, replicas))
    first = np.asarray(value - quotient * (replicas - 1))
    for place in (0, 1, replicas // 2, replicas - 1):
        parts = [quotient] * (replicas - 1)
        parts.insert(place, first)
        total = np.zeros_like(first)
        for part in parts:
            total = total + part
        np.testing.assert_array_equal(total, np.asarray(value))


def test_a_dtype_of_too_few_bits_is_not_shared_out() -> None:
    assert not np.any(np.asarray(_short_quotient(jnp.ones(2, jnp.bfloat16), 64), np.float32))


@pytest.mark.parametrize("restored_on", [2, 3])
@pytest.mark.parametrize("value", [np.int32(7), np.float32(0.1)])
def test_a_restored_total(tmp_path: Path, value: Any, restored_on: int) -> None:
    saved = total(jnp.asarray(value), 2)
    saved.assign(value, read_value=False)
    path = gd.train.Checkpoint(total=saved).save(tmp_path / "total")
    restored = total(jnp.asarray(value), restored_on)
    gd.train.Checkpoint(total=restored).restore(path).assert_consumed()
    assert np.asarray(restored).item() == value


def test_inside_a_function_and_in_a_loop() -> None:
    variable = total(jnp.zeros((), jnp.int32), 3)

    @gd.function
    def step(value: Any) -> Any:
        for _ in range(2):
            variable.assign(value)
            value = variable.read_value() + 1
        return variable.read_value()

    assert int(step(jnp.int32(7))) == 8
    assert [int(part) for part in variable.values] == [3, 3, 2]
