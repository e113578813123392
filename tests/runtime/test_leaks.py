"""Nothing of a trace outlives it: `jax.checking_leaks` finds no tracer that is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import graphdist as gd

ONES = jnp.ones(3)


@pytest.fixture(autouse=True)
def leaks_are_errors() -> Iterator[None]:
    with jax.checking_leaks():
        yield


def number() -> Any:
    return gd.get_replica_context().replica_id_in_sync_group


class Program:
    """A strategy of two replicas, variables of both kinds, and rows of which replica 1 has one."""

    def __init__(self) -> None:
        self.strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        with self.strategy.scope():
            self.w = gd.Variable(np.full(3, 2, np.float32), name="w")
            self.total = gd.Variable(
                0.0,
                name="total",
                synchronization=gd.VariableSynchronization.ON_READ,
                aggregation=gd.VariableAggregation.SUM,
            )
        (self.unequal,) = self.strategy.experimental_distribute_dataset(
            [np.arange(3, dtype=np.float32)]
        )

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return the sum of what the replicas return."""
        return self.strategy.reduce("SUM", self.strategy.run(fn, args=args), axis=None)

    def merged(self, x: Any) -> Any:
        """Return the sum over the replicas by `merge_call`, in a replica function."""
        return gd.get_replica_context().merge_call(
            lambda strategy, x: strategy.reduce("SUM", x, axis=None), args=(x,)
        )


PROGRAMS: dict[str, tuple[Callable[[Program, Any], Any], float]] = {
    "read": (lambda p, rows: (ONES * p.w).sum(), 6),
    "assign": (lambda p, rows: p.w.assign(ONES).sum(), 3),
    "read in run": (lambda p, rows: p.run(lambda: p.w[0] * 2), 8),
    "write in run": (lambda p, rows: p.run(lambda: p.total.assign_add(1.0)), 2),
    "number": (lambda p, rows: p.run(number), 1),
    "number as a Python value": (lambda p, rows: p.run(lambda: jnp.float32([3, 4][number()])), 7),
    "merge_call": (lambda p, rows: p.strategy.run(lambda: p.merged(p.w[0])), 4),
    "merge_call of unequal replicas": (
        lambda p, rows: p.strategy.run(lambda x: p.merged(x.sum()), args=(rows,)),
        3,
    ),
    "unequal replicas that write": (
        lambda p, rows: p.run(lambda x: p.total.assign_add(x.sum() * p.w[0]), rows),
        6,
    ),
    "branch": (lambda p, rows: lax.cond(p.w[0] > 0, lambda: p.w[...], lambda: ONES).sum(), 6),
    "loop that writes": (
        lambda p, rows: lax.scan(lambda c, _: (p.w.assign_add(c), None), ONES, None, 2)[0].sum(),
        18,
    ),
    "gradient": (lambda p, rows: jax.grad(lambda x: (x * p.w).sum())(ONES).sum(), 6),
    "checkpoint": (
        lambda p, rows: jax.grad(jax.checkpoint(lambda x: (x * p.w).sum()))(ONES).sum(),
        6,
    ),
    "vmap": (lambda p, rows: jax.vmap(lambda x: (x * p.w).sum())(jnp.ones((2, 3))).sum(), 12),
    "accumulation": (
        lambda p, rows: gd.accumulate(lambda x: (x * p.w).sum(), 3)(jnp.ones((3, 3))),
        6,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_tracer_is_kept(name: str) -> None:
    program = Program()
    compute, expected = PROGRAMS[name]
    step = gd.function(lambda rows: compute(program, rows))
    assert float(step(program.unequal)) == expected


def test_outside_functions() -> None:
    program = Program()
    doubled = program.strategy.run(lambda x: x * program.w[0], args=(program.unequal,))
    assert program.strategy.reduce("SUM", doubled, axis=0) == 6
    program.w.assign(ONES)
    assert program.w[0] == 1
