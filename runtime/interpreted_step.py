"""SPMD graph -> a function of JAX arrays that evaluates it node by node, with concrete values.

The function takes and returns the same arrays on the devices as the graph's executable, but the
reference interpreter evaluates the graph: JAX executes each operation on the first device, for one
replica after the other. No buffer is donated. This is slow, and for `jax.disable_jit`, with which
users can look at every value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast  # Any: arrays of JAX and NumPy

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.ir.arrays import Array, Held, join_arrays
from graphdist.ir.graph import Graph, Node
from graphdist.ir.interpreter import Observe, interpret_placed
from graphdist.ir.mesh import MEMBER
from graphdist.ir.types import MIRRORED, Layout, Type, numpy_dtype
from graphdist.runtime.bind_primitive import evaluate_jax_node, numpy_or_keys
from graphdist.runtime.devices import Devices


def interpreted_step(graph: Graph, devices: Devices) -> Callable[..., list[jax.Array]]:
    """Return a function that evaluates a graph on its inputs, in place of `jax.jit`."""

    def program(*arrays: Any) -> list[jax.Array]:
        outputs = evaluate_graph(graph, devices, held_inputs(graph, devices, arrays))
        return [
            _placed(held, output.type, layout, devices)
            for held, output, layout in zip(
                outputs, graph.outputs, graph.output_layouts, strict=True
            )
        ]

    return program


def evaluate_graph(
    graph: Graph, devices: Devices, inputs: Sequence[Held], observe: Observe | None = None
) -> list[Held]:
    """Return each replica's value of each output; `observe` is called for every node."""
    with jax.disable_jit(False), jax.default_device(devices.devices[0]):
        return interpret_placed(graph, inputs, _evaluate, observe)


def _evaluate(node: Node, operands: Sequence[Array]) -> list[Array]:
    """Evaluate an operation; the user's callbacks run in this thread, not in a thread of XLA."""
    user_function = node.params.get("callback")
    if not callable(user_function):
        return evaluate_jax_node(node, list(map(_jax_array, operands)))
    results = user_function(*operands) or ()
    return [
        np.asarray(result, numpy_dtype(value.type.dtype))
        for result, value in zip(results, node.results, strict=True)
    ]


def held_inputs(graph: Graph, devices: Devices, arrays: Sequence[Any]) -> list[Held]:
    """Return each replica's value of each input, in new memory."""
    return [
        _held(array, layout, devices)
        for array, layout in zip(arrays, graph.input_layouts, strict=True)
    ]


def _held(array: Any, layout: Layout | None, devices: Devices) -> Held:
    count = len(devices.devices)
    if not isinstance(array, jax.Array):
        return [np.array(array)] * count
    parts = {shard.device: shard.data for shard in array.addressable_shards}
    if layout is MIRRORED:
        return [_copied(next(iter(parts.values())), devices)] * count
    return [_copied(parts[device], devices) for device in devices.devices]


def _copied(array: jax.Array, devices: Devices) -> Array:
    """Return a copy: a NumPy array would share the buffer, which a later step may donate."""
    return numpy_or_keys(jax.device_put(jnp.array(array, copy=True), devices.devices[0]))


def _placed(held: Held, type: Type, layout: Layout | None, devices: Devices) -> jax.Array:
    """Return the arrays of all cores of all replicas as one array on the devices, in new buffers.

    Each core's shard is cut for the replicas, so the replicas' parts are joined first.
    """
    core, cores = None if layout is None else layout.core, devices.num_cores
    over_replicas = layout and layout.over_cores(None)
    by_core = [held[start::cores] for start in range(1 if core is None else cores)]
    joined = [_joined(parts, type, over_replicas, devices) for parts in by_core]
    array = joined[0] if core is None else join_arrays(joined, core)
    return jax.device_put(_jax_array(array), devices.sharding(layout), may_alias=False)


def _joined(held: Held, type: Type, layout: Layout | None, devices: Devices) -> Array:
    """Return the replicas' arrays of a value as one."""
    if layout is MIRRORED:
        return held[0]
    dimension = (layout and layout.dimension) or 0
    if layout is not None and layout.axis == MEMBER:
        held = held[: devices.group_size]
    return join_arrays(held if type.shape else [part.reshape(1) for part in held], dimension)


def _jax_array(array: Array) -> jax.Array:
    """Return a copy as an array of JAX, with 64 bits even if `jax_enable_x64` is off now."""
    with jax.enable_x64(True):
        return jnp.array(cast(Any, array), copy=True)
