"""Plans for models of libraries, whose layers are written out: no bit changes, in any plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from graphdist.ir.graph import Graph
from graphdist.ir.written_out import written_out
from graphdist.passes.logical.choose_residuals import ChooseResiduals
from graphdist.passes.logical.infer_layouts import infer_layouts
from tests.ir.real_programs import PROGRAMS
from tests.passes.execution import check_same_meaning
from tests.planning.test_written_out import X, graph_of, plans

LAYERS, WIDTH = 3, X.shape[1]
KEY = jax.random.key(0)


class Block(nn.Module):
    """A layer of flax."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x + nn.Dense(WIDTH)(nn.gelu(nn.LayerNorm()(x)))


class Blocks(nn.Module):
    """Layers of flax, each computed again in the backward pass."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(LAYERS):
            x = nn.remat(Block)()(x)
        return x


def flax_step() -> Graph:
    model: Any = Blocks()
    params: Any = model.init(KEY, X)
    return graph_of(jax.grad(lambda params, x: jnp.mean(model.apply(params, x) ** 2)), params)


def nnx_step() -> Graph:
    layers = [nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(i)) for i in range(LAYERS)]
    structure, state = nnx.split(nnx.List(layers))

    def loss(state: Any, x: Any) -> Any:
        for layer in nnx.merge(structure, state):
            x = jnp.tanh(layer(x))
        return jnp.mean(x**2)

    return graph_of(jax.grad(loss), state)


def haiku_step() -> Graph:
    model: Any = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([WIDTH] * LAYERS)(x)))
    params = model.init(KEY, X)
    return graph_of(jax.grad(lambda params, x: jnp.mean(model.apply(params, x) ** 2)), params)


def equinox_step() -> Graph:
    model = eqx.nn.MLP(WIDTH, WIDTH, WIDTH, LAYERS, key=KEY)
    arrays, others = eqx.partition(model, eqx.is_array)

    def loss(arrays: Any, x: Any) -> Any:
        return jnp.mean(jax.vmap(eqx.combine(arrays, others))(x) ** 2)

    return graph_of(jax.grad(loss), arrays)


MODELS: dict[str, Callable[[], Graph]] = {
    "flax": flax_step,
    "nnx": nnx_step,
    "haiku": haiku_step,
    "equinox": equinox_step,
}
LARGER = ("classifier of Keras", "decoder", "experts", "batch normalization")


def check(graph: Graph, name: str) -> None:
    found = plans(graph)
    assert sum(len(passes.values) for passes in written_out(graph)) > LAYERS
    for plan in found:
        after = ChooseResiduals(plan.residuals)(graph)
        check_same_meaning(graph, after, name, to_the_bit=True)


@pytest.mark.parametrize(
    "name", [pytest.param("flax", marks=pytest.mark.long), "nnx", "haiku", "equinox"]
)
def test_no_bit_of_a_model_changes(name: str) -> None:
    check(MODELS[name](), name)


@pytest.mark.long
@pytest.mark.parametrize("name", LARGER)
def test_no_bit_of_a_program_changes(name: str) -> None:
    check(infer_layouts(PROGRAMS[name]().graph), name)
