"""Functions that loop over distributed datasets: the host runs them, and compiles their loops.

The first trace of a function finds a distributed dataset. From then on the host calls the converted
function (`loop_conversion.py`), and everything outside of its loops over datasets happens as
outside of functions. A loop over a dataset is a reduction (`graphdist.data.dataset_reduction`):
its body is traced once, and runs in chunks of steps.

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
from typing import TYPE_CHECKING, Any  # Any: users' functions and values

import jax

from graphdist.data.dataset_reduction import DatasetReduction, as_array, in_steps
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.iterators import DatasetInTrace
from graphdist.errors import ArgumentError, MissingExtraError, OutOfRangeError, UnsupportedError
from graphdist.program.loop_conversion import converted
from graphdist.program.loop_operators import (
    GetState,
    LoopOperators,
    SetState,
    Undefined,
    is_traced,
    is_value,
)
from graphdist.program.retracing import WARN_AT, warn_of_retracing
from graphdist.tracing.state import current_trace
from graphdist.tracing.user_lines import here

if TYPE_CHECKING:
    from graphdist.program.function import Function

MakeFunction = Callable[[Callable[..., Any], str], "Function[..., Any]"]


_MOST_PROGRAMS = 16
"""How many programs a loop keeps."""


class LoopingFunction:
    """A function that the host runs; call it as the user's."""

    def __init__(
        self, fn: Callable[..., Any], name: str, make: MakeFunction, met: DatasetInTrace
    ) -> None:
        """Convert a function that met a dataset; `make` compiles a part of it under a name.

        Raises what `converted` raises, unless there is no loop to convert.
        """
        try:
            self.fn = converted(fn, _Operators(name, make))
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
                source=here(),
                hint="loop with `for batch in dataset`, or ask get_next_as_optional()",
            ) from error


class _Operators(LoopOperators):
    """The operators of one converted function, with the programs of its loops."""

    def __init__(self, name: str, make: MakeFunction) -> None:
        super().__init__()
        self._name, self._make = name, make
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
        if current_trace() is not None or not isinstance(iterated, DistributedDataset):
            super().for_stmt(iterated, extra_test, body, get_state, set_state, names, options)
            return
        loop = self._loops.get(body.__code__)
        if loop is None:
            name = f"{self._name}_loop{len(self._loops) or ''}"
            loop = self._loops[body.__code__] = _Loop(name, tuple(names), self._make)
        loop.run(iterated, _Call(self, extra_test, body, get_state, set_state))


class _Call:
    """The functions that the conversion made of a loop, in one call of the user's function."""

    def __init__(
        self,
        operators: LoopOperators,
        extra_test: Callable[[], Any] | None,
        body: Callable[[Any], None],
        get_state: GetState,
        set_state: SetState,
    ) -> None:
        self.operators, self.extra_test, self.body = operators, extra_test, body
        self.get_state, self.set_state = get_state, set_state


class _Loop:
    """One loop of a function: its programs, by the constants that its body uses."""

    def __init__(self, name: str, names: tuple[str, ...], make: MakeFunction) -> None:
        self.name, self.names, self._make = name, names, make
        self._programs: dict[Any, _Program] = {}
        self._num_compiled = 0
        self._lock = RLock()  # a trace uses the functions of the call that needs it

    def run(self, dataset: DistributedDataset[Any], call: _Call) -> None:
        """Run the loop, and give the variables their last values."""
        with self._lock:
            self._run(dataset, call)

    def _run(self, dataset: DistributedDataset[Any], call: _Call) -> None:
        captured = _Captured(call, self.names)
        values = dict(zip(self.names, call.get_state(), strict=True))
        carried = {name: value for name, value in values.items() if _is_carried(value)}
        rest = {name: value for name, value in values.items() if name not in carried}
        key = (*captured.key, *((name, _key(value)) for name, value in rest.items()))
        program = self._programs.pop(key, None) or self._compiled(rest, captured)
        self._programs[key] = program  # the last: those used least recently are dropped
        if len(self._programs) > _MOST_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        state = program.run(dataset, call, carried, captured)
        call.set_state(tuple({**values, **state}[name] for name in self.names))

    def _compiled(self, rest: dict[str, Any], captured: _Captured) -> _Program:
        self._num_compiled += 1
        if self._num_compiled in WARN_AT:
            warn_of_retracing(
                f"{self.name} was compiled {self._num_compiled} times: its body reads Python "
                f"values that changed. Make them arrays, or read them after the loop."
            )
        return _Program(self, rest, captured.kept, self._make)


