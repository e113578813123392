"""Compile the training step of a large language model for accelerators that are not here.

    graphdist-compile examples/aot_transformer.py:make_step --topology v5e:16x16 --set size=1b
    graphdist-compile examples/aot_transformer.py:make_step --topology v5p:8x8x8 --set size=70b

A decoder-only transformer with rotary positions, RMS norms, SwiGLU and grouped queries, trained
with Adam. Sizes go from 10 million to 405 billion parameters; `405b` and names with `llama` are
published shapes. The layers are stacked and run by `jax.lax.scan`, each recomputed in the backward
pass, so that time to compile does not grow with depth. Parameters and the optimizer's state are
variables that are declared by their shapes: nothing of them is ever in memory, here or elsewhere.

With several devices to a replica (`--cores 4`), heads, hidden units and the vocabulary are shared
out to them; `--set split=positions` shares out the positions between layers, too, and
`--set split=width` their width.

`recompute` says what the backward pass computes again: with "full" everything in a layer, with
"none" nothing, else everything but the named values, such as "query+key+value". `offload` names
values that wait for the backward pass in the memory of the host.

Two things that a long row would fill the memory with are never held. Scores of attention, of
length x length a head, are not on TPUs and GPUs, for which JAX has kernels
(`--set attention=plain` leaves them out). Logits, of length x vocabulary, are computed in chunks,
and again in the backward pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any  # pytrees of arrays, shapes or variables

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu import splash_attention as splash

import graphdist as gd

Params = dict[str, Any]
Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class Model:
    """The shape of a model.

    `heads` share `kv_heads` keys and values. Where `is_tied`, the embedding also makes the logits.
    A head has `head_size` elements, 0 for an equal part of the width. The MLP is SwiGLU if
    `is_gated`, else GELU between two matrices.
    """

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    is_tied: bool = True
    head_size: int = 0
    is_gated: bool = True

    @property
    def head(self) -> int:
        """Return the size of a head."""
        return self.head_size or self.width // self.heads


SIZES = {
    "10m": Model(6, 256, 704, 8, 8, 8_192),
    "100m": Model(12, 768, 2_048, 12, 12, 16_384),
    "1b": Model(16, 2_048, 5_632, 16, 16, 32_000),
    "8b": Model(32, 4_096, 14_336, 32, 8, 32_000),
    "70b": Model(80, 8_192, 28_672, 64, 8, 32_000),
    "405b": Model(126, 16_384, 53_248, 128, 8, 128_256, is_tied=False),
    "llama2-7b": Model(32, 4_096, 11_008, 32, 32, 32_000, is_tied=False),
    "llama3-8b": Model(32, 4_096, 14_336, 32, 8, 128_256, is_tied=False),
    "llama3-70b": Model(80, 8_192, 28_672, 64, 8, 128_256, is_tied=False),
    "llama2-70b": Model(80, 8_192, 28_672, 64, 8, 32_000, is_tied=False),
    "fuji-7b": Model(32, 4_096, 11_008, 32, 32, 32_768),
    "fuji-70b": Model(80, 8_192, 28_672, 64, 8, 32_768, is_tied=False),
    "honeycrisp-3b": Model(26, 3_072, 8_064, 24, 8, 49_152),
    "gpt3-175b": Model(96, 12_288, 49_152, 96, 96, 50_304, is_gated=False),
    "tpuchat-3-heads": Model(8, 1_024, 3_072, 3, 1, 32_768, is_tied=False, head_size=256),
    "tpuchat-4-heads": Model(8, 1_024, 3_072, 4, 1, 32_768, is_tied=False, head_size=256),
    "mistral-7b": Model(32, 4_096, 14_336, 32, 8, 32_000, is_tied=False),
    "maxtext-16b": Model(32, 4_096, 28_672, 32, 32, 32_000, is_tied=False, head_size=256),
    "maxtext-32b": Model(32, 8_192, 28_672, 32, 32, 32_000, is_tied=False),
    "maxtext-64b": Model(64, 8_192, 28_672, 32, 32, 32_000, is_tied=False),
    "maxtext-128b": Model(64, 8_192, 57_344, 64, 64, 32_000, is_tied=False, head_size=256),
    "maxtext-512b": Model(128, 16_384, 57_344, 64, 64, 32_000, is_tied=False, head_size=256),
    "mpt-1b": Model(24, 2_048, 8_192, 16, 16, 50_368, is_gated=False),
    "mpt-3b": Model(32, 2_560, 10_240, 20, 20, 50_368, is_gated=False),
    "mpt-7b": Model(32, 4_096, 16_384, 32, 32, 50_368, is_gated=False),
    "mpt-13b": Model(40, 5_120, 20_480, 40, 40, 50_368, is_gated=False),
}

FLASH, PLAIN = "flash", "plain"
LANES = 128
"""Blocks and heads of the TPU's kernel are multiples of this."""
BLOCK = 512
NAMED = ("input", "query", "key", "value", "context", "output", "gate", "up", "down")
"""Values of a layer that the backward pass may keep."""
SPLITS = ("positions", "width")
LOGITS_CHUNK = 512
"""The most positions of a row whose logits are held at once."""


