"""SPMD graph -> StableHLO -> executable.

One executable is one compiled function with explicit shardings. The buffers of the variables that
the program assigns are donated to it. Only the variables' store holds these buffers, so none is
donated twice or used afterwards. `bound_step.py` calls the executable on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any  # Any: compiler options are whatever XLA takes

import jax
import jax.numpy as jnp
from jax.stages import Compiled, Lowered

from graphdist.ir.errors import VerifyError
from graphdist.ir.graph import Graph, Stage
from graphdist.ir.mesh import MeshShape
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, numpy_dtype
from graphdist.runtime.backpressure import backpressure
from graphdist.runtime.compilation import device_options
from graphdist.runtime.cpu_operations import operations_for
from graphdist.runtime.devices import Devices
from graphdist.runtime.emit import emit, lines_named
from graphdist.runtime.freed_memory import keep_freed_memory
from graphdist.runtime.invalid_numbers import NumberCheck
from graphdist.runtime.module.memory import Memory, memory_of
from graphdist.runtime.program_agreement import first_collective
from graphdist.runtime.supervised_steps import supervised


@dataclass(frozen=True, slots=True)
class Emitted:
    """A graph in JAX: a jitted function, and its StableHLO.

    Once `lowered` is compiled, `function` runs without another compilation: JAX caches it.
    """

    function: Any
    lowered: Lowered
    avals: tuple[jax.ShapeDtypeStruct, ...]
    """The types of the inputs that the function was lowered for."""


def emitted(
    graph: Graph,
    devices: Devices,
    compiler_options: Mapping[str, Any] | None = None,
    given: Mapping[int, jax.ShapeDtypeStruct] | None = None,
    *,
    donates: bool = True,
    when_traced: Callable[[], None] | None = None,
) -> Emitted:
    """Emit an SPMD graph for these devices; `compiler_options` are XLA's.

    Calls may pass some arguments in another form than as arrays on the devices. `given` has the
    types of these, by index among the arguments: JAX would compile again for types other than those
    it has lowered for. `donates` says whether the variables' buffers are donated. JAX calls
    `when_traced` whenever it traces the function. Raises `VerifyError` for a graph of another
    stage than SPMD.
    """
    function = jitted(graph, devices, compiler_options, donates=donates, when_traced=when_traced)
    avals = placed_avals(graph, devices)
    for i, aval in (given or {}).items():
        avals[len(graph.variables) + i] = aval
    # The function is traced before the stage is checked: the trace's error names the wrong node.
    with _kind_known(devices):
        traced = function.trace(*in_all_bits(avals))
    if graph.stage is not Stage.SPMD:
        raise VerifyError(
            f"graph {graph.name!r} of stage {graph.stage.value} reaches emission, which takes "
            f"stage {Stage.SPMD.value}",
            hint="a pass is missing: graphdist.passes.pipeline is the list of all",
        )
    return Emitted(function, traced.lower(), tuple(avals))


def _kind_known(devices: Devices) -> AbstractContextManager[Any]:
    """Return a context that names the kind of a device that is absent.

    Pallas makes kernels for a kind of GPU, and asks the mesh for it. The program of a single device
    has no mesh.
    """
    if devices.is_absent and devices.platform == "gpu" and len(devices.devices) == 1:
        return jax.sharding.use_abstract_mesh(devices.mesh.abstract_mesh)
    return nullcontext()


def placed_avals(graph: Graph, devices: Devices) -> list[jax.ShapeDtypeStruct]:
    """Return the types of a graph's inputs as arrays on the devices."""
    mesh, cores = devices.mesh_shape, devices.num_cores
    return [
        global_aval(value.type, layout, mesh, cores).update(sharding=devices.sharding(layout))
        for value, layout in zip(graph.inputs, graph.input_layouts, strict=True)
    ]


def in_all_bits(avals: Iterable[jax.ShapeDtypeStruct]) -> list[Any]:
    """Return the types in a form that keeps 64 bits even where JAX's x64 mode is off.

    JAX would treat a `ShapeDtypeStruct` of 64 bits as one of 32 bits there.
    """
    with jax.enable_x64(True):
        return [jax.typeof(aval) for aval in avals]


def jitted(
    graph: Graph,
    devices: Devices,
    compiler_options: Mapping[str, Any] | None = None,
    *,
    donates: bool = True,
    when_traced: Callable[[], None] | None = None,
) -> Any:
    """Return an SPMD graph as a jitted function, with shardings and donation."""
    inputs, outputs = graph.input_layouts, graph.output_layouts

    def program(*arrays: jax.Array) -> list[jax.Array]:
        forms = operations_for(devices.platform, compiler_options or {})
        with lines_named(devices.topology is not None), forms:
            return emit(graph, arrays)

    run: Any = program
    if len(devices.devices) > 1:
        run = jax.shard_map(
            program,
            mesh=devices.mesh,
            in_specs=tuple(map(devices.spec, inputs)),
            out_specs=[devices.spec(layout) for layout in outputs],
            check_vma=False,
        )
    else:
        run = _copying(graph, program)
    if when_traced is not None:
        run = preceded(when_traced, run)
    run.__name__ = graph.name
    return with_shardings(run, graph, devices, compiler_options, donates=donates)