class _Program:
    """The compiled steps of a loop, for certain constants."""

    def __init__(
        self, loop: _Loop, rest: dict[str, Any], kept: list[Any], make: MakeFunction
    ) -> None:
        self._loop, self._rest = loop, rest
        self._kept = kept  # alive, since keys name objects by their identity
        self._call: _Call | None = None
        self._captured: _Captured | None = None
        self._single = make(lambda args, kwargs: self._step(*args), loop.name)
        self._several = make(lambda args, kwargs: in_steps(self._step, *args), f"{loop.name}_chunk")

    def run(
        self,
        dataset: DistributedDataset[Any],
        call: _Call,
        carried: dict[str, Any],
        captured: _Captured,
    ) -> dict[str, Any]:
        """Return the state after the loop."""
        # The trace of a new shape calls the body of this call.
        self._call, self._captured = call, captured
        reduction = DatasetReduction(self._single, self._several)
        chunks = iter(dataset.chunks(reduction.size))
        try:
            first = next(chunks, None)
            if first is None:
                return carried
            carried = jax.tree.map(as_array, carried)
            state = self._single((carried, first.element, captured.arrays), {})
            found: dict[str, Any] = reduction.run(state, chunks, (captured.arrays,), self._goes_on)
            return found
        finally:
            self._call = self._captured = None

    def _goes_on(self, state: dict[str, Any]) -> bool:
        assert self._call is not None
        if self._call.extra_test is None:
            return True
        self._set(state)
        return bool(self._call.extra_test())

    def _set(self, state: dict[str, Any]) -> None:
        assert self._call is not None
        values = {**self._rest, **state}
        self._call.set_state(tuple(values[name] for name in self._loop.names))

    def _step(self, state: dict[str, Any], element: Any, arrays: list[Any]) -> dict[str, Any]:
        """Return the state after a step; it is traced."""
        call, captured = self._call, self._captured
        assert call is not None
        assert captured is not None
        with captured.replaced(arrays):
            self._set(state)
            goes_on = True if call.extra_test is None else call.extra_test()
            if is_traced(goes_on):
                names = tuple(state)
                call.operators.if_stmt(
                    goes_on,
                    lambda: call.body(element),
                    lambda: None,
                    call.get_state,
                    call.set_state,
                    self._loop.names,
                    len(self._loop.names),
                )
                return {name: value for name, value in self._after().items() if name in names}
            call.body(element)
            return self._after()

    def _after(self) -> dict[str, Any]:
        """Return the state that a step leaves; raises `ArgumentError` for an object."""
        assert self._call is not None
        found = {}
        for name, value in zip(self._loop.names, self._call.get_state(), strict=True):
            before = self._rest.get(name)
            if name in self._rest and (value is before or isinstance(value, Undefined)):
                continue
            if not is_value(value):
                raise ArgumentError(
                    f"{name} is a {type(value).__name__} after a step of the loop, which is traced "
                    f"once for all elements",
                    source=here(),
                    hint="change arrays and numbers in the loop; build other objects outside of it",
                )
            found[name] = jax.tree.map(as_array, value)
        return found


class _Captured:
    """What the functions of a loop read of the variables around them."""

    def __init__(self, call: _Call, names: Sequence[str]) -> None:
        """Look through the closures of the functions, and of the functions that they reach."""
        self.cells: list[types.CellType] = []
        self.arrays: list[Any] = []
        self.kept: list[Any] = []
        self._containers: list[tuple[str, Any, Any]] = []
        self._seen: set[int] = set()
        found: list[Any] = []
        for function in (call.body, call.extra_test):
            if function is not None:
                found += self._of(function, frozenset(names))
        self.key = tuple(found)

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
            elif _is_carried(value) and not isinstance(value, int | float | complex):
                self.cells.append(cell)
                self.arrays.append(value)
            else:
                self.kept.append(value)
                if isinstance(value, list | dict | set):
                    self._containers.append((name, value, value.copy()))
                yield name, _key(value)

    @contextmanager
    def replaced(self, arrays: Sequence[Any]) -> Iterator[None]:
        """Give the variables other arrays for a moment; refuse changes of containers."""
        for cell, array in zip(self.cells, arrays, strict=True):
            cell.cell_contents = array
        try:
            yield
            for name, container, before in self._containers:
                if len(container) != len(before):
                    _restore(container, before)
                    raise ArgumentError(
                        f"a loop over a dataset changes {name}, a {type(container).__name__}: its "
                        f"body is traced once for all elements",
                        source=here(),
                        hint="carry an array, or loop outside the function",
                    )
        finally:
            for cell, array in zip(self.cells, self.arrays, strict=True):
                cell.cell_contents = array


def _restore(container: Any, before: Any) -> None:
    container.clear()
    (container.extend if isinstance(container, list) else container.update)(before)


def _is_carried(value: Any) -> bool:
    """Return whether a value is an array or a number; a flag is a constant until a step sets it."""
    return is_value(value) and not isinstance(value, bool)


def _key(value: Any) -> Any:
    """Return what two values share that make no difference to a program."""
    if isinstance(value, bool | int | float | complex | str | bytes | type(None)):
        return type(value), value
    return type(value) if isinstance(value, Undefined) else id(value)
