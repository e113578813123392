"""Programs as bytes: portable StableHLO through `jax.export`, and native executables.

A portable module is data: loading it compiles it. A native executable is kept by JAX as a pickle,
so that loading it runs whatever code the bytes ask for.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any  # Any: jitted functions have no public type

import jax
from jax import export
from jax.experimental import serialize_executable
from jax.stages import Compiled

from graphdist.ir.graph import Graph
from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.compilation import compile_lowered
from graphdist.runtime.devices import Devices
from graphdist.runtime.executable import Emitted, Executable, placed_avals, with_shardings
from graphdist.runtime.topologies import MissingExtraError

PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
"""What `jax.export` calls the platforms."""


def export_module(emitted: Emitted, platforms: Sequence[str], at: Source = UNKNOWN) -> bytes:
    """Return what was emitted as portable bytes, for these platforms.

    Raises `MissingExtraError` without flatbuffers.
    """
    _require_flatbuffers(at)
    names = [PLATFORMS.get(platform, platform) for platform in platforms]
    exported = export.export(emitted.function, platforms=names)(*emitted.avals)
    return bytes(exported.serialize())


def load_module(
    data: bytes,
    graph: Graph,
    devices: Devices,
    compiler_options: dict[str, Any],
    at: Source = UNKNOWN,
) -> Executable:
    """Compile portable bytes for devices; `graph` says how inputs and outputs lie on them."""
    _require_flatbuffers(at)
    exported = export.deserialize(bytearray(data))
    function = with_shardings(exported.call, graph, devices, compiler_options)
    lowered = function.trace(*placed_avals(graph, devices)).lower()
    return Executable(graph, devices, function, compile_lowered(lowered, devices))


def serialize_native(compiled: Compiled) -> bytes:
    """Return a compiled executable as bytes; the trees of its arguments are those of any step."""
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


def _require_flatbuffers(at: Source) -> None:
    if importlib.util.find_spec("flatbuffers") is None:
        raise MissingExtraError(
            "the file of a compiled step needs the package flatbuffers, which is not installed",
            source=at,
            hint='pip install "graphdist[export]"',
        )
