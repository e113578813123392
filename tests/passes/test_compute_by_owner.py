"""Optimizers that work on whole matrices: each matrix on one replica, and equal results."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any  # Any: pytrees of arrays

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import MuonDimensionNumbers, muon

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.cost import cost
from graphdist.ir.ops import ALL_TO_ALL
from graphdist.passes import pipelines
from graphdist.passes.layouts.sharded_updates import UPDATE_SHARDING, UpdateSharding
from graphdist.program.stages import Lowered

LAYERS, WIDTH, HIDDEN = 4, 16, 32
NUMBERS = np.random.default_rng(0)


def matrix(*shape: int) -> np.ndarray:
    return NUMBERS.normal(0, 0.1, shape).astype("f")


SEPARATE = {
    f"{name}{i}": matrix(*shape)
    for i in range(LAYERS)
    for name, shape in {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH), "bias": (HIDDEN,)}.items()
}
STACKED = {
    "up": matrix(LAYERS, WIDTH, HIDDEN),
    "down": matrix(LAYERS, HIDDEN, WIDTH),
    "bias": matrix(LAYERS, HIDDEN),
}
ROWS = matrix(8, WIDTH)


def layer(h: Any, up: Any, down: Any, bias: Any) -> Any:
    return h + jnp.tanh(h @ up + bias) @ down


def model(params: Any, h: Any) -> Any:
    if "up" in params:
        names = ("up", "down", "bias")
        layers = tuple(params[name] for name in names)
        return jax.lax.scan(lambda h, each: (layer(h, *each), None), h, layers)[0]
    for i in range(len(params) // 3):
        h = layer(h, params[f"up{i}"], params[f"down{i}"], params[f"bias{i}"])
    return h


def of_matrices(direction: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Return an optimizer that takes a direction of each matrix, and the gradient of a vector."""

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda g: direction(g) if g.ndim > 1 else g, gradients), state

    return optax.chain(
        optax.trace(0.9), optax.GradientTransformation(lambda params: (), update), optax.scale(-0.1)
    )


def newton_schulz(g: Any) -> Any:
    x = g / jnp.linalg.norm(g)
    for _ in range(3):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


def root_of_statistics(g: Any) -> Any:
    values, vectors = jnp.linalg.eigh(g @ g.T + 1e-2 * jnp.eye(g.shape[0]))
    return (vectors / jnp.sqrt(values)) @ vectors.T @ g


def root_by_iterations(g: Any) -> Any:
    """Return the inverse root of a matrix's square, times the matrix, by a loop until it fits."""
    start = g @ g.T + 1e-1 * jnp.eye(g.shape[0])
    scale = jnp.linalg.norm(start)

    def is_far(state: Any) -> Any:
        i, y, _ = state
        return (i < 20) & (jnp.max(jnp.abs(y @ y - start / scale)) > 1e-4)

    def next_root(state: Any) -> Any:
        i, y, z = state
        step = 1.5 * jnp.eye(g.shape[0]) - 0.5 * z @ y
        return i + 1, y @ step, step @ z

    _, _, z = jax.lax.while_loop(is_far, next_root, (0, start / scale, jnp.eye(g.shape[0])))
    return z @ g / jnp.sqrt(scale)


def projected(g: Any) -> Any:
    q, _ = jnp.linalg.qr(g @ jnp.ones((g.shape[1], 4)) * jnp.arange(1.0, 5.0) ** 2 + g[:, :4])
    return q @ (q.T @ g)


ROWS_AND_COLUMNS = {name: MuonDimensionNumbers(1, 2) for name in ("up", "down")} | {"bias": None}
OPTIMIZERS: dict[str, tuple[dict[str, Any], optax.GradientTransformation]] = {
    "muon": (SEPARATE, muon(0.02)),
    "of stacks": (STACKED, muon(0.02, muon_weight_dimension_numbers=ROWS_AND_COLUMNS)),
    "with decay": (SEPARATE, muon(0.02, weight_decay=0.1, consistent_rms=0.2, nesterov=False)),
    "narrow": (SEPARATE, muon(0.02, mu_dtype=jnp.bfloat16)),
    "adaptive": (SEPARATE, muon(0.02, adaptive=True)),
    "with a first iteration of its own": (SEPARATE, muon(0.02, preconditioning="aol")),
    "clipped": (SEPARATE, optax.chain(optax.clip_by_global_norm(0.1), muon(0.02))),
    "without a loop": (SEPARATE, of_matrices(newton_schulz)),
    "by vmap": (STACKED, of_matrices(lambda g: jax.vmap(newton_schulz)(g) if g.ndim > 2 else g)),
    "roots of statistics": (SEPARATE, of_matrices(root_of_statistics)),
    "roots by iterations": (SEPARATE, of_matrices(root_by_iterations)),
    "projections": (SEPARATE, of_matrices(projected)),
}


