"""Programs as bytes: portable StableHLO through `jax.export`, and native executables.

A portable module is data: loading it compiles it. JAX stores a native executable as a pickle, so
loading it runs any code that is in the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: jitted functions have no public type

import jax
from jax import export
from jax.experimental import serialize_executable
from jax.stages import Compiled

from graphdist.ir.graph import Graph
from graphdist.runtime.compilation import compile_lowered
from graphdist.runtime.cpu_options import divides_temporaries
from graphdist.runtime.devices import Devices
from graphdist.runtime.executable import (
    Emitted,
    Executable,
    global_aval,
    in_all_bits,
    placed_avals,
    with_shardings,
)
from graphdist.runtime.extras import require_package

PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
"""The names of the platforms in `jax.export`."""


def export_module(emitted: Emitted, platforms: Sequence[str]) -> bytes:
    """Return an emitted program as portable bytes, for these platforms.

    Raises `MissingExtraError` without flatbuffers.
    """
    require_package("flatbuffers", "the file of a compiled step")
    names = [PLATFORMS.get(platform, platform) for platform in platforms]
    exported = export.export(emitted.function, platforms=names)(*emitted.avals)
    return bytes(exported.serialize())


def load_module(
    data: bytes, graph: Graph, devices: Devices, compiler_options: dict[str, Any]
) -> Executable:
    """Compile portable bytes for devices; `graph` has the layouts of inputs and outputs.

    Raises ValueError for a module whose inputs or outputs differ from the graph's, and JAX's errors
    for a module that it cannot read or compile.
    """
    require_package("flatbuffers", "the file of a compiled step")
    exported = export.deserialize(bytearray(data))
    _require_types("takes", placed_avals(graph, devices), exported.in_avals)
    results = [
        global_aval(output.type, layout, devices.mesh_shape, devices.num_cores)
        for output, layout in zip(graph.outputs, graph.output_layouts, strict=True)
    ]
    _require_types("returns", results, exported.out_avals)
    function = with_shardings(exported.call, graph, devices, compiler_options)
    lowered = function.trace(*in_all_bits(placed_avals(graph, devices))).lower()
    has_blocks = divides_temporaries(compiler_options)
    compiled = compile_lowered(lowered, devices, divides_temporaries=has_blocks)
    return Executable(graph, devices, function, compiled)


def _require_types(does: str, stated: Sequence[Any], actual: Sequence[Any]) -> None:
    """Raise `ValueError` if inputs or outputs differ from the stated ones."""
    if len(stated) != len(actual):
        raise ValueError(f"the module {does} {len(actual)} values, {len(stated)} are stated")
    for i, (expected, other) in enumerate(zip(stated, actual, strict=True)):
        if (expected.shape, expected.dtype) != (other.shape, other.dtype):
            raise ValueError(
                f"value {i} that the module {does} is {other.dtype}{list(other.shape)}, stated is "
                f"{expected.dtype}{list(expected.shape)}"
            )


def serialize_native(compiled: Compiled) -> bytes:
    """Return a compiled executable as bytes, without the pytrees of its arguments and results."""
    payload, _, _ = serialize_executable.serialize(compiled)
    return bytes(payload)


def load_native(data: bytes, graph: Graph, devices: Devices) -> Executable:
    """Load an executable. This unpickles: it runs code from the bytes."""
    arguments: Any = jax.tree.structure(((0,) * len(graph.inputs), {}))
    results: Any = jax.tree.structure([0] * len(graph.outputs))
    compiled = serialize_executable.deserialize_and_load(
        data, arguments, results, execution_devices=devices.devices
    )
    return Executable(graph, devices, compiled, compiled)
