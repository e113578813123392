"""Functions that loop over distributed datasets: the host runs them, and compiles their loops.

The first trace of a function shows whether the host must run it: either the trace finds a
distributed dataset, or an argument is a dataset or an iterator and the trace needs a value that no
trace has, such as the end of a `range`. From then on the host calls the converted function
(`loop_conversion.py`), whose code runs as plain Python, except for loops over datasets. Such a loop
is a reduction (`graphdist.data.dataset_reduction`): its body is traced once, and runs in chunks of
steps. If the body reads another dataset or an iterator, the loop runs step by step.

The values of a body:

* The arrays and numbers among the Python variables that the body assigns are the loop's state. A
  variable without a value before the loop gets one in the first step, which is a program of its
  own. Any other assignment or change raises an error, since the trace would make it once for all
  elements.
* The Python state that the body reads, also in functions that it calls, is looked up in each call
  (`python_state.py`). Its arrays are inputs of the program. If one of its other values has changed,
  another program is compiled. If Python needs the value of an array, for example as a size, the
  arrays become constants.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias  # Any: users' functions and values

import jax

from graphdist.data.chunks import Chunk, TakenElements, close, past_the_end
from graphdist.data.dataset_reduction import DatasetReduction, as_array, in_steps
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.iterators import DatasetInTrace, DistributedIterator
from graphdist.data.looped_datasets import StackedElements, ZippedDatasets
from graphdist.errors import ArgumentError, MissingExtraError, UnsupportedError
from graphdist.program.code_names import closure_of, names_of
from graphdist.program.element_by_element import ElementNotice
from graphdist.program.kept_programs import WARN_AT, RetraceWarning
from graphdist.program.loop_body import (
    NEED_VALUES,
    LoopBody,
    NeedsNumbers,
    remove_undefined,
    scan,
    state_of,
    sum_loop,
    with_numbers,
)
from graphdist.program.loop_conversion import converted, converted_code, has_operators, with_code
from graphdist.program.loop_operators import (
    DATASETS,
    ConvertedLoop,
    Counter,
    InTurn,
    LoopOperators,
    Numbered,
    Undefined,
    is_chunked,
)
from graphdist.program.python_state import PythonState
from graphdist.program.python_walk import Walk
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.tracing.user_lines import CodeOwner, where_raised
from graphdist.user_warnings import warn_user

if TYPE_CHECKING:
    from graphdist.program.function import Function

MakeFunction = Callable[[Callable[..., Any], str], "Function[..., Any]"]
Dataset: TypeAlias = DistributedDataset[Any] | ZippedDatasets | TakenElements

_MAX_PROGRAMS = 16
"""The largest number of programs that a loop keeps."""


def dataset_behind(error: Exception, arguments: Any) -> DatasetInTrace | None:
    """Return a `DatasetInTrace` if the host must run the function because of a trace's error.

    None for any other error.
    """
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
    """Undo a trace's changes of the Python state if the host must run `fn` and so repeat them."""
    state = PythonState(Walk((), {"fn": fn, "arguments": arguments}, set()))
    with state.undone(lambda error: dataset_behind(error, arguments) is not None):
        yield


class LoopingFunction:
    """A function that the host runs. It is called like the user's function."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        steps_per_execution: int | None,
        make: MakeFunction,
        met: DatasetInTrace,
    ) -> None:
        """Convert the function `fn`, whose trace raised `met`.

        `make` compiles a part of the function under a name.

        Raises the errors of `converted` if the trace found a loop over a dataset. Otherwise a
        function that cannot be converted runs as it is.
        """
        self._notice = ElementNotice(name)
        if getattr(fn, "__name__", "") == "<lambda>":
            self._notice.reasons[""] = "a lambda is not converted: write it as def"
        try:
            self.fn = converted(fn, _Operators(name, steps_per_execution, make, self._notice))
        except (MissingExtraError, UnsupportedError) as error:
            self.fn = fn
            if met.is_loop:
                has_line = error.source is not None and error.source.frame is not None
                if isinstance(error, MissingExtraError) or not has_line:
                    error.source = met.source
                raise error from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function; raises `OutOfRangeError` for `next` past the end of a dataset."""
        try:
            with self._notice.watching():
                return self.fn(*args, **kwargs)
        except StopIteration as error:
            raise past_the_end(where_raised(error)) from error


class _NotTraced(Exception):
    """The first step of a loop over an iterator cannot be traced; no step has run."""


