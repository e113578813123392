"""Values that all workers should have: which difference is found, and how it is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.workers import WorkerTimeouts
from graphdist.runtime.value_agreement import BLOCK, ValueAgreement, weighted_sum
from tests.free_port import free_port

VARIABLES = [np.arange(10, dtype=np.float32) + i for i in range(10)]
LARGE = np.zeros((100, 300), np.float32)
ARGUMENTS = [np.float32(0.1), LARGE]
NAMED = [
    *([(f"variable 'v{i}'", 10)] for i in range(8)),
    [("variable 'v8'", 4), ("variable 'v9'", 6)],  # a pack
    [("variable 'count'", 10)],
    [("argument 'lr'", 0)],
    [("argument 'x'", 0)],
]


@pytest.fixture(scope="module")
def workers() -> Iterator[list[ClusterWorkers]]:
    """Return three workers that have met, on threads of this process."""
    addresses = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(3)]
    made = [ClusterWorkers(addresses, index, WorkerTimeouts(start=30.0)) for index in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(ClusterWorkers.rendezvous, made))
    yield made
    for one in reversed(made):
        one.leave()


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Return a graph of ten variables, a number and an array."""
    variables = [gd.Variable(value, name=f"v{i}") for i, value in enumerate(VARIABLES)]

    @gd.function
    def step(lr: Any, x: Any) -> Any:
        return sum(v.read_value().sum() for v in variables) * lr + x.sum()

    return step.trace(*ARGUMENTS).unpacked().lower().graph


def steps_of(workers: list[ClusterWorkers], graph: Graph, every: Any = None) -> list[Any]:
    """Return for each worker a step that returns its inputs, preceded by the check."""
    devices: Any = [
        SimpleNamespace(platform="cpu", timeout_seconds=30.0, workers=one) for one in workers
    ]
    everies = every if isinstance(every, list) else [every] * len(workers)
    return [
        ValueAgreement(graph, one, NAMED, each).watched(lambda *arrays: list(arrays))
        for one, each in zip(devices, everies, strict=True)
    ]


def errors_of(steps: list[Any], inputs: list[list[Any]]) -> list[str]:
    """Return what each worker's call raises, "" if it ran."""

    def outcome(step: Any, arrays: list[Any]) -> str:
        try:
            assert len(step(*arrays)) == len(arrays)
        except gd.WorkerError as error:
            return error.what
        return ""

    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(outcome, steps, inputs))


def inputs_with(worker: int, place: int, changed: Any) -> list[list[Any]]:
    """Return the inputs of three workers, of which one has another value."""
    inputs = [[*VARIABLES, *ARGUMENTS] for _ in range(3)]
    inputs[worker][place] = changed
    return inputs


def test_equal_values_run(workers: list[ClusterWorkers], graph: Graph) -> None:
    assert errors_of(steps_of(workers, graph), inputs_with(0, 0, VARIABLES[0])) == [""] * 3


@pytest.mark.parametrize("odd", range(3))
def test_a_number_that_differs_is_named_on_all_workers(
    workers: list[ClusterWorkers], graph: Graph, odd: int
) -> None:
    told = errors_of(steps_of(workers, graph), inputs_with(odd, 10, np.float32(0.2)))
    usual = [index for index in range(3) if index != odd]
    names = workers[0].names
    message = f"is 0.1 on {names(usual)}, but 0.2 on {names([odd])}, where 'step' is called"
    assert told == [f"argument 'lr' {message}"] * 3


@pytest.mark.parametrize("place", range(10))
def test_one_of_ten_variables(workers: list[ClusterWorkers], graph: Graph, place: int) -> None:
    changed = VARIABLES[place].copy()
    changed[5] += 1
    (told,) = set(errors_of(steps_of(workers, graph), inputs_with(1, place, changed)))
    what, _, _ = told.partition(" is ")
    shown = {8: "'v9', element [1],", 9: "'count', element [5],"}
    usual = f"'v{place}', element [5],"
    assert what == f"variable {shown.get(place, usual)}"


def test_an_argument_is_blamed_before_what_it_changed(
    workers: list[ClusterWorkers], graph: Graph
) -> None:
    inputs = inputs_with(1, 0, VARIABLES[1])
    inputs[1][10] = np.float32(3)
    (told,) = set(errors_of(steps_of(workers, graph), inputs))
    assert told.startswith("argument 'lr' is")


