"""The search for a plan: for the memory of a device, the residuals with which a step is fastest.

1. *Count.* A choice of residuals is lowered, and its seconds and peak are counted on the graph that
   one device runs (`Lowered.estimate`), which takes about a second.
2. *Choose.* `residual_choice.py` solves for the best choice whose stacks have at most so many
   bytes. How many bytes of stacks fit is found by the counted peak: from the choice with the
   smallest stacks the room grows or shrinks by what the last choice left over or lacked.
3. *Improve.* The integer program adds up operations, a timeline overlaps them. So values are tried
   one by one, the largest first, the other way round.
4. *Compile.* The best choice by its graph is compiled. The compiler's peak corrects the memory that
   the next choice may take by its graph. If the compiler computes values again since it lacks
   memory, the next choice takes less, too: 5 % less after the first such step, and after each
   further one half of what is between its peak and the smallest. Until a compiled choice fits
   without that, the next one is improved in turn. This goes on while another choice by its graph,
   times what the compiler made of the last, is faster than the best compiled step.
5. *Unroll.* The best compiled choice is compiled without loops over its layers, too, if these are
   at most `MOST_UNROLLED` and the step is expected to be faster: that takes longer to compile.
6. *Compare.* Two choices that need no search are compiled, too, as far as they are expected to fit:
   the program's own, and that which keeps everything. The last of several compilations are left
   for them.

That a plan fits is said of compiled steps alone. Every step that was compiled is kept, so that with
more memory the plan is never slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import jax

from graphdist.ir.residual_loops import outermost_loops
from graphdist.ir.types import MIRRORED
from graphdist.ir.value_names import ValueName
from graphdist.ir.written_out import written_out
from graphdist.passes.compared_plans import FOUND, OWN, ComparedPlan, ComparedPlans
from graphdist.passes.logical.choose_residuals import ChooseResiduals
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.order.unroll_loops import UnrollLoops
from graphdist.passes.plans import Keep, Plan, identity_of
from graphdist.planning.counted_cores import CountedCores, best_cores, count_cores
from graphdist.planning.plan_function import DEFAULT_COMPILATIONS
from graphdist.planning.residual_choice import ResidualProgram
from graphdist.program.stages import Traced
from graphdist.report.step_report import Report
from graphdist.runtime.targets.rates import ChipRates

_Key: TypeAlias = tuple[frozenset[tuple[ValueName, Keep]], bool]
MOST_UNROLLED = 48
"""The most layers that a search runs without a loop."""
_TRIES_FOR_ROOM = 6
_TRIES_TO_IMPROVE = 40
_POINTS = 6
"""The choices on the frontier of memory against time, besides the best one."""
_MOST_MEMORY = 1.3
"""The largest peak that is shown, as a multiple of the memory that the plan may take."""
_REPEATED = 0.005
"""The share of a step from which on what the compiler repeats shows that memory is short."""
_SHORT = 1.05
"""The memory that a step is said to need then, as a multiple of what there is."""
_LEFT_OVER = 0.01
"""A share of the memory that is not worth another try."""


@dataclass(frozen=True, eq=False)
class CountedPlan:
    """A plan with its report, counted on the graph, and after its compilation the compiled one.

    `failure` is the error of a compiler that fails on the plan, though the program is right.
    """

    plan: Plan
    counted: Report
    compiled: Report | None = None
    failure: str = ""

    @property
    def seconds(self) -> float:
        """Return the predicted seconds of the step: of the compiled one, else by its graph."""
        report = self.compiled or self.counted
        return report.timeline.seconds if report.timeline is not None else float("inf")

    @property
    def peak_bytes(self) -> int:
        """Return the peak of the compiled step, else by its graph, in bytes."""
        return (self.compiled or self.counted).needed_bytes


@dataclass
class _Compiler:
    """What the compiler made of the last steps, with loops over layers or without."""

    share: float = 1.0
    """The peak by the compiler over the peak by the graph."""
    least_share: float = 0.0
    """The least of that share, since with more memory the compiler repeats values."""
    pace: float = 1.0
    """The seconds of the compiled step over those by its graph."""


@dataclass(eq=False)
class PlanSearch:
    """The search for a plan of one step. `run` searches; the other attributes are its results."""

    traced: Traced
    memory_bytes: int
    compilations: int = DEFAULT_COMPILATIONS
    progress: Callable[[str], None] = lambda text: None
    """Called with a line of text when something has been counted or is compiled."""
    found: Callable[[Plan], None] = lambda plan: None
    """Called with each plan that is better than all before."""
    counted: dict[_Key, CountedPlan] = field(default_factory=dict)
    """All choices that were counted."""
    core_choices: Sequence[CountedCores] = ()
    """What the cores of a replica may shard, if it has several; residuals follow the best."""

    def __post_init__(self) -> None:
        """Choose what cores shard, find the forward values, and count the step's own choice."""
        if self.traced.graph.num_cores > 1:
            self.core_choices = count_cores(self.traced, self.progress)
            self.traced = best_cores(self.core_choices, self.memory_bytes).traced
        topology = self.traced.devices.topology
        assert topology is not None, "the rates of other devices are not known"
        inferred = infer_layouts(self.traced.graph)
        self._graph = identity_of(self.traced.graph)
        rates = ChipRates.of(topology)
        found = (*outermost_loops(inferred), *written_out(inferred))
        has_host = self.traced.devices.platform != "cpu"
        self._program = ResidualProgram(found, rates, uses_host=has_host)
        self._elements = sum(
            value.type.size * (1 if value.type.layout is MIRRORED else inferred.num_replicas)
            for value in inferred.inputs
        )
        self.own_residuals = ChooseResiduals(self.traced.plan.residuals).all_residuals(inferred)
        self._compilers = {False: _Compiler(), True: _Compiler()}
        layers = UnrollLoops.of_plan().lengths(inferred)
        self._may_unroll = 0 < max(layers, default=0) <= MOST_UNROLLED
        self._own = self._count(self.traced.plan.residuals, self.traced.plan.unrolled)
        everything = dict.fromkeys((name for name, _ in self._program.values), Keep.DEVICE)
        self._all = self._count(self._program.choice(everything).residuals)

    @property
    def values(self) -> Sequence[tuple[ValueName, int]]:
        """Return the values that the backward pass may need, with the bytes of their stacks."""
        return self._program.values

    @property
    def gap(self) -> float:
        """Return how much faster the choices by operations could be at most, as a share."""
        return self._program.gap

    def elements_per_second(self, each: CountedPlan) -> float:
        """Return how many elements of input the step takes in a second, on all devices."""
        return self._elements / each.seconds

    @property
    def own_now(self) -> CountedPlan:
        """Return the choice of the program itself."""
        return self._now(self._own)

    @property
    def best(self) -> CountedPlan | None:
        """Return the fastest plan that fits: of the compiled ones, if any; None if none."""
        fitting = [each for each in self.counted.values() if self._fits(each)]
        compiled = [each for each in fitting if each.compiled is not None]
        return min(compiled or fitting, key=lambda each: each.seconds, default=None)

    @property
    def frontier(self) -> list[CountedPlan]:
        """Return the choices than which no other is faster with less memory, the smallest first.

        They are compared by their graphs, compiled or not.
        """
        found: list[CountedPlan] = []
        for each in sorted(self.counted.values(), key=_by_graph):
            if not found or _by_graph(each)[1] < _by_graph(found[-1])[1]:
                found.append(each)
        return found

    @property
    def compared(self) -> ComparedPlans:
        """Return the choices to look at; those that need much more memory are left out."""
        most = _MOST_MEMORY * max(self.memory_bytes, _by_graph(self.own_now)[0])
        shown = [
            each
            for each in self.counted.values()
            if each.peak_bytes <= most and each.seconds < float("inf")
        ]
        names = {id(self.own_now): OWN, id(self.best): FOUND}
        return ComparedPlans(
            self.memory_bytes,
            tuple(
                ComparedPlan(
                    each.seconds,
                    each.peak_bytes,
                    each.compiled is not None,
                    names.get(id(each), ""),
                )
                for each in shown
            ),
            tuple(_by_graph(each) for each in self.frontier if each in shown),
        )

    def run(self) -> CountedPlan | None:
        """Search, and return the fastest plan that fits."""
        self._choose()
        self._improve()
        self._tell()
        for count in range(self.compilations):
            candidate = self._next(self.compilations - count)
            if candidate is None:
                break
            self.progress(f"compiling plan {count + 1} of at most {self.compilations}")
            self._compile(candidate)
            self._tell()
            self._choose()
            self._improve()
        return self.best

    def _tell(self) -> None:
        if self.best is not None:
            self.found(self.best.plan)

    def _now(self, each: CountedPlan) -> CountedPlan:
        """Return a choice with what has become known of it."""
        return self.counted[_key(each.plan)]

    def _count(self, residuals: Mapping[ValueName, Keep], unrolled: bool = False) -> CountedPlan:
        plan = Plan(residuals, self._graph, self.traced.plan.cores, unrolled)
        key = _key(plan)
        if key not in self.counted:
            report = self.traced.planned(plan).lower().estimate()
            self.counted[key] = CountedPlan(plan, report)
            self.progress(f"{len(self.counted)} choices counted")
        return self.counted[key]

    def _fits(self, each: CountedPlan) -> bool:
        refusal = each.failure or (each.compiled or each.counted).refusal
        return not refusal and self.needed(each) <= self.memory_bytes

    def needed(self, each: CountedPlan) -> float:
        """Return the peak that the compiler has, or is expected to have."""
        share = self._compilers[each.plan.unrolled].share
        return each.peak_bytes if each.compiled is not None else each.peak_bytes * share

    def _choose(self) -> None:
        """Count the best choices for some sizes of the stacks, and the best that fits."""
        least = self._solved(self._program.fewest_bytes)
        if least is None:
            return
        (counted, size), share = least, self._compilers[False].share
        most = int(self.memory_bytes / share) - (counted.peak_bytes - size)
        for point in range(1, _POINTS):
            self._solved(size + (most - size) * point // _POINTS)
        room = most
        for _ in range(_TRIES_FOR_ROOM):
            found = self._solved(room)
            if found is None:
                break
            left = self.memory_bytes / share - found[0].peak_bytes
            if 0 <= left < _LEFT_OVER * self.memory_bytes:
                break
            room += int(left)

    def _solved(self, most_bytes: int) -> tuple[CountedPlan, int] | None:
        """Return the best choice whose stacks have at most so many bytes, and their bytes."""
        choice = self._program.solve(max(most_bytes, self._program.fewest_bytes))
        return None if choice is None else (self._count(choice.residuals), choice.stacked_bytes)

    def _improve(self) -> None:
        """Try values the other way round, one by one, while the step by its graph gets faster."""
        tries = iter(range(_TRIES_TO_IMPROVE))
        while (best := self._to_improve()) is not None:
            for residuals in self._neighbours(best):
                if next(tries, None) is None:
                    return
                other = self._count(residuals)
                if self._fits(other) and other.seconds < best.seconds:
                    break
            else:
                return

    def _to_improve(self) -> CountedPlan | None:
        """Return the fastest choice that is not compiled, unless a compiled one is good already."""
        fitting = [each for each in self.counted.values() if self._fits(each)]
        if any(each.compiled is not None and not _repeats(each.compiled) for each in fitting):
            return None
        waiting = [each for each in fitting if each.compiled is None]
        return min(waiting, key=lambda each: each.seconds, default=None)

    def _neighbours(self, best: CountedPlan) -> Iterator[Mapping[ValueName, Keep]]:
        """Yield the choices that differ from one in one value, the largest values first.

        What the device has no room for may be on the host.
        """
        chosen = best.plan.residuals
        for name, _ in self._program.values:
            keep, kept = chosen.get(name, Keep.RECOMPUTE), {**chosen, name: Keep.DEVICE}
            if keep is not Keep.DEVICE:
                yield kept
            may_leave = keep is Keep.RECOMPUTE and self._program.may_leave(name)
            if may_leave and not self._fits(self._count(kept)):
                yield {**chosen, name: Keep.HOST}
            if keep is not Keep.RECOMPUTE and self._program.may_repeat(name):
                yield {**chosen, name: Keep.RECOMPUTE}

    def _next(self, left: int) -> CountedPlan | None:
        """Return the choice to compile next, with `left` compilations left; None if there is none.

        If none is expected to fit, the smallest may do so after all.
        """
        waiting = [
            each for each in self.counted.values() if each.compiled is None and not each.failure
        ]
        fitting = [each for each in waiting if self._fits(each)]
        best = self.best
        if not fitting:
            hopes = [each for each in waiting if each.peak_bytes <= self.memory_bytes]
            smallest = min(hopes, key=lambda each: each.peak_bytes, default=None)
            return smallest if best is None else None
        unrolled = self._unrolled(best)
        if unrolled is not None and unrolled.compiled is None and self._is_better(unrolled, best):
            return unrolled
        candidate = min(fitting, key=lambda each: each.seconds)
        everything = self._count(self._all.plan.residuals, best is not None and best.plan.unrolled)
        compared = [each for each in (self.own_now, everything) if each in fitting]
        is_first = len(waiting) == len(self.counted)
        if self._is_better(candidate, best) and (is_first or left > len(compared)):
            return candidate
        return next(iter(compared), None)

    def _unrolled(self, best: CountedPlan | None) -> CountedPlan | None:
        """Return the best compiled choice without loops over layers; None if that is no choice."""
        if not self._may_unroll or best is None or best.compiled is None or _repeats(best.compiled):
            return None
        return self._count(best.plan.residuals, unrolled=True)

    def _is_better(self, candidate: CountedPlan, best: CountedPlan | None) -> bool:
        """Return whether a choice is expected to fit, and to be faster than a compiled best one."""
        if best is None or best.compiled is None:
            return True
        pace = self._compilers[candidate.plan.unrolled].pace
        return self._fits(candidate) and candidate.seconds * pace < best.seconds

    def _compile(self, candidate: CountedPlan) -> None:
        try:
            compiled = self.traced.planned(candidate.plan).lower().report()
        except jax.errors.JaxRuntimeError as error:  # one of XLA's own; others are graphdist's
            failed = replace(candidate, failure=str(error).splitlines()[0])
            self.counted[_key(candidate.plan)] = failed
            return
        done = self.counted[_key(candidate.plan)] = replace(candidate, compiled=compiled)
        timeline, share = compiled.timeline, done.peak_bytes / candidate.peak_bytes
        short = self.memory_bytes / self._less_than(candidate)
        compiler = self._compilers[candidate.plan.unrolled]
        if _repeats(compiled):
            compiler.least_share = max(compiler.least_share, short)
        elif timeline is not None and not compiled.refusal:
            compiler.pace = done.seconds / candidate.seconds
        if compiled.refusal and done.peak_bytes <= self.memory_bytes:
            share = short  # the compiler did not say how much the step needs
        compiler.share = max(share, compiler.least_share)

    def _less_than(self, short: CountedPlan) -> float:
        """Return the peak by its graph that the choice after one that lacks memory may have."""
        compiled = [each.compiled for each in self.counted.values() if each.compiled is not None]
        if sum(map(_repeats, compiled)) < 2:
            return short.peak_bytes / _SHORT
        smallest = min(each.counted.needed_bytes for each in self.counted.values())
        return (short.peak_bytes + smallest) / 2


def _repeats(compiled: Report) -> bool:
    """Return whether the compiler computes values again by itself, since it lacks memory."""
    timeline = compiled.timeline
    return timeline is not None and timeline.repeated > _REPEATED * timeline.seconds


def _key(plan: Plan) -> _Key:
    return frozenset(plan.residuals.items()), plan.unrolled


def _by_graph(each: CountedPlan) -> tuple[int, float]:
    """Return the peak and the seconds of a choice by its graph."""
    timeline = each.counted.timeline
    return each.counted.needed_bytes, timeline.seconds if timeline else float("inf")
