"""Random training steps of stacked layers, whose parameters may be stored in slices.

A model is a chain of random steps a layer, run by a loop over the layers, by a loop in a loop, by
two loops, or layer by layer, with `jax.checkpoint` or without. Values are small integers and
factors powers of two, so that no order of additions rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias  # Any: pytrees of arrays

import jax
import jax.numpy as jnp

import graphdist as gd
from graphdist.ir.graph import Graph

Params: TypeAlias = dict[str, Any]
Layer: TypeAlias = Callable[[Any, Params], Any]

SLICES, LAYERS, WIDTH = 2, 4, 4
STRATEGIES = {
    groups: gd.MirroredStrategy([f"cpu:{i}" for i in range(SLICES * groups)]) for groups in (1, 2)
}
SHAPES = {"matrix": (WIDTH, WIDTH), "scale": (WIDTH,), "shift": (WIDTH,)}


def in_chunks(h: Any, params: Params) -> Any:
    """Return a sum over rows of the matrix, two at a time."""
    rows = params["matrix"].reshape(2, WIDTH // 2, WIDTH)
    zero = jnp.zeros_like(h)
    return jax.lax.scan(lambda s, r: (s + jnp.clip(h * r.sum(0), -4, 4), None), zero, rows)[0]


def in_branches(h: Any, params: Params) -> Any:
    return jax.lax.cond(h.sum() > 0, lambda: h * params["scale"], lambda: jnp.clip(-h, -2, 2))


STEPS: dict[str, Layer] = {
    "product": lambda h, p: h @ p["matrix"],
    "transposed": lambda h, p: h @ p["matrix"].T,
    "narrow": lambda h, p: (h.astype("bfloat16") @ p["matrix"].astype("bfloat16")).astype("f"),
    "narrow rows": lambda h, p: h + p["matrix"].astype("bfloat16")[0].astype("f"),
    "scale": lambda h, p: h * p["scale"],
    "shift": lambda h, p: h + p["shift"],
    "negative": lambda h, p: -h + 2 * p["shift"],
    "rows": lambda h, p: h + p["matrix"][0],
    "clip": lambda h, p: jnp.clip(h, -4, 4),
    "larger": lambda h, p: jnp.maximum(h, p["shift"]),
    "chunks": in_chunks,
    "branches": in_branches,
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "kept": lambda f: f,
    "recomputed": jax.checkpoint,
    "replayed": partial(jax.checkpoint, prevent_cse=False),
}
UPDATES: dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    "sgd": lambda w, m, g: (w - 0.5 * g, m),
    "momentum": lambda w, m, g: (w - (m * 0.5 + g), m * 0.5 + g),
    "signs": lambda w, m, g: (w - jnp.sign(g) * jnp.sign(jnp.vdot(g, g)), m + g),
    "average": lambda w, m, g: (w - g, (m + w) * 0.5),
}


def in_one_loop(layer: Layer, h: Any, params: Params) -> Any:
    return jax.lax.scan(lambda h, p: (layer(h, p), None), h, params)[0]


def in_two_loops(layer: Layer, h: Any, params: Params) -> Any:
    groups = jax.tree.map(lambda p: p.reshape(2, LAYERS // 2, *p.shape[1:]), params)
    return jax.lax.scan(lambda h, p: (in_one_loop(layer, h, p), None), h, groups)[0]


def one_by_one(layer: Layer, h: Any, params: Params) -> Any:
    for i in range(LAYERS):
        h = layer(h, jax.tree.map(lambda p, i=i: p[i], params))
    return h


def tied(layer: Layer, h: Any, params: Params) -> Any:
    return in_one_loop(layer, in_one_loop(layer, h, params), params)


def beside(layer: Layer, h: Any, params: Params) -> Any:
    return in_one_loop(layer, h, params) + in_one_loop(layer, -h, params)


def gradients(loss: Any, params: Params, x: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(gd.read(params), x)
    return value, gd.get_replica_context().all_reduce("SUM", grads)


def accumulated(loss: Any, params: Params, x: Any) -> Any:
    """Return what `gradients` does, for two microbatches that read the parameters themselves."""
    rows = jnp.stack([x, -x])
    function = gd.accumulate(lambda rows: gradients(loss, params, rows[0]), 2, reduce_op="SUM")
    return function(rows)


def accumulated_of_read(loss: Any, params: Params, x: Any) -> Any:
    """Return the same, of parameters that are read once."""
    old = gd.read(params)

    def function(rows: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(old, rows[0])
        return value, gd.get_replica_context().all_reduce("SUM", grads)

    return gd.accumulate(function, 2, reduce_op="SUM")(jnp.stack([x, -x]))


REPEATED = {
    "once": gradients,
    "accumulated": accumulated,
    "accumulated of read": accumulated_of_read,
}
RUNS = {
    "loop": in_one_loop,
    "loops": in_two_loops,
    "apart": one_by_one,
    "tied": tied,
    "beside": beside,
}


def traced(
    steps: Sequence[str],
    run: str,
    wrapper: str,
    update: str,
    repeated: str = "once",
    groups: int = 1,
) -> Graph:
    """Return the logical graph of a training step, for so many groups of replicas."""
    strategy = STRATEGIES[groups]
    with strategy.scope():
        shapes = {n: jax.ShapeDtypeStruct((LAYERS, *s), jnp.float32) for n, s in SHAPES.items()}
        state = gd.variables({"w": shapes, "m": shapes})
    params, slots = state["w"], state["m"]

    def layer(h: Any, p: Params) -> Any:
        for step in steps:
            h = STEPS[step](h, p)
        return h

    def loss(params: Params, x: Any) -> Any:
        return RUNS[run](WRAPPERS[wrapper](layer), x, params).sum()

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            old, kept = gd.read(params), gd.read(slots)
            value, grads = REPEATED[repeated](loss, params, x)
            for name in SHAPES:
                new, slot = UPDATES[update](old[name], kept[name], grads[name])
                params[name].assign(new)
                slots[name].assign(slot)
            return value

        return strategy.run(replica_fn, args=(x,))

    with strategy.scope():
        return step.trace(gd.PerReplicaSpec((WIDTH,), jnp.float32)).graph


def in_slices(graph: Graph, dimensions: Sequence[int | None], groups: int = 1) -> Graph:
    """Return the graph with its variables stored along these dimensions, where they have them."""
    along = [
        None if dimension is None else dimension % len(variable.type.shape)
        for variable, dimension in zip(graph.variables, dimensions, strict=False)
    ]
    stored = zip(graph.variables, along, strict=True)
    variables = tuple(variable.stored_along(dimension) for variable, dimension in stored)
    return graph.replace(variables=variables, num_groups=groups)
