"""The models of the benchmark: shapes, initial values, and the loss as JAX computes it.

The initial values are NumPy arrays in plain dicts and lists, so that the peers which are not JAX
(`on_tensorflow.py`, `on_torch.py`) begin with the same ones and have the same losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias  # Any: pytrees of arrays

import jax
import jax.numpy as jnp
import numpy as np

Tree: TypeAlias = Any
"""A pytree of arrays."""

EPSILON = 1e-5
"""The number that normalizations add to a variance."""
MOMENTUM = 0.9
"""The share of a running statistic that a step keeps."""


class ReplicaOperations(Protocol):
    """The operations that a program takes from its system, in a function that all replicas run."""

    def mean(self, tree: Tree) -> Tree:
        """Return the mean over the replicas."""

    def of_stored(self, loss_fn: Any) -> Any:
        """Return a loss of full parameters as a loss of parameters as they are stored."""

    def accumulated(self, loss_fn: Any, params: Tree, batch: Tree, microbatches: int) -> Any:
        """Return loss and gradients, the mean over microbatches; the gradients over replicas."""

    def observe(self, state: Tree, losses: Any, labels: Any, scores: Any) -> Tree:
        """Add losses [rows], labels [rows] and scores [rows, classes] to the metrics.

        Returns the changed part of the state.
        """

    def for_shards(self, x: Any) -> Any:
        """Return a value that each core uses with its shards of parameters."""

    def of_terms(self, x: Any) -> Any:
        """Return the sum of the terms that the cores of a replica computed."""


@dataclass(frozen=True)
class Mlp:
    """Layers of tanh(x @ weight + bias); the loss is the mean square of the output."""

    layers: int
    width: int

    def parameters(self, rng: np.random.Generator) -> Tree:
        """Return initial parameters."""
        return [
            {
                "weight": (rng.standard_normal((self.width, self.width)) / self.width**0.5),
                "bias": np.zeros(self.width),
            }
            for _ in range(self.layers)
        ]

    def batch(self, rng: np.random.Generator, rows: int) -> Tree:
        """Return a batch with this many rows."""
        return {"x": rng.standard_normal((rows, self.width)).astype("f")}

    def loss(self, replicas: ReplicaOperations, params: Tree, batch: Tree) -> tuple[Any, Tree]:
        """Return the mean loss and the statistics of the batch."""
        x = batch["x"]
        for layer in params:
            x = jnp.tanh(x @ layer["weight"] + layer["bias"])
        return jnp.mean(x**2), {}


@dataclass(frozen=True)
class Convnet:
    """Convolutions of 3x3, each halving the image; with `normalized`, batch normalization.

    Its mean and variance are taken over the rows of all replicas. A half has the means of squares
    of 2x2, or with `takes_largest` their largest values.
    """

    channels: tuple[int, ...]
    size: int
    classes: int = 10
    normalized: bool = False
    takes_largest: bool = False

    def parameters(self, rng: np.random.Generator) -> Tree:
        """Return initial parameters; kernels are [height, width, in, out]."""
        layers: list[Any] = []
        inputs = 3
        for outputs in self.channels:
            kernel = rng.standard_normal((3, 3, inputs, outputs)) / (9 * inputs) ** 0.5
            layer = {"kernel": kernel, "bias": np.zeros(outputs)}
            if self.normalized:
                layer["scale"] = np.ones(outputs)
            layers.append(layer)
            inputs = outputs
        head = rng.standard_normal((inputs, self.classes)) / inputs**0.5
        return {"layers": layers, "head": head}

    def statistics(self) -> Tree:
        """Return the initial running means and variances of its normalizations."""
        if not self.normalized:
            return {}
        return [{"mean": np.zeros(n), "variance": np.ones(n)} for n in self.channels]

    def batch(self, rng: np.random.Generator, rows: int) -> Tree:
        """Return images [rows, size, size, 3] and labels [rows]."""
        images = rng.standard_normal((rows, self.size, self.size, 3)).astype("f")
        return {"x": images, "labels": rng.integers(0, self.classes, rows).astype("i")}

    def scores(self, replicas: ReplicaOperations, params: Tree, images: Any) -> tuple[Any, Tree]:
        """Return scores [rows, classes] and the statistics of the batch."""
        x, statistics = images, []
        for layer in params["layers"]:
            dimensions = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(
                x, layer["kernel"], (1, 1), "SAME", dimension_numbers=dimensions
            )
            if self.normalized:
                x, of_layer = _normalized(replicas, x)
                statistics.append(of_layer)
                x = x * layer["scale"]
            halved = _largest if self.takes_largest else _halved
            x = halved(jax.nn.relu(x + layer["bias"]))
        return jnp.mean(x, axis=(1, 2)) @ params["head"], statistics or {}

    def loss(self, replicas: ReplicaOperations, params: Tree, batch: Tree) -> tuple[Any, Tree]:
        """Return the mean cross entropy and the statistics of the batch."""
        scores, statistics = self.scores(replicas, params, batch["x"])
        return jnp.mean(cross_entropies(scores, batch["labels"])), statistics


def _normalized(replicas: ReplicaOperations, x: Any) -> tuple[Any, Tree]:
    axes = (0, 1, 2)
    mean, square = replicas.mean((jnp.mean(x, axes), jnp.mean(x * x, axes)))
    variance = square - mean**2
    x = (x - mean) * jax.lax.rsqrt(variance + EPSILON)
    return x, {"mean": mean, "variance": variance}


def _halved(x: Any) -> Any:
    """Return the means of squares of 2x2."""
    rows, height, width, channels = x.shape
    return jnp.mean(x.reshape(rows, height // 2, 2, width // 2, 2, channels), axis=(2, 4))


def _largest(x: Any) -> Any:
    """Return the largest values of squares of 2x2."""
    window = (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def cross_entropies(scores: Any, labels: Any) -> Any:
    """Return the cross entropy of each row of scores."""
    chosen = jnp.take_along_axis(scores, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - chosen


@dataclass(frozen=True)
class Classifier:
    """A hidden layer, and scores of many classes."""

    width: int
    classes: int

    def parameters(self, rng: np.random.Generator) -> Tree:
        """Return initial parameters."""
        hidden, head = (self.width, self.width), (self.width, self.classes)
        return {
            "hidden": rng.standard_normal(hidden) / self.width**0.5,
            "head": rng.standard_normal(head) / self.width**0.5,
        }

    def batch(self, rng: np.random.Generator, rows: int) -> Tree:
        """Return features [rows, width], and the number of each row's class [rows]."""
        features = rng.standard_normal((rows, self.width)).astype("f")
        return {"x": features, "labels": rng.integers(0, self.classes, rows).astype("i")}

    def loss(self, replicas: ReplicaOperations, params: Tree, batch: Tree) -> tuple[Any, Tree]:
        """Return the mean loss, and no statistics."""
        scores = jax.nn.relu(batch["x"] @ params["hidden"]) @ params["head"]
        return jnp.mean(cross_entropies(scores, batch["labels"])), {}


