"""One compiled program of a function: its compilation, its calls and their failures.

Compilation: run the passes for the current storage of the variables; store the variables as the
final graph says; write the program's page, if a folder for pages is set; agree with the other
workers on the program; emit and compile it; bind the step to the storage (`binding.py`). Under
`jax.disable_jit()` the program is not compiled, but evaluated node by node. Under `jax_debug_nans`
and `jax_debug_infs` the step donates no buffers, so that variables keep their old values if an
output is nan or infinite. A step that is called under other settings raises `OtherSettings`.

A call: turn the arguments into inputs; run the step on these inputs and on the variables' buffers
(`runtime/bound_step.py`); build the user's result from the outputs. If another program has moved
variables to other storage, either the variables are moved back, or this program is compiled again
for the new storage. Then the call starts again.

A failure: the buffers of the variables that a step assigns are donated to it. If the step fails on
the devices, the values of these variables are lost. The user must get the error at once, not when
the next step reads the variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, NoReturn, Protocol  # Any: users' arguments and results, settings of JAX

import jax
import jax.numpy as jnp

from graphdist.config import value_check_interval
from graphdist.errors import GraphdistError, RuntimeFailure, UnsupportedError
from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph, GraphVariable
from graphdist.ir.ops import ASSIGN
from graphdist.ir.source import Source
from graphdist.program.binding import Binding
from graphdist.program.interface import Interface
from graphdist.program.stages import Lowered, Traced
from graphdist.runtime.bound_step import called_while_traced
from graphdist.runtime.buffers import HOLDS_BUFFERS, BufferStore, is_donated_or_failed
from graphdist.runtime.executable import Step, preceded
from graphdist.runtime.interpreted_step import interpreted_step
from graphdist.runtime.invalid_numbers import Named, NumberCheck
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.program_agreement import agree_on, wait_until_compiled
from graphdist.runtime.value_agreement import ValueAgreement
from graphdist.state.program_storage import ProgramStorage, as_stored
from graphdist.state.storage import HeldBuffer, Storage, StorageOnDevices
from graphdist.tracing.jax_settings import OtherSettings, checked_numbers, require_same_settings
from graphdist.tracing.user_lines import here


class RunnableProgram(Protocol):
    """The interface of a function's programs. A strategy may have a class of its own for them."""

    last_call: int
    """The number of this program's last call, counted over the calls of all programs."""
    traced: Traced | None
    """The trace of the function for this program; None if the trace is unknown."""

    def call(self, leaves: Sequence[Any]) -> Any:
        """Run the program on the leaves of the arguments and return the user's result."""


def compile_program(traced: Traced, dump: Callable[[Lowered, str], None]) -> RunnableProgram:
    """Compile a traced function; raises `DeviceError` for absent devices."""
    require = require_same_settings()

    def compiled(traced: Traced) -> Program:
        compilation = _Compilation(traced, require, dump)
        return Program(compilation.binding(), compilation)

    program: RunnableProgram = traced.interface.strategy.program_of(traced, compiled)
    return program


@dataclass(frozen=True)
class _Compilation:
    """A traced function, which is compiled for the current storage of its variables.

    `require` raises an error if JAX's settings differ from those at the trace.
    """

    traced: Traced
    require: Callable[[], None]
    dump: Callable[[Lowered, str], None]

    def again(self) -> Binding:
        """Compile the function again, for variables that another program has moved."""
        self.require()
        return self._stored().binding("another program has changed how its variables are stored")

    def _stored(self) -> _Compilation:
        """Return the compilation for the current storage; `self` if no variable has moved."""
        traced = self.traced
        graph = as_stored(traced.graph, traced.variables, traced.interface.strategy)
        return self if graph is traced.graph else replace(self, traced=replace(traced, graph=graph))

    def binding(self, moved: str = "") -> Binding:
        """Compile the function; `moved` is why it is compiled again."""
        traced = self.traced
        if traced.devices.is_absent:
            traced.devices.refuse_to_run(f"running {traced.graph.name!r}")
        lowered = traced.lower()
        values = {name: each.stored for name, each in traced.named_variables.items()}
        storage = ProgramStorage(lowered.graph, values, traced.interface.strategy)
        with BufferStore.lock:  # no other thread may move variables between the check and `apply`
            stored = self._stored()
            if stored is self:
                storage.apply()
        if stored is not self:  # another thread's program has moved variables since the trace
            return stored.binding(moved)
        self.dump(lowered, moved)
        # Workers whose programs differ would wait for each other in different collectives.
        agree_on(lowered.graph, traced.devices, here())
        step = step_of(lowered, self.require)
        wait_until_compiled(lowered.graph, traced.devices, here())
        shapes = [output.type.shape for output in traced.graph.outputs]
        return Binding(step, traced.interface, storage, shapes)


