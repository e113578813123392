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
* Arrays that it reads, also through functions defined beside it, are inputs of the program. Other
  values are constants: with others, another program is compiled.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias  # Any: users' functions and values

import jax

from graphdist.data.dataset_reduction import DatasetReduction, as_array, in_steps
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.iterators import DatasetInTrace, DistributedIterator
from graphdist.data.stacked_elements import StackedElements
from graphdist.data.zipped_datasets import ZippedDatasets
from graphdist.errors import MissingExtraError, OutOfRangeError, UnsupportedError
from graphdist.program.loop_body import ConvertedLoop, LoopBody, is_carried, scan, with_numbers
from graphdist.program.loop_conversion import converted
from graphdist.program.loop_objects import WatchedObjects
from graphdist.program.loop_operators import (
    GetState,
    LoopOperators,
    Numbered,
    SetState,
    Undefined,
)
from graphdist.program.retracing import WARN_AT, warn_of_retracing
from graphdist.tracing.state import current_trace
from graphdist.tracing.user_lines import where_raised

if TYPE_CHECKING:
    from graphdist.program.function import Function

MakeFunction = Callable[[Callable[..., Any], str], "Function[..., Any]"]
Dataset: TypeAlias = DistributedDataset[Any] | ZippedDatasets

_MOST_PROGRAMS = 16
"""How many programs a loop keeps."""
_NEED_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""The errors of JAX where Python needs a value that a trace has not."""


def dataset_behind(error: Exception, arguments: Any) -> DatasetInTrace | None:
    """Return why the host runs a function whose trace raised an error; None if it does not."""
    if isinstance(error, DatasetInTrace):
        return error
    leaves = jax.tree.leaves(arguments)
    if isinstance(error, _NEED_VALUES) and any(
        isinstance(leaf, DistributedDataset | DistributedIterator) for leaf in leaves
    ):
        return DatasetInTrace(
            "a value is needed in a function of a dataset, which is traced once for all elements",
            source=where_raised(error),
        )
    return None


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
    """One loop of a function: its programs, by the constants that its body uses."""

    def __init__(self, name: str, steps: int | None, make: MakeFunction) -> None:
        self.name, self.steps, self._make = name, steps, make
        self._programs: dict[Any, _Program] = {}
        self._num_compiled = 0
        self._lock = RLock()  # a trace uses the functions of the call that needs it

    def run(self, dataset: Dataset, loop: ConvertedLoop) -> None:
        """Run the loop, and give the variables their last values."""
        with self._lock:
            self._run(dataset, loop)

    def _run(self, dataset: Dataset, loop: ConvertedLoop) -> None:
        captured = _Captured(loop)
        carried, rest = loop.values()
        key = (*captured.key, *((name, _key(value)) for name, value in rest.items()))
        program = self._programs.pop(key, None) or self._compiled(rest, captured)
        self._programs[key] = program  # the last: those used least recently are dropped
        if len(self._programs) > _MOST_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        body = LoopBody(loop, rest)
        body.set({**carried, **program.run(dataset, body, carried, captured)})

    def _compiled(self, rest: dict[str, Any], captured: _Captured) -> _Program:
        self._num_compiled += 1
        if self._num_compiled in WARN_AT:
            warn_of_retracing(
                f"{self.name} was compiled {self._num_compiled} times: its body reads Python "
                f"values that changed. Make them arrays, or read them after the loop."
            )
        return _Program(self, captured.kept, self._make)


class _Program:
    """The compiled steps of a loop, for certain constants."""

    def __init__(self, loop: _Loop, kept: list[Any], make: MakeFunction) -> None:
        self._steps = loop.steps
        self._kept = kept  # alive, since keys name objects by their identity
        self._body: LoopBody | None = None
        self._captured: _Captured | None = None
        self._single = make(lambda args, kwargs: self._step(*args), loop.name)
        self._several = make(lambda args, kwargs: in_steps(self._step, *args), f"{loop.name}_chunk")

    def run(
        self,
        dataset: Dataset,
        body: LoopBody,
        carried: dict[str, Any],
        captured: _Captured,
    ) -> dict[str, Any]:
        """Return the state after the loop."""
        # The trace of a new shape calls the body of this call.
        self._body, self._captured = body, captured
        reduction = DatasetReduction(self._single, self._several, self._steps)
        chunks = iter(dataset.chunks(reduction.size))
        try:
            first = next(chunks, None)
            if first is None:
                return carried
            carried = jax.tree.map(as_array, carried)
            state = self._single((carried, first.element, captured.arrays), {})
            found: dict[str, Any] = reduction.run(state, chunks, (captured.arrays,), body.goes_on)
            return found
        finally:
            self._body = self._captured = None

    def _step(self, state: dict[str, Any], element: Any, arrays: list[Any]) -> dict[str, Any]:
        """Return the state after a step; it is traced."""
        assert self._body is not None
        assert self._captured is not None
        with self._captured.replaced(arrays):
            return self._body.step(state, element)


class _Captured:
    """What the functions of a loop read of the variables around them."""

    def __init__(self, loop: ConvertedLoop) -> None:
        """Look through the closures of the functions, and of the functions that they reach."""
        self.cells: list[types.CellType] = []
        self.arrays: list[Any] = []
        self.kept: list[Any] = []
        self._seen: set[int] = set()
        of_user = loop.converted_from or loop
        functions = [function for function in (of_user.body, of_user.extra_test) if function]
        names = frozenset(of_user.names)
        self._objects = WatchedObjects(functions, names)
        self.key = tuple(key for function in functions for key in self._of(function, names))

    def _of(self, function: Any, skipped: frozenset[str]) -> Iterator[Any]:
        """Yield the key of each variable that a function reads."""
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        yield function.__code__
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            if name in skipped or id(cell) in self._seen:
                continue
            self._seen.add(id(cell))
            try:
                value = cell.cell_contents
            except ValueError:  # it has no value yet
                continue
            if isinstance(value, types.FunctionType):
                yield from self._of(value, frozenset())
            elif is_carried(value) and not isinstance(value, int | float | complex):
                self.cells.append(cell)
                self.arrays.append(value)
            else:
                self.kept.append(value)
                yield name, _key(value)

    @contextmanager
    def replaced(self, arrays: Sequence[Any]) -> Iterator[None]:
        """Give the variables other arrays for a moment; refuse changes of objects."""
        for cell, array in zip(self.cells, arrays, strict=True):
            cell.cell_contents = array
        try:
            with self._objects.unchanged():
                yield
        finally:
            for cell, array in zip(self.cells, self.arrays, strict=True):
                cell.cell_contents = array


def _key(value: Any) -> Any:
    """Return what two values share that make no difference to a program."""
    if isinstance(value, bool | int | float | complex | str | bytes | type(None)):
        return type(value), value
    return type(value) if isinstance(value, Undefined) else id(value)
