"""Small programs traced by hand: to graphs, and as replica variants that become one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any  # Any: arrays, tracers and users' pytrees

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.ir.graph import Graph, GraphVariable, Value
from graphdist.ir.interpreter import Outcome, interpret
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type
from graphdist.runtime.bind_primitive import evaluate_jax_node
from graphdist.tracing.axis_name import bound, run_by_each_replica
from graphdist.tracing.jaxpr_to_graph import import_jaxpr
from graphdist.tracing.marks import IntegerMeans
from graphdist.tracing.merge_variants import merge_variants
from graphdist.tracing.primitives import all_gather_p, all_reduce_p, replica_id_p
from graphdist.tracing.slots import Slot
from graphdist.tracing.trace_in_progress import Trace, current_trace, fresh_trace, make_jaxpr

Shape = tuple[int, ...]


@dataclass
class Float32:
    """A variable of float32, as a trace knows variables."""

    name: str
    shape: Shape = ()
    layout: Layout = MIRRORED
    dtype = np.dtype(np.float32)

    def spec(self, name: str) -> GraphVariable:
        return GraphVariable(name, Type("f32", self.shape, self.layout))

    def read(self) -> Any:
        trace = current_trace()
        assert trace is not None
        return trace.read(self)

    def part(self, index: Any) -> Any:
        """Return a part, which is read from the handle: a graph has no such read."""
        trace = current_trace()
        assert trace is not None
        handle, _ = trace._handle_and_spec(self)
        return handle[index]

    def assign(self, value: Any) -> Any:
        """Assign in replica context; returns the value."""
        trace = current_trace()
        assert trace is not None
        trace.write(self, jnp.asarray(value), "replica")
        return value


def graph_of(
    fn: Callable[..., Any],
    *shapes: Shape,
    num_replicas: int = 2,
    means: IntegerMeans | None = None,
) -> Graph:
    """Return the logical graph of a replica function of float32 arguments x0, x1, ..."""
    names = [f"x{i}" for i in range(len(shapes))]
    layout = PER_REPLICA if num_replicas > 1 else MIRRORED
    inputs = [
        Value(Type("f32", shape, layout), name) for shape, name in zip(shapes, names, strict=True)
    ]
    avals = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    trace = Trace(is_first=True, means=means)

    def body(*arrays: Any) -> list[Any]:
        replica_fn = lambda: run_by_each_replica(lambda: fn(*arrays))  # noqa: E731
        results = trace.bound("replica", num_replicas, replica_fn)
        return [jnp.asarray(leaf) for leaf in jax.tree.leaves(results)]

    closed = make_jaxpr(trace, body, avals, fn, names)

    def imported() -> Graph:
        return import_jaxpr(
            closed,
            name="f",
            num_replicas=num_replicas,
            inputs=inputs,
            variables=trace.specs,
            returns_per_replica=[num_replicas > 1] * len(closed.jaxpr.outvars),
            means=trace.means,
        )

    return bound("replica", num_replicas, imported)


def run(
    graph: Graph, *arguments: Sequence[Any], state: Mapping[str, Sequence[Any]] | None = None
) -> Outcome:
    """Run a graph on each replica's arrays with the reference interpreter."""
    held = [[np.asarray(a, np.float32) for a in replicas] for replicas in arguments]
    variables = {
        name: [np.asarray(a, np.float32) for a in replicas]
        for name, replicas in (state or {}).items()
    }
    return interpret(graph, held, evaluate_jax_node, variables)


@dataclass
class MergedVariants:
    """The graph of functions that were traced one for each replica, and the shapes they return."""

    graph: Graph
    padded: list[Shape]
    shapes: list[list[Shape]]

    def run(self, *arguments: Sequence[Any], **state: Any) -> tuple[list[list[Any]], Any]:
        """Return each replica's results without the padding, and the variables afterwards."""
        held = [
            [_padded(np.asarray(a, np.float32), shape) for a in replicas]
            for replicas, shape in zip(arguments, self.padded, strict=True)
        ]
        outcome = run(self.graph, *held, state=state)
        results = [
            [
                output[replica][tuple(map(slice, shape))].tolist()
                for output, shape in zip(outcome.outputs, shapes, strict=True)
            ]
            for replica, shapes in enumerate(self.shapes)
        ]
        return results, {name: np.asarray(held).tolist() for name, held in outcome.state.items()}


def merged(fns: Sequence[Callable[..., Any]], *shapes: Sequence[Shape]) -> MergedVariants:
    """Trace a function for each replica, and merge the traces.

    `shapes` has the shapes of each argument, one a replica. Functions return lists of arrays, as
    long as each other, of one dtype and rank at each position.
    """
    padded = [tuple(map(max, *of_all)) if of_all[0] else () for of_all in shapes]
    found: list[list[Shape]] = []

    def all_replicas(*arrays: Any) -> list[Any]:
        arguments, traces = [], []
        for replica, fn in enumerate(fns):
            own = [of_all[replica] for of_all in shapes]
            arguments.append([Slot(a, shape) for a, shape in zip(arrays, own, strict=True)])
            avals = [jax.ShapeDtypeStruct(shape, np.float32) for shape in own]
            with fresh_trace():
                traces.append(jax.make_jaxpr(partial(_called_by_a_replica, fn))(*avals))
        index = replica_id_p.bind(group_size=len(fns))
        outputs = [range(len(trace.jaxpr.outvars)) for trace in traces]
        rows = merge_variants(index, traces, arguments, outputs)
        found[:] = [[slot.shape for slot in row if slot] for row in rows]
        for slots in zip(*rows, strict=True):
            assert all(slot.array is slots[0].array for slot in slots), "results share an array"
        return [slot.array for slot in rows[0] if slot]

    graph = graph_of(all_replicas, *padded, num_replicas=len(fns))
    return MergedVariants(graph, padded, found)


def total(x: Any, replicas: int = 2) -> Any:
    """Return the sum over the replicas."""
    return all_reduce_p.bind(jnp.asarray(x), reducer="sum", group_size=replicas)


def largest(x: Any, replicas: int = 2) -> Any:
    """Return the maximum over the replicas."""
    return all_reduce_p.bind(jnp.asarray(x), reducer="max", group_size=replicas)


def gathered(x: Any, replicas: int = 2) -> Any:
    """Return the values of all replicas, joined."""
    return all_gather_p.bind(x, axis=0, group_size=replicas)


def count(graph: Graph, name: str) -> int:
    """Return how many nodes of an operation a graph has, nested graphs included."""
    own = sum(node.op.name == name for node in graph.nodes)
    return own + sum(count(nested, name) for node in graph.nodes for nested in node.graphs)


def _called_by_a_replica(fn: Callable[..., Any], *arrays: Any) -> Any:
    return run_by_each_replica(lambda: fn(*arrays))


def _padded(array: Any, shape: Shape) -> Any:
    full = np.full(shape, np.nan, np.float32)  # padding that must reach no result
    full[tuple(map(slice, array.shape))] = array
    return full
