"""Plans for steps whose layers are written out: no value changes, whatever a plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.ad_checkpoint import checkpoint_name

import graphdist as gd
from graphdist.ir.forward_values import ForwardValues
from graphdist.ir.graph import Graph
from graphdist.ir.ops import BARRIER
from graphdist.ir.value_names import ValueName
from graphdist.ir.value_numbering import ValueNumbers
from graphdist.ir.verifier import verify
from graphdist.ir.written_out import WrittenOut, written_out
from graphdist.passes.logical.choose_residuals import ChooseResiduals
from graphdist.passes.logical.infer_layouts import infer_layouts
from tests.passes.execution import check_same_meaning

LAYERS, ROWS, WIDTH = 3, 4, 8
X = jnp.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)
WEIGHTS = [jax.random.normal(jax.random.key(i), (WIDTH, WIDTH)) * 0.5 for i in range(LAYERS)]
Loss = Callable[[Any, Any], Any]


# Its backward pass needs `hidden` itself, with every version of JAX.
def layer(x: Any, w: Any) -> Any:
    hidden = checkpoint_name(jnp.tanh(x @ w), "hidden")
    return x + hidden * hidden


def dropped(x: Any, w: Any) -> Any:
    kept = jax.random.bernoulli(jax.random.key(1), 0.7, x.shape)
    return jnp.where(kept, layer(x, w), 0.0)


def looped(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda h, row: (jnp.sin(h * row), None), x, w)[0]


def loss_of(layer: Any) -> Loss:
    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = layer(x, w)
        return jnp.mean(x**2)

    return loss


def by_vjp(loss: Loss) -> Loss:
    def gradients(weights: Any, x: Any) -> Any:
        value, transposed = jax.vjp(loss, weights, x)
        return value, transposed(jnp.float32(2.0))

    return gradients


def twice(loss: Loss) -> Loss:
    """Two gradients, the second of which depends on the first."""

    def gradients(weights: Any, x: Any) -> Any:
        first = jax.grad(loss)(weights, x)
        return jax.value_and_grad(loss)([w - d for w, d in zip(weights, first, strict=True)], x)

    return gradients


def accumulated(loss: Loss) -> Loss:
    def gradients(weights: Any, x: Any) -> Any:
        return gd.accumulate(lambda x: jax.grad(loss)(weights, x), 2)(x)

    return gradients


def with_optax(loss: Loss) -> Loss:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))

    def step(weights: Any, x: Any) -> Any:
        grads = jax.grad(loss)(weights, x)
        return optimizer.update(grads, optimizer.init(weights), weights)

    return step


DOTS = jax.checkpoint_policies.dots_saveable
STEPS: dict[str, Loss] = {
    "grad": jax.grad(loss_of(layer)),
    "recomputed": jax.value_and_grad(loss_of(jax.checkpoint(layer))),
    "whole recomputed": jax.grad(jax.checkpoint(loss_of(layer))),
    "dots": jax.grad(loss_of(jax.checkpoint(layer, policy=DOTS))),
    "replayed": jax.grad(loss_of(jax.checkpoint(layer, prevent_cse=False))),
    "vjp": by_vjp(loss_of(jax.checkpoint(layer))),
    "twice": twice(loss_of(layer)),
    "accumulated": accumulated(loss_of(jax.checkpoint(layer))),
    "optax": with_optax(loss_of(layer)),
    "dropout": jax.grad(loss_of(jax.checkpoint(dropped))),
    "loops": jax.grad(loss_of(jax.checkpoint(looped))),
    "kept loops": jax.grad(loss_of(looped)),
}


def graph_of(step: Loss, weights: Any = WEIGHTS, x: Any = X) -> Graph:
    return infer_layouts(gd.function(step).trace(weights, x).graph)


def plans(graph: Graph) -> list[gd.Plan]:
    """Return plans that keep each value, compute each again, and every second of both."""
    found = written_out(graph)
    assert found, "the step has a forward and a backward pass"
    names = [name for each in found for name in dict.fromkeys(map(each.name_of, each.relevant))]
    kept, again = (dict.fromkeys(names, keep) for keep in (gd.Keep.DEVICE, gd.Keep.RECOMPUTE))
    mixed = {**again, **dict(list(kept.items())[::2])}
    on_host = {**kept, **dict.fromkeys(names[::3], gd.Keep.HOST)}
    return [gd.Plan(chosen) for chosen in (kept, again, mixed, on_host)]


def passes_of(kind: str) -> WrittenOut:
    (found,) = written_out(graph_of(STEPS[kind]))
    return found


@pytest.mark.parametrize("kind", STEPS)
def test_no_bit_changes(kind: str) -> None:
    graph = graph_of(STEPS[kind])
    changed = 0
    for plan in plans(graph):
        choose = ChooseResiduals(plan.residuals)
        after = choose(graph)
        verify(after, full=True)
        check_same_meaning(graph, after, kind, to_the_bit=True)
        assert choose(after) is after or gd.Keep.HOST in plan.residuals.values()
        changed += after is not graph
    assert changed >= 2


@pytest.mark.parametrize("kind", ["grad", "recomputed", "optax", "loops"])
def test_a_compiled_step_computes_the_same(kind: str) -> None:
    expected = jax.tree.leaves(jax.jit(STEPS[kind])(WEIGHTS, X))
    for plan in plans(graph_of(STEPS[kind]))[:3]:
        given = jax.tree.leaves(gd.function(STEPS[kind], plan=plan)(WEIGHTS, X))
        for one, other in zip(given, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)


def test_forward_values_have_passes() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ForwardValues(ValueNumbers())  # type: ignore[abstract]  # which is tested


def test_equal_layers_have_one_name() -> None:
    passes = passes_of("recomputed")
    assert len(passes.named[ValueName("hidden")]) == LAYERS
    products = [numbers for name, numbers in passes.named.items() if name.text.endswith("general")]
    assert [len(numbers) for numbers in products] == [LAYERS]


def test_what_the_program_does_is_the_default() -> None:
    def default(kind: str) -> dict[str, str]:
        found = ChooseResiduals({}).all_residuals(graph_of(STEPS[kind]))
        return {str(name): keep.value for name, keep in found.items()}

    assert default("grad")["hidden"] == "device"
    assert default("recomputed")["hidden"] == "recompute"
    assert default("dots")["layer+1:dot_general"] == "device"


def nodes(kind: str, residuals: str) -> list[str]:
    """Return the operations of a step with a plan."""
    plan = gd.Plan.from_json(f'{{"residuals": {residuals}}}')
    graph = ChooseResiduals(plan.residuals)(graph_of(STEPS[kind]))
    return [node.op.name for node in graph.nodes]


def test_a_value_is_computed_again_once_a_layer_behind_a_barrier() -> None:
    again = nodes("grad", '{"hidden": "recompute"}')
    assert again.count("jax.tanh") == 2 * LAYERS
    assert again.count(BARRIER.name) == LAYERS
    assert nodes("recomputed", '{"hidden": "device"}').count("jax.tanh") == LAYERS


def test_a_value_on_the_host_crosses_once_each_way() -> None:
    assert nodes("grad", '{"hidden": "host"}').count("copy_to") == 2 * LAYERS
