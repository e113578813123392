"""Random training steps, local and synchronized now and then, against a loop over the replicas.

A step reduces random expressions of its parameters and of the replica's data, updates slots and
parameters by them, in a random context, and in a loop or not. The oracle is the same arithmetic for
each replica in plain NumPy, with a mean of the parameters after every H-th step. The graph after
the pass is run by the interpreter, and the compiled program on devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.interpreter import interpret
from graphdist.ir.verifier import verify
from graphdist.passes.infer_distribution import infer_distribution
from graphdist.passes.local_steps import LocalSteps
from graphdist.runtime.evaluate import evaluate_jax_node
from tests.properties.effort import programs

REPLICAS, SIZE = 2, 3
GRADIENTS = {
    "sine": lambda own, other, x, np: np.sin(own * x),
    "product": lambda own, other, x, np: 0.1 * own * other + x,
    "rows": lambda own, other, x, np: own * x.sum() - other,
    "branch": lambda own, other, x, np: np.where(own > 0, x, -x * x),
}


@dataclass(frozen=True)
class Program:
    """A drawn step: for each parameter its gradient, reducer, and whether it has a slot."""

    parameters: tuple[tuple[str, str, bool], ...]
    every: int
    steps: int
    in_loop: bool
    aggregates: bool

    def update(self, w: list[Any], m: list[Any], x: Any, reduce: Any, np: Any) -> Any:
        """Return new parameters and slots."""
        grads = [
            reduce(GRADIENTS[kind](w[i], w[i - 1], x, np), reducer)
            for i, (kind, reducer, _) in enumerate(self.parameters)
        ]
        m = [0.5 * old + g for old, g in zip(m, grads, strict=True)]
        used = [
            slot if has_slot else g
            for slot, g, (_, _, has_slot) in zip(m, grads, self.parameters, strict=True)
        ]
        return [old - 0.1 * u for old, u in zip(w, used, strict=True)], m


PROGRAMS = st.builds(
    Program,
    st.lists(
        st.tuples(
            st.sampled_from(sorted(GRADIENTS)), st.sampled_from(["MEAN", "SUM"]), st.booleans()
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    st.integers(1, 3),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)


def expected(program: Program, data: Any) -> tuple[Any, Any]:
    """Return each replica's parameters and slots after all steps."""
    count = len(program.parameters)
    w: list[Any] = [[np.full(SIZE, 0.5 + i) for i in range(count)] for _ in range(REPLICAS)]
    m: list[Any] = [[np.zeros(SIZE) for _ in range(count)] for _ in range(REPLICAS)]

    def own(value: Any, reducer: str) -> Any:
        return value * (REPLICAS if reducer == "SUM" else 1)

    for step in range(program.steps):
        for r in range(REPLICAS):
            w[r], m[r] = program.update(w[r], m[r], data[r, step].astype(np.float64), own, np)
        if (step + 1) % program.every == 0:
            mean = [sum(w[r][i] for r in range(REPLICAS)) / REPLICAS for i in range(count)]
            w = [list(mean) for _ in range(REPLICAS)]
    return w, m


def traced(program: Program, strategy: gd.Strategy) -> tuple[Any, Any, Any]:
    """Return the function, its parameters and its slots."""
    count = len(program.parameters)
    aggregation = gd.VariableAggregation.MEAN if program.aggregates else gd.VariableAggregation.NONE
    with strategy.scope():
        w = [
            gd.Variable(np.full(SIZE, 0.5 + i, np.float32), name=f"w{i}", aggregation=aggregation)
            for i in range(count)
        ]
        m = [
            gd.Variable(np.zeros(SIZE, np.float32), name=f"m{i}", trainable=False)
            for i in range(count)
        ]

    def one(x: Any) -> None:
        reduce = gd.get_replica_context().all_reduce
        new, slots = program.update(
            [v[...] for v in w], [v[...] for v in m], x, lambda v, op: reduce(op, v), jnp
        )
        for variable, value in zip((*w, *m), (*new, *slots), strict=True):
            variable.assign(value)

    def turn(carry: None, x: Any) -> tuple[None, None]:
        one(x)
        return None, None

    def replica_fn(xs: Any) -> None:
        if program.in_loop:
            jax.lax.scan(turn, None, xs)
        else:
            one(xs)

    return gd.function(lambda xs: strategy.run(replica_fn, args=(xs,))), w, m


@programs(30)
@given(PROGRAMS, st.integers(0, 2**16))
def test_local_steps_as_replicas_alone(program: Program, seed: int) -> None:
    data = np.random.default_rng(seed).integers(-3, 4, (REPLICAS, program.steps, SIZE))
    data = data.astype(np.float32)
    want_w, want_m = expected(program, data)
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], sync_every=program.every)
    step, w, m = traced(program, strategy)
    chunks = [data] if program.in_loop else [data[:, i] for i in range(program.steps)]
    given = [per_replica(strategy, chunk) for chunk in chunks]
    logical = infer_distribution(step.trace(given[0]).graph)
    interpreted = run_interpreted(logical, program.every, chunks)
    for xs in given:
        step(xs)
    for replica in range(REPLICAS):
        for i in range(len(program.parameters)):
            for name, variable, want in ((f"w{i}", w[i], want_w), (f"m{i}", m[i], want_m)):
                compiled = np.asarray(variable.values[replica])
                np.testing.assert_allclose(compiled, want[replica][i], rtol=2e-4, atol=2e-4)
                one = interpreted[name][replica]
                np.testing.assert_allclose(one, want[replica][i], rtol=2e-4, atol=2e-4)


def per_replica(strategy: gd.Strategy, chunk: Any) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: chunk[context.replica_id_in_sync_group]
    )


def run_interpreted(graph: Any, every: int, chunks: Any) -> Any:
    """Run the graph after the pass, and return what is left; check what a pass promises."""
    run = LocalSteps(every)
    after = run(graph)
    verify(after, full=True)
    assert run(after) is after
    state: dict[str, list[Any]] = {}
    for variable in after.variables:
        if variable.serves:
            state[variable.name] = [np.zeros((), np.int32)] * REPLICAS
        else:
            first = 0.5 + int(variable.name[1:]) if variable.name[0] == "w" else 0.0
            state[variable.name] = [np.full(SIZE, first, np.float32)] * REPLICAS
    for chunk in chunks:
        state = interpret(after, [list(chunk)], evaluate_jax_node, state).state
    return state
