"""The operators of converted code: Python's statements, or operations of the graph.

An `if` on a traced value becomes a `cond`. A loop whose end depends on a traced value becomes a
`while`. The conversion makes the functions `get_state` and `set_state`, which read and set the
values that a statement changes. Such a value must be an array or a number in all branches, or the
same object in all branches.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias  # Any: the user's values

import jax
import jax.numpy as jnp

from graphdist.data.chunks import TakenElements
from graphdist.data.distributed_dataset import DistributedDataset
from graphdist.data.iterators import DistributedIterator
from graphdist.data.looped_datasets import StackedElements, ZippedDatasets, zipped
from graphdist.errors import ArgumentError
from graphdist.values.distributed import is_array

Run: TypeAlias = Callable[[], None]
Load: TypeAlias = Callable[[], Any]
GetState: TypeAlias = Callable[[], tuple[Any, ...]]
SetState: TypeAlias = Callable[[tuple[Any, ...]], None]
Names: TypeAlias = Sequence[str]

DATASETS = (DistributedDataset, ZippedDatasets, TakenElements, StackedElements)
"""The datasets whose loops run in chunks of steps, or in a graph."""


class LoopOperators:
    """The operators of converted code."""

    @property
    def Undefined(self) -> type[Undefined]:
        """Return the class of the objects that mark variables without a value."""
        return Undefined

    def ld(self, value: Any) -> Any:
        """Return the value of a variable; raises `UnboundLocalError` if it has none."""
        if isinstance(value, Undefined):
            raise UnboundLocalError(
                f"cannot access local variable {value.name!r} where it is not associated with a "
                f"value"
            )
        return value

    def ldu(self, load: Load, name: str) -> Any:
        """Return the value of an attribute or item, or `Undefined` if it has none."""
        try:
            return load()
        except (AttributeError, KeyError, NameError):
            return Undefined(name)

    eq = staticmethod(operator.eq)
    not_eq = staticmethod(operator.ne)

    def for_stmt(self, iterated: Any, *fields_and_options: Any) -> None:
        """Run `for element in iterated`; the fields are those of `ConvertedLoop`."""
        *fields, _ = fields_and_options
        self.run(iterated, ConvertedLoop(*fields))

    def run(self, iterated: Any, loop: ConvertedLoop) -> None:
        """Run a loop over these elements; a subclass may run some loops in another way."""
        if isinstance(iterated, TracedRange):
            self._count(iterated, loop)
            return
        for element in iterated:
            if loop.extra_test is not None and not self._concrete(loop.extra_test(), "break"):
                break
            loop.body(element)

    def _count(self, numbers: TracedRange, loop: ConvertedLoop) -> None:
        number = [numbers.start]
        loop = loop.carrying(["the number"], number)

        def continues() -> Any:
            ahead = jnp.where(numbers.step > 0, number[0] < numbers.stop, number[0] > numbers.stop)
            return ahead if loop.extra_test is None else jnp.logical_and(ahead, loop.extra_test())

        def step() -> None:
            loop.body(number[0])
            number[0] = number[0] + numbers.step

        self.while_stmt(continues, step, loop.get_state, loop.set_state, loop.names, {})

    def while_stmt(
        self, test: Load, body: Run, get_state: GetState, set_state: SetState, names: Names, _: Any
    ) -> None:
        """Run `while test`."""
        first = test()
        if not is_traced(first):
            while first:
                body()
                first = self._concrete(test(), "while")
            return
        _require_flag(first)
        before = get_state()

        def arrays_of(values: Sequence[Any]) -> list[Any]:
            """Return the values that the loop carries as arrays, and None for each other value."""
            pairs = zip(values, before, strict=True)
            return [as_arrays(value) if is_value(old) else None for value, old in pairs]

        def merged(arrays: Sequence[Any]) -> tuple[Any, ...]:
            pairs = zip(arrays, before, strict=True)
            return tuple(old if array is None else array for array, old in pairs)

        def continues(arrays: Any) -> Any:
            set_state(merged(arrays))
            return test()

        def step(arrays: Any) -> Any:
            set_state(merged(arrays))
            body()
            after = get_state()
            for name, old, new in zip(names, before, after, strict=True):
                if not is_value(old) and new is not old:
                    raise _changed(name, old, new)
            return arrays_of(after)

        set_state(merged(jax.lax.while_loop(continues, step, arrays_of(before))))

    def if_stmt(
        self,
        condition: Any,
        body: Run,
        otherwise: Run,
        get_state: GetState,
        set_state: SetState,
        names: Names,
        num_results: int,
    ) -> None:
        """Run `if condition`."""
        if not is_traced(condition):
            body() if condition else otherwise()
            return
        _require_flag(condition)
        before = get_state()
        left: list[tuple[Any, ...]] = []

        def branch(run: Run) -> list[Any]:
            """Run a branch; return its values as arrays, and None for a value that is none."""
            set_state(before)
            run()
            left.append(get_state()[:num_results])
            return [as_arrays(value) if is_value(value) else None for value in left[-1]]

        try:
            arrays = jax.lax.cond(condition, partial(branch, body), partial(branch, otherwise))
        except TypeError as error:
            if len(left) > 1:  # otherwise the error is one of the user's branch
                _require_alike(names, left, error)
            raise
        _require_alike(names, left)
        pairs = zip(arrays, left[0], strict=True)
        results = (value if array is None else array for array, value in pairs)
        set_state((*results, *before[num_results:]))

    def if_exp(self, condition: Any, then: Load, otherwise: Load, text: str) -> Any:
        """Return `then if condition else otherwise`."""
        if not is_traced(condition):
            return then() if condition else otherwise()
        _require_flag(condition)
        return jax.lax.cond(condition, lambda: as_arrays(then()), lambda: as_arrays(otherwise()))

    def and_(self, first: Load, second: Load) -> Any:
        """Return `first and second`."""
        value = first()
        return jnp.logical_and(value, second()) if is_traced(value) else value and second()

    def or_(self, first: Load, second: Load) -> Any:
        """Return `first or second`."""
        value = first()
        return jnp.logical_or(value, second()) if is_traced(value) else value or second()

    def not_(self, value: Any) -> Any:
        """Return `not value`."""
        return jnp.logical_not(value) if is_traced(value) else not value

    def range_(self, *numbers: Any) -> Any:
        """Return a range, also of traced numbers."""
        if not any(map(is_traced, numbers)):
            return range(*numbers)
        start, stop, step = {1: (0, *numbers, 1), 2: (*numbers, 1)}.get(len(numbers), numbers)
        return TracedRange(jnp.asarray(start), jnp.asarray(stop), jnp.asarray(step))

    def iterating(self, fn: Any) -> Any:
        """Return the operator that replaces `fn`, over whose result a loop iterates."""
        operators = ((range, self.range_), (zip, self.zip_), (enumerate, self.enumerate_))
        for function, replacement in (*operators, (islice, self.islice_)):
            if fn is function:
                return replacement
        return self.called(fn)

    def called(self, fn: Any) -> Any:
        """Return the function that is called instead of `fn`."""
        return fn

    def sum_of(self, add: Any, iterable: Any, fn: Callable[[Any], Any], *start: Any) -> Any:
        """Return `add((fn(element) for element in iterable), *start)`.

        `add` is the value of the name `sum`, by default Python's function.
        """
        return add((fn(element) for element in iterable), *start)

    def in_turn(self, numbers: Any, iterator: Load, ask: Load) -> InTurn:
        """Return the numbers of a range, each with an element of an iterator."""
        return InTurn(numbers, iterator, ask)

    def zip_(self, *iterables: Any, strict: bool = False) -> Any:
        """Return tuples of the elements, also of distributed datasets and ranges."""
        if strict:
            return zip(*iterables, strict=True)
        ranges = {index: each for index, each in enumerate(iterables) if isinstance(each, range)}
        others = [each for each in iterables if not isinstance(each, range)]
        if not ranges or not others:
            return zipped(iterables)
        elements = others[0] if len(others) == 1 else zipped(others)
        # When the range ends, `zip` has read one more element of an iterator before the range.
        if not (is_chunked(elements) and (isinstance(elements, DATASETS) or 0 in ranges)):
            return zip(*iterables, strict=False)
        counters = [Counter(index, each.start, each.step) for index, each in ranges.items()]
        return Numbered(first_of(elements, min(map(len, ranges.values()))), counters, len(others))

    def enumerate_(self, iterable: Any, start: Any = 0) -> Any:
        """Return pairs of a count and an element, also for a distributed dataset."""
        if is_chunked(iterable) or isinstance(iterable, Numbered):
            return Numbered(iterable, [Counter(0, start, 1)], 1)
        return enumerate(iterable, start)

    def islice_(self, iterable: Any, *numbers: Any) -> Any:
        """Return the first elements, also of a distributed dataset."""
        if is_chunked(iterable) and len(numbers) == 1 and isinstance(numbers[0], int):
            return first_of(iterable, numbers[0])
        return islice(iterable, *numbers)

    def _concrete(self, value: Any, statement: str) -> bool:
        if is_traced(value):
            raise ArgumentError(
                f"{statement} depends on a traced value, in a loop over Python values",
                hint="loop over a range or a dataset, or write the condition with jnp.where",
            )
        return bool(value)


@dataclass(frozen=True)
class ConvertedLoop:
    """The functions of a converted loop, in one call of the user's function."""

    extra_test: Load | None
    """Returns False after a `break`; None if the loop has no `break`."""
    body: Callable[[Any], None]
    get_state: GetState
    set_state: SetState
    names: Names
    converted_from: ConvertedLoop | None = None
    """The loop with the user's functions; None if this loop itself has them."""

    @property
    def of_user(self) -> ConvertedLoop:
        """Return the loop with the user's functions."""
        return self.converted_from or self

    def carrying(self, names: Names, values: list[Any]) -> ConvertedLoop:
        """Return the loop with the variables `names` before its own.

        The list `values` has the current values of these variables, and the loop sets its items.
        """

        def get() -> tuple[Any, ...]:
            return (*values, *self.get_state())

        def put(state: tuple[Any, ...]) -> None:
            values[:] = state[: len(values)]
            self.set_state(tuple(state[len(values) :]))

        return replace(
            self,
            names=(*names, *self.names),
            get_state=get,
            set_state=put,
            converted_from=self.of_user,
        )


