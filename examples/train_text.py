"""Train a small transformer to write Python's documentation, one character after the other.

    python examples/train_text.py                      # one to two minutes on a laptop
    python examples/train_text.py --steps 100 --replicas 4
    python examples/train_text.py --shard-parameters   # each device stores a part of the model
    python examples/train_text.py --sync-every 50      # replicas are synchronized every 50 steps
    python examples/train_text.py --sync-every 50 --synchronous-steps 250   # after 250 as usual

The text is what `help("topics")` reads from, half a million characters that come with Python. The
model sees windows of it and learns to tell the next character; the loss is printed in bits per
character, 6.7 for guessing blindly. Model and optimizer are plain JAX and optax; the strategy is
in `make_train_step`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pydoc_data.topics import topics
from typing import Any  # pytrees, of arrays or variables, and settings by name

import jax
import jax.numpy as jnp
import numpy as np
import optax

import graphdist as gd

HEAD_SIZE = 32
STEPS_A_LINE = 25  # of progress


@dataclass(frozen=True)
class Settings:
    """What a run depends on."""

    steps: int = 500
    batch_size: int = 16
    context: int = 64
    layers: int = 4
    width: int = 96
    learning_rate: float = 2e-3
    seed: int = 0


def load_text() -> tuple[np.ndarray, np.ndarray]:
    """Return the characters that occur, sorted, and the text as numbers i32[n] of characters."""
    text = "\n".join(topics.values())
    characters, numbers = np.unique(np.array(list(text)), return_inverse=True)
    return characters, numbers.astype(np.int32)


def windows(text: np.ndarray, settings: Settings) -> Iterator[np.ndarray]:
    """Yield a batch i32[batch_size, context + 1] for every step, cut from random places."""
    random = np.random.default_rng(settings.seed)
    span = np.arange(settings.context + 1)
    for _ in range(settings.steps):
        starts = random.integers(len(text) - settings.context, size=settings.batch_size)
        yield text[starts[:, None] + span]


def init_params(key: jax.Array, settings: Settings, characters: int) -> Any:
    """Return fresh parameters for a number of different characters."""
    width = settings.width
    keys = iter(jax.random.split(key, 2 + 4 * settings.layers))

    def matrix(rows: int, columns: int, scale: float = 1.0) -> jax.Array:
        return scale / math.sqrt(rows) * jax.random.normal(next(keys), (rows, columns))

    # Small at the end of each branch: all branches together should not outgrow the embedding.
    branch = 1 / math.sqrt(2 * settings.layers)
    return {
        "embedding": matrix(characters, width, scale=0.2),
        "layers": [
            {
                "attention_norm": jnp.ones(width),
                "attention_in": matrix(width, 3 * width),
                "attention_out": matrix(width, width, scale=branch),
                "dense_norm": jnp.ones(width),
                "dense_in": matrix(width, 4 * width),
                "dense_out": matrix(4 * width, width, scale=branch),
            }
            for _ in range(settings.layers)
        ],
        "norm": jnp.ones(width),
        "head": matrix(width, characters, scale=0.1),
    }


def predict(params: Any, text: jax.Array) -> jax.Array:
    """Return logits f32[n, length, characters] of what follows each place of i32[n, length]."""
    hidden = params["embedding"][text]
    for layer in params["layers"]:
        hidden += attend(layer, normalize(hidden, layer["attention_norm"]))
        dense = jax.nn.gelu(normalize(hidden, layer["dense_norm"]) @ layer["dense_in"])
        hidden += dense @ layer["dense_out"]
    logits: jax.Array = normalize(hidden, params["norm"]) @ params["head"]
    return logits


def attend(layer: Any, hidden: jax.Array) -> jax.Array:
    """Return causal self-attention over f32[n, length, width]."""
    heads = (hidden @ layer["attention_in"]).reshape(*hidden.shape[:2], -1, HEAD_SIZE)
    query, key, value = jnp.split(heads, 3, axis=2)
    mixed = jax.nn.dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
    result: jax.Array = mixed.reshape(hidden.shape) @ layer["attention_out"]
    return result


def rotate(heads: jax.Array) -> jax.Array:
    """Turn f32[n, length, heads, size] by angles that grow with the place, to make it known."""
    length, size = heads.shape[1], heads.shape[3]
    angles = jnp.arange(length)[:, None] / 1000 ** (jnp.arange(size // 2) / (size // 2))
    cosine, sine = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    x, y = jnp.split(heads, 2, axis=-1)
    return jnp.concatenate([x * cosine - y * sine, x * sine + y * cosine], axis=-1)


def normalize(hidden: jax.Array, gain: jax.Array) -> jax.Array:
    """Scale the last dimension to a root mean square of `gain`."""
    return gain * hidden * jax.lax.rsqrt(jnp.mean(hidden**2, axis=-1, keepdims=True) + 1e-6)


def loss_fn(params: Any, batch: jax.Array) -> jax.Array:
    """Return the mean cross entropy over windows i32[n, context + 1], in nats."""
    logits = predict(params, batch[:, :-1])
    losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:])
    return losses.mean()


def make_optimizer(settings: Settings) -> optax.GradientTransformation:
    """Return AdamW with a short warm-up and a long decay."""
    warmup = min(20, settings.steps // 2)
    return optax.adamw(
        optax.warmup_cosine_decay_schedule(0, settings.learning_rate, warmup, settings.steps)
    )


def make_state(strategy: gd.Strategy, settings: Settings, characters: int) -> tuple[Any, Any]:
    """Return parameters and optimizer state as variables of the strategy."""
    initial = init_params(jax.random.key(settings.seed), settings, characters)
    with strategy.scope():
        return gd.variables(initial), gd.variables(make_optimizer(settings).init(initial))


def make_train_step(
    strategy: gd.Strategy, settings: Settings, params: Any, optimizer_state: Any
) -> gd.Function[[jax.Array], jax.Array]:
    """Return the function that makes a step with a distributed batch and returns its loss."""
    optimizer = make_optimizer(settings)

    @gd.function
    def train_step(batch: jax.Array) -> jax.Array:
        def replica_fn(batch: jax.Array) -> jax.Array:
            loss, grads = jax.value_and_grad(loss_fn)(gd.read(params), batch)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            updates, state = optimizer.update(grads, gd.read(optimizer_state), gd.read(params))
            gd.assign(params, optax.apply_updates(gd.read(params), updates))
            gd.assign(optimizer_state, state)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(batch,)), axis=None)

    return train_step


def make_step(strategy: gd.Strategy, **settings: Any) -> tuple[gd.Function, tuple[jax.Array]]:
    """Return a training step with variables of its own, and arguments for it; see `Settings`."""
    chosen = Settings(**settings)
    characters, text = load_text()
    dataset = strategy.experimental_distribute_dataset(windows(text, chosen))
    step = make_train_step(strategy, chosen, *make_state(strategy, chosen, len(characters)))
    return step, (next(iter(dataset)),)


def train(
    strategy: gd.Strategy,
    settings: Settings,
    *,
    first: gd.Strategy | None = None,
    first_steps: int = 0,
) -> tuple[list[float], Any]:
    """Train, print the progress, and return every step's bits per character and the parameters.

    `first` is a strategy that takes the first steps: its variables go on as the other's.
    """
    characters, text = load_text()
    batches = windows(text, settings)
    losses: list[jax.Array] = []
    start = time.perf_counter()
    state: Any = None
    for phase, steps in ((first, first_steps), (strategy, settings.steps - first_steps)):
        if phase is None:
            continue
        if state is None:
            state = make_state(phase, settings, len(characters))
        else:
            reached = gd.read(state)
            with phase.scope():
                state = gd.variables(reached)
        train_step = make_train_step(phase, settings, *state)
        for batch in phase.experimental_distribute_dataset(islice(batches, steps)):
            losses.append(train_step(batch))
            if len(losses) % STEPS_A_LINE == 0 or len(losses) == 1:
                print_progress(losses, time.perf_counter() - start)
    return [float(loss) / math.log(2) for loss in losses], gd.read(state[0])


def print_progress(losses: list[jax.Array], seconds: float) -> None:
    """Print the loss of the last steps."""
    bits = np.mean(losses[-STEPS_A_LINE:]) / math.log(2)
    print(f"step {len(losses):4}   {bits:.3f} bits per character   {seconds:5.1f} s", flush=True)


def sample(params: Any, prompt: jax.Array, key: jax.Array, length: int) -> jax.Array:
    """Return `length` characters that the model would write after a prompt i32[context]."""

    def write(window: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = predict(params, window[None])[0, -1]
        character = jax.random.categorical(key, logits / 0.7).astype(window.dtype)
        return jnp.append(window[1:], character), character

    return jax.lax.scan(write, prompt, jax.random.split(key, length))[1]


def make_strategy(devices: str, replicas: int, **options: Any) -> gd.Strategy:
    """Return a strategy over the accelerators of this machine, or over logical CPU devices.

    `options` are the strategy's, such as `shard_parameters` and `sync_every`.
    """
    gd.config.set_logical_cpu_devices(replicas)  # takes effect only before JAX looks at its devices
    if devices == "auto" and jax.default_backend() != "cpu":
        return gd.MirroredStrategy(**options)
    return gd.MirroredStrategy([f"cpu:{index}" for index in range(replicas)], **options)


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line; end the program for those that make no sense."""
    parser = argparse.ArgumentParser(
        description="Train a small transformer on Python's help topics."
    )
    parser.add_argument("--devices", choices=["auto", "cpu"], default="auto")
    parser.add_argument("--replicas", type=int, default=2, help="logical CPU devices (default: 2)")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument(
        "--shard-parameters", action="store_true", help="store parameters in slices"
    )
    parser.add_argument(
        "--sync-every",
        type=int,
        metavar="STEPS",
        help="let replicas take local steps, and average the parameters every so many",
    )
    parser.add_argument(
        "--synchronous-steps",
        type=int,
        default=0,
        metavar="STEPS",
        help="with --sync-every: make so many steps as usual before",
    )
    parser.add_argument(
        "--diloco",
        action="store_true",
        help="with --sync-every: give the mean difference to Nesterov's momentum",
    )
    parser.add_argument("--small", action="store_true", help="a smaller model, of one layer")
    arguments = parser.parse_args()
    most = Settings.batch_size
    if not 1 <= arguments.replicas <= most:
        parser.error(f"--replicas is {arguments.replicas}: from 1 to {most}, the rows of a batch")
    if arguments.steps < 1:
        parser.error(f"--steps is {arguments.steps}: at least 1")
    if arguments.sync_every is not None and arguments.sync_every < 1:
        parser.error(f"--sync-every is {arguments.sync_every}: at least 1")
    if arguments.diloco and arguments.sync_every is None:
        parser.error("--diloco is given without --sync-every")
    if arguments.synchronous_steps and arguments.sync_every is None:
        parser.error("--synchronous-steps is given without --sync-every")
    if not 0 <= arguments.synchronous_steps < arguments.steps:
        parser.error(f"--synchronous-steps is {arguments.synchronous_steps}: fewer than --steps")
    return arguments


def main() -> None:
    """Train, and let the model write."""
    arguments = parse_arguments()
    options: dict[str, Any] = {"shard_parameters": True} if arguments.shard_parameters else {}
    if arguments.sync_every is not None:
        # Of a short run, which synchronizes tens of times: long ones take more momentum.
        outer = optax.sgd(1.0, momentum=0.5, nesterov=True) if arguments.diloco else None
        options |= {"sync_every": arguments.sync_every, "outer_optimizer": outer}
    strategy = make_strategy(arguments.devices, arguments.replicas, **options)
    settings = Settings(steps=arguments.steps)
    if arguments.small:
        settings = replace(settings, batch_size=64, context=32, layers=1, width=32)
    print(f"{strategy.num_replicas_in_sync} replicas, {settings}")
    before = arguments.synchronous_steps
    first = make_strategy(arguments.devices, arguments.replicas) if before else None
    _, params = train(strategy, settings, first=first, first_steps=before)
    characters, text = load_text()
    prompt = text[: settings.context]
    written = jax.jit(sample, static_argnames="length")(
        params, prompt, jax.random.key(settings.seed), length=400
    )
    print("\nA sample:\n\n" + "".join(characters[np.asarray(written)]))


if __name__ == "__main__":
    main()
