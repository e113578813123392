"""Which residuals to keep within a number of bytes: an exact choice, by integer programming.

Every name of forward values that gradients may be computed from has three variables: whether the
forward pass keeps them on the device, or on the host, two binaries, and how much of them the
backward pass computes again. What is needed is kept or computed; what is computed has its operands.
What is kept on the device stays within the bytes, and copies to the host take no longer than the
forward pass computes. Among all choices the seconds are least: of what is computed again, and of
writing and reading what is kept. Below, a stack is all values of a name: the iterations of a loop,
or layers that are written out.

    minimize    sum of seconds(v) * computed(v) + traffic(v) * (device(v) + 2 host(v))
                + waiting(v) * host(v)
    subject to  device(v) + host(v) + computed(v) >= 1              for each needed v
                device(o) + host(o) + computed(o) >= computed(v)    for each operand o of each v
                device(o) + host(o) >= computed(v)                  if o is of the layer before v's
                sum of bytes(v) * device(v) <= most_bytes
                sum of copying(v) * host(v) <= seconds of the forward loop
                sum of bytes(v) * host(v) <= what the compiler allows there
                device(v) <= device(f), bytes(v) = 0    if f, before v, is read from the same stack

The last line is for forward loops with several backward loops. With the stacks given, the rest is a
closure, so that `computed` is 0 or 1 without being asked to be. A layer is computed again from what
it has kept, as an iteration is from its carries: else all layers would be in memory at once. The
program is that of Checkmate (Jain et al., MLSys 2020, section 4) without its order of execution,
which XLA chooses. `scipy.optimize.milp` solves it. The seconds are those of operations alone: the
planner compares the choices by the timeline of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from graphdist.ir.forward_values import ForwardValues
from graphdist.ir.fused_values import FUSED, VIEWS
from graphdist.ir.graph import Node, Value
from graphdist.ir.kernels import KERNEL
from graphdist.ir.traffic import TRANSPOSE
from graphdist.ir.value_names import ValueName
from graphdist.passes.plans import Keep
from graphdist.planning.layer_numbers import LayerNumbers
from graphdist.planning.solver_messages import without_solver_messages
from graphdist.runtime.targets.chips import HOST_BYTES
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.timing.graph_timeline import seconds_alone

SECONDS_TO_SOLVE = 10.0
"""After this the best choice so far is taken; larger graphs than those of decoders may need it."""

_TIME_IS_UP = 1
"""The status of `milp` if it was stopped."""

FloatArray: TypeAlias = NDArray[np.float64]
_SHARE_OF_COPIES = 0.1
"""The share of a copy to the host that counts in loops, although it hides behind iterations."""
_SMALLEST_ON_HOST = 2**20
"""The bytes of the smallest stack that may be on the host: smaller ones are not worth copies."""


@dataclass(frozen=True, slots=True)
class ResidualChoice:
    """The values that wait on the devices, by their names, and the bytes of their stacks."""

    residuals: Mapping[ValueName, Keep]
    stacked_bytes: int


_Key: TypeAlias = ValueName | Node
"""A name; or a node with several results, which cannot be kept: these are computed from it, so that
it counts once. The first of the nodes that compute the values of a name stands for all."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The values of a name in two passes, with the bytes of their stack and their seconds."""

    passes: int
    key: _Key
    operands: tuple[_Key, ...]
    seconds: float
    """What it takes to compute the values again."""
    before: tuple[ValueName, ...] = ()
    """The operands that are values of layers before."""
    bytes: int = 0
    traffic: float = 0.0
    """What it takes to write and read the stack, in seconds."""
    copying: float = 0.0
    """What it takes to copy the stack to the host, in seconds."""
    waiting: float = 0.0
    """What the step waits for the copies to the host and back, in seconds."""
    stack: tuple[Value, ...] = ()
    """The values that are stacked: two backward loops may read one stack."""
    can_be_stacked: bool = True
    can_be_repeated: bool = True