class Undefined:
    """Marks a variable without a value."""

    def __init__(self, name: str) -> None:
        """Store the name of the variable."""
        self.name = name


class Counter(NamedTuple):
    """A count in the tuples of a loop: its position in the tuple, its first value and its step."""

    position: int
    first: Any
    step: int


@dataclass(frozen=True)
class Numbered:
    """Elements and counts, in tuples. Of each tuple, `num_others` items are not counts."""

    elements: Any
    counters: Sequence[Counter]
    num_others: int


@dataclass(frozen=True)
class InTurn:
    """The numbers of a range, each with one element of an iterator.

    `iterator` returns the iterator, `ask` reads the next element.
    """

    numbers: Any
    iterator: Load
    ask: Load


def is_chunked(elements: Any) -> bool:
    """Return whether a loop over these elements runs in chunks, unless `break` leaves it."""
    if isinstance(elements, DistributedIterator):
        return elements.can_be_stacked
    return isinstance(elements, DATASETS)


def first_of(elements: Any, most: int) -> Any:
    """Return the first `most` elements of a dataset, or the next `most` of an iterator."""
    if isinstance(elements, StackedElements):
        return StackedElements(jax.tree.map(lambda leaf: leaf[:most], elements.elements))
    if isinstance(elements, TakenElements):
        left = most if elements.most is None else min(most, elements.most)
        return TakenElements(elements.elements, left)
    return TakenElements(elements, most)


