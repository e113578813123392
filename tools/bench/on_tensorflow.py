"""The programs of the benchmark on TensorFlow's MirroredStrategy, in a process of its own.

`graphdist.tools.bench` runs it if TensorFlow is installed (`process.py` has the protocol). It is
written as TensorFlow's users write it: `strategy.run` of a replica function, gradients by a tape,
reduced by one `all_reduce` of the replica context, all under one `tf.function`.
"""

from __future__ import annotations

from typing import Any  # Any: TensorFlow ships no types

import jax
import numpy as np

from graphdist.tools.bench.models import (
    EPSILON,
    MOMENTUM,
    Classifier,
    Convnet,
    Mlp,
    Recommender,
    Transformer,
)
from graphdist.tools.bench.process import from_command_line, serve
from graphdist.tools.bench.programs import (
    ADAM_EPSILON,
    ADAM_RATE,
    BETA1,
    BETA2,
    RATE,
    BenchProgram,
)


class TensorFlowProgram:
    """A program on a strategy of logical CPU devices."""

    def __init__(self, program: BenchProgram, replicas: int) -> None:
        """Make variables and the step."""
        import tensorflow as tf

        self.tf, self.program = tf, program
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(cpu, devices)
        self.strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
        with self.strategy.scope():
            self.state = jax.tree.map(tf.Variable, program.state())
            self.metrics = self._metrics() if program.kind == "evaluate" else {}
        self.batch = self._distributed(program.batch(replicas), replicas)
        self.function = tf.function(self._step)

    def _metrics(self) -> dict[str, Any]:
        metrics = self.tf.keras.metrics
        return {"loss": metrics.Mean(), "accuracy": metrics.SparseCategoricalAccuracy()}

    def _distributed(self, batch: Any, replicas: int) -> Any:
        parts = {name: np.split(value, replicas) for name, value in batch.items()}

        def of_replica(context: Any) -> Any:
            replica = context.replica_id_in_sync_group
            return {name: self.tf.constant(part[replica]) for name, part in parts.items()}

        return self.strategy.experimental_distribute_values_from_function(of_replica)

    def _step(self, batch: Any) -> Any:
        losses = self.strategy.run(self._replica_fn, args=(batch,))
        return self.strategy.reduce("MEAN", losses, axis=None)

    def step(self) -> float:
        """Run a step to its end and return the loss."""
        return float(self.function(self.batch).numpy())

    def results(self) -> dict[str, float]:
        """Return the metrics of all steps so far."""
        return {name: float(metric.result()) for name, metric in self.metrics.items()}

    def _replica_fn(self, batch: Any) -> Any:
        tf, state = self.tf, self.state
        if self.program.kind == "evaluate":
            scores, _ = self._scores(state["params"], batch["x"])
            losses = self._cross_entropies(scores, batch["labels"])
            self.metrics["loss"].update_state(losses)
            self.metrics["accuracy"].update_state(batch["labels"], scores)
            return tf.reduce_mean(losses)
        if self.program.kind == "forward":
            return self._loss(batch)[0]
        variables = jax.tree.leaves(state["params"])
        loss, gradients, statistics = self._accumulated(batch, variables)
        reduced = self._mean(gradients)  # of a table the rows alone, as `IndexedSlices`
        gradients = [tf.convert_to_tensor(gradient) for gradient in reduced]
        if self.program.kind == "adam":
            self._adam(variables, gradients)
        else:
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_sub(RATE * gradient)
        for old, new in zip(jax.tree.leaves(state.get("statistics")), statistics, strict=True):
            old.assign(MOMENTUM * old + (1 - MOMENTUM) * new)
        return loss

    def _mean(self, values: Any) -> Any:
        return self.tf.distribute.get_replica_context().all_reduce("MEAN", values)

    def _accumulated(self, batch: Any, variables: Any) -> tuple[Any, Any, Any]:
        tf, parts = self.tf, self.program.microbatches
        if parts == 1:
            return self._gradients(batch, variables)
        split = tf.nest.map_structure(
            lambda x: tf.reshape(x, [parts, x.shape[0] // parts, *x.shape[1:]]), batch
        )
        total = tf.constant(0.0), [tf.zeros_like(variable) for variable in variables]
        for i in tf.range(parts):
            loss, gradients, _ = self._gradients({k: v[i] for k, v in split.items()}, variables)
            sums = [
                total_gradient + other
                for total_gradient, other in zip(total[1], gradients, strict=True)
            ]
            total = total[0] + loss, sums
        return total[0] / parts, [gradient / parts for gradient in total[1]], []

    def _gradients(self, batch: Any, variables: Any) -> tuple[Any, Any, Any]:
        with self.tf.GradientTape() as tape:
            loss, statistics = self._loss(batch)
        gradients = tape.gradient(loss, variables)
        return loss, gradients, statistics

    def _adam(self, variables: Any, gradients: Any) -> None:
        tf, slots = self.tf, self.state["slots"]
        self.state["count"].assign_add(1)
        steps = tf.cast(self.state["count"], "float32")
        mean_scale, square_scale = 1 / (1 - BETA1**steps), 1 / (1 - BETA2**steps)
        means, squares = jax.tree.leaves(slots["mean"]), jax.tree.leaves(slots["square"])
        for w, g, m, v in zip(variables, gradients, means, squares, strict=True):
            mean = m.assign(BETA1 * m + (1 - BETA1) * g)
            square = v.assign(BETA2 * v + (1 - BETA2) * g * g)
            change = ADAM_RATE * (mean * mean_scale)
            w.assign_sub(change / (tf.sqrt(square * square_scale) + ADAM_EPSILON))

    def _loss(self, batch: Any) -> tuple[Any, Any]:
        tf, params, model = self.tf, self.state["params"], self.program.model
        if isinstance(model, Mlp):
            x = batch["x"]
            for layer in params:
                x = tf.tanh(x @ layer["weight"] + layer["bias"])
            return tf.reduce_mean(x**2), []
        if isinstance(model, Convnet):
            scores, statistics = self._scores(params, batch["x"])
            return tf.reduce_mean(self._cross_entropies(scores, batch["labels"])), statistics
        if isinstance(model, Recommender):
            return self._recommender_loss(params, batch), []
        if isinstance(model, Classifier):
            scores = tf.nn.relu(batch["x"] @ params["hidden"]) @ params["head"]
            return tf.reduce_mean(self._cross_entropies(scores, batch["labels"])), []
        assert isinstance(model, Transformer)  # other models run on JAX alone
        return self._transformer_loss(model, params, batch["tokens"]), []

    def _cross_entropies(self, scores: Any, labels: Any) -> Any:
        return self.tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)

    def _scores(self, params: Any, x: Any) -> tuple[Any, Any]:
        tf, statistics, model = self.tf, [], self.program.model
        assert isinstance(model, Convnet)
        pool = tf.nn.max_pool2d if model.takes_largest else tf.nn.avg_pool2d
        for layer in params["layers"]:
            x = tf.nn.conv2d(x, layer["kernel"], 1, "SAME")
            if "scale" in layer:
                axes = [0, 1, 2]
                mean, square = self._mean([tf.reduce_mean(x, axes), tf.reduce_mean(x * x, axes)])
                variance = square - mean**2
                statistics += [mean, variance]
                x = (x - mean) * tf.math.rsqrt(variance + EPSILON) * layer["scale"]
            x = pool(tf.nn.relu(x + layer["bias"]), 2, 2, "VALID")
        return tf.reduce_mean(x, [1, 2]) @ params["head"], statistics

    def _recommender_loss(self, params: Any, batch: Any) -> Any:
        tf, numbers = self.tf, batch["numbers"]
        read = [tf.gather(table, numbers[:, i]) for i, table in enumerate(params["tables"])]
        hidden = tf.nn.relu(tf.concat(read, 1) @ params["hidden"])
        scores = (hidden @ params["head"])[:, 0]
        return tf.reduce_mean(tf.nn.softplus(scores) - scores * batch["labels"])

    def _transformer_loss(self, model: Transformer, params: Any, tokens: Any) -> Any:
        tf, layers = self.tf, model.separate(params["layers"])
        if model.dtype != "float32":
            params, layers = tf.nest.map_structure(
                lambda leaf: tf.cast(leaf, model.dtype), ({**params, "layers": []}, layers)
            )
        x = tf.gather(params["embedding"], tokens[:, :-1]) + params["positions"]
        for layer in layers:
            normal = self._layer_norm(x) * layer["attention_norm"]
            x = x + self._attention(model, layer, normal)
            hidden = self._layer_norm(x) * layer["mlp_norm"] @ layer["up"]
            x = x + tf.nn.gelu(hidden, approximate=True) @ layer["down"]
        normal = self._layer_norm(x) * params["norm"]
        scores = tf.einsum("rlw,vw->rlv", normal, params["embedding"])
        losses = self._cross_entropies(tf.cast(scores, "float32"), tokens[:, 1:])
        return tf.reduce_mean(losses)

    def _attention(self, model: Transformer, layer: Any, x: Any) -> Any:
        tf = self.tf
        rows, length, width = x.shape
        size = width // model.heads
        query, key, value = (
            tf.transpose(tf.reshape(part, [rows, length, model.heads, size]), [0, 2, 1, 3])
            for part in tf.split(x @ layer["qkv"], 3, axis=-1)
        )
        scores = tf.matmul(query, key, transpose_b=True) / size**0.5
        scores = tf.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
        mixed = tf.transpose(tf.nn.softmax(scores) @ value, [0, 2, 1, 3])
        return tf.reshape(mixed, [rows, length, width]) @ layer["output"]

    def _layer_norm(self, x: Any) -> Any:
        tf = self.tf
        x = x - tf.reduce_mean(x, -1, keepdims=True)
        return x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + EPSILON)


def main() -> None:
    """Serve the program that the command line names."""
    served = from_command_line()
    running = TensorFlowProgram(served.program, served.replicas)
    serve(running.step, running.results, served.first_steps)


if __name__ == "__main__":
    main()
