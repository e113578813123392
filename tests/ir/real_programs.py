"""Steps as people write them, small and traced: the examples, and programs with what those lack.

`PROGRAMS` has every step, on a strategy that it is used with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any  # Any: pytrees of arrays, and settings by name

import graphdist.keras  # before keras: it chooses the JAX backend

# isort: split
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas
from jax.scipy.linalg import solve_triangular

import graphdist as gd
from graphdist.parameter_server.input import FunctionOfElements, WorkerIterator
from graphdist.passes import pipeline
from graphdist.program.stages import Traced
from graphdist.tools.bench.programs import TINY
from graphdist.tools.bench.systems import Graphdist
from graphdist.tools.steps import make_step
from tests.ir.traced_training import (
    keras_step,
    locally,
    mirrored,
    of_a_replica,
    on_servers,
    shape,
    training,
    variables_like,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))

import train_digits  # noqa: E402 - scripts beside the package
import train_keras  # noqa: E402
import train_parameter_server  # noqa: E402
import train_text  # noqa: E402

WIDTH, ROWS, LENGTH, ITEMS = 8, 4, 6, 20


def example(name: str, strategy: gd.Strategy, **settings: Any) -> Traced:
    """Return the step of an example."""
    step, arguments = make_step(f"{EXAMPLES / name}.py:make_step", strategy, settings)
    return step.trace(*arguments)


transformer = partial(example, "aot_transformer", size="10m", length=16)
digits = partial(example, "train_digits", batch_size=8)


def text(strategy: gd.Strategy) -> Traced:
    """Return the step of `train_text.py`, whose initial values are not made."""
    settings, characters = train_text.Settings(context=8, layers=1, width=32), 50

    def init() -> Any:
        params = train_text.init_params(jax.random.key(0), settings, characters)
        return params, train_text.make_optimizer(settings).init(params)

    params, state = variables_like(strategy, jax.eval_shape(init))
    step = train_text.make_train_step(strategy, settings, params, state)
    return step.trace(of_a_replica(strategy, shape(2, settings.context + 1, dtype=jnp.int32)))


def classifier() -> Any:
    """Return a Keras model with attention, statistics of batches, and random numbers."""
    layers = keras.layers
    rows = keras.Input((LENGTH, WIDTH))
    mixed = layers.MultiHeadAttention(2, 4)(rows, rows)
    normal = layers.BatchNormalization()(layers.Add()([rows, mixed]))
    pooled = layers.Dropout(0.1, seed=1)(layers.GlobalAveragePooling1D()(normal))
    model = keras.Model(rows, layers.Dense(3)(pooled))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return model


def parameter_servers() -> Traced:
    """Return the step of `train_parameter_server.py`."""
    settings = train_digits.Settings(batch_size=8)
    worker: Any = gd.OneDeviceStrategy("cpu:0")  # as steps are traced on a worker
    state = train_digits.make_state(worker, settings)
    step = train_parameter_server.make_train_step(worker, settings, *state)
    batches = WorkerIterator(train_parameter_server.make_dataset(settings))
    return on_servers(FunctionOfElements(step).trace((batches,), {}))


def recommender() -> Traced:
    """Return a step with two tables on servers, of which a worker reads rows."""
    worker = gd.OneDeviceStrategy("cpu:0")

    def loss(params: Any, batch: Any) -> jax.Array:
        users, items, liked = batch
        joined = jnp.concatenate([params["users"][users], params["items"][items]], axis=-1)
        hidden = jax.nn.relu(joined @ params["dense"]) @ params["out"]
        return jnp.mean(optax.sigmoid_binary_cross_entropy(hidden, liked))

    tables = {"users": shape(ITEMS, WIDTH), "items": shape(ITEMS, WIDTH)}
    shapes = {**tables, "dense": shape(2 * WIDTH, 4), "out": shape(4)}
    indices = shape(ROWS, dtype=jnp.int32)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adagrad(0.1))
    traced = training(loss, shapes, (indices, indices, shape(ROWS)), worker, optimizer)
    return on_servers(traced)


def benchmark(name: str) -> Traced:
    program = TINY[name]
    running = Graphdist(program, mirrored(**program.strategy_options))
    return running.function.trace(running.batch)


def attention(params: Any, x: jax.Array) -> jax.Array:
    """Return attention over x [rows, length, width], with a name for what it reads."""
    query, key, value = (checkpoint_name(x @ params[name], name) for name in "qkv")
    return x + jax.nn.softmax(query @ key.mT / WIDTH**0.5) @ value


def decoder(strategy: gd.Strategy) -> Traced:
    """Return the step of a decoder whose layers each keep other values for the backward pass."""
    policies = jax.checkpoint_policies
    chosen = (
        policies.nothing_saveable,
        policies.dots_with_no_batch_dims_saveable,
        policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["q"],
            names_which_can_be_offloaded=["k"],
            offload_src="device",
            offload_dst="pinned_host",
        ),
    )

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["embedding"][tokens[:, :-1]]
        for policy, own in zip(chosen, params["layers"], strict=True):
            x = jax.checkpoint(attention, policy=policy)(own, x)
        logits = jax.checkpoint(lambda x: x @ params["embedding"].T)(x)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return jnp.mean(losses)

    layers = [{name: shape(WIDTH, WIDTH) for name in "qkv"} for _ in chosen]
    shapes = {"embedding": shape(ITEMS, WIDTH), "layers": layers}
    return training(loss, shapes, shape(ROWS, LENGTH, dtype=jnp.int32), strategy)


def stack(platform: str, **options: Any) -> Traced:
    """Return the step of a scan over layers, with microbatches and slices, for a platform."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        layer = jax.checkpoint(lambda x, own: (attention(own, x), None))
        return jnp.mean(lax.scan(layer, x, params)[0] ** 2)

    strategy = mirrored(4, shard_parameters=True)
    shapes = {name: shape(3, WIDTH, WIDTH) for name in "qkv"}
    rows = shape(2 * ROWS, LENGTH, WIDTH)
    traced = training(loss, shapes, rows, strategy, microbatches=2)
    target = replace(strategy.target, platform=platform, gathered_bytes=2**10, **options)
    return replace(traced, pipeline=pipeline(target))