@dataclass(frozen=True)
class Settings:
    """What is compiled; `batch` is rows of a replica in each microbatch, `length` tokens in a row.

    `recompute` is "full", "none", or the names of values that are kept, joined by "+": input,
    query, key, value, context, output, gate, up, down. `offload` are names of values that are kept
    on the host. `attention` is "flash" for the kernel that JAX ships for the platform, "plain", or
    "auto": the kernel on TPUs and GPUs where length and heads divide by 128. `logits_chunk` is the
    most positions of a row whose logits are held at once, 0 for all. Layers are stacked and
    scanned, or else written out, one after the other, each with weights of its own. The
    cores of a replica share what a layer takes along its "positions" or its "width", as `split`
    says; without a word each holds all of it.
    """

    size: str = "1b"
    batch: int = 1
    length: int = 2_048
    parameter_dtype: str = "float32"
    state_dtype: str = "float32"
    compute_dtype: str = "bfloat16"
    attention: str = "auto"
    recompute: str = "full"
    offload: str = ""
    logits_chunk: int = LOGITS_CHUNK
    scanned: bool = True
    split: str = ""
    microbatches: int = 1
    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8


def parameter_shapes(model: Model, dtype: str) -> Params:
    """Return the shapes of the parameters; those of the layers are stacked along dimension 0."""
    width, hidden, layers, head = model.width, model.hidden, model.layers, model.head

    def shape(*dimensions: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dimensions, jnp.dtype(dtype))

    unembedding = {} if model.is_tied else {"unembedding": shape(model.vocabulary, width)}
    gate = {"gate": shape(layers, width, hidden)} if model.is_gated else {}
    return {
        **unembedding,
        "embedding": shape(model.vocabulary, width),
        "layers": {
            "attention_norm": shape(layers, width),
            "query": shape(layers, width, model.heads * head),
            "key": shape(layers, width, model.kv_heads * head),
            "value": shape(layers, width, model.kv_heads * head),
            "output": shape(layers, model.heads * head, width),
            "mlp_norm": shape(layers, width),
            **gate,
            "up": shape(layers, width, hidden),
            "down": shape(layers, hidden, width),
        },
        "norm": shape(width),
    }


def written_out(shapes: Params) -> Params:
    """Return the shapes of parameters whose layers are not stacked, but in a list."""
    stacked = shapes["layers"]
    count = next(iter(stacked.values())).shape[0]
    one = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), stacked)
    return {**shapes, "layers": [dict(one) for _ in range(count)]}


def shards_of_cores(model: Model, *, scanned: bool) -> dict[str, tuple[str | None, ...]]:
    """Return which dimensions of variables the cores of a replica shard, if it has several.

    Query, key, value, gate and up are sharded along their outputs, output and down along their
    inputs, embeddings along the vocabulary.
    """
    stack = (None,) if scanned else ()
    outputs = ("query", "key", "value", "up", *(["gate"] if model.is_gated else []))
    return {
        "*embedding": ("sharded", None),
        **{f"*{name}": (*stack, None, "sharded") for name in outputs},
        **{f"*{name}": (*stack, "sharded", None) for name in ("output", "down")},
    }


