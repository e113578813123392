"""Updates as they are sent to servers: modules of StableHLO, for the CPU.

A graph has parameters that no other process can be given, such as the computation of a scatter. A
module has all in it, and it is data: to load it runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: arrays

import jax
from jax import export

from graphdist.ir.graph import Graph
from graphdist.ir.types import numpy_dtype
from graphdist.runtime.emit import emit


def as_module(graph: Graph) -> bytes:
    """Return an update as bytes."""
    types = [value.type for value in graph.inputs]
    avals = [jax.ShapeDtypeStruct(type.shape, numpy_dtype(type.dtype)) for type in types]
    update = jax.jit(lambda *inputs: emit(graph, inputs))
    return bytes(export.export(update, platforms=["cpu"])(*avals).serialize())


def function_of(module: bytes) -> Callable[..., Any]:
    """Return an update of its bytes; it takes arrays and returns a list of them."""
    found: Callable[..., Any] = export.deserialize(bytearray(module)).call
    return found
