"""Functions that loop over distributed datasets: the host runs them, and compiles their loops.

The first trace of a function finds a distributed dataset, or needs a value that no trace has, such
as the end of a `range`, while an argument is a dataset or an iterator. From then on the host calls
the converted function (`loop_conversion.py`), and everything outside of its loops over datasets
happens as outside of functions. A loop over a dataset is a reduction
(`graphdist.data.dataset_reduction`): its body is traced once, and runs in chunks of steps. The host
runs a body that asks another dataset or an iterator for elements, step by step.

What a body uses and does, and where it goes:

* Variables of Python that it assigns are the state, if they are arrays and numbers. One without a
  value before the loop gets it in the first step, which runs by itself. Anything else that it
  assigns, or changes, is refused: the trace would change it once, for all elements.
* What it reads of Python's state, also through functions that it calls, is found in each call
  (`python_state.py`): arrays are inputs of the program; with other values another program is
  compiled. If Python needs the numbers of arrays, such as a size, they are constants from then on.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias  # Any: users' functions and values

import jax

from graphdist.data.chunks import Chunk
from graphdist.data.dataset_reduction import DatasetReduction, as_array, in_steps
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.iterators import DatasetInTrace, DistributedIterator
from graphdist.data.stacked_elements import StackedElements
from graphdist.data.zipped_datasets import ZippedDatasets
from graphdist.errors import MissingExtraError, OutOfRangeError, UnsupportedError
from graphdist.program.loop_body import ConvertedLoop, LoopBody, scan, with_numbers
from graphdist.program.loop_conversion import converted
from graphdist.program.loop_needs import NEED_VALUES, NeedsNumbers, noticed_needs
from graphdist.program.loop_operators import (
    GetState,
    LoopOperators,
    Numbered,
    SetState,
    Undefined,
)
from graphdist.program.loop_state import remove_undefined, state_of
from graphdist.program.python_state import PythonState
from graphdist.program.retracing import WARN_AT, warn_of_retracing
from graphdist.tracing.state import current_trace
from graphdist.tracing.user_lines import where_raised

if TYPE_CHECKING:
    from graphdist.program.function import Function

MakeFunction = Callable[[Callable[..., Any], str], "Function[..., Any]"]
Dataset: TypeAlias = DistributedDataset[Any] | ZippedDatasets

_MOST_PROGRAMS = 16
"""How many programs a loop keeps."""


def dataset_behind(error: Exception, arguments: Any) -> DatasetInTrace | None:
    """Return why the host runs a function whose trace raised an error; None if it does not."""
    if isinstance(error, DatasetInTrace):
        return error
    leaves = jax.tree.leaves(arguments)
    if isinstance(error, NEED_VALUES) and any(
        isinstance(leaf, DistributedDataset | DistributedIterator) for leaf in leaves
    ):
        return DatasetInTrace(
            "a value is needed in a function of a dataset, which is traced once for all elements",
            source=where_raised(error),
        )
    return None


@contextmanager
def undone_if_met(fn: Callable[..., Any], arguments: Any) -> Iterator[None]:
    """Undo what a trace changed of Python's state, if it met a dataset: the host does it again."""
    state = PythonState((), {"fn": fn, "arguments": arguments}, set())
    with state.undone(lambda error: dataset_behind(error, arguments) is not None):
        yield


class LoopingFunction:
    """A function that the host runs; call it as the user's."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        steps_per_execution: int | None,
        make: MakeFunction,
        met: DatasetInTrace,
    ) -> None:
        """Convert a function that met a dataset; `make` compiles a part of it under a name.

        Raises what `converted` raises, unless there is no loop to convert.
        """
        try:
            self.fn = converted(fn, _Operators(name, steps_per_execution, make))
        except (MissingExtraError, UnsupportedError) as error:
            if met.is_loop:
                if error.source is None or error.source.frame is None:
                    error.source = met.source
                raise error from None
            self.fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; raises `OutOfRangeError` for `next` past the end of a dataset."""
        try:
            return self.fn(*args, **kwargs)
        except StopIteration as error:
            raise OutOfRangeError(
                "next past the end: the dataset has no more elements",
                source=where_raised(error),
                hint="loop with `for batch in dataset`, or ask get_next_as_optional()",
            ) from error


