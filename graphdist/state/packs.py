"""Small variables that share a buffer, so that a step does not cost more the more there are.

A program that assigns several small variables of one dtype has them stored together the first time
it is compiled to run. Nothing else sees it: reading takes a piece out, assigning puts one in, and
programs compiled before are compiled anew. A variable that is stored in slices, or wanted alone by
a step loaded from a file, leaves its pack for good.

What is packed was measured on CPU: 50 layers of 16, 100 variables, on 2 devices.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any  # Any: jitted functions

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.ir.graph import Graph
from graphdist.ir.types import MIRRORED, dtype_name
from graphdist.passes.compute_on_packs import update_kinds
from graphdist.passes.pack_variables import Pack

if TYPE_CHECKING:
    from graphdist.state.variable import Variable
    from graphdist.strategy_base import StrategyBase

LARGEST = {"cpu": 16 * 2**10}
"""By platform, up to how many bytes a variable is small; nothing is packed elsewhere."""
FEWEST = 4
"""How many variables are worth a pack."""


class VariablePack:
    """One buffer of a strategy with a piece for each of several variables."""

    def __init__(self, strategy: StrategyBase, variables: Sequence[Variable]) -> None:
        """Move the values of variables into one buffer; between steps, under the store's lock."""
        self.strategy = strategy
        self.shapes = tuple(variable.shape for variable in variables)
        self.dtype = dtype_name(variables[0].dtype)
        sizes = [prod(shape) for shape in self.shapes]
        self.starts = [sum(sizes[:i]) for i in range(len(sizes))]
        home = strategy.devices.home(MIRRORED)
        flat = [np.asarray(variable.buffer).reshape(-1) for variable in variables]
        with jax.enable_x64(True):  # what has 64 bits keeps them, however JAX is set by now
            buffer = jax.device_put(np.concatenate(flat), home, may_alias=False)
        self.place = strategy.buffers.add(buffer)
        weakref.finalize(self, strategy.buffers.release, self.place)
        for i, variable in enumerate(variables):
            variable.enter(self, i)

    @property
    def buffer(self) -> jax.Array:
        """Return the array that holds all pieces; the next step may donate it."""
        return self.strategy.buffers.buffers[self.place]

    def read(self, piece: int) -> jax.Array:
        """Return a copy of a piece."""
        return _taken(self.buffer, self.starts[piece], shape=self.shapes[piece])

    def write(self, piece: int, array: jax.Array) -> None:
        """Put a value in the place of a piece."""
        buffer = _put(self.buffer, array, self.starts[piece])
        home = self.strategy.devices.home(MIRRORED)
        self.strategy.buffers.buffers[self.place] = jax.device_put(buffer, home)


@partial(jax.jit, static_argnames="shape")
def _taken(buffer: jax.Array, start: Any, *, shape: tuple[int, ...]) -> jax.Array:
    return jnp.reshape(jax.lax.dynamic_slice_in_dim(buffer, start, prod(shape)), shape)


@jax.jit
def _put(buffer: jax.Array, array: jax.Array, start: Any) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(buffer, jnp.reshape(array, -1), start, 0)


def pack_small(strategy: StrategyBase, variables: Sequence[Variable], graph: Graph) -> None:
    """Have the small variables that a placed graph assigns share buffers, one for each dtype.

    Those that are updated alike share one, since they are then updated as one.

    Between steps: whoever calls holds the lock of the buffers.
    """
    largest = LARGEST.get(strategy.devices.platform, 0)
    if strategy.devices.parameter_device is not None or strategy.devices.workers is not None:
        return  # what lies elsewhere, or on other workers too, is not joined here
    groups: dict[Any, list[Variable]] = defaultdict(list)
    kinds = update_kinds(graph)
    for variable, spec in zip(variables, graph.variables, strict=True):
        if spec.assigned and variable.strategy is strategy and variable.is_packable(largest):
            groups[variable.dtype, kinds[spec.name]].append(variable)
    for group in groups.values():
        if len(group) >= FEWEST:
            VariablePack(strategy, group)
            strategy.buffers.layout += 1


def packs_of(variables: Sequence[Variable], graph: Graph) -> tuple[list[Pack], list[Any]]:
    """Return the packs that a placed graph's variables are in, and what holds its state then.

    What holds it are the packs, and after them the variables that are alone, in their order.
    """
    pieces: dict[VariablePack, dict[str, int]] = {}
    alone: list[Any] = []
    for variable, spec in zip(variables, graph.variables, strict=True):
        if variable.pack is None:
            alone.append(variable)
        else:
            pieces.setdefault(variable.pack, {})[spec.name] = variable.piece
    names = {spec.name for spec in graph.variables}
    packs = []
    for number, (pack, of_names) in enumerate(pieces.items()):
        name = f"pack_{number}"
        while name in names:
            name += "_"
        packs.append(Pack(name, pack.dtype, pack.shapes, of_names))
    return packs, [*pieces, *alone]