class TracedRange:
    """A range whose bounds are known only when the program runs."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        """Store the bounds, which are arrays."""
        self.start, self.stop, self.step = start, stop, step


def is_traced(value: Any) -> bool:
    """Return whether a value is known only when the program runs."""
    return isinstance(value, jax.core.Tracer)


def is_value(value: Any) -> bool:
    """Return whether a value is a pytree of arrays and numbers, which programs can carry."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(
        is_array(leaf) or isinstance(leaf, bool | int | float | complex) for leaf in leaves
    )


def as_arrays(value: Any) -> Any:
    """Return a pytree with Python numbers converted to arrays."""
    return jax.tree.map(jnp.asarray, value)


def _require_flag(condition: Any) -> None:
    """Raise `ArgumentError` for a condition that is no scalar."""
    if condition.shape:
        raise ArgumentError(
            f"a condition has the shape {list(condition.shape)}, but it must be one scalar, []",
            hint="reduce it: jnp.any(condition), jnp.all(condition)",
        )


def _require_alike(
    names: Names, values: Sequence[Sequence[Any]], cause: Exception | None = None
) -> None:
    """Raise `ArgumentError` for a name that has an array in one branch alone, or two objects.

    `values` has a sequence for each branch.
    """
    for name, one, other in zip(names, *values[:2], strict=False):
        if is_value(one) != is_value(other) or not (is_value(one) or one is other):
            raise _changed(name, one, other) from cause


def _changed(name: str, before: Any, after: Any) -> ArgumentError:
    return ArgumentError(
        f"{name} is {_text(before)} or {_text(after)}, as a traced value decides",
        hint=f"give {name} an array or a number in all cases, of one shape",
    )


def _text(value: Any) -> str:
    if isinstance(value, Undefined):
        return "undefined"
    return "an array" if is_value(value) else f"a {type(value).__name__}"
