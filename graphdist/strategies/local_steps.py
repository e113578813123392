"""Local steps, as in DiLoCo: `sync_every` and `outer_optimizer` of strategies.

`passes/logical/local_steps.py` explains local steps. Passes import no JAX. So this module traces
the outer step, which is the update by an outer optimizer of optax, to a graph. The pass adds this
graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any  # Any: optimizers of optax, arrays

import jax

from graphdist.errors import ArgumentError
from graphdist.ir.graph import Graph, Value
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, dtype_name, numpy_dtype
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.logical.local_steps import LocalSteps
from graphdist.tracing.jaxpr_to_graph import import_jaxpr
from graphdist.tracing.marks import IntegerMeans
from graphdist.tracing.primitives import all_reduce_p
from graphdist.tracing.trace_in_progress import fresh_trace
from graphdist.values.distributed import wrong_type


def checked_local_steps(
    sync_every: Any, outer_optimizer: Any, shard_update: bool | None, shard_parameters: bool
) -> LocalSteps | None:
    """Return the pass for a strategy's arguments; None if `sync_every` is None.

    Raises `ArgumentError` for a `sync_every` that is no integer from 1, for an `outer_optimizer`
    without `sync_every`, and for `sync_every` with sharded updates or parameters. Raises
    `ArgumentTypeError` for an `outer_optimizer` that is no transformation of optax.

    >>> checked_local_steps(50, None, None, False)
    LocalSteps(every=50, outer=None)
    """
    if sync_every is None:
        if outer_optimizer is not None:
            raise ArgumentError(
                "outer_optimizer is given without sync_every: it updates parameters when the "
                "replicas are synchronized",
                hint="give the count of steps between synchronizations: sync_every=50",
            )
        return None
    if not isinstance(sync_every, int) or isinstance(sync_every, bool) or sync_every < 1:
        raise ArgumentError(
            f"sync_every is {sync_every!r}, not a number of steps from 1 on",
            hint="give the count of steps from one synchronization to the next, or leave it out "
            "to reduce gradients in every step",
        )
    for name, is_on in (("shard_update", shard_update), ("shard_parameters", shard_parameters)):
        if is_on:
            raise ArgumentError(
                f"{name} shards the update over the replicas, but with sync_every={sync_every} "
                f"each replica makes its own update",
                hint=f"leave out {name} or sync_every",
            )
    if outer_optimizer is None:
        return LocalSteps(sync_every, None)
    if not all(callable(getattr(outer_optimizer, name, None)) for name in ("init", "update")):
        hint = "give one with the functions init and update, such as optax.sgd(0.7, momentum=0.9, "
        hint += "nesterov=True)"
        raise wrong_type("outer_optimizer", outer_optimizer, "a transformation of optax", hint)
    return LocalSteps(sync_every, OuterOptimizer(outer_optimizer))


class OuterOptimizer:
    """The outer step: optax updates each anchor by the mean of anchor minus copy over replicas."""

    def __init__(self, optimizer: Any) -> None:
        """Store the optimizer, of which `init` and `update` are called."""
        self.optimizer = optimizer
        # All runs of the pass get the same graph for the same parameters.
        self.graph = lru_cache(maxsize=16)(self._trace_step)

    def slots(self, parameters: Sequence[Any]) -> list[Any]:
        """Return the initial slots for parameters with these values."""
        return list(jax.tree.leaves(self.optimizer.init(list(parameters))))

    def _trace_step(self, parameters: tuple[Type, ...], num_replicas: int) -> Graph:
        avals = [jax.ShapeDtypeStruct(type.shape, numpy_dtype(type.dtype)) for type in parameters]
        structure = jax.tree.structure(jax.eval_shape(self.optimizer.init, avals))
        slots = jax.eval_shape(self.slots, avals)
        count = len(avals)

        def update(*values: Any) -> list[Any]:
            anchors, copies = list(values[:count]), values[count : 2 * count]
            differences = [
                all_reduce_p.bind(anchor - copy, reducer="mean", group_size=num_replicas)
                for anchor, copy in zip(anchors, copies, strict=True)
            ]
            state = jax.tree.unflatten(structure, values[2 * count :])
            changes, state = self.optimizer.update(differences, state, anchors)
            new = [
                (anchor + change).astype(anchor.dtype)
                for anchor, change in zip(anchors, changes, strict=True)
            ]
            return [*new, *jax.tree.leaves(state)]

        with fresh_trace():
            closed: Any = jax.make_jaxpr(update)(*avals, *avals, *slots)
        types = [Type(dtype_name(aval.dtype), aval.shape, MIRRORED) for aval in (*avals, *slots)]
        self._check_slots(types[count:], closed.out_avals[count:])
        copies = [type.with_layout(PER_REPLICA) for type in types[:count]]
        types[count:count] = copies if num_replicas > 1 else types[:count]
        graph = import_jaxpr(
            closed,
            name="outer_update",
            num_replicas=num_replicas,
            inputs=[Value(type) for type in types],
            variables=(),
            returns_per_replica=(False,) * len(closed.out_avals),
            means=IntegerMeans(),
        )
        return infer_layouts(graph)

    def _check_slots(self, slots: Sequence[Type], updated: Sequence[Any]) -> None:
        after = [(dtype_name(aval.dtype), tuple(aval.shape)) for aval in updated]
        before = [(slot.dtype, slot.shape) for slot in slots]
        if before != after:
            raise ArgumentError(
                f"outer_optimizer has the slots {before} before an update and {after} after it",
                hint="give an optimizer whose state keeps its structure, shapes and dtypes",
            )

    def __repr__(self) -> str:
        return f"OuterOptimizer({self.optimizer!r})"
