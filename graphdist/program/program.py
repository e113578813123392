"""One compiled program of a function: how it is compiled, and how it is called.

What tracing (`program_tracing.py`) took apart, a call puts together again, with real arrays. What
both need to agree on is the `Interface`. Where variables lie is settled before a program is
compiled, and looked at again in each call: other programs may have laid them out otherwise since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from threading import RLock
from typing import Any  # Any: users' functions, arguments and results
from weakref import WeakMethod

import jax
import numpy as np

from graphdist.errors import GraphdistError, RuntimeFailure
from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph, Value
from graphdist.ir.graph import Variable as GraphVariable
from graphdist.ir.ops import ASSIGN
from graphdist.ir.source import Source
from graphdist.ir.types import PER_REPLICA, numpy_dtype
from graphdist.program.interface import OUTPUT, Interface, filled
from graphdist.program.jax_settings import OtherSettings, require_same_settings
from graphdist.program.signature import LeafKey, is_converted, is_per_replica, is_static
from graphdist.program.stages import Traced
from graphdist.program.steps import step_of
from graphdist.runtime.buffers import HOLDS_BUFFERS, BorrowedBuffers, BufferStore, is_lost
from graphdist.runtime.executable import Step, dispatcher
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.processes.program_agreement import agree_on, wait_until_compiled
from graphdist.state.checks import require_value
from graphdist.state.packs import pack_small, packs_of
from graphdist.state.storage import as_stored, lay_out, layout_of
from graphdist.state.variable import Variable
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.sources import here
from graphdist.values.components import as_array, buffer_gone, shape_without_value
from graphdist.values.distributed import Mirrored, PerReplicaArray
from graphdist.values.pytrees import unflatten


def compile_program(traced: Traced, interface: Interface) -> Program:
    """Compile a traced function; raises `DeviceError` for devices that are not here."""
    if traced.devices.is_absent:
        traced.devices.refuse_to_run(f"running {traced.graph.name!r}", here())
    lowered, variables = traced.lower(), traced.variables
    with BufferStore.lock:
        graph = as_stored(traced.graph, variables)
        if is_current := graph is traced.graph:
            lay_out(variables, [one.sharded_along for one in lowered.graph.variables], alone=False)
            pack_small(interface.strategy, variables, lowered.graph)
            packs, holders = packs_of(variables, lowered.graph)
            lies = [variable.lies for variable in variables]
            layout = layout_of(variables, interface.strategy)
    if not is_current:  # another thread has laid them out since it was traced
        return compile_program(replace(traced, graph=graph), interface)
    lowered = lowered.on_packs(packs)
    agree_on(lowered.graph, traced.devices, here())
    require = require_same_settings()
    step = step_of(lowered, interface, packs, require)
    wait_until_compiled(lowered.graph, traced.devices, here())
    shapes = [output.type.shape for output in traced.graph.outputs]

    def lay_out_again() -> int | None:
        """Have variables lie as they did, if all that was done since is to make some whole."""
        for variable, was in zip(variables, lies, strict=True):
            is_whole_now = variable.lies == (None, None) and was[1] is None
            if variable.lies != was and not is_whole_now:
                return None
        lay_out(variables, [along for along, _ in lies], alone=False)
        return layout_of(variables, interface.strategy)

    def compile_anew() -> Program:
        require()
        graph = as_stored(traced.graph, variables)
        return compile_program(replace(traced, graph=graph), interface)

    return Program(
        interface,
        variables,
        holders,
        lowered.graph,
        shapes,
        step,
        layout,
        lay_out_again,
        compile_anew,
        traced,
    )


class Program:
    """A compiled program; `call` runs it on the leaves of the arguments."""

    def __init__(
        self,
        interface: Interface,
        variables: Sequence[Variable],
        holders: Sequence[Any],
        graph: Graph,
        output_shapes: Sequence[tuple[int, ...]],
        executable: Step,
        layout: int,
        lay_out_again: Callable[[], int | None],
        compile_anew: Callable[[], Program] | None = None,
        traced: Traced | None = None,
    ) -> None:
        """Take an executable of a graph; of that its inputs, outputs and variables count.

        `holders` hold the state of the graph's variables: they are the user's variables, or packs
        of several. `output_shapes` are those of the user's results, as they were traced. `layout`
        is that of the variables which this was compiled for. Where it is another, `lay_out_again`
        has the variables lie as they did and returns it, or None: then `compile_anew` returns a
        program for how they lie. `traced` is what it was compiled of.
        """
        self.name, self._traced = graph.name, traced
        self._layout, self._lay_out_again, self._compile_anew = layout, lay_out_again, compile_anew
        self._changing = RLock()
        self.last_call = 0
        """The number of the last call, among those of all programs."""
        self._interface, self._executable = interface, executable
        self._variables, self._holders = tuple(variables), tuple(holders)
        self._assigned = [
            holder for holder, spec in zip(holders, graph.variables, strict=True) if spec.assigned
        ]
        for holder in self._assigned:
            holder.strategy.buffers.writers.add(self)
        inputs = graph.inputs[len(graph.variables) :]
        dynamic = [i for i, key in enumerate(interface.keys) if not is_static(key)]
        feeds = [
            (i, _feed(interface.keys[i], interface.names[i], interface.strategy, value))
            for i, value in zip(dynamic, inputs, strict=True)
        ]
        results = graph.outputs[len(graph.assigned) :]
        self._outputs = [
            (shape, output.type.distribution or PER_REPLICA, of_each, interface.rows.get(place))
            if per_replica
            else None
            for place, (shape, output, per_replica, of_each) in enumerate(
                zip(output_shapes, results, interface.per_replica, interface.shapes, strict=True)
            )
        ]
        self._feeds = feeds
        self.call = self._dispatcher()

    def assigns(self, holder: Any) -> bool:
        """Return whether steps assign what a variable or a pack holds."""
        return any(one is holder for one in self._assigned)

    def assignment(self, variable: Variable) -> Source | None:
        """Return the user's line that assigns a variable; None where it is not known."""
        if self._traced is None or variable not in self._traced.variables:
            return None
        graph = self._traced.graph
        name = graph.variables[self._traced.variables.index(variable)].name
        for node in walk(graph):
            assigned = node.params.get("variable")
            if node.op is ASSIGN and isinstance(assigned, GraphVariable) and assigned.name == name:
                return node.source
        return None

    def _dispatcher(self) -> Callable[[Sequence[Any]], Any]:
        call = dispatcher(
            self._executable,
            *self._buffers(),
            self._feeds,
            self._taker(),
            _weakly(self._failed),
            self._layout,
            _weakly(self._laid_out_anew),
        )
        if self._executable.check is None:
            return call
        checked = _weakly(self._checked)
        return lambda leaves: checked(call, leaves)

    def _checked(self, call: Callable[[Sequence[Any]], Any], leaves: Sequence[Any]) -> Any:
        """Call, and undo what the step did to variables if it gave numbers that are refused."""
        assert self._executable.check is not None
        before = [holder.buffer for holder in self._assigned]
        result = call(leaves)
        arrays, results = self._executable.check.last_step()
        error = self._executable.check.error(arrays, results)
        if error is None:
            return result
        with BufferStore.lock:
            for holder, buffer, given in zip(self._assigned, before, results, strict=False):
                buffers, taken = holder.strategy.buffers.buffers, self._holders.index(holder)
                if buffers[holder.place] is given:
                    buffers[holder.place] = arrays[taken]
                elif self._moves:
                    buffers[holder.place] = buffer
        self._failed(error)
        raise error

    @property
    def _moves(self) -> bool:
        """Whether steps take copies of variables that lie elsewhere, and bring them back."""
        own = self._interface.strategy
        return own.devices.parameter_device is not None or any(
            holder.strategy is not own for holder in self._holders
        )

    def _laid_out_anew(self, leaves: Sequence[Any]) -> Any:
        """Call with variables of which some lie otherwise than when this was compiled."""
        with self._changing:  # one thread compiles, others find what it compiled
            with BufferStore.lock:
                layout = self._lay_out_again()
            if layout is None:
                assert self._compile_anew is not None
                own = {"call", "last_call", "_changing"}
                anew = vars(self._compile_anew()).items()
                vars(self).update((name, value) for name, value in anew if name not in own)
            else:
                self._layout = layout
            self.call = call = self._dispatcher()
        return call(leaves)

    def _buffers(self) -> tuple[Any, list[int], list[int]]:
        """Return where the variables' buffers are, and the places of all and of those assigned."""
        own, holders = self._interface.strategy, self._holders
        if all(holder.strategy is own for holder in holders):
            places = [holder.place for holder in holders]
            return own.buffers, places, [holder.place for holder in self._assigned]
        borrowed = BorrowedBuffers(
            [(holder.strategy.buffers, holder.place) for holder in holders],
            self._executable.state,
        )
        assigned = [i for i, holder in enumerate(holders) if holder in self._assigned]
        return borrowed, list(range(len(holders))), assigned

    def _taker(self) -> Callable[[list[jax.Array]], Any]:
        """Return what makes the user's result of a step's outputs."""
        interface, num_assigned = self._interface, len(self._assigned)
        if any(interface.per_replica) or any(leaf is not OUTPUT for leaf in interface.statics):
            described = self._outputs
            return lambda outputs: _put_together(interface, described, outputs[num_assigned:])
        if interface.structure == jax.tree.structure(0):
            return itemgetter(num_assigned)
        return lambda outputs: interface.structure.unflatten(outputs[num_assigned:])

    def _failed(self, error: BaseException) -> None:
        """Say so if a failed step took variables with it, and which line of the user's it was."""
        if isinstance(error, OtherSettings):
            return
        for variable in self._variables:
            if isinstance(variable.holder, jax.ShapeDtypeStruct):
                require_value(variable)
        if isinstance(error, GraphdistError) and error.source is None:
            error.source = here()
        holders = {one: one.pack or one for one in self._variables}
        buffers = {holder: holder.buffer for holder in holders.values() if holder in self._assigned}
        gone = {holder for holder, buffer in buffers.items() if is_lost(buffer)}
        with BufferStore.lock:  # what another thread's step has taken meanwhile is not lost
            gone = {holder for holder in gone if holder.buffer is buffers[holder]}
        lost = [variable.name for variable, holder in holders.items() if holder in gone]
        if lost and isinstance(error, Exception) and not isinstance(error, WorkerError):
            raise RuntimeFailure(
                f"step {self.name!r} failed after the buffers of {', '.join(map(repr, lost))} were "
                f"given to it: their values are lost",
                source=here(),
                hint="restore them from a checkpoint, or assign them anew",
            ) from error