@dataclass(frozen=True)
class Recommender:
    """A score of one row of each table of embeddings; the loss is logistic."""

    tables: int
    rows: int
    width: int
    hidden: int

    def parameters(self, rng: np.random.Generator) -> Tree:
        """Return initial parameters."""
        inputs = self.tables * self.width
        return {
            "tables": [rng.standard_normal((self.rows, self.width)) for _ in range(self.tables)],
            "hidden": rng.standard_normal((inputs, self.hidden)) / inputs**0.5,
            "head": rng.standard_normal((self.hidden, 1)) / self.hidden**0.5,
        }

    def batch(self, rng: np.random.Generator, rows: int) -> Tree:
        """Return the numbers of rows [rows, tables], and labels of 0 and 1 [rows]."""
        numbers = rng.integers(0, self.rows, (rows, self.tables)).astype("i")
        return {"numbers": numbers, "labels": rng.integers(0, 2, rows).astype("f")}

    def loss(self, replicas: ReplicaOperations, params: Tree, batch: Tree) -> tuple[Any, Tree]:
        """Return the mean loss, and no statistics."""
        read = [table[batch["numbers"][:, i]] for i, table in enumerate(params["tables"])]
        hidden = jax.nn.relu(jnp.concatenate(read, axis=1) @ params["hidden"])
        scores = (hidden @ params["head"])[:, 0]
        return jnp.mean(jax.nn.softplus(scores) - scores * batch["labels"]), {}


