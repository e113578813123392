"""Loops over distributed datasets in chunks of steps, against the same loops outside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.data.chunks import MOST_BYTES, ChunkSize, Step, StepInput, grouped
from graphdist.data.dataset_reduction import reduction_by
from graphdist.data.failures import FailedElement
from graphdist.data.worker_input import Agreement
from graphdist.ir.ops import SCAN
from graphdist.runtime.devices import Devices
from graphdist.runtime.processes.workers import WorkerTimeouts

ROWS = np.random.default_rng(0).standard_normal((8 * 13 + 3, 6)).astype("f")
STRATEGIES: dict[str, Callable[[], Any]] = {
    "mirrored": lambda: gd.MirroredStrategy(["cpu:0", "cpu:1"]),
    "in slices": lambda: gd.FullyShardedStrategy(["cpu:0", "cpu:1"]),
    "four": lambda: gd.MirroredStrategy([f"cpu:{i}" for i in range(4)]),
    "one": lambda: gd.OneDeviceStrategy("cpu:0"),
    "central": lambda: gd.experimental.CentralStorageStrategy(["cpu:0", "cpu:1"]),
}


class Training:
    """A variable with momentum, and a step that trains it and adds up losses."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.w = gd.Variable(np.full((6, 4), 0.1, "f"), name="w")
            self.m = gd.Variable(np.zeros((6, 4), "f"), name="m")
            self.seen = gd.Variable(
                np.zeros((), "f"),
                synchronization=gd.VariableSynchronization.ON_READ,
                aggregation=gd.VariableAggregation.SUM,
            )

    def replica_fn(self, x: Any) -> Any:
        """Return the sum of the replica's losses."""

        def loss_fn(w: Any) -> Any:
            losses = jnp.sum(jnp.tanh(x @ w) ** 2, 1)
            return gd.nn.compute_average_loss(losses), losses

        (_, losses), gradient = jax.value_and_grad(loss_fn, has_aux=True)(self.w[...])
        self.m.assign(0.9 * self.m + gd.get_replica_context().all_reduce("SUM", gradient))
        self.w.assign_sub(0.1 * self.m)
        self.seen.assign_add(jnp.float32(x.shape[0]))
        return jnp.sum(losses)

    def __call__(self, state: Any, batch: Any) -> Any:
        """Train for a step."""
        total, steps = state
        losses = self.strategy.run(self.replica_fn, args=(batch,))
        return total + self.strategy.reduce("SUM", losses, axis=None), steps + 1

    def values(self) -> list[Any]:
        """Return the values of all variables."""
        return [np.asarray(each) for each in (self.w, self.m, self.seen.read_value())]


