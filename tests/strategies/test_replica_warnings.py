"""Warnings of what every replica does, where it was meant once, and of what they get whole."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.values import replica_warnings


@pytest.fixture(autouse=True)
def nothing_is_warned_of_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_warnings, "_warned", set())


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


@contextmanager
def warned(*texts: str, line: str = "") -> Iterator[None]:
    """Expect one warning with all these texts, at a line of this file; without texts none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert len(caught) == bool(texts)
    for warning in caught:
        assert (warning.category, warning.filename) == (gd.ReplicaWarning, __file__)
        assert line in linecache.getline(__file__, warning.lineno)
        assert all(text in str(warning.message) for text in texts)


SUM = gd.VariableAggregation.SUM
CHANGES: dict[str, Callable[[gd.Variable], Any]] = {
    "assign_sub": lambda v: v.assign_sub(jnp.ones(3)),
    "assign_add": lambda v: v.assign_add(jnp.ones(3)),
    "scatter_add": lambda v: v.scatter_add(gd.IndexedSlices(jnp.ones(1), jnp.zeros(1, int))),
}


@pytest.mark.parametrize("method", CHANGES)
def test_a_change_by_each_replica_of_a_variable_made_outside_the_scope(
    strategy: gd.Strategy, method: str
) -> None:
    v = gd.Variable(np.zeros(3, np.float32), name="v")

    def replica_fn() -> None:
        CHANGES[method](v)

    made = f"({__file__}:{line_of('v = gd.Variable(np.zeros(3')})"
    with warned(f"{method} of variable 'v' is done 2 times", made, line=f"v.{method}"):
        strategy.run(replica_fn)
        gd.function(lambda: strategy.run(replica_fn))()
    assert abs(float(v.read_value()[0])) == 4


def line_of(text: str) -> int:
    return 1 + next(i for i, line in enumerate(linecache.getlines(__file__)) if text in line)


def test_changes_that_are_meant_are_not_warned_of(strategy: gd.Strategy) -> None:
    outside, counter = gd.Variable(jnp.zeros(3)), gd.Variable(jnp.zeros(3), aggregation=SUM)
    seen = gd.metrics.Mean()
    one = gd.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        inside = gd.Variable(jnp.zeros(3))

    def replica_fn() -> None:
        inside.assign_sub(jnp.ones(3))
        counter.assign_add(jnp.ones(3))
        outside.assign(jnp.ones(3))
        seen.update_state([1.0, 2.0])

    with warned():
        strategy.run(replica_fn)
        gd.function(lambda: outside.assign_sub(jnp.ones(3)))()
        outside.assign_sub(jnp.ones(3))
        one.run(lambda: outside.assign_sub(jnp.ones(3)))
    assert counter.read_value().tolist() == [2, 2, 2]


BATCH = np.ones((6, 2), np.float32)


def seen_dataset(strategy: gd.Strategy) -> Any:
    """Return the first batch, of 6 rows, of a dataset of the strategy."""
    return next(iter(strategy.experimental_distribute_dataset([BATCH])))


def total(batch: Any, scale: Any = 1.0) -> Any:
    return jnp.sum(batch["x"] if isinstance(batch, dict) else batch) * scale


def test_a_global_batch_given_whole_to_every_replica(strategy: gd.Strategy) -> None:
    seen_dataset(strategy)
    with warned("each of 2 replicas all 6 rows of argument \"batch['x']\"", "[6, 2]", line="run("):
        for _ in range(2):
            strategy.run(total, args=({"x": BATCH},))
    with warned("argument 'batch'", line="gd.function"):
        gd.function(lambda x: strategy.run(total, args=(x,)))(BATCH)
    with warned("argument 'batch'", line="kwargs"):
        strategy.run(total, kwargs={"batch": jnp.asarray(BATCH)})


def test_what_is_no_global_batch_is_not_warned_of(strategy: gd.Strategy) -> None:
    with warned():
        strategy.run(total, args=(BATCH,))  # no dataset was seen
    distributed = seen_dataset(strategy)
    one = gd.OneDeviceStrategy("cpu:0")
    seen_dataset(one)
    another = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with another.scope():
        weights = gd.Variable(BATCH)

    @gd.function
    def computed(x: Any) -> Any:
        return strategy.run(total, args=(x * 2,))

    with warned():
        strategy.run(total, args=(distributed, BATCH))  # weights beside a batch
        strategy.run(total, args=(BATCH[:4],))
        strategy.run(total, args=(np.float32(6),))
        computed(BATCH)
        one.run(total, args=(BATCH,))
        another.run(total, args=(BATCH,))
        another.run(lambda: total(weights.read_value()))
