"""The steps of `tests/truth/peaks.json`: decoders of the example, an MLP and a convnet.

Each entry has the compiler's peak in bytes, of the step compiled ahead of time with libtpu 0.0.42.
`is_new` marks the steps that were not in sight when the rules of the count were chosen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: settings of programs, pytrees of parameters

import jax
import jax.numpy as jnp

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.program.stages import Lowered
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.compilation import StepOptions, chosen_for, lower_target

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {
    "decoder": f"{ROOT / 'examples/aot_transformer.py'}:make_step",
    "mlp": f"{__file__}:mlp_step",
    "convnet": f"{__file__}:convnet_step",
}


@dataclass(frozen=True)
class CompiledPeak:
    """A step, and the peak of its compiled program in bytes."""

    program: str
    topology: str
    shard_parameters: bool | int
    settings: dict[str, Any]
    peak: int
    is_new: bool

    def lowered(self) -> Lowered:
        """Return the step, which is not compiled."""
        chosen = chosen_for(find_topology(self.topology), self.shard_parameters)
        return lower_target(TARGETS[self.program], chosen, StepOptions(self.settings))

    def graph(self) -> Graph:
        """Return the graph of the step on one device."""
        return self.lowered().graph


def compiled_peaks() -> list[CompiledPeak]:
    """Return the entries of the table."""
    text = (ROOT / "tests/truth/peaks.json").read_text(encoding="utf-8")
    return [CompiledPeak(**entry) for entry in json.loads(text)]


def mlp_step(strategy: gd.Strategy, batch: int, width: int = 8_192, layers: int = 4) -> Any:
    """Return a training step of a perceptron with equal layers, and the shapes of its batch."""
    shapes = {f"w{i}": jax.ShapeDtypeStruct((width, width), jnp.float32) for i in range(layers)}

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        for i in range(layers):
            x = jnp.tanh(x @ params[f"w{i}"].astype(x.dtype))
        return jnp.mean((x.astype(jnp.float32) - y) ** 2)

    rows = ((batch, width), jnp.bfloat16)
    return _step(strategy, shapes, loss_of, rows, rows)


def convnet_step(strategy: gd.Strategy, batch: int, width: int = 64, layers: int = 6) -> Any:
    """Return a training step of a stack of convolutions, and the shapes of its images."""
    channels = [3, *(width * 2 ** (i // 2) for i in range(layers))]
    shapes = {
        f"c{i}": jax.ShapeDtypeStruct((3, 3, *channels[i : i + 2]), jnp.float32)
        for i in range(layers)
    }
    shapes["head"] = jax.ShapeDtypeStruct((channels[-1], 1_000), jnp.float32)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        for i in range(layers):
            weights, strides = params[f"c{i}"].astype(x.dtype), (1 + i % 2,) * 2
            numbers = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, weights, strides, "SAME", dimension_numbers=numbers)
            x = jax.nn.relu(x)
        logits = jnp.mean(x.astype(jnp.float32), axis=(1, 2)) @ params["head"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))

    images, labels = ((batch, 224, 224, 3), jnp.bfloat16), ((batch,), jnp.int32)
    return _step(strategy, shapes, loss_of, images, labels)


def _step(strategy: gd.Strategy, shapes: Any, loss_of: Any, *batch: Any) -> Any:
    with strategy.scope():
        params, slots = gd.variables(shapes), gd.variables(shapes)

    @gd.function
    def train_step(*batch: Any) -> Any:
        def replica_fn(*batch: Any) -> Any:
            old = gd.read(params)
            loss, grads = jax.value_and_grad(loss_of)(old, *batch)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            new = jax.tree.map(lambda m, g: 0.9 * m + g, gd.read(slots), grads)
            gd.assign(slots, new)
            gd.assign(params, jax.tree.map(lambda p, m: p - 0.1 * m, old, new))
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=batch), axis=None)

    specs = (gd.PerReplicaSpec(shape, dtype, strategy=strategy) for shape, dtype in batch)
    return train_step, tuple(specs)