class _Operators(LoopOperators):
    """The operators of one converted function, with the programs of its loops."""

    def __init__(
        self, name: str, steps: int | None, make: MakeFunction, notice: ElementNotice
    ) -> None:
        self._name, self._steps, self._make, self._notice = name, steps, make, notice
        self._loops: dict[types.CodeType, _Loop] = {}
        self._codes: dict[types.CodeType, types.CodeType | None] = {}
        self._not_traced: set[types.CodeType] = set()

    def run(self, iterated: Any, loop: ConvertedLoop) -> None:
        """Run a loop. A loop over a distributed dataset runs in compiled chunks."""
        if not isinstance(iterated, InTurn):
            self._run(iterated, loop)
            return
        numbers, iterator = iterated.numbers, iterated.iterator()
        asking = replace(loop, body=lambda number: loop.body((number, iterated.ask())))
        one_by_one = partial(super().run, numbers, asking)
        is_iterator = isinstance(iterator, DistributedIterator) and is_chunked(iterator)
        # A property may return another iterator each time.
        is_one = is_iterator and iterated.iterator() is iterator
        if is_one and isinstance(numbers, range) and current_trace() is None:
            elements = TakenElements(iterator, len(numbers), requires_all=True)
            counted = Numbered(elements, [Counter(0, numbers.start, numbers.step)], 1)
            self._run(counted, loop, one_by_one)
        else:
            one_by_one()

    def sum_of(self, add: Any, iterable: Any, fn: Any, *start: Any) -> Any:
        """Return the sum of a function's results for each element."""
        if add is not sum or not (is_chunked(iterable) or isinstance(iterable, Numbered)):
            return super().sum_of(add, iterable, fn, *start)
        total = [*(start or (0,))]
        self._run(iterable, sum_loop(fn, total))
        return total[0]

    def called(self, fn: Any) -> Any:
        """Return the function to call instead of `fn`: it converts `fn` if `fn` finds a dataset."""
        function, owner = _function_of(fn)
        if (
            not isinstance(function, types.FunctionType)
            or has_operators(function)
            or function.__name__ == "<lambda>"
            or names_of(function.__code__).owner is not CodeOwner.USER
        ):
            return fn

        def call(*args: Any, **kwargs: Any) -> Any:
            if not finds_dataset(function, (*owner, *args, *kwargs.values())):
                return fn(*args, **kwargs)
            return self._converted(function)(*owner, *args, **kwargs)

        return call

    def _converted(self, function: types.FunctionType) -> types.FunctionType:
        """Return a function with its loops converted, or unchanged if that fails."""
        code = function.__code__
        if code not in self._codes:
            try:
                self._codes[code] = converted_code(function)
            except Exception as error:  # the function is called without conversion
                self._codes[code] = None
                why_not = str(error).partition("\n")[0].rpartition("cannot be converted: ")[2]
                self._notice.reasons[function.__name__] = why_not
        new_code = self._codes[code]
        return function if new_code is None else with_code(function, new_code, self)

    def _run(
        self, elements: Any, loop: ConvertedLoop, otherwise: Callable[[], None] | None = None
    ) -> None:
        """Run a loop: in chunks, in a trace as a loop of the graph, or element by element.

        `otherwise` runs the loop element by element. By default this is a loop over `elements`.
        """
        user_body: Any = loop.of_user.body
        key = user_body.__code__
        while isinstance(elements, Numbered):
            loop, elements = with_numbers(loop, elements), elements.elements
        if isinstance(elements, StackedElements):
            body = LoopBody(loop)
            with state_of(body, set()).replaced():
                scan(body, elements.elements)
            return
        if isinstance(elements, DistributedIterator) and is_chunked(elements):
            elements = TakenElements(elements, None)
        one_by_one = otherwise or partial(super().run, elements, loop)
        if (
            current_trace() is not None
            or key in self._not_traced
            or not self._is_chunked(elements, loop)
        ):
            one_by_one()
            return
        if key not in self._loops:
            name = f"{self._name}_loop{len(self._loops) or ''}"
            self._loops[key] = _Loop(name, self._steps, self._make)
        try:
            self._loops[key].run(elements, loop)
        except _NotTraced as why_not:
            self._notice.reasons[""] = str(why_not)
            self._not_traced.add(key)  # a trace in the next call would fail again
            one_by_one()

    def _is_chunked(self, elements: Any, loop: ConvertedLoop) -> bool:
        """Return whether a loop runs in chunks.

        A loop over an iterator that `break` may leave does not run in chunks, since a chunk would
        read elements after the `break`.
        """
        if not isinstance(elements, TakenElements):
            return isinstance(elements, DistributedDataset | ZippedDatasets)
        leaves = loop.extra_test is not None and isinstance(elements.elements, DistributedIterator)
        if leaves:
            self._notice.reasons[""] = "break leaves a loop over an iterator"
        return not leaves


