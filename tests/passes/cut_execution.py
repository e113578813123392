"""Steps with optimizers as graphs, and their cuts run one graph after the other."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import graphdist as gd
from graphdist.ir.compare import first_difference
from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques, print_graph
from graphdist.ir.verifier import verify
from graphdist.passes import Target, pipeline
from graphdist.passes.manager import Pass, run_passes
from graphdist.passes.servers.cut_step import CutStep, graphs_of
from graphdist.passes.servers.cut_updates import cut_graph
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import Trial, check_outcome, same_bits

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
    entries = pipeline(TARGET) if lowered else up_to("place_variables", pipeline(TARGET))
    return run_passes(traced_step(names, optimizer, returns), entries)[-1].graph


def up_to(name: str, passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return the passes up to the one with this name."""
    names = [entry.name for entry in passes]
    return tuple(passes[: names.index(name) + 1])


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


def check_cut(graph: Graph, seed: str) -> CutStep:
    """Cut a step; its graphs verify, survive their text, and do what the step does, to the bit."""
    cut = cut_graph(graph)
    for part in graphs_of(cut):
        verify(part, full=True)
        again = parse(print_graph(part), opaques(part), ops=resolve)
        assert first_difference(part, again) is None
    assigned = [name for update in cut.updates for name in update.variables]
    assert sorted(assigned) == sorted(variable.name for variable in graph.assigned)
    numbers = np.random.default_rng(zlib.crc32(seed.encode()))
    trial = Trial.at_random(graph, numbers)
    for name, held in trial.state.items():  # second moments, and counts of steps
        trial.state[name] = [np.abs(array) for array in held] if "nu" in name else held
    arguments = [[np.abs(array) for array in held] for held in trial.arguments]
    trial = replace(trial, arguments=arguments)
    check_outcome(trial.outcome(cut), trial.outcome(graph), same_bits)
    return cut