def test_an_element_of_a_later_block(workers: list[ClusterWorkers], graph: Graph) -> None:
    changed = LARGE.copy()
    changed[77, 123] = np.nan
    assert BLOCK < 77 * 300 + 123
    (told,) = set(errors_of(steps_of(workers, graph), inputs_with(2, 11, changed)))
    assert told.startswith("argument 'x', element [77, 123], is 0.0 on")


def test_values_that_are_written_alike(workers: list[ClusterWorkers], graph: Graph) -> None:
    changed = LARGE.copy()
    changed.view(np.uint32)[0, 0] = 0x7FC00001
    usual = np.full_like(LARGE, np.nan)
    inputs = inputs_with(2, 11, changed)
    inputs[0][11] = inputs[1][11] = usual
    (told,) = set(errors_of(steps_of(workers, graph), inputs))
    assert "is 0000c07f on" in told
    assert "but 0100c07f on" in told


def test_it_is_checked_at_the_first_call_and_after_so_many_steps(
    workers: list[ClusterWorkers], graph: Graph
) -> None:
    steps = steps_of(workers, graph, every=5)
    equal = inputs_with(0, 10, ARGUMENTS[0])
    differ = inputs_with(0, 10, np.float32(0.2))
    assert errors_of(steps, equal) == [""] * 3
    checked = []
    for number in range(12):
        if all(errors_of(steps, differ)):
            checked.append(number)
        for one in workers:
            one.begin_step()
    first = checked[0]
    assert first < 5
    assert checked == [first, first + 5, *([first + 10] if first + 10 < 12 else [])]


def test_without_an_interval_it_is_checked_once(
    workers: list[ClusterWorkers], graph: Graph
) -> None:
    steps = steps_of(workers, graph)
    assert errors_of(steps, inputs_with(0, 10, ARGUMENTS[0])) == [""] * 3
    assert errors_of(steps, inputs_with(0, 10, np.float32(0.2))) == [""] * 3


def test_workers_that_call_other_programs_are_told(
    workers: list[ClusterWorkers], graph: Graph
) -> None:
    one, other = steps_of(workers, graph), steps_of(workers, graph)
    (told,) = set(errors_of([other[0], one[1], one[2]], inputs_with(0, 10, ARGUMENTS[0])))
    assert re.fullmatch(
        r"worker 0 \S+ calls 'step', its program (\d+), and worker 1 \S+ calls 'step', its "
        r"program (?!\1)\d+",
        told,
    )


def test_workers_with_other_intervals_are_told(workers: list[ClusterWorkers], graph: Graph) -> None:
    steps = steps_of(workers, graph, [None, None, 7])
    (told,) = set(errors_of(steps, inputs_with(0, 10, ARGUMENTS[0])))
    assert "the number of steps between two checks of values is None on worker 0" in told
    assert "but 7 on worker 2" in told


DTYPES = (
    *("bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64"),
    *("complex128", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_a_device_finds_each_element_that_differs(dtype: Any) -> None:
    values = np.zeros((3, 5), dtype)
    with jax.enable_x64(True):
        zero = int(weighted_sum(jnp.asarray(values)))
        found = set()
        for place in np.ndindex(values.shape):
            changed = values.copy()
            changed[place] = 1
            found.add(int(weighted_sum(jnp.asarray(changed))))
    assert zero not in found
    assert len(found) == values.size  # the place counts, too


@given(st.integers(0, 2**32 - 1), st.integers(0, 63), st.integers(1, 2**32 - 1))
def test_any_word_that_differs_changes_the_sum(word: int, place: int, by: int) -> None:
    values = np.full(64, word, np.uint32)
    changed = values.copy()
    changed[place] += np.uint32(by)
    assert int(weighted_sum(values)) != int(weighted_sum(changed))


def test_random_keys_and_scalars_and_nothing() -> None:
    keys = [jax.random.key(seed) for seed in (0, 1)]
    assert int(weighted_sum(keys[0])) != int(weighted_sum(keys[1]))
    assert int(weighted_sum(jnp.float32(1))) != int(weighted_sum(jnp.float32(2)))
    assert int(weighted_sum(jnp.zeros((0, 3)))) == 0
