"""Training steps of models as people write them, small: the pages of tests are made of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: pytrees of parameters

import jax
import jax.numpy as jnp
from jax import lax

import graphdist as gd
from graphdist.program.stages import Lowered

LAYERS, WIDTH, EXPERTS = 16, 8, 4
Loss = Callable[[Any, jax.Array], jax.Array]


def lowered_step(loss: Loss, params: Any) -> Lowered:
    """Return the training step of a model on two replicas, after all passes."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        variables = gd.variables(params)

    def replica(x: jax.Array) -> jax.Array:
        value, gradients = jax.value_and_grad(loss)(gd.read(variables), x)
        gradients = gd.get_replica_context().all_reduce("MEAN", gradients)
        gd.assign(variables, jax.tree.map(lambda v, g: v - 0.1 * g, gd.read(variables), gradients))
        return value

    @gd.function
    def step(x: jax.Array) -> jax.Array:
        return strategy.reduce("MEAN", strategy.run(replica, args=(x,)), axis=None)

    return step.trace(gd.PerReplicaSpec((4, WIDTH), jnp.float32, strategy=strategy)).lower()


def layer(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Return a layer of a transformer, without heads and masks."""
    with jax.named_scope("attention"):
        q, k, v = (x @ params[name] for name in ("q", "k", "v"))
        x = x + jax.nn.softmax(q @ k.T / WIDTH**0.5) @ v
    with jax.named_scope("mlp"):
        return x + jax.nn.gelu(x @ params["up"]) @ params["down"]


def layer_params() -> dict[str, jax.Array]:
    shapes = dict.fromkeys(("q", "k", "v"), (WIDTH, WIDTH))
    shapes |= {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    return {name: jnp.full(shape, 0.1) for name, shape in shapes.items()}


def unrolled() -> Lowered:
    """Return the step of a transformer whose 16 layers are written out."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for number, own in enumerate(params):
            with jax.named_scope(f"layer{number}"):
                x = layer(own, x)
        return jnp.mean(x**2)

    return lowered_step(loss, [layer_params() for _ in range(LAYERS)])


def scanned() -> Lowered:
    """Return the step of a transformer whose layers are a scan, computed again backward."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        body = jax.checkpoint(lambda x, own: (layer(own, x), None))
        return jnp.mean(lax.scan(body, x, params)[0] ** 2)

    stacked = jax.tree.map(lambda value: jnp.stack([value] * LAYERS), layer_params())
    return lowered_step(loss, stacked)


def mixture() -> Lowered:
    """Return the step of a mixture of experts: each token goes to the expert of its router."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        with jax.named_scope("router"):
            gates = jax.nn.softmax(x @ params["router"])
            chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), EXPERTS) * gates
        with jax.named_scope("experts"):
            inside = jnp.einsum("te,td,edh->teh", chosen, x, params["up"])
            x = x + jnp.einsum("teh,ehd->td", jax.nn.relu(inside), params["down"])
        return jnp.mean(x**2)

    shapes = {"router": (WIDTH, EXPERTS), "up": (EXPERTS, WIDTH, 4), "down": (EXPERTS, 4, WIDTH)}
    return lowered_step(loss, {name: jnp.full(shape, 0.1) for name, shape in shapes.items()})


def named_by_haiku() -> Lowered:
    """Return the step of a haiku model, whose modules have names with slashes."""
    import haiku as hk

    def forward(x: jax.Array) -> jax.Array:
        for number in range(3):
            x = hk.nets.MLP([WIDTH, WIDTH], name=f"encoder_{number}")(x)
        return jnp.mean(hk.LayerNorm(-1, True, True, name="norm")(x) ** 2)

    model: Any = hk.without_apply_rng(hk.transform(forward))  # haiku's types are for no state
    return lowered_step(model.apply, model.init(jax.random.key(0), jnp.ones((4, WIDTH))))
