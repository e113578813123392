"""The programs of the benchmark: one step function each, which every JAX system runs as it is.

Systems differ in how they express "the mean over the replicas". A program takes that operation as
an argument (`ReplicaOperations`), so that all systems compute the same. The programs of TensorFlow
and torch are separate implementations that start from the same initial values: the losses of the
first steps show whether all agree, and the benchmark refuses to compare systems that do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any  # Any: pytrees of arrays

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.tools.bench.models import (
    MOMENTUM,
    BenchModel,
    Classifier,
    Convnet,
    Decoder,
    Mlp,
    Recommender,
    ReplicaOperations,
    Transformer,
    Tree,
    cross_entropies,
)

RATE = 0.01
ADAM_RATE, BETA1, BETA2, ADAM_EPSILON = 1e-3, 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class BenchProgram:
    """A model and its use: `kind` is "sgd", "adam", "muon", "forward" or "evaluate".

    "forward" computes the loss alone, "evaluate" metrics too. "muon" is optax's, which works on
    whole matrices.

    `rows` is the batch size per replica, split into `microbatches`. `bounds` has for each system
    the largest allowed ratio of graphdist's time per step to the system's. With `shards_parameters`
    the program runs on systems that store parameters sharded, graphdist with
    `shard_parameters=True`. With `cores` a replica has so many devices. A program that
    `is_for_accelerators` is measured on CPUs only where it is named.
    """

    name: str
    title: str
    model: BenchModel
    rows: int
    kind: str = "sgd"
    microbatches: int = 1
    bounds: Mapping[str, float] = field(default_factory=lambda: {"shard_map": 1.05})
    shards_parameters: bool = False
    cores: int = 1
    is_for_accelerators: bool = False

    @property
    def strategy_options(self) -> dict[str, Any]:
        """Return the options of our strategy for this program."""
        sharded = {"shard_parameters": True} if self.shards_parameters else {}
        return {**sharded, "cores_per_replica": self.cores} if self.cores > 1 else sharded

    @property
    def sharded_over_cores(self) -> dict[str, tuple[str | None, ...]]:
        """Return how the cores of a replica hold parameters and their slots, by name."""
        return self.model.cores if isinstance(self.model, Decoder) else {}

    def state(self) -> dict[str, Tree]:
        """Return the state before the first step, by its parts."""
        params = self.model.parameters(np.random.default_rng(0))
        parts = {"params": params}
        if self.kind == "adam":
            zeros = jax.tree.map(np.zeros_like, params)
            parts["slots"] = {"mean": zeros, "square": zeros}
        if isinstance(self.model, Convnet) and self.model.normalized:
            parts["statistics"] = self.model.statistics()
        state = jax.tree.map(lambda x: x.astype("f"), parts)
        if self.kind == "adam":
            state["count"] = np.zeros((), "i")
        if self.kind == "muon":
            state["slots"] = jax.tree.map(np.asarray, _muon().init(state["params"]))
        return state

    @property
    def kept(self) -> tuple[str, ...]:
        """Return the parts of the state that a step only reads."""
        return ("params",) if self.kind in ("evaluate", "forward") else ()

    def batch(self, replicas: int) -> Tree:
        """Return the batch for this many replicas."""
        return self.model.batch(np.random.default_rng(1), self.rows * replicas)

    def step(self, replicas: ReplicaOperations, state: Tree, batch: Tree) -> tuple[Tree, Any]:
        """Return the changed part of the state, and the loss of a replica."""
        params = state["params"]
        if self.kind == "evaluate":
            assert isinstance(self.model, Convnet)
            scores, _ = self.model.scores(replicas, params, batch["x"])
            losses = cross_entropies(scores, batch["labels"])
            return replicas.observe(state, losses, batch["labels"], scores), jnp.mean(losses)
        loss_fn = replicas.of_stored(partial(self.model.loss, replicas))
        if self.kind == "forward":
            return {}, loss_fn(params, batch)[0]
        if self.microbatches > 1:
            loss, gradients = replicas.accumulated(loss_fn, params, batch, self.microbatches)
            statistics: Tree = {}
        else:
            differentiated = jax.value_and_grad(loss_fn, has_aux=True)
            (loss, statistics), gradients = differentiated(params, batch)
            gradients = replicas.mean(gradients)
        changed = self._updated(state, gradients)
        if statistics:
            changed["statistics"] = jax.tree.map(
                lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * new,
                state["statistics"],
                statistics,
            )
        return changed, loss

    def _updated(self, state: Tree, gradients: Tree) -> dict[str, Tree]:
        if self.kind == "adam":
            return _adam(state, gradients)
        if self.kind == "muon":
            change, slots = _muon().update(gradients, state["slots"], state["params"])
            return {"params": jax.tree.map(jnp.add, state["params"], change), "slots": slots}
        new = jax.tree.map(lambda w, g: w - RATE * g, state["params"], gradients)
        return {"params": new}


def _muon() -> Any:
    from optax.contrib import muon  # only this program needs optax

    return muon(RATE)


def _adam(state: Tree, gradients: Tree) -> dict[str, Tree]:
    slots, count = state["slots"], state["count"] + 1
    mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, slots["mean"], gradients)
    square = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, slots["square"], gradients)
    steps = count.astype(jnp.float32)
    mean_scale, square_scale = 1 / (1 - BETA1**steps), 1 / (1 - BETA2**steps)

    def updated(w: Any, m: Any, v: Any) -> Any:
        change = ADAM_RATE * (m * mean_scale) / (jnp.sqrt(v * square_scale) + ADAM_EPSILON)
        return w - change

    params = jax.tree.map(updated, state["params"], mean, square)
    return {"params": params, "slots": {"mean": mean, "square": square}, "count": count}


def _named(*programs: BenchProgram) -> dict[str, BenchProgram]:
    return {program.name: program for program in programs}


def _decoder(
    width: int, heads: int, dtype: str = "float32", is_scanned: bool = False
) -> Transformer:
    return Transformer(2, width, heads, 1024, 256, dtype, is_scanned)


_ACCUMULATION = "gradients of 4 microbatches accumulated"
_LARGEST = "convnet, largest values of 2x2"
_CLASSES = "65,536 classes of 512 features, Adam"
_TABLES = "8 tables of 50,000 embeddings of 32, Adam"
_NORMALIZED = "convnet, batch normalization with synced statistics"

PROGRAMS = _named(
    BenchProgram(
        "small",
        "50 layers of 16",
        Mlp(50, 16),
        rows=16,
        bounds={"shard_map": 0.12, "tensorflow": 0.5},
    ),
    BenchProgram(
        "medium",
        "20 layers of 256",
        Mlp(20, 256),
        rows=16,
        bounds={"shard_map": 0.85, "tensorflow": 1.0},
    ),
    BenchProgram(
        "large",
        "8 layers of 1024",
        Mlp(8, 1024),
        rows=128,
        bounds={"shard_map": 0.72, "tensorflow": 1.0},
    ),
    BenchProgram("convnet", "convnet", Convnet((16, 32, 64), 32), rows=16),
    BenchProgram("pooling", _LARGEST, Convnet((32, 64), 32, takes_largest=True), rows=32),
    BenchProgram("transformer", "transformer, Adam", Transformer(4, 128, 4, 1024, 64), 8, "adam"),
    BenchProgram(
        "transformer-256", "transformer of 256, 256 tokens, Adam", _decoder(256, 4), 4, "adam"
    ),
    BenchProgram(
        "transformer-512", "transformer of 512, 256 tokens, Adam", _decoder(512, 8), 2, "adam"
    ),
    BenchProgram(
        "transformer-bfloat16",
        "transformer of 256 in bfloat16, Adam",
        _decoder(256, 4, dtype="bfloat16"),
        4,
        "adam",
    ),
    BenchProgram(
        "transformer-scan",
        "transformer of 256, layers scanned, Adam",
        _decoder(256, 4, is_scanned=True),
        4,
        "adam",
    ),
    BenchProgram(
        "transformer-forward", "transformer of 256, the loss alone", _decoder(256, 4), 4, "forward"
    ),
    BenchProgram(
        "muon",
        "8 layers of 256, Muon",
        Mlp(8, 256),
        rows=16,
        kind="muon",
        bounds={"shard_map": 0.7},
    ),
    BenchProgram("recommender", _TABLES, Recommender(8, 50_000, 32, 256), 256, "adam"),
    BenchProgram("classes", _CLASSES, Classifier(512, 65_536), 32, "adam"),
    BenchProgram("accumulation", _ACCUMULATION, Mlp(8, 256), rows=64, microbatches=4),
    BenchProgram("batchnorm", _NORMALIZED, Convnet((16, 32, 64), 32, normalized=True), rows=16),
    BenchProgram("evaluation", "evaluation with metrics", Convnet((16, 32), 16), 32, "evaluate"),
    BenchProgram(
        "sharded",
        "8 layers of 1024, sharded parameters",
        Mlp(8, 1024),
        rows=128,
        bounds={"fsdp": 1.0, "fully_shard": 1.0},
        shards_parameters=True,
    ),
    BenchProgram(
        "cores",
        "decoder of 256 on 2 cores a replica, Adam",
        Decoder(4, 256, 8, 1024, 1024, 128),
        4,
        "adam",
        cores=2,
    ),
    BenchProgram(
        "convnet-256",
        "convnet of 64 to 256 features, images of 64x64",
        Convnet((64, 128, 256), 64),
        rows=256,
        is_for_accelerators=True,
    ),
    BenchProgram(
        "transformer-768",
        "transformer of 12 layers of 768 in bfloat16, 1024 tokens, Adam",
        Transformer(12, 768, 12, 32_768, 1024, "bfloat16"),
        8,
        "adam",
        is_for_accelerators=True,
    ),
)
"""Every program by name, in the sizes that are measured."""

TINY = _named(
    BenchProgram("small", "3 layers of 4", Mlp(3, 4), rows=2),
    BenchProgram("medium", "2 layers of 8", Mlp(2, 8), rows=2),
    BenchProgram("large", "2 layers of 16", Mlp(2, 16), rows=2),
    BenchProgram("convnet", "convnet", Convnet((4,), 4, classes=3), rows=2),
    BenchProgram("pooling", _LARGEST, Convnet((4,), 4, 3, takes_largest=True), rows=2),
    BenchProgram("transformer", "transformer, Adam", Transformer(1, 8, 2, 16, 4), 2, "adam"),
    *(
        BenchProgram(f"transformer-{name}", "transformer", model, 2, kind)
        for name, model, kind in (
            ("256", Transformer(1, 8, 2, 16, 8), "adam"),
            ("512", Transformer(1, 16, 2, 16, 8), "adam"),
            ("bfloat16", Transformer(1, 8, 2, 16, 8, "bfloat16"), "adam"),
            ("scan", Transformer(2, 8, 2, 16, 8, is_scanned=True), "adam"),
            ("forward", Transformer(1, 8, 2, 16, 8), "forward"),
        )
    ),
    BenchProgram("muon", "2 layers of 8, Muon", Mlp(2, 8), rows=2, kind="muon"),
    BenchProgram("recommender", "2 tables of embeddings", Recommender(2, 64, 4, 8), 2, "adam"),
    BenchProgram("classes", "16 classes", Classifier(4, 16), 2, "adam"),
    BenchProgram("accumulation", _ACCUMULATION, Mlp(2, 8), rows=8, microbatches=4),
    BenchProgram("batchnorm", _NORMALIZED, Convnet((4,), 4, 3, normalized=True), rows=2),
    BenchProgram("evaluation", "evaluation with metrics", Convnet((4,), 4, 3), 4, "evaluate"),
    BenchProgram("sharded", "2 layers of 16", Mlp(2, 16), rows=2, shards_parameters=True),
    BenchProgram("cores", "decoder on 2 cores", Decoder(1, 8, 2, 16, 16, 4), 2, "adam", cores=2),
    BenchProgram("convnet-256", "convnet", Convnet((4, 8), 8), 2, is_for_accelerators=True),
    BenchProgram(
        "transformer-768",
        "transformer in bfloat16",
        Transformer(2, 8, 2, 16, 8, "bfloat16"),
        2,
        "adam",
        is_for_accelerators=True,
    ),
)
"""The same programs in sizes that compile in an instant, to check that all run and agree."""