class _Operators(LoopOperators):
    """The operators of one converted function, with the programs of its loops."""

    def __init__(self, name: str, steps: int | None, make: MakeFunction) -> None:
        super().__init__()
        self._name, self._steps, self._make = name, steps, make
        self._loops: dict[types.CodeType, _Loop] = {}

    def for_stmt(
        self,
        iterated: Any,
        extra_test: Callable[[], Any] | None,
        body: Any,
        get_state: GetState,
        set_state: SetState,
        names: Sequence[str],
        options: Any,
    ) -> None:
        """Run a loop; one over a distributed dataset in compiled chunks."""
        elements: Any = iterated
        loop_here = ConvertedLoop(self, tuple(names), extra_test, body, get_state, set_state)
        if isinstance(iterated, Numbered):
            loop_here, elements = with_numbers(loop_here, iterated.start), iterated.elements
        if isinstance(elements, StackedElements):
            with state_of(loop_here, loop_here.values()[1], set()).replaced():
                scan(loop_here, elements.elements)
            return
        if current_trace() is not None or not isinstance(
            elements, DistributedDataset | ZippedDatasets
        ):
            super().for_stmt(
                elements,
                extra_test,
                loop_here.body,
                loop_here.get_state,
                loop_here.set_state,
                loop_here.names,
                options,
            )
            return
        loop = self._loops.get(body.__code__)
        if loop is None:
            name = f"{self._name}_loop{len(self._loops) or ''}"
            loop = self._loops[body.__code__] = _Loop(name, self._steps, self._make)
        loop.run(elements, loop_here)


class _Loop:
    """One loop of a function: its programs, by the Python state that its body reads."""

    def __init__(self, name: str, steps: int | None, make: MakeFunction) -> None:
        self.name, self.steps, self._make = name, steps, make
        self._programs: dict[Any, _Program] = {}
        self._num_compiled = 0
        self._attributes: set[str] = set()
        self._arrays_are_constants = False
        self._lock = RLock()  # a trace uses the functions of the call that needs it

    def run(self, dataset: Dataset, loop: ConvertedLoop) -> None:
        """Run the loop, and give the variables their last values."""
        with self._lock:
            carried, rest = loop.values()
            body = LoopBody(loop, rest)
            try:
                body.last = carried
                body.last = self._run(dataset, body)
            finally:  # no variable keeps a value of the trace
                body.set({**carried, **body.last})
                remove_undefined(loop.converted_from or loop)

    def _run(self, dataset: Dataset, body: LoopBody) -> dict[str, Any]:
        """Return the state after the loop."""
        program, state = self._program(body)
        size = program.reduction.size
        chunks = iter(dataset.chunks(size))
        first = next(chunks, None)
        if first is None:
            return body.last
        can_retry = state.has_arrays_for_python and not self._arrays_are_constants
        try:
            return program.run(first, chunks, body, state, can_retry)
        except NeedsNumbers:  # no element has been used
            self._arrays_are_constants = True
        program, state = self._program(body)
        program.reduction.size = size
        return program.run(first, chunks, body, state, False)

    def _program(self, body: LoopBody) -> tuple[_Program, PythonState]:
        state = state_of(body.loop, body.rest, self._attributes, self._arrays_are_constants)
        undefined = [name for name, each in body.rest.items() if isinstance(each, Undefined)]
        key = (tuple(undefined), *state.key)
        program = self._programs.pop(key, None) or self._compiled(state)
        self._programs[key] = program  # the last: those used least recently are dropped
        if len(self._programs) > _MOST_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return program, state

    def _compiled(self, state: PythonState) -> _Program:
        self._num_compiled += 1
        if self._num_compiled in WARN_AT:
            warn_of_retracing(
                f"{self.name} was compiled {self._num_compiled} times: its body reads Python "
                f"values that changed. Make them arrays, or read them after the loop."
            )
        return _Program(self, state.kept, self._make)


class _Program:
    """The compiled steps of a loop, for one state of Python."""

    def __init__(self, loop: _Loop, kept: list[Any], make: MakeFunction) -> None:
        self._kept = kept  # alive, since keys name objects by their identity
        self._body: LoopBody | None = None
        self._state: PythonState | None = None
        self._can_retry = False
        self._single = make(lambda args, kwargs: self._step(*args), loop.name)
        several = make(lambda args, kwargs: in_steps(self._step, *args), f"{loop.name}_chunk")
        self._make_reduction = partial(DatasetReduction, self._single, several, loop.steps)
        self.reduction = self._make_reduction()

    def run(
        self,
        first: Chunk,
        chunks: Iterator[Chunk],
        body: LoopBody,
        state: PythonState,
        can_retry: bool,
    ) -> dict[str, Any]:
        """Return the state after the loop.

        Raises `NeedsNumbers` if it can be tried with arrays as constants.
        """
        # The trace of a new shape calls the body of this call.
        self._body, self._state, self._can_retry = body, state, can_retry
        try:
            carried = jax.tree.map(as_array, body.last)
            body.last = self._single((carried, first.element, state.arrays), {})
            self._can_retry = False
            found: dict[str, Any] = self.reduction.run(
                body.last, chunks, (state.arrays,), body.goes_on
            )
            return found
        finally:
            self._body = self._state = None
            self.reduction = self._make_reduction()

    def _step(self, carried: dict[str, Any], element: Any, arrays: list[Any]) -> dict[str, Any]:
        """Return the state after a step; it is traced."""
        assert self._body is not None
        assert self._state is not None
        with noticed_needs(self._can_retry), self._state.replaced(arrays):
            return self._body.step(carried, element)
