"""Which residuals to keep within a number of bytes: an exact choice, by integer programming.

Every forward value that gradients may be computed from has two variables: whether the forward loop
stacks it, a binary, and how much of it the backward loop computes again. What is needed is stacked
or computed; what is computed has its operands. The stacks stay within the bytes. Among all choices
the seconds are least: of what is computed again, and of writing and reading the stacks.

    minimize    sum of seconds(v) * computed(v) + traffic(v) * stacked(v)
    subject to  stacked(v) + computed(v) >= 1             for each needed v
                stacked(o) + computed(o) >= computed(v)   for each operand o of each v
                sum of bytes(v) * stacked(v) <= most_bytes

With the stacks given, the rest is a closure, so that `computed` is 0 or 1 without being asked to
be. The program is that of Checkmate (Jain et al., MLSys 2020, section 4) without its order of
execution, which XLA chooses. `scipy.optimize.milp` solves it. The seconds are those of operations
alone: the planner compares the choices by the timeline of the whole step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from graphdist.ir.fused_values import FUSED, VIEWS
from graphdist.ir.graph import Node
from graphdist.ir.kernels import KERNEL
from graphdist.ir.residual_loops import ResidualLoops
from graphdist.ir.traffic import TRANSPOSE
from graphdist.ir.value_names import ValueName
from graphdist.passes.plan import Keep
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.timing.graph_timeline import seconds_alone

SECONDS_TO_SOLVE = 10.0
"""After this the best choice so far is taken; larger graphs than those of decoders may need it."""

FloatArray: TypeAlias = NDArray[np.float64]
_KEPT = Keep.DEVICE


@dataclass(frozen=True, slots=True)
class ResidualChoice:
    """The values that wait on the devices, by their names, and the bytes of their stacks."""

    residuals: Mapping[ValueName, Keep]
    stacked_bytes: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A value of a pair of loops, with the bytes of its stack and the seconds of its two ways.

    A node with several results is a candidate of its own, which cannot be stacked: its results are
    computed from it, so that it counts once.
    """

    loops: int
    key: int | Node
    """The number of the value, or the node."""
    operands: tuple[int | Node, ...]
    seconds: float
    """What it takes to compute it again."""
    bytes: int = 0
    traffic: float = 0.0
    """What it takes to write and read the stack, in seconds."""
    can_be_stacked: bool = True
    can_be_repeated: bool = True