def preceded(first: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `first`, then returns the result of `then`."""

    def run(*arrays: jax.Array) -> Any:
        first()
        return then(*arrays)

    return run


def with_shardings(
    run: Callable[..., list[jax.Array]],
    graph: Graph,
    devices: Devices,
    compiler_options: Mapping[str, Any] | None = None,
    *,
    donates: bool = True,
) -> Any:
    """Apply `jax.jit` to a function of the graph's inputs, with the graph's shardings and donation.

    `compiler_options` are options of XLA; they override the options that the devices need.
    """
    inputs, outputs = graph.input_layouts, graph.output_layouts
    assigned = tuple(i for i, variable in enumerate(graph.variables) if variable.assigned)
    return jax.jit(
        run,
        in_shardings=tuple(map(devices.sharding, inputs)),
        out_shardings=[devices.sharding(layout) for layout in outputs],
        donate_argnums=assigned if donates else (),
        keep_unused=True,
        compiler_options={**device_options(devices), **(compiler_options or {})} or None,
    )


def _copying(graph: Graph, program: Any) -> Any:
    """Return a program that copies each input that it returns, since the input may be donated."""
    inputs = set(graph.inputs)
    returned = [i for i, output in enumerate(graph.outputs) if output in inputs]

    def run(*arrays: jax.Array) -> list[jax.Array]:
        outputs = program(*arrays)
        for i in returned:
            outputs[i] = jnp.array(outputs[i], copy=True)
        return outputs

    return run


def global_aval(
    type: Type, layout: Layout | None, mesh: MeshShape, num_cores: int
) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of the array that holds the parts of all replicas and cores."""
    shape = [*type.shape]
    if layout is not None and layout.core is not None:
        shape[layout.core] *= num_cores
        layout = layout.over_cores(None)
    if layout is not MIRRORED and mesh.num_replicas > 1:
        layout, shape = layout or PER_REPLICA, shape or [1]
        shape[layout.dimension or 0] *= mesh.size(layout.axis)
    return jax.ShapeDtypeStruct(tuple(shape), jax_dtype(type.dtype))


def jax_dtype(name: str) -> Any:  # Any: random keys have a dtype that NumPy lacks
    """Return the dtype of a short name, random keys included."""
    if name.startswith("key<"):
        implementation = _KEY_IMPLEMENTATIONS.get(name[4:-1], name[4:-1])
        return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype
    return numpy_dtype(name)


_KEY_IMPLEMENTATIONS = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}


class Step:
    """A step: a function of a graph's inputs, with its devices, token and backpressure."""

    def __init__(
        self, graph: Graph, devices: Devices, function: Callable[..., list[jax.Array]]
    ) -> None:
        """Take the function; it returns the graph's outputs as arrays on the devices."""
        self.check: NumberCheck | None = None
        first = partial(first_collective, graph)
        self.function = supervised(function, graph.name, devices, first)
        self.take_interrupted = getattr(self.function, "take_interrupted", _nothing)
        """A function that returns the outputs of an interrupted step, at most once, or None."""
        self.backpressure = backpressure(devices.platform, spans_devices=len(devices.devices) > 1)
        self.devices = devices
        self.state = [
            devices.sharding(layout) for layout in graph.input_layouts[: len(graph.variables)]
        ]
        self._num_assigned = len(graph.assigned)
        sizes = [output.type.bytes for output in graph.outputs]
        candidates = range(self._num_assigned, len(sizes)) or range(len(sizes))
        # The token occupies memory until the step is done, so it is the smallest output.
        self.token = min(candidates, key=sizes.__getitem__, default=None)

    def __call__(self, *arrays: jax.Array) -> list[jax.Array]:
        """Dispatch a step on these inputs, the variables' values first, and return its outputs."""
        self.backpressure.wait()
        outputs: list[jax.Array] = self.function(*arrays)
        if self.token is not None:
            self.backpressure.dispatched(outputs[self.token], [])
        return outputs


def _nothing() -> None:
    return None


class Executable(Step):
    """A compiled step."""

    def __init__(
        self,
        graph: Graph,
        devices: Devices,
        function: Callable[..., list[jax.Array]],
        compiled: Compiled,
    ) -> None:
        """Take the compiled program, and the jitted function that runs it."""
        # Steps of several workers run on another thread, where settings made by a context manager
        # of JAX do not hold: JAX would compile the function again, under other settings.
        super().__init__(graph, devices, function if devices.workers is None else compiled)
        self.compiled = compiled
        if devices.platform == "cpu":
            keep_freed_memory(self.memory.temp_bytes)

    @property
    def memory(self) -> Memory:
        """Return the memory that the step needs on each device."""
        return memory_of(self.compiled, self.devices.platform)

    @property
    def cost(self) -> dict[str, float]:
        """Return XLA's own cost estimates by name, such as "flops"; they are rough."""
        analysis = self.compiled.cost_analysis()
        return dict(analysis) if analysis else {}
