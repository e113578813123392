"""One compiled program of a function: how it is compiled, and what a call of it does.

To compile, in order: run the passes for how the variables are stored by now; store them as the
final graph says; agree with the other workers on the program; emit and compile it; bind it to the
storage (`binding.py`).

To call, in order: turn the arguments into inputs; run the step on them and on the variables'
buffers (`runtime/bound_step.py`); make the user's result of the outputs. Where another program has
stored variables otherwise since, they are laid out again if that is all it takes, or else the
program is compiled for what it finds; then the call begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any  # Any: users' arguments and results

from graphdist.ir.analyses import walk
from graphdist.ir.graph import Variable as GraphVariable
from graphdist.ir.ops import ASSIGN
from graphdist.ir.source import Source
from graphdist.program.binding import Binding
from graphdist.program.failures import raise_explained
from graphdist.program.interface import Interface
from graphdist.program.jax_settings import require_same_settings
from graphdist.program.stages import Traced
from graphdist.program.steps import step_of
from graphdist.runtime.buffers import BufferStore
from graphdist.runtime.processes.program_agreement import agree_on, wait_until_compiled
from graphdist.state.layout import Holder, Layout, as_stored
from graphdist.state.storage import Storage
from graphdist.tracing.sources import here


def compile_program(traced: Traced, interface: Interface) -> Program:
    """Compile a traced function; raises `DeviceError` for devices that are not here."""
    require = require_same_settings()
    return Program(_compiled(traced, interface, require), traced, require)


def _compiled(traced: Traced, interface: Interface, require: Callable[[], None]) -> Binding:
    """Return a traced function compiled for how its variables are stored by now."""
    if traced.devices.is_absent:
        traced.devices.refuse_to_run(f"running {traced.graph.name!r}", here())
    strategy = interface.strategy
    lowered = traced.lower()
    layout = Layout(lowered.graph, _storages(traced), strategy)
    with BufferStore.lock:
        graph = as_stored(traced.graph, traced.variables, strategy)
        if is_current := graph is traced.graph:
            layout.apply()
    if not is_current:  # another thread's program has stored them otherwise since it was traced
        return _compiled(replace(traced, graph=graph), interface, require)
    agree_on(lowered.graph, traced.devices, here())
    step = step_of(lowered, interface, require)
    wait_until_compiled(lowered.graph, traced.devices, here())
    shapes = [output.type.shape for output in traced.graph.outputs]
    return Binding(step, interface, layout, shapes)


def _storages(traced: Traced) -> dict[str, Storage]:
    """Return the storage of each variable by the graph's name of it."""
    named = [variable.name for variable in traced.graph.variables if not variable.is_local]
    variables = zip(named, traced.variables, strict=True)
    return {name: variable.storage for name, variable in variables}


class Program:
    """A compiled program; `call` runs it on the leaves of the arguments."""

    def __init__(
        self,
        binding: Binding,
        traced: Traced | None = None,
        require: Callable[[], None] | None = None,
    ) -> None:
        """Take what calls go through, and the traced function that it was compiled of.

        `require` raises if JAX is set otherwise than it was then. A program without a traced
        function cannot be compiled again: it has the variables stored as it takes them.
        """
        self.name, self._traced, self._require = binding.layout.graph.name, traced, require
        self.last_call = 0
        """The number of the last call, among those of all programs."""
        self._changing = RLock()
        self._bind(binding)

    def _bind(self, binding: Binding) -> None:
        self._binding = binding
        for holder in binding.assigned:
            holder.strategy.buffers.writers.add(self)

    def call(self, leaves: Sequence[Any]) -> Any:
        """Run the program on the leaves of the arguments and return the user's result."""
        binding = self._binding
        try:
            inputs = []
            for leaf, feed in binding.feeds:  # not a comprehension, which is a call of its own
                inputs.append(feed(leaves[leaf]))
            outputs = binding.run(inputs)
        except BaseException as error:
            raise_explained(error, self.name, binding.layout)
        if outputs is None:
            self._follow(binding)
            return self.call(leaves)
        return binding.take(outputs)

    def _follow(self, binding: Binding) -> None:
        """Have a binding for how the variables are stored by now, in place of this one."""
        with self._changing:  # one thread compiles, others find what it compiled
            if self._binding is not binding:
                return
            with BufferStore.lock:
                is_restored = binding.layout.restore()
                if not is_restored and self._traced is None:
                    binding.layout.apply()
                    is_restored = True
                if is_restored:
                    self._bind(binding.moved())
            if not is_restored:
                self._bind(self._compiled_again(binding.interface))

    def _compiled_again(self, interface: Interface) -> Binding:
        traced, require = self._traced, self._require
        assert traced is not None
        assert require is not None
        require()
        graph = as_stored(traced.graph, traced.variables, interface.strategy)
        return _compiled(replace(traced, graph=graph), interface, require)

    def assigns(self, holder: Holder) -> bool:
        """Return whether steps assign the variable or the pack that has this storage."""
        return any(assigned is holder for assigned in self._binding.assigned)

    def assignment(self, storage: Storage) -> Source | None:
        """Return the user's line that assigns a variable; None where it is not known."""
        names = {} if self._traced is None else _storages(self._traced)
        name = next((name for name, found in names.items() if found is storage), None)
        for node in () if self._traced is None or name is None else walk(self._traced.graph):
            assigned = node.params.get("variable")
            if node.op is ASSIGN and isinstance(assigned, GraphVariable) and assigned.name == name:
                return node.source
        return None
