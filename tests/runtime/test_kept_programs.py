"""How many programs a function keeps, and that what is dropped is gone and does no harm."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any  # arrays of NumPy, where functions say jax.Array

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.program.kept_programs import DEFAULT_MAX_PROGRAMS


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture
def traces() -> list[int]:
    """Return the lengths that functions of the test were traced for, in order."""
    return []


@pytest.fixture(autouse=True)
def often_compiled() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gd.RetraceWarning)
        yield


def ones(length: int) -> Any:
    return np.ones(length, np.float32)


def num_executables() -> int:
    return len(jax.devices()[0].client.live_executables())


def test_what_was_not_called_for_longest_makes_room(traces: list[int]) -> None:
    @gd.function(max_programs=2)
    def step(x: jax.Array) -> jax.Array:
        traces.append(len(x))
        return x.sum()

    for length in (1, 2, 1, 3, 1, 2):
        assert step(ones(length)) == length
    assert traces == [1, 2, 3, 2]


@pytest.mark.long
def test_many_shapes_leave_few_executables(strategy: gd.MirroredStrategy) -> None:
    with strategy.scope():
        total = gd.Variable(0.0)

    @gd.function(max_programs=8)
    def step(x: jax.Array) -> jax.Array:
        total.assign_add(x.sum())
        return x * 2

    step(ones(1))
    before = num_executables()
    for length in range(2, 52):
        step(ones(length))
    gc.collect()  # later versions of JAX have circles of references
    assert num_executables() <= before + 8
    assert float(total) == sum(range(1, 52))


@pytest.mark.long
def test_the_limit_of_a_function_that_names_none(traces: list[int]) -> None:
    @gd.function
    def step(x: jax.Array, number: int) -> jax.Array:
        traces.append(number)
        return x

    static = gd.function(step.fn, static_argnames="number")
    for number in range(DEFAULT_MAX_PROGRAMS + 1):
        static(ones(1), number)
    static(ones(1), 1)
    static(ones(1), 0)
    assert traces == [*range(DEFAULT_MAX_PROGRAMS + 1), 0]


@pytest.mark.long
def test_all_are_kept_if_asked(traces: list[int]) -> None:
    @gd.function(static_argnames="number", max_programs=None)
    def step(x: jax.Array, number: int) -> jax.Array:
        traces.append(number)
        return x

    for number in (*range(DEFAULT_MAX_PROGRAMS + 2), 0):
        step(ones(1), number)
    assert traces == [*range(DEFAULT_MAX_PROGRAMS + 2)]


def test_a_method_has_the_limit_of_its_function(traces: list[int]) -> None:
    class Model:
        @gd.function(max_programs=1)
        def step(self, x: jax.Array) -> jax.Array:
            traces.append(len(x))
            return x

    model = Model()
    for length in (1, 2, 1):
        model.step(ones(length))
    assert traces == [1, 2, 1]


@pytest.mark.long
def test_other_settings_and_forgotten_ones_count(traces: list[int]) -> None:
    @gd.function(max_programs=2)
    def step(x: jax.Array) -> jax.Array:
        traces.append(len(x))
        return x @ x

    step(ones(2))
    with jax.default_matmul_precision("float32"):
        step(ones(2))
    step(ones(2))
    assert traces == [2, 2]
    step(ones(3))
    with jax.default_matmul_precision("float32"):
        step(ones(2))
    assert traces == [2, 2, 3, 2]
    jax.clear_caches()
    before = num_executables()
    for length in (4, 5, 6):
        step(ones(length))
        jax.clear_caches()
    assert num_executables() <= before + 2


def test_steps_under_way_and_their_variables_outlive_their_program(
    strategy: gd.MirroredStrategy,
) -> None:
    """Packs of small variables, donated buffers and unfinished steps are no program's."""
    with strategy.scope():
        parts = [gd.Variable(np.zeros(4, np.float32)) for _ in range(8)]

    @gd.function(max_programs=1)
    def step(x: jax.Array) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            for part in parts:
                part.assign_add(jnp.full(4, x.sum()))
            return x * 2

        return strategy.run(replica_fn, args=(x,))

    results = [step(ones(length)) for length in (3, 5, 3, 5)]
    assert [float(one.values[1].sum()) for one in results] == [6, 10, 6, 10]
    assert all((np.asarray(part) == 16).all() for part in parts)


def test_stages_that_the_user_holds_stay(traces: list[int]) -> None:
    @gd.function(max_programs=1)
    def step(x: jax.Array) -> jax.Array:
        return x + 1

    compiled = step.trace(ones(2)).lower().compile()
    for length in range(3, 6):
        step(ones(length))
    assert "HloModule" in compiled.as_text("hlo")
    assert compiled.memory.argument_bytes > 0


def test_threads_that_drop_each_others_programs(strategy: gd.MirroredStrategy) -> None:
    with strategy.scope():
        total = gd.Variable(0.0)

    @gd.function(max_programs=2)
    def step(x: jax.Array) -> jax.Array:
        total.assign_add(x.sum())
        return x * 2

    seen: list[bool] = []

    def work(lengths: tuple[int, ...]) -> None:
        for length in lengths * 3:
            seen.append(bool((np.asarray(step(ones(length))) == 2).all()))

    threads = [threading.Thread(target=work, args=(pair,)) for pair in pairwise(range(1, 6))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 24
    assert float(total) == 3 * sum(sum(pair) for pair in pairwise(range(1, 6)))


def test_the_warning_says_that_programs_are_dropped() -> None:
    @gd.function(max_programs=3)
    def step(x: jax.Array) -> jax.Array:
        return x

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", gd.RetraceWarning)
        for length in range(1, 9):
            step(ones(length))
    first, second = [str(one.message) for one in caught]
    assert first.startswith("step was compiled 4 times, now because x was f32[3], is f32[4].")
    assert "It keeps 3 programs (max_programs)" in first
    assert "dropped, 1 so far" in first
    assert second.startswith("step was compiled 8 times")
    assert "dropped, 5 so far" in second
    assert {one.filename for one in caught} == {__file__}