def experts(strategy: gd.Strategy) -> Traced:
    """Return the step of a mixture of experts: tokens are sorted by the expert of their router."""
    count = 4

    def loss(params: Any, x: jax.Array) -> jax.Array:
        wide = jax.tree.map(lambda each: each.astype(jnp.bfloat16), params)
        tokens = x.astype(jnp.bfloat16)
        gates, chosen = lax.top_k(jax.nn.softmax(tokens @ wide["router"]), 2)
        order = jnp.argsort(chosen.reshape(-1))
        sizes = jnp.bincount(chosen.reshape(-1), length=count)
        inside = lax.ragged_dot(tokens[order // 2], wide["up"], sizes)
        outside = lax.ragged_dot(jax.nn.gelu(inside), wide["down"], sizes)
        weighted = outside * gates.reshape(-1)[order][:, None]
        mixed = jnp.zeros_like(tokens).at[order // 2].add(weighted)
        balance = jnp.mean((sizes / jnp.sum(sizes) - 1 / count) ** 2)
        return jnp.mean((mixed - tokens).astype(jnp.float32) ** 2) + balance

    shapes = {
        "router": shape(WIDTH, count),
        "up": shape(count, WIDTH, 2 * WIDTH),
        "down": shape(count, 2 * WIDTH, WIDTH),
    }
    return training(jax.checkpoint(loss), shapes, shape(ROWS, WIDTH), strategy, optax.lion(1e-3))


def diffusion(strategy: gd.Strategy) -> Traced:
    """Return the step of a convolutional network that takes noise off images."""

    def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        strides = (stride, stride)
        return lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=layout)

    def loss(params: Any, batch: Any) -> jax.Array:
        images, seeds = batch
        keys = jax.vmap(jax.random.key)(seeds)
        noise = jax.vmap(lambda key: jax.random.normal(key, images.shape[1:]))(keys)
        level = jax.random.uniform(jax.random.fold_in(closed_over, seeds[0]), (ROWS, 1, 1, 1))
        hidden = jax.nn.silu(convolve(images + level * noise, params["in"], 2))
        spread = jax.nn.standardize(hidden.reshape(ROWS, 4, 4, 2, 2), axis=(1, 2, 4))
        pooled = lax.reduce_window(hidden, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")
        large = jax.image.resize(spread.reshape(hidden.shape) + pooled, (ROWS, 8, 8, 4), "bilinear")
        found = lax.conv_transpose(large, params["out"], (1, 1), "SAME")
        return jnp.mean((found - noise) ** 2)

    closed_over = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32))
    shapes = {"in": shape(3, 3, 1, 4), "out": shape(3, 3, 4, 1)}
    batch = shape(ROWS, 8, 8, 1), shape(ROWS, dtype=jnp.uint32)
    return training(loss, shapes, batch, strategy, optax.adam(1e-3))


def recurrent(strategy: gd.Strategy) -> Traced:
    """Return the step of a recurrent network, which a `while` decodes with and `cond` clips."""

    def cell(params: Any, state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate = jax.nn.sigmoid(jnp.concatenate([state, x], -1) @ params["gate"])
        state = gate * state + (1 - gate) * jnp.tanh(x @ params["in"])
        return state, state

    def loss(params: Any, x: jax.Array) -> jax.Array:
        state, states = lax.scan(partial(cell, params), jnp.zeros((ROWS, WIDTH)), x)
        decays = lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (states, x))
        steps = lax.while_loop(
            lambda pair: (pair[0] < LENGTH) & (jnp.max(pair[1]) > 0.1),
            lambda pair: (pair[0] + 1, lax.stop_gradient(cell(params, pair[1], x[0])[0]) / 2),
            (0, lax.stop_gradient(state)),
        )[0]
        value = jnp.mean(decays[1][-1] ** 2) + jnp.mean(jnp.cumsum(states, 0))
        return lax.cond(steps > 2, lambda v: v, lambda v: 2 * v, value)

    shapes = {"gate": shape(2 * WIDTH, WIDTH), "in": shape(WIDTH, WIDTH)}
    return training(loss, shapes, shape(LENGTH, ROWS, WIDTH), strategy)


def processes(strategy: gd.Strategy) -> Traced:
    """Return the step of a Gaussian process: linear algebra, spectra, a solver, a kernel."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        distances = jnp.sum((x[:, None] - x[None]) ** 2, -1)
        kernel = jnp.exp(-distances * params["scale"]) + jnp.eye(ROWS)
        factor = jnp.linalg.cholesky(kernel)
        fitted = solve_triangular(factor, x, lower=True)
        spectrum = jnp.fft.rfft(x * params["window"], axis=-1)
        filtered = jnp.fft.irfft(spectrum * jnp.conj(spectrum), axis=-1)
        solved, _ = jax.scipy.sparse.linalg.cg(lambda v: kernel @ v, x[:, 0])
        energies = jnp.linalg.eigh(kernel)[0] + jnp.linalg.svd(x, compute_uv=False)[:ROWS]
        terms = (fitted**2, filtered, solved, energies, clipped(lax.stop_gradient(x)))
        return sum(map(jnp.mean, terms), start=jnp.zeros(()))

    def clip(given: Any, clipped: Any) -> None:
        clipped[...] = jnp.minimum(given[...], 1)

    clipped = pallas.pallas_call(clip, shape(ROWS, WIDTH))
    shapes = {"scale": shape(), "window": shape(WIDTH)}
    return training(loss, shapes, shape(ROWS, WIDTH), strategy, optax.rmsprop(0.1))


def reinforcement(strategy: gd.Strategy) -> Traced:
    """Return a step that plays games, counts them on each replica, and tells the host of them."""
    policy = variables_like(strategy, shape(WIDTH, 3))
    with strategy.scope():
        played = gd.Variable(
            shape(dtype=jnp.int32),
            trainable=False,
            synchronization=gd.VariableSynchronization.ON_READ,
            aggregation=gd.VariableAggregation.SUM,
        )
        best = gd.Variable(shape(), aggregation=gd.VariableAggregation.MEAN, trainable=False)

    def returns(policy: jax.Array, start: jax.Array, key: jax.Array) -> jax.Array:
        def play(state: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            action = jax.random.categorical(key, state @ policy)
            moved = jnp.roll(state, action) * 0.9
            return moved, jax.nn.log_softmax(state @ policy)[action] * moved[0]

        return jnp.sum(lax.scan(play, start, jax.random.split(key, LENGTH))[1])

    def replica(starts: jax.Array, seed: jax.Array) -> jax.Array:
        context = gd.get_replica_context()
        key = jax.random.fold_in(jax.random.key(seed), context.replica_id_in_sync_group)

        def loss(policy: jax.Array) -> jax.Array:
            keys = jax.random.split(key, ROWS)
            return -jnp.mean(jax.vmap(returns, (None, 0, 0))(policy, starts, keys))

        value, gradient = jax.value_and_grad(loss)(policy[...])
        jax.debug.callback(lambda value: None, value)
        bonus = jax.experimental.io_callback(np.float32, shape(), value)
        policy.assign_sub(0.1 * context.all_reduce("MEAN", gradient))
        played.assign_add(ROWS)
        best.assign(jnp.maximum(best[...], -value))
        return value + bonus

    @gd.function
    def step(starts: Any, seed: Any) -> Any:
        values = strategy.run(replica, args=(starts, seed))
        return values, strategy.reduce("MEAN", values, axis=None), played.read_value()

    starts = of_a_replica(strategy, shape(ROWS, WIDTH))
    return step.trace(starts, shape(dtype=jnp.uint32))


def unequal(strategy: gd.Strategy) -> Traced:
    """Return a step whose replicas are traced one by one: their programs differ."""
    table = np.arange(float(ITEMS), dtype=np.float32)  # more than a text holds

    def replica() -> Any:
        context = gd.get_replica_context()
        own = int(context.replica_id_in_sync_group)
        rows = jnp.asarray(table[: 3 + own]) * (own + 1)
        total = jnp.sum(rows) if own == 0 else jnp.max(rows) + table @ table
        return rows, context.all_gather(rows, axis=0), context.all_reduce("SUM", total)

    return gd.function(lambda: strategy.run(replica)).trace()


PROGRAMS: dict[str, Callable[[], Traced]] = {
    "aot_transformer": lambda: transformer(mirrored()),
    "aot_transformer in slices": lambda: transformer(
        mirrored(shard_parameters=True), recompute="query+key", offload="value"
    ),
    "train_digits": lambda: digits(mirrored()),
    "train_multi_worker": lambda: digits(gd.MultiWorkerMirroredStrategy()),
    "train_text": lambda: text(locally()),
    "train_keras": lambda: keras_step(
        lambda: train_keras.make_model(train_digits.Settings()), 8, 8, 1
    ),
    "train_parameter_server": parameter_servers,
    "decoder": lambda: decoder(mirrored()),
    "stack in slices on TPUs": lambda: stack("tpu", num_slices=2),
    "stack in slices on GPUs": lambda: stack("gpu"),
    "experts": lambda: experts(mirrored()),
    "diffusion": lambda: diffusion(mirrored(4, shard_update=True)),
    "classifier of Keras": lambda: keras_step(classifier, LENGTH, WIDTH),
    "recurrent with local steps": lambda: recurrent(locally()),
    "recommender on servers": recommender,
    "processes": lambda: processes(gd.OneDeviceStrategy("cpu:0")),
    "reinforcement": lambda: reinforcement(mirrored(4)),
    "unequal replicas": lambda: unequal(mirrored(3)),
    "batch normalization": lambda: benchmark("batchnorm"),
}
