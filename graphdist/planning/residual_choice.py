"""Which residuals to keep within a number of bytes: an exact choice, by integer programming.

Every forward value that gradients may be computed from has three variables: whether the forward
loop stacks it on the device, or on the host, two binaries, and how much of it the backward loop
computes again. What is needed is stacked or computed; what is computed has its operands. The stacks
on the device stay within the bytes, and copies to the host take no longer than the forward loop
computes. Among all choices the seconds are least: of what is computed again, and of writing and
reading the stacks.

    minimize    sum of seconds(v) * computed(v) + traffic(v) * (device(v) + host(v))
    subject to  device(v) + host(v) + computed(v) >= 1              for each needed v
                device(o) + host(o) + computed(o) >= computed(v)    for each operand o of each v
                sum of bytes(v) * device(v) <= most_bytes
                sum of copying(v) * host(v) <= seconds of the forward loop

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
from graphdist.passes.plans import Keep
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.timing.graph_timeline import seconds_alone

SECONDS_TO_SOLVE = 10.0
"""After this the best choice so far is taken; larger graphs than those of decoders may need it."""

FloatArray: TypeAlias = NDArray[np.float64]
_SHARE_OF_COPIES = 0.1
"""The share of a copy to the host that counts, although copies hide behind the loops."""


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
    copying: float = 0.0
    """What it takes to copy the stack to the host, in seconds."""
    can_be_stacked: bool = True
    can_be_repeated: bool = True


class ResidualProgram:
    """The integer program of the loops of a graph."""

    def __init__(
        self, loops: Sequence[ResidualLoops], rates: ChipRates, *, uses_host: bool = False
    ) -> None:
        """Collect the values that gradients may be computed from.

        `uses_host` says whether stacks may be in the memory of the host.
        """
        self._loops, self._rates, self._uses_host = loops, rates, uses_host
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
        """Return the values and the bytes of their stacks, the largest first."""
        found = [
            (self._loops[each.loops].name_of(each.key), each.bytes)
            for each in self._candidates
            if isinstance(each.key, int)
        ]
        return sorted(found, key=lambda item: -item[1])

    def may_repeat(self, name: ValueName) -> bool:
        """Return whether the backward pass may compute a value again."""
        return any(
            loops.can_be_repeated(loops.named[name]) for loops in self._loops if name in loops.named
        )

    @cached_property
    def fewest_bytes(self) -> int:
        """Return the fewest bytes of stacks on the device that a choice may have."""
        found = self._minimize(self._sizes, [])
        assert found is not None, "all values may be stacked that cannot be computed again"
        return self._choice_of(found).stacked_bytes

    def solve(self, most_bytes: int) -> ResidualChoice | None:
        """Return the best choice whose stacks have at most so many bytes; None if there is none."""
        unit = max(self._sizes.sum(), 1.0)
        room = LinearConstraint(csr_array(self._sizes[None] / unit), ub=most_bytes / unit)
        stacking = [each.traffic for each in self._candidates]
        copying = [2 * each.traffic + _SHARE_OF_COPIES * each.copying for each in self._candidates]
        again = [each.seconds for each in self._candidates]
        found = self._minimize(np.array([*stacking, *copying, *again]), [room])
        return None if found is None else self._choice_of(found)

    @cached_property
    def _sizes(self) -> FloatArray:
        """Return the bytes of memory of the device that each variable stands for."""
        sizes = [float(each.bytes) for each in self._candidates]
        return np.array([*sizes, *[0.0] * (2 * len(sizes))])

    def choice(self, residuals: Mapping[ValueName, Keep]) -> ResidualChoice:
        """Return the choice that stacks the values that are kept, and what is needed besides."""
        return self._choice(
            [
                {loops.named[name]: keep for name, keep in residuals.items() if name in loops.named}
                for loops in self._loops
            ]
        )

    def seconds(self, residuals: Mapping[ValueName, Keep]) -> float:
        """Return the seconds of a choice, as the program adds them up."""
        found = 0.0
        for index, loops in enumerate(self._loops):
            stacks = {
                number: residuals[name]
                for name, number in loops.named.items()
                if residuals.get(name) in (Keep.DEVICE, Keep.HOST)
            }
            pending: list[int | Node] = list(loops.needed)
            seen = set[int | Node]()
            while pending:
                key = pending.pop()
                if key in seen or (index, key) not in self._index:
                    continue
                seen.add(key)
                each = self._candidates[self._index[index, key]]
                if isinstance(key, int) and key in stacks:
                    is_host = stacks[key] is Keep.HOST
                    found += each.traffic * (1 + is_host)
                    found += _SHARE_OF_COPIES * each.copying * is_host
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
        on_host = [x * self._uses_host for x in stacked]
        again = [float(each.can_be_repeated) for each in self._candidates]
        found = milp(
            costs / max(costs.sum(), 1e-30),
            integrality=np.array([1] * (2 * count) + [0] * count),
            bounds=Bounds(0, [*stacked, *on_host, *again]),
            constraints=[*self._constraints, *constraints],
            options={"time_limit": SECONDS_TO_SOLVE, "mip_rel_gap": 1e-4},
        )
        self.gap = max(self.gap, float(found.mip_gap or 0.0))
        return found.x

    def _choice_of(self, found: FloatArray) -> ResidualChoice:
        kept: list[dict[int, Keep]] = [{} for _ in self._loops]
        count = len(self._candidates)
        for i, each in enumerate(self._candidates):
            if isinstance(each.key, int) and max(found[i], found[count + i]) > 0.5:
                kept[each.loops][each.key] = Keep.DEVICE if found[i] > 0.5 else Keep.HOST
        return self._choice(kept)

    def _choice(self, kept: Sequence[Mapping[int, Keep]]) -> ResidualChoice:
        residuals: dict[ValueName, Keep] = {}
        stacked_bytes = 0
        for index, loops in enumerate(self._loops):
            chosen = kept[index]
            stacks = set(
                loops.stacks_for({n for n, keep in chosen.items() if keep is not Keep.RECOMPUTE})
            )
            for number in loops.relevant:
                name = loops.name_of(number)
                if number in stacks:
                    is_host = chosen.get(number) is Keep.HOST
                    residuals[name] = Keep.HOST if is_host else Keep.DEVICE
                    size = self._candidates[self._index[index, number]].bytes
                    stacked_bytes += 0 if is_host else size
                elif number in loops.stacked and loops.can_be_repeated(number):
                    residuals[name] = Keep.RECOMPUTE
        return ResidualChoice(residuals, stacked_bytes)

    def _closure(self) -> list[LinearConstraint]:
        """Return the constraints that all choices satisfy."""
        count = len(self._candidates)
        rows: list[tuple[dict[int, float], float]] = []

        def had(i: int) -> dict[int, float]:
            return {i: 1.0, count + i: 1.0, 2 * count + i: 1.0}

        for index, loops in enumerate(self._loops):
            for number in loops.needed:
                if (i := self._index.get((index, number))) is not None:
                    rows.append((had(i), 1.0))
        for i, each in enumerate(self._candidates):
            for operand in each.operands:
                if (j := self._index.get((each.loops, operand))) is not None:
                    rows.append(({**had(j), 2 * count + i: -1.0}, 0.0))
        for index, loops in enumerate(self._loops):
            # Copies to the host hide behind the forward loop, if they do not take longer.
            seconds = _seconds_of(loops, self._rates)
            copies = {
                count + i: -each.copying / max(seconds, 1e-30)
                for i, each in enumerate(self._candidates)
                if each.loops == index and each.copying
            }
            rows.append((copies, -1.0))
        entries = [(row, i, x) for row, (cells, _) in enumerate(rows) for i, x in cells.items()]
        if not entries:
            return []
        lines, columns, values = zip(*entries, strict=True)
        matrix = csr_array((values, (lines, columns)), shape=(len(rows), 3 * count))
        return [LinearConstraint(matrix, lb=[least for _, least in rows])]


def _seconds_of(loops: ResidualLoops, rates: ChipRates) -> float:
    """Return about how long the forward loop computes, in seconds."""
    nodes = loops.forward.body.nodes
    return loops.forward.length * sum(_seconds_again(node, rates) for node in nodes)


def _candidates(index: int, loops: ResidualLoops, rates: ChipRates) -> Iterator[_Candidate]:
    """Yield the values of a pair of loops, and the nodes with several results."""
    nodes: set[Node] = set()
    of_kernels = _read_by_kernels(loops)
    for number in loops.relevant:
        stack = loops.forward.length * loops.value_of(number).type.bytes
        traffic, copying = rates.bytes(2 * stack), rates.host(stack)
        value = loops.values.get(number)
        if value is None:
            costs = (stack, traffic, copying)
            yield _Candidate(index, number, (), 0.0, *costs, can_be_repeated=False)
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
        runs_forward = value.is_forward or node in loops.fuller.values()
        traffic += 0.0 if runs_forward else again
        if len(node.results) > 1:
            if node not in nodes:
                nodes.add(node)
                yield _Candidate(index, node, value.operands, again, can_be_stacked=False)
            operands, again = (node,), 0.0
        repeats = loops.can_be_repeated(number)
        costs = (stack, traffic, copying)
        yield _Candidate(index, number, operands, again, *costs, can_be_repeated=repeats)


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