@dataclass(frozen=True)
class Transformer:
    """A decoder with learned positions; it uses the weights of its embedding for its output too.

    It computes in `dtype`, and the loss in float32. With `is_scanned`, parameters of the layers are
    stacked, and systems on JAX run the layers by `jax.lax.scan`.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    dtype: str = "float32"
    is_scanned: bool = False

    def parameters(self, rng: np.random.Generator) -> Tree:
        """Return initial parameters."""

        def matrix(rows: int, columns: int) -> Any:
            return rng.standard_normal((rows, columns)) / rows**0.5

        width = self.width
        layers = [
            {
                "attention_norm": np.ones(width),
                "qkv": matrix(width, 3 * width),
                "output": matrix(width, width),
                "mlp_norm": np.ones(width),
                "up": matrix(width, 4 * width),
                "down": matrix(4 * width, width),
            }
            for _ in range(self.layers)
        ]
        return {
            "embedding": rng.standard_normal((self.vocabulary, width)) / width**0.5,
            "positions": 0.1 * rng.standard_normal((self.length, width)),
            "layers": jax.tree.map(lambda *of_layers: np.stack(of_layers), *layers)
            if self.is_scanned
            else layers,
            "norm": np.ones(width),
        }

    def batch(self, rng: np.random.Generator, rows: int) -> Tree:
        """Return tokens [rows, length + 1]."""
        shape = (rows, self.length + 1)
        return {"tokens": rng.integers(0, self.vocabulary, shape).astype("i")}

    def loss(self, replicas: ReplicaOperations, params: Tree, batch: Tree) -> tuple[Any, Tree]:
        """Return the mean cross entropy of each token but the first, and no statistics."""
        tokens = batch["tokens"]
        params = jax.tree.map(lambda leaf: leaf.astype(self.dtype), params)
        x = params["embedding"][tokens[:, :-1]] + params["positions"]
        if self.is_scanned:
            x, _ = jax.lax.scan(lambda x, layer: (self._block(layer, x), None), x, params["layers"])
        else:
            for layer in params["layers"]:
                x = self._block(layer, x)
        scores = (_layer_norm(x) * params["norm"]) @ params["embedding"].T
        return jnp.mean(cross_entropies(scores.astype(jnp.float32), tokens[:, 1:])), {}

    def _block(self, layer: Tree, x: Any) -> Any:
        x = x + self._attention(layer, _layer_norm(x) * layer["attention_norm"])
        hidden = jax.nn.gelu(_layer_norm(x) * layer["mlp_norm"] @ layer["up"])
        return x + hidden @ layer["down"]

    def separate(self, layers: Tree) -> list[Tree]:
        """Return the parameters of each layer."""
        if not self.is_scanned:
            return list(layers)
        return [{name: leaf[i] for name, leaf in layers.items()} for i in range(self.layers)]

    def _attention(self, layer: Tree, x: Any) -> Any:
        rows, length, width = x.shape
        shape = (rows, length, self.heads, width // self.heads)
        query, key, value = (
            part.reshape(shape).transpose(0, 2, 1, 3)
            for part in jnp.split(x @ layer["qkv"], 3, axis=-1)
        )
        scores = query @ key.transpose(0, 1, 3, 2) / shape[-1] ** 0.5
        scores = jnp.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
        mixed = (jax.nn.softmax(scores) @ value).transpose(0, 2, 1, 3)
        return mixed.reshape(rows, length, width) @ layer["output"]


@dataclass(frozen=True)
class Decoder:
    """A decoder of separate, gated products, whose heads and hidden features cores can divide.

    Parameters are sharded as by Megatron-LM: the first products of a layer along their outputs, the
    second ones along their inputs.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    length: int

    @property
    def cores(self) -> dict[str, tuple[str | None, ...]]:
        """Return how the cores hold the parameters of a layer, by name."""
        outputs, inputs = (None, "sharded"), ("sharded", None)
        first = dict.fromkeys(("query", "key", "value", "gate", "up"), outputs)
        return {**first, "output": inputs, "down": inputs}

    def parameters(self, rng: np.random.Generator) -> Tree:
        """Return initial parameters."""

        def matrix(rows: int, columns: int) -> Any:
            return rng.standard_normal((rows, columns)) / rows**0.5

        width, hidden = self.width, self.hidden
        return {
            "embedding": matrix(self.vocabulary, width) * self.vocabulary**0.5 / width**0.5,
            "layers": [
                {
                    "attention_norm": np.ones(width),
                    **{name: matrix(width, width) for name in ("query", "key", "value", "output")},
                    "mlp_norm": np.ones(width),
                    **{name: matrix(width, hidden) for name in ("gate", "up")},
                    "down": matrix(hidden, width),
                }
                for _ in range(self.layers)
            ],
            "norm": np.ones(width),
        }

    def batch(self, rng: np.random.Generator, rows: int) -> Tree:
        """Return tokens [rows, length + 1]."""
        shape = (rows, self.length + 1)
        return {"tokens": rng.integers(0, self.vocabulary, shape).astype("i")}

    def loss(self, replicas: ReplicaOperations, params: Tree, batch: Tree) -> tuple[Any, Tree]:
        """Return the mean cross entropy of each token but the first, and no statistics."""
        tokens = batch["tokens"]
        x = params["embedding"][tokens[:, :-1]]
        for layer in params["layers"]:
            normal = replicas.for_shards(_layer_norm(x) * layer["attention_norm"])
            x = x + replicas.of_terms(self._mixed(layer, normal) @ layer["output"])
            normal = replicas.for_shards(_layer_norm(x) * layer["mlp_norm"])
            hidden = jax.nn.silu(normal @ layer["gate"]) * (normal @ layer["up"])
            x = x + replicas.of_terms(hidden @ layer["down"])
        scores = (_layer_norm(x) * params["norm"]) @ params["embedding"].T
        return jnp.mean(cross_entropies(scores, tokens[:, 1:])), {}

    def _mixed(self, layer: Tree, x: Any) -> Any:
        """Return the values that the heads of a core attend to."""
        shape = (*x.shape[:2], -1, self.width // self.heads)
        query, key, value = ((x @ layer[name]).reshape(shape) for name in ("query", "key", "value"))
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return mixed.reshape(*x.shape[:2], -1)


def _layer_norm(x: Any) -> Any:
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON)


BenchModel: TypeAlias = Mlp | Convnet | Classifier | Recommender | Transformer | Decoder
