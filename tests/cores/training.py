"""Training programs whose replicas have several cores, and what is split in them.

A program is written once. `trained` runs some of its steps on a strategy and returns what they
leave behind, which must not depend on the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: pytrees

import jax
import jax.numpy as jnp
import numpy as np
import optax

import graphdist as gd

Params: TypeAlias = dict[str, Any]
Cores: TypeAlias = Mapping[str, tuple[str | None, ...]]
ROWS = 8


@dataclass(frozen=True)
class Program:
    """A model: its parameters, its loss for rows of `inputs`, and which parameters are sharded."""

    shapes: Mapping[str, tuple[int, ...]]
    loss: Callable[[gd.Strategy, Params, jax.Array], jax.Array]
    inputs: Callable[[np.random.Generator], np.ndarray[Any, Any]]
    cores: Cores | str


def trained(
    program: Program, strategy: gd.Strategy, optimizer: Any = None, steps: int = 3
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the losses of some steps, and the parameters after them."""
    step, batch, params = step_of(program, strategy, optimizer)
    losses = np.stack([np.asarray(step(batch)) for _ in range(steps)])
    return {"losses": losses, **{name: np.asarray(v) for name, v in params.items()}}


def step_of(
    program: Program, strategy: gd.Strategy, optimizer: Any = None
) -> tuple[Any, Any, dict[str, gd.Variable]]:
    """Return a training step, its batch, and its parameters."""
    optimizer = optimizer or optax.adam(0.05)
    numbers = np.random.default_rng(0)
    initial = {
        name: (numbers.normal(size=shape) / max(shape[0], 1) ** 0.5).astype(np.float32)
        for name, shape in program.shapes.items()
    }
    with strategy.scope():
        params = gd.variables(initial, cores=program.cores)
        state = gd.variables(optimizer.init(initial))

    @gd.function
    def step(rows: Any) -> jax.Array:
        def replica_fn(rows: jax.Array) -> jax.Array:
            old = gd.read(params)
            loss, grads = jax.value_and_grad(lambda p: program.loss(strategy, p, rows))(old)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            updates, new = optimizer.update(grads, gd.read(state), old)
            gd.assign(params, optax.apply_updates(old, updates))
            gd.assign(state, new)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(rows,)), axis=None)

    inputs = program.inputs(np.random.default_rng(1))
    count = ROWS // strategy.num_replicas_in_sync
    batch = strategy.experimental_distribute_values_from_function(
        lambda context: inputs[context.replica_id_in_sync_group * count :][:count]
    )
    return step, batch, params


def strategy_on(replicas: int, cores: int, **options: Any) -> gd.MirroredStrategy:
    """Return a strategy of so many replicas, each of so many CPU devices."""
    names = [f"cpu:{index}" for index in range(replicas * cores)]
    return gd.MirroredStrategy(names, cores_per_replica=cores, **options)