def _put_together(
    interface: Interface, described: Sequence[tuple[Any, ...] | None], outputs: list[jax.Array]
) -> Any:
    """Return the user's result, in which each output that is described is one value a replica."""
    results = iter(
        [
            array if of_each is None else PerReplicaArray(array, interface.strategy, *of_each)
            for array, of_each in zip(outputs, described, strict=True)
        ]
    )
    leaves = [filled(leaf, results) for leaf in interface.statics]
    return unflatten(interface.structure, leaves)


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls the method of a program that the caller holds.

    Without holding it itself: in a circle of references a program would stay until Python looks for
    those, and its executable with it.
    """
    reference = WeakMethod(method)

    def call(*arguments: Any) -> Any:
        found = reference()
        assert found is not None
        return found(*arguments)

    return call


def _feed(key: LeafKey, name: str, strategy: StrategyBase, value: Value) -> Callable[[Any], Any]:
    """Return what turns a leaf of an argument into an input of the executable."""
    dtype = value.type.dtype
    if is_per_replica(key):
        if is_converted(key):
            return lambda leaf: as_array(leaf, strategy, name).astype(numpy_dtype(dtype))
        return lambda leaf: as_array(leaf, strategy, name)
    mirrored = strategy.devices.mirrored

    def one_value(leaf: Any) -> Any:
        if HOLDS_BUFFERS[type(leaf)]:
            if leaf.is_deleted():
                raise buffer_gone(name)
            sharding = leaf.sharding
            if sharding is mirrored or sharding == mirrored:
                return leaf
            return jax.device_put(leaf, mirrored)
        if isinstance(leaf, Mirrored):
            return one_value(leaf.array)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise shape_without_value(leaf, name)
        # Of its own: JAX may go on showing the caller's memory while the step runs.
        return np.array(leaf, numpy_dtype(dtype))

    if is_converted(key):
        return lambda leaf: one_value(leaf).astype(numpy_dtype(dtype))
    return one_value
