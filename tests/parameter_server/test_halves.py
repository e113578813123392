"""The cut of a step: both halves together are the step, and little is sent between them."""

from __future__ import annotations

from typing import Any  # Any: arrays

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from graphdist.parameter_server.halves import Halves, colocated, halves_of
from graphdist.passes.pipelines import PASSES
from graphdist.runtime.emit import emit
from graphdist.tracing.jax_ops import resolve

OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(1e-2),
    "lamb": optax.lamb(1e-2),
    "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2)),
    "lion": optax.lion(1e-2),
    "schedule": optax.sgd(optax.exponential_decay(0.1, 10, 0.9)),
}
X, Y = np.linspace(-1, 1, 12, dtype="f").reshape(4, 3), np.ones((4, 2), "f")


def placed(function: gd.Function[..., Any], *arguments: Any) -> Graph:
    graph = function.trace(*arguments).graph
    for name in ("infer_distribution", "place_variables"):
        graph = PASSES[name](graph)
    return graph


def step_of(optimizer: Any) -> gd.Function[..., Any]:
    params = gd.variables({"w": jnp.ones((3, 2)), "b": jnp.zeros(2)})
    state = gd.variables(optimizer.init(gd.read(params)))

    @gd.function
    def step(x: Any, y: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(gd.read(params))
        updates, new = optimizer.update(grads, gd.read(state), gd.read(params))
        gd.assign(params, optax.apply_updates(gd.read(params), updates))
        gd.assign(state, new)
        return loss

    return step


def values_of(graph: Graph) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        variable.name: jnp.asarray(generator.uniform(0.5, 1, variable.type.shape), jnp.float32)
        if variable.type.dtype == "f32"
        else jnp.int32(3)
        for variable in graph.variables
    }


def outputs(graph: Graph, *arrays: Any) -> list[Any]:
    if graph.stage.value == "placed":
        graph = PASSES["lower_cross_replica"](graph)
    return emit(graph, arrays)


def in_halves(halves: Halves, values: dict[str, Any], *arguments: Any) -> tuple[Any, Any]:
    """Return the step's results and the new values, computed half by half."""
    found = outputs(halves.worker, *arguments, *(values[name] for name in halves.reads))
    count = len(found) - halves.num_sent
    results, sent = found[:count], found[count:]
    new = {}
    for update in halves.updates:
        of_update = [sent[place] for place in update.sent]
        if update.graph is None:
            new[update.assigned[0]] = of_update[0]
            continue
        held = [values[name] for name in update.variables]
        computed = outputs(parse(str(update.graph), ops=resolve), *held, *of_update)
        new.update(zip(update.assigned, computed, strict=True))
    return results, new


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_halves_together_are_the_step(name: str) -> None:
    graph = placed(step_of(OPTIMIZERS[name]), X, Y)
    halves, values = halves_of(graph), values_of(graph)
    verify(halves.worker)
    expected = outputs(graph, *values.values(), X, Y)
    results, new = in_halves(halves, values, X, Y)
    for variable, value in zip(graph.assigned, expected, strict=False):
        np.testing.assert_allclose(new[variable.name], value, rtol=1e-5, err_msg=variable.name)
    np.testing.assert_allclose(results[0], expected[-1], rtol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "lion", "schedule", "clipped"])
def test_only_gradients_and_single_numbers_are_sent(name: str) -> None:
    halves = halves_of(placed(step_of(OPTIMIZERS[name]), X, Y))
    sent = halves.worker.outputs[-halves.num_sent :]
    arrays = sorted(value.type.shape for value in sent if value.type.shape)
    assert arrays == [(2,), (3, 2)]
    assert {name for name in halves.reads if "count" not in name} == {"w", "b"}


def test_slots_belong_to_their_variable() -> None:
    halves = halves_of(placed(step_of(OPTIMIZERS["adam"]), X, Y))
    groups = {frozenset(group) for group in colocated(halves.updates)}
    assert groups == {
        frozenset({"w", "0_mu_w", "0_nu_w"}),
        frozenset({"b", "0_mu_b", "0_nu_b"}),
    }


def test_a_value_from_elsewhere_replaces_the_variable() -> None:
    v = gd.Variable(jnp.zeros(3), name="v")

    @gd.function
    def step(x: Any) -> None:
        v.assign(x * 2, read_value=False)

    halves = halves_of(placed(step, X[0]))
    (update,) = halves.updates
    assert update.graph is None
    assert not halves.reads


def test_matrix_products_are_left_to_the_worker() -> None:
    v = gd.Variable(jnp.eye(3), name="v")

    @gd.function
    def step() -> None:
        v.assign(v[...] @ v[...], read_value=False)

    halves = halves_of(placed(step))
    assert halves.updates[0].graph is None
    assert halves.reads == ("v",)