def _function_of(fn: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the function that a call of `fn` runs, and its bound first argument in a tuple."""
    if isinstance(fn, types.MethodType):
        return fn.__func__, (fn.__self__,)
    if isinstance(fn, types.FunctionType | type):
        return fn, ()
    kind: Any = type(fn)
    return _call_of(kind), (fn,)


@lru_cache(maxsize=1024)
def _call_of(kind: type) -> Any:
    """Return the function that runs when an object of the class `kind` is called."""
    return inspect.getattr_static(kind, "__call__", None)


def finds_dataset(function: types.FunctionType, args: Sequence[Any]) -> bool:
    """Return whether a function can reach a dataset or an iterator.

    This looks at its arguments, the attributes of a method's object, its closure and its globals.
    """
    values = [*args, *closure_of(function).values()]
    if args and "." in function.__qualname__ and hasattr(args[0], "__dict__"):
        values += vars(args[0]).values()
    values += map(function.__globals__.get, names_of(function.__code__).globals)
    return any(isinstance(value, (*DATASETS, DistributedIterator)) for value in values)


class _Loop:
    """One loop of a function, and its programs by the Python state that its body reads."""

    def __init__(self, name: str, steps: int | None, make: MakeFunction) -> None:
        self.name, self.steps, self._make = name, steps, make
        self._programs: dict[Any, _Program] = {}
        self._num_compiled = 0
        self._attributes: set[str] = set()
        self._arrays_are_constants = False
        self._lock = RLock()  # a trace uses the functions of the current call

    def run(self, dataset: Dataset, loop: ConvertedLoop) -> None:
        """Run the loop, and set the variables to their last values.

        Raises `_NotTraced` if the first step of a loop over an iterator cannot be traced.
        """
        with self._lock:
            body = LoopBody(loop)
            try:
                body.last = self._run(dataset, body)
            finally:  # no variable may keep a value of the trace
                body.set({**body.carried, **body.last})
                remove_undefined(loop.of_user)

    def _run(self, dataset: Dataset, body: LoopBody) -> dict[str, Any]:
        """Return the state after the loop. If no step has run, put the first element back."""
        source = getattr(dataset, "elements", None)
        iterator = source if isinstance(source, DistributedIterator) else None
        program = self._program(body)
        size = program.reduction.size
        chunks = iter(dataset.chunks(size))
        first = next(chunks, None)
        if first is None:
            return body.last
        try:
            try:
                return program.run(first, chunks, body)
            except NeedsNumbers:  # no element has been used
                self._arrays_are_constants = True
            program = self._program(body)
            program.reduction.size = size
            return program.run(first, chunks, body)
        except (ArgumentError, UnsupportedError, *NEED_VALUES) as error:
            if iterator is None or body.has_run:
                raise
            raise _NotTraced(str(error.args[0]).partition("\n")[0]) from error
        finally:
            close(chunks)
            if iterator is not None and not body.has_run:
                iterator.count(-1)
                iterator.put_back([first.element])

    def _program(self, body: LoopBody) -> _Program:
        """Return the program for the Python state that the body reads now."""
        state = body.state = state_of(body, self._attributes, self._arrays_are_constants)
        undefined = [name for name, each in body.rest.items() if isinstance(each, Undefined)]
        key = (tuple(undefined), *state.key)
        program = self._programs.pop(key, None)
        if program is None:
            self._warn_of_many()
            program = _Program(self, state.kept, self._make)
        self._programs[key] = program  # last in order, so that the first is the least recently used
        if len(self._programs) > _MAX_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return program

    def _warn_of_many(self) -> None:
        self._num_compiled += 1
        if self._num_compiled in WARN_AT:
            warn_user(
                f"{self.name} was compiled {self._num_compiled} times: its body reads Python "
                f"values that changed. Make them arrays, or read them after the loop.",
                RetraceWarning,
            )


class _Program:
    """The compiled steps of a loop, for one Python state."""

    def __init__(self, loop: _Loop, kept: list[Any], make: MakeFunction) -> None:
        self._kept = kept  # keeps the objects alive whose ids are in keys
        self._body: LoopBody | None = None
        self._single = make(lambda args, kwargs: self._step(*args), loop.name)
        several = make(lambda args, kwargs: in_steps(self._step, *args), f"{loop.name}_chunk")
        self._make_reduction = partial(DatasetReduction, self._single, several, loop.steps)
        self.reduction = self._make_reduction()

    def run(self, first: Chunk, chunks: Iterator[Chunk], body: LoopBody) -> dict[str, Any]:
        """Return the state after the loop.

        Raises `NeedsNumbers` if the trace of the first step fails, perhaps because Python needs the
        values of arrays that the body reads. The caller then traces with these as constants.
        """
        self._body = body  # a trace for a new shape calls the body of this call
        arrays = body.state.arrays
        try:
            carried = jax.tree.map(as_array, body.last)
            body.last = self._single((carried, first.element, arrays), {})
            body.has_run = True
            last: dict[str, Any] = self.reduction.run(body.last, chunks, (arrays,), body.continues)
            return last
        finally:
            self._body = None
            self.reduction = self._make_reduction()

    def _step(self, carried: dict[str, Any], element: Any, arrays: list[Any]) -> dict[str, Any]:
        """Return the loop's state after one iteration; JAX traces this method."""
        assert self._body is not None
        return self._body.step_on(arrays, carried, element)