class ResidualProgram:
    """The integer program of the passes in a graph."""

    def __init__(
        self, found: Sequence[ForwardValues], rates: ChipRates, *, uses_host: bool = False
    ) -> None:
        """Collect the values that gradients may be computed from.

        `uses_host` says whether stacks may be in the memory of the host.
        """
        self._found, self._rates, self._uses_host = found, rates, uses_host
        has_layers = any(map(_has_layers, found))
        self._candidates = [
            candidate
            for index, passes in enumerate(found)
            for candidate in _Candidates(index, passes, rates, has_layers).all()
        ]
        self._index = {(each.passes, each.key): i for i, each in enumerate(self._candidates)}
        self._first: dict[tuple[Value, ...], int] = {}
        """The first candidate with each stack, for which its bytes count."""
        for i, each in enumerate(self._candidates):
            self._first.setdefault(each.stack, i)
        self._constraints = self._closure()
        self.gap = 0.0
        """How much faster the best choices could be at most, as a share; 0 if they are proven."""

    @property
    def values(self) -> Sequence[tuple[ValueName, int]]:
        """Return the names and the bytes of their stacks, the largest first."""
        found = [(c.key, c.bytes) for c in self._candidates if isinstance(c.key, ValueName)]
        return sorted(found, key=lambda item: -item[1])

    def may_repeat(self, name: ValueName) -> bool:
        """Return whether the backward pass may compute the values of a name again."""
        return any(each.key == name and each.can_be_repeated for each in self._candidates)

    def may_leave(self, name: ValueName) -> bool:
        """Return whether the values of a name may wait in the memory of the host."""
        return any(each.key == name and self._may_leave(each) for each in self._candidates)

    @cached_property
    def fewest_bytes(self) -> int:
        """Return the fewest bytes of stacks on the device that a choice may have."""
        found = self._minimize(self._sizes, [])
        # Without an answer in time, what the program itself keeps is a choice.
        return (
            self.own.stacked_bytes if found is None else round(float(self._sizes @ np.round(found)))
        )

    @property
    def own(self) -> ResidualChoice:
        """Return what the program keeps without a plan."""
        named = [
            {name: Keep.DEVICE for name, ns in passes.named.items() if passes.stacked & {*ns}}
            for passes in self._found
        ]
        return self._choice(named)

    def solve(self, most_bytes: int) -> ResidualChoice | None:
        """Return the best choice whose stacks have at most so many bytes; None if there is none."""
        unit = max(self._sizes.sum(), 1.0)
        room = LinearConstraint(csr_array(self._sizes[None] / unit), ub=most_bytes / unit)
        stacking = [each.traffic for each in self._candidates]
        copying = [2 * each.traffic + each.waiting for each in self._candidates]
        again = [each.seconds for each in self._candidates]
        found = self._minimize(np.array([*stacking, *copying, *again]), [room])
        return None if found is None else self._choice_of(found)

    @cached_property
    def _sizes(self) -> FloatArray:
        """Return the bytes of memory of the device that each variable stands for."""
        sizes = [
            float(each.bytes) if self._first[each.stack] == i else 0.0
            for i, each in enumerate(self._candidates)
        ]
        return np.array([*sizes, *[0.0] * (2 * len(sizes))])

    def choice(self, residuals: Mapping[ValueName, Keep]) -> ResidualChoice:
        """Return the choice that stacks the values that are kept, and what is needed besides."""
        return self._choice([residuals] * len(self._found))

    def seconds(self, residuals: Mapping[ValueName, Keep]) -> float:
        """Return the seconds of a choice, as the program adds them up."""
        found = 0.0
        for index, passes in enumerate(self._found):
            pending: list[_Key] = _names_of(passes, passes.needed)
            seen = set[_Key]()
            while pending:
                key = pending.pop()
                if key in seen or (index, key) not in self._index:
                    continue
                seen.add(key)
                each = self._candidates[self._index[index, key]]
                keep = residuals.get(key) if isinstance(key, ValueName) else None
                if keep in (Keep.DEVICE, Keep.HOST):
                    is_host = keep is Keep.HOST
                    found += each.traffic * (1 + is_host)
                    found += each.waiting * is_host
                else:
                    found += each.seconds
                    pending += each.operands
        return found

    def _minimize(
        self, costs: FloatArray, constraints: Sequence[LinearConstraint]
    ) -> FloatArray | None:
        """Return the best values of the variables; None if nothing satisfies the constraints."""
        count = len(self._candidates)
        if not count:
            return np.zeros(0)
        stacked = [float(each.can_be_stacked) for each in self._candidates]
        on_host = [float(self._may_leave(each)) for each in self._candidates]
        again = [float(each.can_be_repeated) for each in self._candidates]
        with without_solver_messages():
            found = milp(
                costs / max(costs.sum(), 1e-30),
                integrality=np.array([1] * (2 * count) + [0] * count),
                bounds=Bounds(0, [*stacked, *on_host, *again]),
                constraints=[*self._constraints, *constraints],
                options={"time_limit": SECONDS_TO_SOLVE, "mip_rel_gap": 1e-4},
            )
        is_late = found.status == _TIME_IS_UP and found.x is None
        self.gap = max(self.gap, float("inf") if is_late else float(found.mip_gap or 0.0))
        return found.x

    def _may_leave(self, each: _Candidate) -> bool:
        return self._uses_host and each.can_be_stacked and each.bytes >= _SMALLEST_ON_HOST

    def _choice_of(self, found: FloatArray) -> ResidualChoice:
        kept: list[dict[ValueName, Keep]] = [{} for _ in self._found]
        count = len(self._candidates)
        for i, each in enumerate(self._candidates):
            if isinstance(each.key, ValueName) and max(found[i], found[count + i]) > 0.5:
                kept[each.passes][each.key] = Keep.DEVICE if found[i] > 0.5 else Keep.HOST
        return self._choice(kept)

    def _choice(self, kept: Sequence[Mapping[ValueName, Keep]]) -> ResidualChoice:
        residuals: dict[ValueName, Keep] = {}
        sizes: dict[tuple[Value, ...], int] = {}
        for index, (passes, chosen) in enumerate(zip(self._found, kept, strict=True)):
            names = [name for name in passes.named if (index, name) in self._index]
            waiting = set(passes.stacked)
            for name in names:
                waiting.difference_update(passes.named[name])
                if chosen.get(name, Keep.RECOMPUTE) is not Keep.RECOMPUTE:
                    waiting.update(passes.named[name])
            stacks = set(passes.stacks_for(waiting))
            for name in names:
                numbers = passes.named[name]
                if stacks.intersection(numbers):
                    is_host = chosen.get(name) is Keep.HOST
                    residuals[name] = Keep.HOST if is_host else Keep.DEVICE
                    if not is_host:
                        candidate = self._candidates[self._index[index, name]]
                        sizes[candidate.stack] = candidate.bytes
                elif any(n in passes.stacked and passes.can_be_repeated(n) for n in numbers):
                    residuals[name] = Keep.RECOMPUTE
        return ResidualChoice(residuals, sum(sizes.values()))

    def _closure(self) -> list[LinearConstraint]:
        """Return the constraints that all choices satisfy."""
        count = len(self._candidates)
        rows: list[tuple[dict[int, float], float]] = []

        def had(i: int) -> dict[int, float]:
            return {i: 1.0, count + i: 1.0, 2 * count + i: 1.0}

        for index, passes in enumerate(self._found):
            for name in _names_of(passes, passes.needed):
                if (i := self._index.get((index, name))) is not None:
                    rows.append((had(i), 1.0))
        for i, each in enumerate(self._candidates):
            for operand in each.operands:
                j = self._index.get((each.passes, operand))
                if j is not None and j != i:  # values of one name that depend on each other
                    rows.append(({**had(j), 2 * count + i: -1.0}, 0.0))
            for name in each.before:
                j = self._index[each.passes, name]
                rows.append(({j: 1.0, count + j: 1.0, 2 * count + i: -1.0}, 0.0))
            if each.can_be_stacked and (first := self._first[each.stack]) != i:
                rows.append(({first: 1.0, i: -1.0}, 0.0))
        for index, passes in enumerate(self._found):
            # Copies to the host hide behind the forward pass, if they do not take longer.
            seconds = _seconds_of(passes, self._rates)
            copies = {
                count + i: -each.copying / max(seconds, 1e-30)
                for i, each in enumerate(self._candidates)
                if each.passes == index and each.copying
            }
            rows.append((copies, -1.0))
        most = HOST_BYTES.get(self._rates.topology.chip.platform)
        if most is not None:
            sizes = {count + i: -each.bytes / most for i, each in enumerate(self._candidates)}
            rows.append((sizes, -1.0))
        entries = [(row, i, x) for row, (cells, _) in enumerate(rows) for i, x in cells.items()]
        if not entries:
            return []
        lines, columns, values = zip(*entries, strict=True)
        matrix = csr_array((values, (lines, columns)), shape=(len(rows), 3 * count))
        return [LinearConstraint(matrix, lb=[least for _, least in rows])]


