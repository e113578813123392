"""SPMD graph -> a function of JAX arrays that evaluates it node by node, with values one can see.

It takes and gives what the executable of the graph does, arrays on the devices laid out as the
graph says, and is run by the reference interpreter: each operation is done by JAX on the first
device, for one replica after the other. It keeps its inputs, of which the executable would take
some over. That is slow, and what `jax.disable_jit` asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast  # Any: arrays of JAX and NumPy

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.ir.arrays import Array, Held, join_arrays
from graphdist.ir.boundary import input_distributions, output_distributions
from graphdist.ir.graph import Graph, Node
from graphdist.ir.interpreter import Observe, interpret_placed
from graphdist.ir.types import MIRRORED, Distribution, Type, numpy_dtype
from graphdist.runtime.devices import Devices
from graphdist.runtime.evaluate import evaluate_jax_node


def evaluated(graph: Graph, devices: Devices) -> Callable[..., list[jax.Array]]:
    """Return a function of a graph's inputs that evaluates it, as `jax.jit` of it would."""

    def program(*arrays: Any) -> list[jax.Array]:
        outputs = evaluate_graph(graph, devices, held_inputs(graph, devices, arrays))
        return [
            _placed(held, output.type, distribution, devices)
            for held, output, distribution in zip(
                outputs, graph.outputs, output_distributions(graph), strict=True
            )
        ]

    return program


def evaluate_graph(
    graph: Graph, devices: Devices, inputs: Sequence[Held], observe: Observe | None = None
) -> list[Held]:
    """Return what each replica holds of each output; `observe` is told of every node."""
    with jax.disable_jit(False), jax.default_device(devices.devices[0]):
        return interpret_placed(graph, inputs, _evaluate, observe)


def _evaluate(node: Node, operands: Sequence[Array]) -> list[Array]:
    """Evaluate an operation; what calls the user back does so here, not in a thread of XLA's."""
    callback = node.params.get("callback")
    if not callable(callback):
        return evaluate_jax_node(node, list(map(_as_it_is, operands)))
    results = callback(*operands) or ()
    return [
        np.asarray(result, numpy_dtype(value.type.dtype))
        for result, value in zip(results, node.results, strict=True)
    ]


def held_inputs(graph: Graph, devices: Devices, arrays: Sequence[Any]) -> list[Held]:
    """Return what each replica holds of each input, in memory of its own."""
    return [
        _held(array, distribution, devices)
        for array, distribution in zip(arrays, input_distributions(graph), strict=True)
    ]


def _held(array: Any, distribution: Distribution | None, devices: Devices) -> Held:
    count = len(devices)
    if not isinstance(array, jax.Array):
        return [np.array(array)] * count
    parts = {shard.device: shard.data for shard in array.addressable_shards}
    if distribution is MIRRORED:
        return [_copied(next(iter(parts.values())), devices)] * count
    return [_copied(parts[device], devices) for device in devices.devices]


def _copied(array: jax.Array, devices: Devices) -> Array:
    """Return a copy: NumPy would show the memory of a buffer that a later step takes over."""
    copy = jnp.array(array, copy=True)
    if jnp.issubdtype(copy.dtype, jax.dtypes.prng_key):
        return cast(Array, jax.device_put(copy, devices.devices[0]))
    return np.asarray(copy)


def _placed(
    held: Held, type: Type, distribution: Distribution | None, devices: Devices
) -> jax.Array:
    """Return what the replicas hold as one array on the devices, with buffers of its own."""
    if distribution is MIRRORED:
        whole = held[0]
    else:
        dimension = (distribution and distribution.dimension) or 0
        parts = held if type.shape else [array.reshape(1) for array in held]
        whole = join_arrays(parts, dimension)
    return jax.device_put(_as_it_is(whole), devices.sharding(distribution), may_alias=False)


def _as_it_is(array: Array) -> jax.Array:
    """Return a copy in an array of JAX's: 64 bits stay 64, however JAX is set by now."""
    with jax.enable_x64(True):
        return jnp.array(cast(Any, array), copy=True)