class ResidualProgram:
    """The integer program of the loops of a graph."""

    def __init__(self, loops: Sequence[ResidualLoops], rates: ChipRates) -> None:
        """Collect the values that gradients may be computed from."""
        self._loops = loops
        self._candidates = [
            candidate
            for index, each in enumerate(loops)
            for candidate in _candidates(index, each, rates)
        ]
        self._index = {(each.loops, each.key): i for i, each in enumerate(self._candidates)}
        self._constraints = self._closure()
        self.gap = 0.0
        """How much faster the best choices could be at most, as a share; 0 if they are proven."""

    @property
    def values(self) -> Sequence[tuple[ValueName, int]]:
        """Return the values that may be computed again and the bytes of their stacks, by bytes."""
        found = [
            (self._loops[each.loops].name_of(each.key), each.bytes)
            for each in self._candidates
            if each.can_be_repeated and isinstance(each.key, int)
        ]
        return sorted(found, key=lambda item: -item[1])

    @cached_property
    def fewest_bytes(self) -> int:
        """Return the fewest bytes of stacks that a choice may have."""
        sizes = np.array([each.bytes for each in self._candidates], float)
        found = self._minimize(np.concatenate([sizes, np.zeros(len(sizes))]), [])
        assert found is not None, "all values may be stacked that cannot be computed again"
        return self._choice_of(found).stacked_bytes

    def solve(self, most_bytes: int) -> ResidualChoice | None:
        """Return the best choice whose stacks have at most so many bytes; None if there is none."""
        sizes = np.array([each.bytes for each in self._candidates], float)
        unit = max(sizes.sum(), 1.0)
        row = np.concatenate([sizes, np.zeros(len(sizes))])[None] / unit
        room = LinearConstraint(csr_array(row), ub=most_bytes / unit)
        costs = [each.traffic for each in self._candidates]
        costs += [each.seconds for each in self._candidates]
        found = self._minimize(np.array(costs), [room])
        return None if found is None else self._choice_of(found)

    def choice(self, residuals: Mapping[ValueName, Keep]) -> ResidualChoice:
        """Return the choice that stacks the values that are kept, and what is needed besides."""
        return self._choice(
            [
                {number for name, number in loops.named.items() if residuals.get(name) is _KEPT}
                for loops in self._loops
            ]
        )

    def seconds(self, residuals: Mapping[ValueName, Keep]) -> float:
        """Return the seconds of a choice, as the program adds them up."""
        found = 0.0
        for index, loops in enumerate(self._loops):
            stacks = {
                number for name, number in loops.named.items() if residuals.get(name) is _KEPT
            }
            pending: list[int | Node] = list(loops.needed)
            seen = set[int | Node]()
            while pending:
                key = pending.pop()
                if key in seen or (index, key) not in self._index:
                    continue
                seen.add(key)
                each = self._candidates[self._index[index, key]]
                if key in stacks:
                    found += each.traffic
                else:
                    found += each.seconds
                    pending += each.operands
        return found

    def _minimize(
        self, costs: FloatArray, constraints: Sequence[LinearConstraint]
    ) -> FloatArray | None:
        """Return the best values of the variables; None if nothing satisfies the constraints."""
        count = len(self._candidates)
        most = [float(each.can_be_stacked) for each in self._candidates]
        most += [float(each.can_be_repeated) for each in self._candidates]
        if not count:
            return np.zeros(0)
        found = milp(
            costs / max(costs.sum(), 1e-30),
            integrality=np.array([1] * count + [0] * count),
            bounds=Bounds(0, most),
            constraints=[*self._constraints, *constraints],
            options={"time_limit": SECONDS_TO_SOLVE, "mip_rel_gap": 1e-4},
        )
        self.gap = max(self.gap, float(found.mip_gap or 0.0))
        return found.x

    def _choice_of(self, found: FloatArray) -> ResidualChoice:
        numbers: list[set[int]] = [set() for _ in self._loops]
        for each, x in zip(self._candidates, found, strict=False):
            if x > 0.5 and isinstance(each.key, int):
                numbers[each.loops].add(each.key)
        return self._choice(numbers)

    def _choice(self, kept: Sequence[set[int]]) -> ResidualChoice:
        residuals: dict[ValueName, Keep] = {}
        stacked_bytes = 0
        for index, loops in enumerate(self._loops):
            stacks = set(loops.stacks_for(kept[index]))
            for number in loops.relevant:
                if number in stacks:
                    residuals[loops.name_of(number)] = Keep.DEVICE
                    stacked_bytes += self._candidates[self._index[index, number]].bytes
                elif number in loops.stacked and loops.can_be_repeated(number):
                    residuals[loops.name_of(number)] = Keep.RECOMPUTE
        return ResidualChoice(residuals, stacked_bytes)

    def _closure(self) -> list[LinearConstraint]:
        """Return the constraints that all choices satisfy."""
        count = len(self._candidates)
        rows: list[tuple[dict[int, float], float]] = []
        for index, loops in enumerate(self._loops):
            for number in loops.needed:
                if (i := self._index.get((index, number))) is not None:
                    rows.append(({i: 1.0, count + i: 1.0}, 1.0))
        for i, each in enumerate(self._candidates):
            for operand in each.operands:
                if (j := self._index.get((each.loops, operand))) is not None:
                    rows.append(({j: 1.0, count + j: 1.0, count + i: -1.0}, 0.0))
        if not rows:
            return []
        entries = [(row, i, x) for row, (cells, _) in enumerate(rows) for i, x in cells.items()]
        lines, columns, values = zip(*entries, strict=True)
        matrix = csr_array((values, (lines, columns)), shape=(len(rows), 2 * count))
        return [LinearConstraint(matrix, lb=[least for _, least in rows])]


def _candidates(index: int, loops: ResidualLoops, rates: ChipRates) -> Iterator[_Candidate]:
    """Yield the values of a pair of loops, and the nodes with several results."""
    nodes: set[Node] = set()
    of_kernels = _read_by_kernels(loops)
    for number in loops.relevant:
        stack = loops.forward.length * loops.value_of(number).type.bytes
        traffic = rates.bytes(2 * stack)
        value = loops.values.get(number)
        if value is None:
            yield _Candidate(index, number, (), 0.0, stack, traffic, can_be_repeated=False)
            continue
        node = value.node
        operands: tuple[int | Node, ...] = value.operands
        again = loops.forward.length * _seconds_again(node, rates)
        if number in of_kernels:  # kernels have fixed layouts: to and from the stack it is copied
            traffic *= 3
            again += rates.bytes(2 * stack) if node.op.name == TRANSPOSE else 0.0
        elif node.op.name == KERNEL:
            traffic *= 2
        # The forward loop computes a value that only the backward loop had, if it is kept.
        traffic += 0.0 if value.is_forward else again
        if len(node.results) > 1:
            if node not in nodes:
                nodes.add(node)
                yield _Candidate(index, node, value.operands, again, can_be_stacked=False)
            operands, again = (node,), 0.0
        repeats = loops.can_be_repeated(number)
        yield _Candidate(index, number, operands, again, stack, traffic, can_be_repeated=repeats)


def _read_by_kernels(loops: ResidualLoops) -> set[int]:
    """Return the numbers of the values that are operands of kernels in either body."""
    bodies = (loops.forward.body, loops.backward.body)
    kernels = (node for body in bodies for node in body.nodes if node.op.name == KERNEL)
    numbers = (loops.numbers.of(each) for node in kernels for each in node.operands)
    return {number for number in numbers if number is not None}


def _seconds_again(node: Node, rates: ChipRates) -> float:
    """Return about how long it takes to run a node again in one iteration, in seconds."""
    name = node.op.name
    if name in VIEWS:
        return 0.0
    if name in FUSED:  # it is computed where it is read: half of what to write and read it takes
        return rates.bytes(sum(result.type.bytes for result in node.results))
    return seconds_alone(node, rates)