def distributed(strategy: Any, rows: Any = ROWS) -> Any:
    return strategy.experimental_distribute_dataset(
        gd.data.Dataset.from_tensor_slices(rows).batch(8)
    )


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(STRATEGIES))
@pytest.mark.parametrize("steps", [1, 4, 5, None])
def test_results_are_those_of_the_loop_outside(name: str, steps: int | None) -> None:
    strategy = STRATEGIES[name]()
    outside, inside = Training(strategy), Training(strategy)
    step = gd.function(lambda state, batch: outside(state, batch))
    state: Any = (np.float32(0), np.int32(0))
    for batch in distributed(strategy):
        state = step(state, batch)
    found = distributed(strategy).reduce((0.0, 0), inside, steps_per_execution=steps)
    assert (float(found[0]), int(found[1])) == (float(state[0]), 14)
    for mine, theirs in zip(inside.values(), outside.values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.long
def test_ragged_last_batches_and_rows_that_do_not_divide() -> None:
    strategy = STRATEGIES["four"]()
    for count in (8, 9, 17, 63):
        outside, inside = Training(strategy), Training(strategy)
        step = gd.function(lambda state, batch, fn=outside: fn(state, batch))
        state: Any = (np.float32(0), np.int32(0))
        for batch in distributed(strategy, ROWS[:count]):
            state = step(state, batch)
        found = distributed(strategy, ROWS[:count]).reduce((0.0, 0), inside, steps_per_execution=3)
        assert float(found[0]) == float(state[0])
        assert float(inside.seen) == count


def test_elements_of_each_replica_are_stacked_too() -> None:
    strategy = STRATEGIES["mirrored"]()
    dataset = strategy.distribute_datasets_from_function(
        lambda context: gd.data.Dataset.from_tensor_slices(ROWS[:52]).batch(4)
    )
    sums = dataset.reduce(
        np.zeros(6, "f"),
        lambda total, x: total + strategy.reduce("SUM", x, axis=0),
        steps_per_execution=4,
    )
    np.testing.assert_allclose(sums, ROWS[:52].sum(0), rtol=1e-4)


def test_trees_of_arrays_and_numbers() -> None:
    strategy = STRATEGIES["mirrored"]()
    rows = {"x": ROWS[:48], "label": np.arange(48)}
    dataset = strategy.experimental_distribute_dataset(
        gd.data.Dataset.from_tensor_slices(rows).batch(4)
    )

    def fn(state: Any, batch: Any) -> Any:
        largest = strategy.run(lambda label: jnp.max(label), args=(batch["label"],))
        both = gd.ReduceOp.SUM
        return {
            "count": state["count"] + 4,
            "last": strategy.reduce(both, largest, axis=None),
            "sum": state["sum"] + strategy.reduce(both, batch["x"], axis=0),
        }

    state = dataset.reduce(
        {"count": 0, "last": 0, "sum": np.zeros(6, "f")}, fn, steps_per_execution=5
    )
    assert (int(state["count"]), int(state["last"])) == (48, 45 + 47)
    np.testing.assert_allclose(state["sum"], ROWS[:48].sum(0), rtol=1e-4)


def test_no_elements_leave_the_state_as_it_was() -> None:
    strategy = STRATEGIES["mirrored"]()
    state = object()
    assert distributed(strategy, ROWS[:0]).reduce(state, lambda state, x: state) is state


def test_a_number_becomes_what_a_step_returns() -> None:
    strategy = STRATEGIES["one"]()
    total = distributed(strategy).reduce(0, lambda total, x: total + jnp.sum(x))
    np.testing.assert_allclose(total, ROWS.sum(), rtol=1e-4)


REFUSED: dict[str, tuple[Any, Callable[[Any, Any], Any], str]] = {
    "structure": (0.0, lambda state, x: (state, state), "returns the state"),
    "shape": (
        0.0,
        lambda state, x: x,
        r"returns state as float32\[8,6\], and takes it as float32\[\]",
    ),
    "dtype": (
        {"n": np.int32(0)},
        lambda state, x: {"n": state["n"] + 0.5},
        r"returns state\['n'\] as float32\[\], and takes it as int32\[\]",
    ),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.parametrize("steps", [None, 4])
def test_states_that_change_their_kind(name: str, steps: int | None) -> None:
    initial, fn, says = REFUSED[name]
    with pytest.raises(gd.ArgumentError, match=says) as at:
        distributed(STRATEGIES["one"]()).reduce(initial, fn, steps_per_execution=steps)
    assert "test_dataset_reduction.py" in str(at.value.source)


@pytest.mark.parametrize(
    ("steps", "says"),
    [(0, "is 0: it must be at least 1"), (True, "of type bool"), (2.0, "type float")],
)
def test_other_numbers_of_steps_are_refused(steps: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        distributed(STRATEGIES["one"]()).reduce(0.0, lambda s, x: s, steps_per_execution=steps)


def test_wrong_functions_and_places_are_refused() -> None:
    strategy = STRATEGIES["mirrored"]()
    dataset = distributed(strategy)
    with pytest.raises(TypeError, match="reduce_func is of type int"):
        dataset.reduce(0.0, 3)
    with pytest.raises(gd.ArgumentError, match="reduced inside a replica function"):
        strategy.run(lambda: dataset.reduce(0.0, lambda state, x: state))


def test_failures_come_in_their_place() -> None:
    strategy = STRATEGIES["mirrored"]()

    def rows() -> Iterator[Any]:
        yield from ROWS[:40].reshape(10, 4, 6)
        raise RuntimeError("the disk is gone")

    dataset = gd.data.Dataset.from_generator(rows, gd.ArraySpec((4, 6), np.float32))
    seen = []

    def fn(count: Any, x: Any) -> Any:
        jax.debug.callback(lambda count: seen.append(int(count)), count)
        return count + 1

    with pytest.raises(RuntimeError, match="the disk is gone"):
        strategy.experimental_distribute_dataset(dataset).reduce(0, fn, steps_per_execution=4)
    jax.effects_barrier()
    assert set(seen) == set(range(10))


def test_the_graph_of_a_chunk_has_one_body() -> None:
    training = Training(strategy := STRATEGIES["mirrored"]())
    reduction = reduction_by(training, strategy, 4)
    with strategy.scope():
        spec = gd.PerReplicaSpec((4, 4, 6), jnp.float32)
        state = (jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))
        several: Any = reduction.several
        graph = several.trace((state, spec), {}).lower().graph
    (loop,) = [node for node in graph.nodes if node.op.name == "scan"]
    assert SCAN.of(loop).length == 4
    assert SCAN.of(loop).steps
    names = [node.op.name for node in loop.graphs[0].nodes]
    assert names.count("all_reduce") == 1  # the gradient and the losses, packed


def test_how_many_steps_a_chunk_has() -> None:
    strategy = STRATEGIES["one"]()

    def chosen(seconds: float) -> int:
        # Each its own function, as from another definition.
        fn: Any = eval("lambda state, x: state")
        reduction = reduction_by(fn, strategy, None)
        for factor in (3, 1, 2):
            reduction.time(factor * seconds)
        return reduction.size.size

    assert [chosen(seconds) for seconds in (1e-9, 1e-3, 4e-3, 6e-3, 1)] == [64, 16, 4, 1, 1]

    def fn(state: Any, x: Any) -> Any:
        return state

    first = reduction_by(fn, strategy, None)
    for _ in range(3):
        first.time(1e-3)
    # Another number of steps would be another program.
    assert reduction_by(fn, strategy, None).size.size == 16


def step_of(rows: int) -> StepInput:
    return StepInput("tree", [[np.zeros((rows,), "f")]])


def test_groups() -> None:
    rows = [2] * 6 + [3] + [2] * 3 + [MOST_BYTES // 8] * 2
    groups = list(grouped(map(step_of, rows), ChunkSize(2)))
    assert [len(group) for group in groups] == [
        *(1, 2, 2, 1, 1),  # the first by itself, and what is left before another shape
        *(2, 1, 2),
    ]
    failed = FailedElement(ValueError("no element"))
    steps: list[Step] = [step_of(2), step_of(2), failed, step_of(2)]
    assert list(grouped(iter(steps), ChunkSize(8))) == [[step] for step in steps]
    unequal = StepInput("tree", [[np.zeros((2, 1)), np.zeros((1, 1))]])
    assert unequal.kind is None


def test_workers_form_the_same_groups() -> None:
    """A worker may want larger groups, and may have no steps left."""
    numbers = [0, 0]
    wanted = [4, 8]
    steps = [[step_of(2)] * 20, [step_of(2)] * 17]
    asked: list[list[int]] = [[], []]
    barrier = threading.Barrier(2, timeout=60)

    class Workers:
        timeouts = WorkerTimeouts()

        def __init__(self, index: int) -> None:
            self.index = index

        def __len__(self) -> int:
            return 2

        def ordinal(self, kind: str) -> int:
            return 0

        def exchange(self, key: str, value: Any, what: str, seconds: float) -> list[Any]:
            said[self.index] = value
            barrier.wait()
            told = list(said)
            barrier.wait()
            numbers[self.index] += 1
            return told

    said: list[Any] = [None, None]

    def work(index: int) -> None:
        workers: Any = Workers(index)
        agreement = Agreement(Devices(jax.devices()[:2], workers=workers), lambda: None)
        mine: Iterator[Step] = iter(steps[index])
        for group in grouped(mine, ChunkSize(wanted[index]), agreement):
            asked[index].append(len(group))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert asked == [[1, 4, 4, 4, 4, 1, 1, 1]] * 2
    assert numbers == [9, 9]  # not once a step