def num_parameters(model: Model) -> int:
    """Return the number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(model, "float32")))


def normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return x over its root mean square along the last dimension, scaled; computed in f32."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + 1e-6)).astype(x.dtype) * scale.astype(x.dtype)


def rotate(x: jax.Array) -> jax.Array:
    """Return x [rows, length, heads, size] turned by its positions."""
    length, size = x.shape[1], x.shape[3]
    frequencies = 10_000.0 ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * frequencies
    sine, cosine = (f(angles)[None, :, None, :].astype(x.dtype) for f in (jnp.sin, jnp.cos))
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate(
        [first * cosine - second * sine, second * cosine + first * sine], axis=-1
    )


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Return causal attention over query [rows, length, heads, size]; holds all scores."""
    return jax.nn.dot_product_attention(query, key, value, is_causal=True)


def attend_by_kernel(
    query: jax.Array, key: jax.Array, value: jax.Array, *, interpret: bool = False
) -> jax.Array:
    """Return the same by JAX's kernel for TPUs, which holds the scores of a block.

    `interpret` runs it elsewhere, slowly.
    """
    length, heads, size = query.shape[1:]
    block = gcd(length, BLOCK)
    blocks = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    mask = splash.MultiHeadMask([splash.CausalMask((length, length))] * heads)
    kernel = splash.make_splash_mha_single_device(mask, block_sizes=blocks, interpret=interpret)
    heads_first = (jnp.swapaxes(x, 1, 2) for x in (query * size**-0.5, key, value))
    return jnp.swapaxes(jax.vmap(kernel)(*heads_first), 1, 2)


def attend_by_gpu_kernel(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Return the same by JAX's kernel for GPUs, which holds the scores of a block."""
    # Here, since JAX 0.12 warns of the import: the kernel will go.
    from jax.experimental.pallas.ops.gpu import attention as gpu_attention

    heads, size = query.shape[2:]
    key, value = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (key, value))
    return gpu_attention.mha(query, key, value, None, sm_scale=size**-0.5, causal=True)


def attention_for(model: Model, settings: Settings, platform: str) -> Attention:
    """Return the attention of a step; raises `ValueError` if its kernel takes no such shapes."""
    if settings.attention not in (FLASH, PLAIN, "auto"):
        raise ValueError(f"attention is {settings.attention!r}, not flash, plain or auto")
    is_possible = settings.length % LANES == 0 and model.head % LANES == 0
    if settings.attention == FLASH and not is_possible:
        raise ValueError(
            f"attention is flash, which takes multiples of {LANES}: rows have {settings.length} "
            f"tokens, heads {model.head} elements"
        )
    is_default = settings.attention == "auto" and platform in ("tpu", "gpu") and is_possible
    if not is_default and settings.attention != FLASH:
        return attend
    if platform == "gpu":
        return attend_by_gpu_kernel
    return partial(attend_by_kernel, interpret=platform != "tpu")


def layer(model: Model, attention: Attention, x: jax.Array, weights: Params) -> jax.Array:
    """Return what a layer makes of x [rows, length, width]."""
    rows, length, _ = x.shape
    weights = jax.tree.map(lambda w: w.astype(x.dtype), weights)
    x = checkpoint_name(x, "input")
    normal = normalize(x, weights["attention_norm"])
    query = rotate((normal @ weights["query"]).reshape(rows, length, model.heads, model.head))
    key = rotate((normal @ weights["key"]).reshape(rows, length, model.kv_heads, model.head))
    value = (normal @ weights["value"]).reshape(rows, length, model.kv_heads, model.head)
    query, key, value = map(checkpoint_name, (query, key, value), ("query", "key", "value"))
    mixed = checkpoint_name(attention(query, key, value), "context")
    mixed = mixed.reshape(rows, length, model.heads * model.head)
    x = x + checkpoint_name(mixed @ weights["output"], "output")
    normal = normalize(x, weights["mlp_norm"])
    up = checkpoint_name(normal @ weights["up"], "up")
    if model.is_gated:
        hidden = jax.nn.silu(checkpoint_name(normal @ weights["gate"], "gate")) * up
    else:
        hidden = jax.nn.gelu(up)
    return x + checkpoint_name(hidden @ weights["down"], "down")