def trained(
    params: dict[str, Any],
    optimizer: optax.GradientTransformation,
    replicas: int,
    flops_per_byte: int,
    **options: Any,
) -> tuple[Any, Any, Lowered]:
    """Return losses and parameters of three steps, and the lowered step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "FLOPS_PER_BYTE", flops_per_byte)
        patch.setitem(UPDATE_SHARDING, "cpu", UpdateSharding(smallest=64))
        strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(replicas)], **options)
        with strategy.scope():
            variables, state = gd.variables(params), gd.variables(optimizer.init(params))

        def replica_fn(rows: Any) -> Any:
            old = gd.read(variables)
            loss, gradients = jax.value_and_grad(lambda p: jnp.mean(model(p, rows) ** 2))(old)
            gradients = gd.get_replica_context().all_reduce("MEAN", gradients)
            change, new = optimizer.update(gradients, gd.read(state), old)
            gd.assign(state, new)
            gd.assign(variables, optax.apply_updates(old, change))
            return loss

        @gd.function
        def step(rows: Any) -> Any:
            return strategy.reduce("MEAN", strategy.run(replica_fn, args=(rows,)), axis=None)

        (rows,) = strategy.experimental_distribute_dataset([ROWS])
        losses = [float(step(rows)) for _ in range(3)]
        return losses, jax.tree.map(np.asarray, gd.read(variables)), step.trace(rows).lower()


NEVER = 10**18
QUICK = ("muon", "of stacks")
CASES = [
    pytest.param(name, shards, marks=() if name in QUICK and shards else pytest.mark.long)
    for name in OPTIMIZERS
    for shards in (False, True, 2)
]
"""The number is the size of a group of replicas that has all shards."""


@pytest.mark.parametrize(("name", "shards"), CASES)
def test_training_is_the_same(name: str, shards: bool | int) -> None:
    losses, params, lowered = trained(*OPTIMIZERS[name], 4, 0, shard_parameters=shards)
    of_all, params_of_all, repeated = trained(*OPTIMIZERS[name], 4, NEVER, shard_parameters=shards)
    np.testing.assert_allclose(losses, of_all, rtol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), params, params_of_all)
    assert cost(lowered.graph).total_flops < 0.8 * cost(repeated.graph).total_flops
    if name in QUICK:
        assert any(node.op is ALL_TO_ALL for node in walk(lowered.graph))


def lowered_update(
    params: dict[str, Any], optimizer: optax.GradientTransformation, replicas: int, **options: Any
) -> Lowered:
    """Return an update, with owners for whatever saves any operation."""
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(replicas)], **options)
    with strategy.scope():
        variables, state = gd.variables(params), gd.variables(optimizer.init(params))

    def replica_fn(gradients: Any) -> None:
        gradients = gd.get_replica_context().all_reduce("MEAN", gradients)
        old = gd.read(variables)
        change, new = optimizer.update(gradients, gd.read(state), old)
        gd.assign(state, new)
        gd.assign(variables, optax.apply_updates(old, change))

    step = gd.function(lambda gradients: strategy.run(replica_fn, args=(gradients,)))
    with pytest.MonkeyPatch.context() as patch, strategy.scope():
        patch.setattr(pipelines, "FLOPS_PER_BYTE", 0)
        patch.setitem(UPDATE_SHARDING, "cpu", UpdateSharding(smallest=64))
        specs = {name: gd.PerReplicaSpec(each.shape, "f") for name, each in params.items()}
        return step.trace(specs).lower()


@pytest.mark.parametrize("replicas", [2, 4, 8])
@pytest.mark.parametrize("options", [{}, {"shard_parameters": True}], ids=["", "sharded"])
@pytest.mark.parametrize("name", QUICK)
def test_each_replica_does_its_share(name: str, options: dict[str, Any], replicas: int) -> None:
    on_one = cost(lowered_update(*OPTIMIZERS[name], 1).graph).total_flops
    lowered = lowered_update(*OPTIMIZERS[name], replicas, **options)
    assert cost(lowered.graph).total_flops < (1 / replicas + 0.05) * on_one


def times(number: int) -> Callable[[Any], Any]:
    return lambda x: x * number


def test_functions_of_one_name_are_not_equal() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])

    def product(x: Any, number: int) -> Any:
        y = jax.pure_callback(times(number), jax.ShapeDtypeStruct(x.shape, "f"), x @ x.T)
        return jnp.trace(y @ y.T)

    with strategy.scope(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "FLOPS_PER_BYTE", 0)
        a, b = (gd.Variable(np.eye(4, dtype="f")) for _ in range(2))
        step = gd.function(lambda: (product(a[...], 2), product(b[...], 3)))
        assert [float(each) for each in step()] == [4 * 4, 4 * 9]


def test_what_owners_compute_is_told() -> None:
    steps = lowered_update(*OPTIMIZERS["muon"], 2).explain().steps
    chosen = [choice for step in steps for choice in step.chosen]
    wanted = re.compile(r"8 x f32\[1,16,32\] at .*: a replica computes 4 of them")
    assert any(map(wanted.match, chosen))


def test_what_every_replica_computes_is_told() -> None:
    one = {name: SEPARATE[name] for name in ("up0", "bias0")}
    steps = lowered_update(one, muon(0.02), 2).explain().steps
    told = [reason for step in steps for reason in step.declined]
    said = "every replica computes all of it, since 2 replicas cannot divide it"
    assert any(line.startswith("1 x f32[1,16,32] at ") and said in line for line in told)
