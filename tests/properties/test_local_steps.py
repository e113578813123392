"""Random training steps, local and synchronized now and then, against a loop over the replicas.

A step reduces random expressions of its parameters and of the replica's data, updates slots and
parameters by them, in a random context, and in a loop or not. The oracle is the same arithmetic for
each replica in plain NumPy, with a mean of the parameters after every H-th step, or a step of an
outer optimizer. The graph after
the pass is run by the interpreter, and the compiled program on devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.interpreter import interpret
from graphdist.ir.types import numpy_dtype
from graphdist.ir.variable_storage import Anchor
from graphdist.ir.verifier import verify
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.logical.local_steps import LocalSteps
from graphdist.runtime.bind_primitive import evaluate_jax_node
from tests.properties.effort import programs

REPLICAS, SIZE = 2, 3
GRADIENTS = {
    "sine": lambda own, other, x, np: np.sin(own * x),
    "product": lambda own, other, x, np: 0.1 * own * other + x,
    "rows": lambda own, other, x, np: own * x.sum() - other,
    "branch": lambda own, other, x, np: np.where(own > 0, x, -x * x),
}


OUTER: dict[str, Any] = {
    "descent": optax.sgd(0.7),
    "momentum": optax.sgd(0.7, momentum=0.9),
    "nesterov": optax.sgd(0.7, momentum=0.9, nesterov=True),
}
"""Outer optimizers: their momentum and whether it looks ahead are in `synchronized`."""


@dataclass(frozen=True)
class Program:
    """A drawn step: for each parameter its gradient, reducer, and whether it has a slot."""

    parameters: tuple[tuple[str, str, bool], ...]
    every: int
    steps: int
    in_loop: bool
    aggregates: bool
    outer: str = ""

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
    st.sampled_from(["", *sorted(OUTER)]),
)


def expected(program: Program, data: Any) -> tuple[Any, Any]:
    """Return each replica's parameters and slots after all steps."""
    count = len(program.parameters)
    w: list[Any] = [[np.full(SIZE, 0.5 + i) for i in range(count)] for _ in range(REPLICAS)]
    anchors, traces = list(w[0]), [np.zeros(SIZE) for _ in range(count)]
    m: list[Any] = [[np.zeros(SIZE) for _ in range(count)] for _ in range(REPLICAS)]

    def own(value: Any, reducer: str) -> Any:
        return value * (REPLICAS if reducer == "SUM" else 1)

    for step in range(program.steps):
        for r in range(REPLICAS):
            w[r], m[r] = program.update(w[r], m[r], data[r, step].astype(np.float64), own, np)
        if (step + 1) % program.every == 0:
            mean = [sum(w[r][i] for r in range(REPLICAS)) / REPLICAS for i in range(count)]
            anchors, traces = synchronized(program.outer, anchors, mean, traces)
            w = [list(anchors) for _ in range(REPLICAS)]
    return w, m


def synchronized(outer: str, anchors: Any, mean: Any, traces: Any) -> tuple[Any, Any]:
    """Return the parameters after a synchronization, and the slots of the outer optimizer."""
    if not outer:
        return mean, traces
    difference = [anchor - value for anchor, value in zip(anchors, mean, strict=True)]
    decay = 0.0 if outer == "descent" else 0.9
    traces = [d + decay * trace for d, trace in zip(difference, traces, strict=True)]
    ahead = [d + decay * trace for d, trace in zip(difference, traces, strict=True)]
    used = ahead if outer == "nesterov" else traces
    return [anchor - 0.7 * u for anchor, u in zip(anchors, used, strict=True)], traces


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


@pytest.mark.long
@programs(30)
@given(PROGRAMS, st.integers(0, 2**16))
def test_local_steps_as_replicas_alone(program: Program, seed: int) -> None:
    data = np.random.default_rng(seed).integers(-3, 4, (REPLICAS, program.steps, SIZE))
    data = data.astype(np.float32)
    want_w, want_m = expected(program, data)
    outer = OUTER.get(program.outer)
    devices = ["cpu:0", "cpu:1"]
    strategy = gd.MirroredStrategy(devices, sync_every=program.every, outer_optimizer=outer)
    step, w, m = traced(program, strategy)
    chunks = [data] if program.in_loop else [data[:, i] for i in range(program.steps)]
    given = [per_replica(strategy, chunk) for chunk in chunks]
    logical = infer_layouts(step.trace(given[0]).graph)
    interpreted = run_interpreted(logical, strategy.local_steps, chunks)
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


def run_interpreted(graph: Any, run: LocalSteps | None, chunks: Any) -> Any:
    """Run the graph after the pass, and return what is left; check what a pass promises."""
    assert run is not None
    after = run(graph)
    verify(after, full=True)
    assert run(after) is after
    state: dict[str, list[Any]] = {}
    for variable in after.variables:
        is_anchor = isinstance(variable.role, Anchor)
        name = variable.serves[0] if is_anchor else variable.name
        is_parameter = name[0] == "w" and (is_anchor or not variable.serves)
        first = 0.5 + int(name[1:]) if is_parameter else 0.0
        held = np.full(variable.type.shape, first, numpy_dtype(variable.type.dtype))
        state[variable.name] = [held] * REPLICAS
    for chunk in chunks:
        state = interpret(after, [list(chunk)], evaluate_jax_node, state).state
    return state