def _names_of(passes: ForwardValues, numbers: Iterable[int]) -> list[_Key]:
    """Return the names of the forward values among numbers, each once."""
    known = (n for n in numbers if n in passes.values or n in passes.carried)
    return list(dict.fromkeys(map(passes.name_of, known)))


def _has_layers(passes: ForwardValues) -> bool:
    """Return whether a name has several values that gradients may be computed from."""
    names = list(map(passes.name_of, passes.relevant))
    return passes.iterations > 1 or len(set(names)) < len(names)


def _seconds_of(passes: ForwardValues, rates: ChipRates) -> float:
    """Return about how long the forward pass computes, in seconds."""
    return passes.iterations * sum(_seconds_again(node, rates) for node in passes.forward_nodes)


class _Candidates:
    """The candidates of two passes: values with a name, and nodes with several results.

    If the step has layers, in loops or written out, these are the values of layers alone. Others
    are few, and later passes compute the large ones of losses in chunks.
    """

    def __init__(
        self, index: int, passes: ForwardValues, rates: ChipRates, has_layers: bool
    ) -> None:
        self._index, self._passes, self._rates = index, passes, rates
        relevant = set(passes.relevant)
        named = {
            name: tuple(number for number in numbers if number in relevant)
            for name, numbers in passes.named.items()
        }
        least = 2 if has_layers and passes.iterations == 1 else 1
        self._named = {name: ns for name, ns in named.items() if len(ns) >= least}
        self._candidates = {number for numbers in self._named.values() for number in numbers}
        self._layers = LayerNumbers(passes)
        kernels = (node for node in passes.nodes if node.op.name == KERNEL)
        read = (passes.numbers.of(each) for node in kernels for each in node.operands)
        self._read_by_kernels = {number for number in read if number is not None}
        self._nodes: set[Node] = set()

    def all(self) -> Iterator[_Candidate]:
        """Yield the candidates."""
        for name, numbers in self._named.items():
            yield from self._of(name, numbers)

    def _of(self, name: ValueName, numbers: tuple[int, ...]) -> Iterator[_Candidate]:
        passes, rates = self._passes, self._rates
        stacked = tuple(map(passes.value_of, numbers))
        stack = passes.iterations * sum(value.type.bytes for value in stacked)
        traffic, copying = rates.bytes(2 * stack), rates.host(stack)
        # Outside of loops nothing hides a copy: it begins when its result is read.
        waiting = copying * (_SHARE_OF_COPIES if passes.iterations > 1 else 2)
        value = passes.values.get(numbers[0])
        if value is None:
            costs = (stack, traffic, copying, waiting, stacked)
            yield _Candidate(self._index, name, (), 0.0, (), *costs, can_be_repeated=False)
            return
        node = value.node
        again = passes.iterations * sum(
            _seconds_again(passes.values[number].node, rates) for number in numbers
        )
        if numbers[0] in self._read_by_kernels and passes.iterations > 1:
            # Kernels have fixed layouts: to and from the stack it is copied.
            traffic *= 3
            again += rates.bytes(2 * stack) if node.op.name == TRANSPOSE else 0.0
        elif node.op.name == KERNEL:
            traffic *= 2
        # The forward pass computes a value that only the backward pass had, if it is kept.
        traffic += 0.0 if passes.runs_forward(value) else again
        same, before = self._operands(numbers)
        operands: tuple[_Key, ...] = same
        if len(node.results) > 1:
            if node not in self._nodes:
                self._nodes.add(node)
                yield _Candidate(self._index, node, same, again, before, can_be_stacked=False)
            operands, before, again = (node,), (), 0.0
        repeats = all(map(passes.can_be_repeated, numbers))
        costs = (stack, traffic, copying, waiting, stacked)
        yield _Candidate(
            self._index, name, operands, again, before, *costs, can_be_repeated=repeats
        )

    def _operands(
        self, numbers: tuple[int, ...]
    ) -> tuple[tuple[ValueName, ...], tuple[ValueName, ...]]:
        """Return the names of the operands in the same layer, and in layers before."""
        same, before = dict[ValueName, None](), dict[ValueName, None]()
        for number in numbers:
            for operand in self._passes.values[number].operands:
                if operand in self._candidates:
                    found = before if self._layers.is_before(operand, number) else same
                    found[self._passes.name_of(operand)] = None
        return tuple(same), tuple(before)


def _seconds_again(node: Node, rates: ChipRates) -> float:
    """Return about how long it takes to run a node again in one iteration, in seconds."""
    name = node.op.name
    if name in VIEWS:
        return 0.0
    if name in FUSED:  # it is computed where it is read: half of what to write and read it takes
        return rates.bytes(sum(result.type.bytes for result in node.results))
    return seconds_alone(node, rates)
