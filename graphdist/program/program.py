"""One compiled program of a function: its compilation and its calls.

To compile, in order: run the passes, given the current storage of the variables; store them as the
final graph says; write its page, where pages are asked for; agree with the other workers on the
program; emit and compile it; bind it to the storage (`binding.py`).

To call, in order: turn the arguments into inputs; run the step on them and on the variables'
buffers (`runtime/bound_step.py`); build the user's result from the outputs. Another program may
have moved variables to other storage since. Then their layout is restored if that is possible, or
else the program is compiled again for the storage it finds; and the call starts over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any, Protocol  # Any: users' arguments and results

from graphdist.ir.analyses import walk
from graphdist.ir.ops import ASSIGN
from graphdist.ir.source import Source
from graphdist.program.binding import Binding
from graphdist.program.dumping import Dump
from graphdist.program.failures import raise_explained
from graphdist.program.interface import Interface
from graphdist.program.jax_settings import require_same_settings
from graphdist.program.stages import Traced
from graphdist.program.steps import step_of
from graphdist.runtime.buffers import BufferStore
from graphdist.runtime.program_agreement import agree_on, wait_until_compiled
from graphdist.state.layout import Layout, as_stored
from graphdist.state.storage import HeldBuffer, Storage
from graphdist.state.stored_values import StoredValue
from graphdist.tracing.user_lines import here


class RunnableProgram(Protocol):
    """What a function asks of its programs; a strategy may have programs of its own."""

    last_call: int
    """The number of the last call; calls of all programs are numbered in order."""
    traced: Traced | None
    """The function as it was traced for the program; None if that is not known."""

    def call(self, leaves: Sequence[Any]) -> Any:
        """Run the program on the leaves of the arguments and return the user's result."""


def compile_program(traced: Traced, interface: Interface, dump: Dump) -> RunnableProgram:
    """Compile a traced function; raises `DeviceError` for devices that are not here."""
    require = require_same_settings()

    def compiled(traced: Traced, interface: Interface) -> Program:
        return Program(_compiled(traced, interface, require, dump), traced, require, dump)

    made: RunnableProgram = interface.strategy.program_of(traced, interface, compiled)
    return made


def _compiled(
    traced: Traced,
    interface: Interface,
    require: Callable[[], None],
    dump: Dump,
    moved: str = "",
) -> Binding:
    """Compile a traced function for the current storage of its variables."""
    if traced.devices.is_absent:
        traced.devices.refuse_to_run(f"running {traced.graph.name!r}", here())
    strategy = interface.strategy
    lowered = traced.lower()
    layout = Layout(lowered.graph, _values(traced), strategy)
    with BufferStore.lock:  # no step and no other program may move variables between the two
        graph = as_stored(traced.graph, traced.variables, strategy)
        if is_current := graph is traced.graph:
            layout.apply()
    if not is_current:  # another thread's program has moved variables since the trace
        return _compiled(replace(traced, graph=graph), interface, require, dump, moved)
    dump(lowered, moved)
    # Workers whose programs differ would wait for each other in different collectives.
    agree_on(lowered.graph, traced.devices, here())
    step = step_of(lowered, interface, require)
    wait_until_compiled(lowered.graph, traced.devices, here())
    shapes = [output.type.shape for output in traced.graph.outputs]
    return Binding(step, interface, layout, shapes)


def _values(traced: Traced) -> dict[str, StoredValue]:
    """Return the value of each variable by its name in the graph."""
    named = [variable.name for variable in traced.graph.variables if not variable.is_local]
    variables = zip(named, traced.variables, strict=True)
    return {name: variable.stored for name, variable in variables}


class Program:
    """A compiled program; `call` runs it on the leaves of the arguments."""

    def __init__(
        self,
        binding: Binding,
        traced: Traced | None = None,
        require: Callable[[], None] | None = None,
        dump: Dump | None = None,
    ) -> None:
        """Take the binding, and the traced function that it was compiled from.

        `require` raises if JAX's settings differ from the settings at the trace. A program without
        a traced function, loaded from a file, cannot be compiled again: it moves the variables.
        """
        self.name, self._require, self._dump = binding.layout.graph.name, require, dump
        self.traced = traced
        self.last_call = 0
        """The number of the last call; calls of all programs are numbered in order."""
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
            for leaf, feed in binding.feeds:  # a comprehension would be one more call of Python
                inputs.append(feed(leaves[leaf]))
            outputs = binding.run(inputs)
        except BaseException as error:
            if isinstance(error, Exception) and binding.layout.begin_unread_with_zeros():
                return self.call(leaves)
            raise_explained(error, self.name, binding.layout)
        if outputs is None:
            self._follow(binding)
            return self.call(leaves)
        return binding.take(outputs)

    def _follow(self, binding: Binding) -> None:
        """Replace this binding by a binding to the current storage of the variables."""
        with self._changing:  # one thread compiles, the others find its binding
            if self._binding is not binding:
                return
            with BufferStore.lock:
                is_restored = binding.layout.restore()
                if not is_restored and self.traced is None:
                    binding.layout.apply()
                    is_restored = True
                if is_restored:
                    self._bind(binding.moved())
            if not is_restored:
                self._bind(self._compiled_again(binding.interface))

    def _compiled_again(self, interface: Interface) -> Binding:
        traced, require, dump = self.traced, self._require, self._dump
        assert traced is not None
        assert require is not None
        assert dump is not None
        require()
        graph = as_stored(traced.graph, traced.variables, interface.strategy)
        moved = "another program has changed how its variables are stored"
        return _compiled(replace(traced, graph=graph), interface, require, dump, moved)

    def assigns(self, holder: HeldBuffer) -> bool:
        """Return whether steps of the program assign this buffer."""
        return any(assigned is holder for assigned in self._binding.assigned)

    def assignment(self, storage: Storage) -> Source | None:
        """Return the user's line that assigns a variable; None if it is not known."""
        values = {} if self.traced is None else _values(self.traced)
        name = next((name for name, value in values.items() if value.storage is storage), None)
        for node in () if self.traced is None or name is None else walk(self.traced.graph):
            if node.op is ASSIGN and ASSIGN.of(node).variable.name == name:
                return node.source
        return None
