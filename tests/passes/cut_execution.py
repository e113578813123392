"""Steps with optimizers as graphs, and their halves run one after the other."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import graphdist as gd
from graphdist.ir.arrays import Held
from graphdist.ir.compare import first_difference
from graphdist.ir.graph import Graph
from graphdist.ir.interpreter import Outcome, interpret
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques, print_graph
from graphdist.ir.verifier import verify
from graphdist.passes import Target, pipeline
from graphdist.passes.cut_updates import CutUpdates, cut_step
from graphdist.passes.halves import CutStep, is_cut, joined, parted
from graphdist.passes.manager import run_passes
from graphdist.runtime.evaluate import evaluate_jax_node
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import random_held, same_bits

SHAPES = {"table": (12, 3), "dense": (3, 4), "bias": (4,), "gain": (3,), "factor": ()}
TARGET = Target("cpu", packs_variables=False, shard_update=False)


def predict(params: Mapping[str, Any], x: Any) -> Any:
    """Return predictions of a model that has some of the parameters above, for rows x i32[n]."""
    hidden = params["table"][x] if "table" in params else jnp.sin(x[:, None] + jnp.arange(3.0))
    if "gain" in params:
        hidden = hidden * params["gain"] / jnp.sqrt(jnp.mean(hidden**2) + 1)
    if "dense" in params:
        hidden = jnp.tanh(hidden @ params["dense"])
    else:
        hidden = jnp.pad(hidden, ((0, 0), (0, 1)))
    if "bias" in params:
        hidden = hidden + params["bias"]
    return hidden * params["factor"] if "factor" in params else hidden


def step_graph(
    names: Sequence[str], optimizer: Any, *, returns: str = "loss", lowered: bool = True
) -> Graph:
    """Return a training step as a graph: placed, or as one device runs it."""
    entries = pipeline(TARGET) if lowered else pipeline(TARGET)[:2]
    return run_passes(traced_step(names, optimizer, returns), entries)[-1].graph


def traced_step(names: Sequence[str], optimizer: Any, returns: str) -> Graph:
    """Return a training step on one replica, which takes rows i32[5], as a logical graph."""
    numbers = np.random.default_rng(0)
    initial = {name: jnp.asarray(numbers.normal(size=SHAPES[name]), "f") for name in names}
    strategy = gd.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        params, state = gd.variables(initial), gd.variables(optimizer.init(initial))

    def loss_of(params: Any, x: Any) -> Any:
        return jnp.mean((predict(params, x) - 1) ** 2)

    @gd.function
    def step(x: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(gd.read(params), x)
        updates, new = optimizer.update(grads, gd.read(state), gd.read(params))
        gd.assign(params, optax.apply_updates(gd.read(params), updates))
        gd.assign(state, new)
        norm = optax.tree.norm(updates) if returns == "norm" else None
        return {"loss": loss, "norm": (loss, norm), "nothing": None}[returns]

    with strategy.scope():
        return step.trace(jax.ShapeDtypeStruct((5,), np.int32)).graph


def run_halves(cut: CutStep, arguments: Sequence[Held], state: Mapping[str, Held]) -> Outcome:
    """Run the worker's half on the state, then the updates, each on what it has."""
    given = {name: state[name] for name in cut.reads}
    outputs = interpret(cut.worker, arguments, evaluate_jax_node, given).outputs
    results, sent = outputs[: len(outputs) - cut.num_sent], outputs[len(outputs) - cut.num_sent :]
    left = dict(state)
    for update in cut.updates:
        taken = [[sent[place][0]] for place in update.sent]
        held = {name: [state[name][0]] for name in update.variables}
        after = interpret(update.graph, taken, evaluate_jax_node, held).state
        for name in update.variables:
            left[name] = [after[name][0]] * cut.worker.num_replicas
    return Outcome(results, left)


def check_cut(graph: Graph, seed: str) -> CutStep:
    """Cut a step; its halves verify, survive their text, and do what the step does, to the bit."""
    cut = cut_step(graph)
    both = joined(cut, graph.variables)
    for half in (both, cut.worker, *(update.graph for update in cut.updates)):
        verify(half, full=True)
        again = parse(print_graph(half), opaques(half), ops=resolve)
        assert first_difference(half, again) is None
    assigned = [name for update in cut.updates for name in update.variables]
    assert sorted(assigned) == sorted(variable.name for variable in graph.assigned)
    numbers = np.random.default_rng(zlib.crc32(seed.encode()))
    state = {
        variable.name: random_held(variable.type, graph.num_replicas, numbers)
        for variable in graph.variables
    }
    for name, held in state.items():  # second moments, and counts of steps
        state[name] = [np.abs(array) for array in held] if "nu" in name else held
    arguments = [
        [np.abs(array) for array in random_held(value.type, graph.num_replicas, numbers)]
        for value in graph.inputs[len(graph.variables) :]
    ]
    expected = interpret(graph, arguments, evaluate_jax_node, state)
    check_outcome(run_halves(cut, arguments, state), expected)
    check_outcome(run_halves(parted(both), arguments, state), expected)
    check_outcome(interpret(both, arguments, evaluate_jax_node, state), expected)
    if cut.updates or cut.reads:
        assert is_cut(both)
        assert CutUpdates()(both) is both
    return cut


def check_outcome(given: Outcome, expected: Outcome) -> None:
    """Compare results and variables, to the bit."""
    assert len(given.outputs) == len(expected.outputs)
    for result, wanted in zip(given.outputs, expected.outputs, strict=True):
        assert same_bits(result, wanted)
    for name, held in expected.state.items():
        assert same_bits(given.state[name], held), name