class Program:
    """A compiled program; `call` runs it on the leaves of the arguments."""

    def __init__(self, binding: Binding, compilation: _Compilation | None = None) -> None:
        """Store the binding, and the compilation that made it.

        A program from a file has no compilation. It cannot be compiled again for variables that
        have moved, so it moves the variables back.
        """
        self.name, self._compilation = binding.storage.graph.name, compilation
        self.traced = None if compilation is None else compilation.traced
        self.last_call = 0
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
            for leaf, feed in binding.feeds:  # faster than a comprehension
                inputs.append(feed(leaves[leaf]))
            outputs = binding.run(inputs)
        except BaseException as error:
            if isinstance(error, Exception) and binding.storage.begin_unread_with_zeros():
                return self.call(leaves)
            _raise_explained(error, self.name, binding.storage)
        if outputs is None:
            self._follow(binding)
            return self.call(leaves)
        return binding.take(outputs)

    def _follow(self, binding: Binding) -> None:
        """Replace `binding`, whose variables have moved, by a binding that fits their storage."""
        with self._changing:  # one thread compiles, and others wait for its binding
            if self._binding is not binding:
                return
            with BufferStore.lock:
                is_restored = binding.storage.restore()
                if not is_restored and self._compilation is None:
                    binding.storage.apply()
                    is_restored = True
                if is_restored:
                    self._bind(binding.moved())
            if not is_restored and self._compilation is not None:
                self._bind(self._compilation.again())

    def assigns(self, holder: HeldBuffer) -> bool:
        """Return whether steps of the program assign this buffer."""
        return any(assigned is holder for assigned in self._binding.assigned)

    def assignment(self, storage: Storage) -> Source | None:
        """Return the user's line that assigns a variable; None if it is not known."""
        if self.traced is None:
            return None
        variables = self.traced.named_variables
        names = [name for name, each in variables.items() if each.stored.storage is storage]
        for node in walk(self.traced.graph):
            if node.op is ASSIGN and ASSIGN.of(node).variable.name in names:
                return node.source
        return None


def step_of(lowered: Lowered, require: Callable[[], None]) -> Step:
    """Return the step of a program; `require` raises `OtherSettings` if JAX's settings changed.

    Raises `UnsupportedError` under `jax.disable_jit()` on several workers.
    """
    graph, devices, interface = lowered.graph, lowered.devices, lowered.traced.interface
    refused = checked_numbers()
    settings: Any = jax.config
    is_evaluated = bool(settings.jax_disable_jit)
    step: Step
    if is_evaluated:
        if devices.workers is not None:
            raise UnsupportedError(
                f"jax.disable_jit() is on, and {graph.name!r} runs on {len(devices.workers)} "
                f"workers: evaluation node by node runs in one process",
                hint="evaluate it on one worker",
            )
        step = Step(graph, devices, interpreted_step(graph, devices))
    else:
        step = replace(lowered, donates=not refused, when_traced=require).compile().executable
        compare_values(step, graph, interface, lowered.logical)
    if is_evaluated or devices.workers is not None:
        # JAX traces neither kind of step again, so JAX never calls `require`.
        step.function = preceded(require, step.function)
    if refused:
        inputs, outputs = _names(graph, interface, lowered.logical)
        step.check = NumberCheck(graph, devices, refused, inputs, outputs)
        step.function = step.check.watched(step.function)
    return step