def _mlp(strategy: gd.Strategy, p: Params, x: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(x @ p["up"] + p["up_bias"])
    return jnp.mean((hidden @ p["down"] - jnp.roll(x, 1, axis=1)) ** 2)


def _normalized(x: jax.Array, scale: jax.Array | float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _attended(p: Params, x: jax.Array, heads: int, keys: int) -> jax.Array:
    rows, length, width = x.shape
    q, k, v = ((x @ p[name]).reshape(rows, length, -1, width // heads) for name in "qkv")
    k, v = (jnp.repeat(each, heads // keys, axis=2) for each in (k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(rows, length, -1)


def _decoder(strategy: gd.Strategy, p: Params, tokens: jax.Array) -> jax.Array:
    layers = {name: p[name] for name in ("q", "k", "v", "o", "norm", "gate", "up", "down")}

    @jax.checkpoint
    def layer(x: jax.Array, p: Params) -> tuple[jax.Array, None]:
        x = x + _attended(p, _normalized(x, p["norm"]), 4, 4) @ p["o"]
        normal = _normalized(x, p["norm"])
        return x + (jax.nn.silu(normal @ p["gate"]) * (normal @ p["up"])) @ p["down"], None

    x, _ = jax.lax.scan(layer, p["embedding"][tokens[:, :-1]], layers)
    logits = x @ p["embedding"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def _written_out(strategy: gd.Strategy, p: Params, tokens: jax.Array) -> jax.Array:
    x = jnp.take(p["embedding"], tokens[:, :-1], axis=0)
    x = strategy.experimental_split_to_logical_devices(  # type: ignore[attr-defined]
        x, [1, strategy.devices.num_cores, 1]
    )
    for index in range(2):
        own = {name: p[name][index] for name in ("q", "k", "v", "o", "up", "down")}
        x = x + _attended(own, x, 4, 2) @ own["o"]
        x = x + jax.nn.relu(x @ own["up"]) @ own["down"]
    chosen = jax.nn.log_softmax(x @ p["embedding"].T, axis=-1)
    return -jnp.mean(jnp.take_along_axis(chosen, tokens[:, 1:, None], axis=-1))


def _fused(strategy: gd.Strategy, p: Params, tokens: jax.Array) -> jax.Array:
    """Query, key and value by one product, and gate and up, each taken apart in another way."""

    @jax.checkpoint
    def layer(x: jax.Array, p: Params) -> tuple[jax.Array, None]:
        rows, length, _width = x.shape
        joined = (_normalized(x, p["norm"]) @ p["qkv"]) * (1 + p["scale"])
        q, k, v = jnp.split(joined, 3, axis=-1)
        q, k, v = (each.reshape(rows, length, 4, -1) for each in (q, k, v))
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + attended.reshape(rows, length, -1) @ p["o"]
        both = _normalized(x, p["norm"]) @ p["gate_and_up"]
        hidden = both.shape[-1] // 2
        return x + (jax.nn.silu(both[..., :hidden]) * both[..., hidden:]) @ p["down"], None

    layers = {name: p[name] for name in p if name not in ("embedding", "last")}
    x, _ = jax.lax.scan(layer, p["embedding"][tokens[:, :-1]], layers)
    rows, length, _width = x.shape
    joined = (_normalized(x, 1.0) @ p["last"]).reshape(rows, length, 3, 4, -1)
    q, k, v = (joined[:, :, index] for index in range(3))
    x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(rows, length, -1)
    logits = x @ p["embedding"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def _experts(strategy: gd.Strategy, p: Params, x: jax.Array) -> jax.Array:
    weights = jax.nn.softmax(x @ p["router"])
    hidden = jax.nn.relu(jnp.einsum("bw,ewh->ebh", x, p["up"]))
    mixed = jnp.einsum("be,ebh,ehw->bw", weights, hidden, p["down"])
    return jnp.mean((mixed - x[:, ::-1]) ** 2)


def _convnet(strategy: gd.Strategy, p: Params, images: jax.Array) -> jax.Array:
    """Features are cut; images are split in rows, as TensorFlow's example does."""
    cores = strategy.devices.num_cores
    x = strategy.experimental_split_to_logical_devices(  # type: ignore[attr-defined]
        images, [1, cores, 1, 1]
    )
    for name in ("first", "second"):
        x = jax.lax.conv_general_dilated(
            x, p[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, square = jnp.mean(x, (0, 1, 2)), jnp.mean(x * x, (0, 1, 2))
        x = jax.nn.relu((x - mean) * jax.lax.rsqrt(square - mean * mean + 1e-3))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.mean((x.mean((1, 2)) @ p["last"]) ** 2)


def _tokens(numbers: np.random.Generator) -> np.ndarray[Any, Any]:
    return numbers.integers(0, 16, (ROWS, 9)).astype(np.int32)


def _rows(width: int) -> Callable[[np.random.Generator], np.ndarray[Any, Any]]:
    return lambda numbers: numbers.normal(size=(ROWS, width)).astype(np.float32)


_MATRIX, _LAYERS = (3, 16, 16), (3, 16)
_LAYER_CORES: Cores = {
    **dict.fromkeys(("q", "k", "v"), (None, None, "sharded")),
    "o": (None, "sharded", None),
    "up": (None, None, "sharded"),
    "down": (None, "sharded", None),
}

PROGRAMS = {
    "mlp": Program(
        {"up": (8, 32), "up_bias": (32,), "down": (32, 8)},
        _mlp,
        _rows(8),
        {"up": (None, "sharded"), "down": ("sharded", None)},
    ),
    "decoder": Program(
        {
            "embedding": (16, 16),
            **dict.fromkeys(("q", "k", "v", "o"), _MATRIX),
            "norm": _LAYERS,
            **dict.fromkeys(("gate", "up"), (3, 16, 32)),
            "down": (3, 32, 16),
        },
        _decoder,
        _tokens,
        {**_LAYER_CORES, "gate": (None, None, "sharded"), "embedding": ("sharded", None)},
    ),
    "layers written out, sequence split": Program(
        {
            "embedding": (16, 16),
            **dict.fromkeys(("q", "o"), (2, 16, 16)),
            **dict.fromkeys(("k", "v"), (2, 16, 8)),
            "up": (2, 16, 32),
            "down": (2, 32, 16),
        },
        _written_out,
        _tokens,
        {name: cores for name, cores in _LAYER_CORES.items() if name not in "kv"},
    ),
    "fused": Program(
        {
            "embedding": (16, 16),
            "qkv": (3, 16, 48),
            "scale": (3, 48),
            "norm": _LAYERS,
            "o": _MATRIX,
            "gate_and_up": (3, 16, 64),
            "down": (3, 32, 16),
            "last": (16, 48),
        },
        _fused,
        _tokens,
        {
            **dict.fromkeys(("qkv", "gate_and_up"), (None, None, "sharded")),
            **dict.fromkeys(("o", "down"), (None, "sharded", None)),
            "last": (None, "sharded"),
        },
    ),
    "experts": Program(
        {"router": (8, 4), "up": (4, 8, 16), "down": (4, 16, 8)},
        _experts,
        _rows(8),
        {"up": ("sharded", None, None), "down": ("sharded", None, None)},
    ),
    "convnet": Program(
        {"first": (3, 3, 2, 8), "second": (3, 3, 8, 8), "last": (8, 2)},
        _convnet,
        lambda numbers: numbers.normal(size=(ROWS, 8, 8, 2)).astype(np.float32),
        {"second": (None, None, None, "sharded")},
    ),
}