def recompute_policy(settings: Settings) -> Callable[..., Any]:
    """Return what the backward pass does not compute again, as a policy of `jax.checkpoint`."""
    if settings.recompute == "none":
        return jax.checkpoint_policies.everything_saveable
    kept = [] if settings.recompute == "full" else settings.recompute.split("+")
    offloaded = settings.offload.split("+") if settings.offload else []
    unknown = {*kept, *offloaded} - set(NAMED)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: values have the names {', '.join(NAMED)}")
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=kept,
        names_which_can_be_offloaded=offloaded,
        offload_src="device",
        offload_dst="pinned_host",
    )


def cross_entropy(
    x: jax.Array, unembedding: jax.Array, labels: jax.Array, positions: int = LOGITS_CHUNK
) -> jax.Array:
    """Return the mean cross entropy of labels i32[rows, length], given x [rows, length, width].

    Only the logits of a chunk of `positions` are held; the backward pass computes them again. With
    0 they are computed at once, and kept.
    """

    def of_chunk(total: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        x, labels = chunk
        logits = (x @ unembedding.T).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return total + jnp.sum(jax.nn.logsumexp(logits, axis=-1) - chosen), None

    if positions == 0:
        total, _ = of_chunk(jnp.float32(0), (x, labels))
        return total / labels.size
    length = labels.shape[1]
    fewest = -(-length // positions)
    chunks = next(count for count in range(fewest, length + 1) if length % count == 0)
    cuts = cut(x, chunks), cut(labels, chunks)
    total, _ = jax.lax.scan(jax.checkpoint(of_chunk), jnp.float32(0), cuts)
    return total / labels.size


def cut(x: jax.Array, chunks: int) -> jax.Array:
    """Return x [rows, length, ..] with a dimension of chunks of the positions in front."""
    return jnp.moveaxis(x.reshape(x.shape[0], chunks, -1, *x.shape[2:]), 1, 0)


def loss_fn(
    model: Model,
    settings: Settings,
    attention: Attention,
    params: Params,
    tokens: jax.Array,
    split: Callable[[jax.Array], jax.Array] = lambda x: x,
) -> jax.Array:
    """Return the mean cross entropy of each of tokens i32[rows, length + 1] but the first.

    `split` says how the cores of a replica hold what a layer takes, [rows, length, width].
    """
    dtype = jnp.dtype(settings.compute_dtype)
    embedding = params["embedding"].astype(dtype)
    x = embedding[tokens[:, :-1]]

    @partial(jax.checkpoint, policy=recompute_policy(settings))
    def step(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
        return layer(model, attention, split(x), weights), None

    if settings.scanned:
        x, _ = jax.lax.scan(step, x, params["layers"])
    else:
        for weights in params["layers"]:
            x, _ = step(x, weights)
    unembedding = embedding if model.is_tied else params["unembedding"].astype(dtype)
    x = normalize(x, params["norm"])
    return cross_entropy(x, unembedding, tokens[:, 1:], settings.logits_chunk)


def adam(
    settings: Settings, grads: Params, state: Params, params: Params, count: jax.Array
) -> tuple[Params, Params]:
    """Return the parameters after a step of Adam, and the means of gradients and their squares."""
    beta1, beta2 = settings.beta1, settings.beta2
    step = count.astype(jnp.float32) + 1

    def updated(g: jax.Array, m: jax.Array, v: jax.Array, p: jax.Array) -> tuple[jax.Array, ...]:
        g = g.astype(jnp.float32)
        mean = beta1 * m.astype(jnp.float32) + (1 - beta1) * g
        square = beta2 * v.astype(jnp.float32) + (1 - beta2) * g * g
        scale = jnp.sqrt(square / (1 - beta2**step)) + settings.epsilon
        change = settings.learning_rate * mean / (1 - beta1**step) / scale
        return (p - change).astype(p.dtype), mean.astype(m.dtype), square.astype(v.dtype)

    triples = jax.tree.map(updated, grads, state["mean"], state["square"], params)
    new, mean, square = jax.tree.transpose(
        jax.tree.structure(params), jax.tree.structure((0, 0, 0)), triples
    )
    return new, {"mean": mean, "square": square}


def splitting(strategy: Any, along: str) -> Callable[[jax.Array], jax.Array]:
    """Return the function that splits [rows, length, width] over the cores as `split` says."""
    if not along:
        return lambda x: x
    if along not in SPLITS:
        raise ValueError(f"split is {along!r}, not one of {', '.join(SPLITS)}")
    parts = [1, 1, 1]
    parts[SPLITS.index(along) + 1] = strategy.devices.num_cores
    return lambda x: strategy.experimental_split_to_logical_devices(x, parts)


def make_step(strategy: gd.Strategy, **settings: Any) -> tuple[gd.Function, tuple[Any]]:
    """Return a training step and the shape of its tokens; see `Settings`."""
    chosen = Settings(**settings)
    if chosen.size not in SIZES:
        raise ValueError(f"size is {chosen.size!r}, not one of {', '.join(SIZES)}")
    model = SIZES[chosen.size]
    attention = attention_for(model, chosen, strategy.devices.platform)
    split = splitting(strategy, chosen.split)
    loss_of = partial(loss_fn, model, chosen, attention, split=split)
    shapes = parameter_shapes(model, chosen.parameter_dtype)
    state_shapes = parameter_shapes(model, chosen.state_dtype)
    if not chosen.scanned:
        shapes, state_shapes = written_out(shapes), written_out(state_shapes)
    with strategy.scope():
        params = gd.variables(shapes, cores=shards_of_cores(model, scanned=chosen.scanned))
        state = gd.variables({"mean": state_shapes, "square": state_shapes})
        count = gd.Variable(jax.ShapeDtypeStruct((), jnp.int32), name="count")

    @gd.function
    def train_step(tokens: jax.Array) -> jax.Array:
        def replica_fn(tokens: jax.Array) -> jax.Array:
            old = gd.read(params)

            def gradients(tokens: jax.Array) -> tuple[jax.Array, Params]:
                loss, grads = jax.value_and_grad(loss_of)(old, tokens)
                return loss, gd.get_replica_context().all_reduce("MEAN", grads)

            parts = chosen.microbatches
            step = gradients if parts == 1 else gd.accumulate(gradients, parts, gather="each")
            loss, grads = step(tokens)
            new, new_state = adam(chosen, grads, gd.read(state), old, count[...])
            gd.assign(params, new)
            gd.assign(state, new_state)
            count.assign(count + 1)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(tokens,)), axis=None)

    rows = chosen.batch * chosen.microbatches
    tokens = gd.PerReplicaSpec((rows, chosen.length + 1), jnp.int32, strategy=strategy)
    return train_step, (tokens,)


def main() -> None:
    """Compile for a topology, and print what the step needs and moves."""
    parser = argparse.ArgumentParser(description="Compile a transformer for a topology.")
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--size", choices=SIZES, default="1b")
    arguments = parser.parse_args()
    is_gpu = arguments.topology[0] not in "vt"
    make = gd.MirroredStrategy if is_gpu else gd.TPUStrategy
    train_step, args = make_step(make(topology=arguments.topology), size=arguments.size)
    compiled = train_step.trace(*args).lower().compile()
    print(f"{num_parameters(SIZES[arguments.size]):,} parameters on {arguments.topology}")
    print(compiled.report())


if __name__ == "__main__":
    main()