def compare_values(
    step: Step, graph: Graph, interface: Interface, logical: Graph | None = None
) -> None:
    """Make a step compare its mirrored inputs between workers, before its first call and later.

    `logical`, the graph before all passes, has the names of variables in packs. With one worker
    nothing is compared.
    """
    if step.devices.workers is not None:
        inputs, _ = _names(graph, interface, logical)
        agreement = ValueAgreement(graph, step.devices, inputs, value_check_interval())
        step.function = agreement.watched(step.function)


def _names(
    graph: Graph, interface: Interface, logical: Graph | None
) -> tuple[list[Named], list[Named]]:
    """Return the user's names of the inputs and outputs of the final graph."""
    variables = () if logical is None else logical.variables
    sizes = {variable.name: variable.type.size for variable in variables}
    starts = {variable.name: variable.piece for variable in variables}

    def variable(held: GraphVariable) -> Named:
        if not held.pieces:
            return [(f"variable {held.name!r}", held.type.size)]
        named: list[tuple[str, int]] = []
        end = 0
        for name in filter(None, held.pieces):
            piece = starts[name]
            if piece is not None and piece.start > end:
                named.append(("a variable", piece.start - end))
            named.append((f"variable {name!r}", sizes[name]))
            end = sum(size for _, size in named)
        return [*named, ("a variable", held.type.size - end)]

    arguments = [f"argument {interface.names[i]!r}" for i in interface.dynamic]
    results = len(graph.outputs) - len(graph.assigned)
    return (
        [*map(variable, graph.variables), *([(name, 0)] for name in arguments)],
        [
            *map(variable, graph.assigned),
            *([(f"result {i}" if results > 1 else "the result", 0)] for i in range(results)),
        ],
    )


def _raise_explained(error: BaseException, name: str, storage: ProgramStorage) -> NoReturn:
    """Raise the error of a call of the step `name`, or one that explains it.

    Raises `RuntimeFailure` if values of variables are lost with the step, if a variable has no
    value, and if the step was called in a function that JAX traces.
    """
    if isinstance(error, OtherSettings):
        raise error
    if isinstance(error, ValueError) and not HOLDS_BUFFERS[type(jnp.zeros(()))]:
        # JAX raises ValueError for a traced call of a function with compiler options.
        error = called_while_traced()
    for each in storage.storages:
        if isinstance(each.held, jax.ShapeDtypeStruct):
            each.require_value()
    if isinstance(error, GraphdistError) and error.source is None:
        error.source = here()
    may_lose = isinstance(error, Exception) and not isinstance(error, WorkerError)
    lost = [repr(each.name) for each in _lost(storage)] if may_lose else []
    if lost:
        raise RuntimeFailure(
            f"step {name!r} failed after the buffers of {', '.join(lost)} were donated to it: "
            f"their values are lost",
            source=here(),
            hint="restore them from a checkpoint, or assign them again",
        ) from error
    raise error


def _lost(storage: ProgramStorage) -> list[StorageOnDevices]:
    """Return the variables whose buffers were donated, and that no step has written since."""
    assigned = set(storage.assigned)
    taken = [each for each in storage.storages if each.holder in assigned]
    held = {each.holder: each.holder.held for each in taken}
    # Without the lock, since `is_donated_or_failed` waits for the devices. Meanwhile the step of
    # another thread may have replaced a buffer; then its variable is not lost.
    gone = {holder for holder, array in held.items() if is_donated_or_failed(array)}
    with BufferStore.lock:
        gone = {holder for holder in gone if holder.held is held[holder]}
    return [each for each in taken if each.holder in gone]
