"""What a search for a plan found, as text and as JSON."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import isinf
from typing import Any  # Any: JSON

from graphdist.passes.cores.variable_axes import VariableAxis
from graphdist.passes.plans import Keep, Plan
from graphdist.planning.planner import CountedPlan, PlanSearch
from graphdist.report.amounts import count_text, record_table, size_text, time_text
from graphdist.report.frontier_picture import frontier_picture

_MOST_VALUES = 40
_MOST_CHOICES = 8
_PROVEN = 1e-3
_WORDS = {Keep.DEVICE: "kept", Keep.HOST: "on host", Keep.RECOMPUTE: "recomputed"}


@dataclass(frozen=True, eq=False)
class FoundPlan:
    """A plan for a step, the choices that were compared, and how they were predicted.

    `title` says which step it is; `others` are the searches for its other settings, and `refused`
    the settings that its program or strategy refuses, with the reasons.
    """

    search: PlanSearch
    title: str = ""
    others: Sequence[tuple[str, PlanSearch]] = ()
    refused: Sequence[tuple[str, str]] = ()

    @property
    def best(self) -> CountedPlan | None:
        """Return the fastest plan that fits, with its reports; None if none fits."""
        return self.search.best

    @property
    def plan(self) -> Plan | None:
        """Return the plan to give to `gd.function(plan=..)`; None if none fits."""
        best, search = self.best, self.search
        return None if best is None else replace(best.plan, compared=search.compared)

    @property
    def fits(self) -> bool:
        """Return whether a plan was found that fits: compiled, if anything was compiled."""
        return self.best is not None

    def to_json(self) -> dict[str, Any]:
        """Return the plan, the choices beside it and their reports as JSON."""
        best = self.best
        return {
            "title": self.title,
            "fits": self.fits,
            "memory_bytes": self.search.memory_bytes,
            "plan": None if best is None else best.plan.to_items(),
            "report": None if best is None else (best.compiled or best.counted).to_json(),
            "own": _figures(self.search, self.search.own_now),
            "frontier": [_figures(self.search, each) for each in self.search.frontier],
            "cores": [
                {
                    "seconds": each.seconds,
                    "peak_bytes": each.report.needed_bytes,
                    "plan": each.traced.plan.to_items(),
                }
                for each in self.search.core_choices
            ],
            "others": {
                name: None if other.best is None else _figures(other, other.best)
                for name, other in self.others
            },
            "refused": dict(self.refused),
        }

    @property
    def picture(self) -> str:
        """Return the memory and the time of the choices as SVG."""
        return frontier_picture(self.search.compared, self._step)

    def _repr_html_(self) -> str:
        # As an image, since styles of SVG inside of a page apply to the whole page.
        image = b64encode(self.picture.encode()).decode()
        return (
            f'<img alt="memory and time" src="data:image/svg+xml;base64,{image}">'
            f"<pre>{escape(str(self))}</pre>"
        )

    @property
    def _step(self) -> str:
        search = self.search
        where = f"{search.traced.graph.name} on {search.traced.devices}"
        return f"{where}, {self.title}" if self.title else where

    def __str__(self) -> str:
        best = self.best
        lines = [self._step, "", self._verdict(), "", *self._table(), ""]
        lines += self._cores()
        if best is not None:
            lines += self._values(best)
        return "\n".join(lines).rstrip()

    def _verdict(self) -> str:
        best, room = self.best, size_text(self.search.memory_bytes)
        if best is None:
            search = self.search
            least = min(search.counted.values(), key=search.needed)
            if least.failure and search.needed(least) <= search.memory_bytes:
                return f"NO PLAN: XLA fails on what fits {room}: {least.failure}"
            kind = "by the compiler" if least.compiled else "by its graph"
            if not least.compiled and any(each.compiled for each in search.counted.values()):
                kind = "by what the compiler made of the compiled ones"
            missing = search.needed(least) - search.memory_bytes
            return (
                f"NO PLAN FITS {room}: with the fewest residuals the step needs "
                f"{size_text(search.needed(least))}, {missing:,.0f} bytes too much, {kind}"
            )
        report = best.compiled or best.counted
        figures = f"{time_text(best.seconds)} a step, {size_text(best.peak_bytes)} of {room}"
        limit = report.timeline.bottleneck if report.timeline else ""
        said = "FITS, compiled" if best.compiled else "NOT COMPILED, counted on the graph"
        return f"PLAN: {figures} ({said}); what takes most of the time: {limit}"

    def _table(self) -> Iterator[str]:
        search = self.search
        own, best = search.own_now, self.best
        rows = list(dict.fromkeys([own, *search.frontier, *([best] if best else [])]))
        rows.sort(key=lambda each: each.peak_bytes)
        records = []
        for each in rows:
            mark = "the plan" if each is best else self._own if each is own else ""
            records.append({"": mark, **self._cells(search, each)})
        for name, other in self.others:
            cells = dict.fromkeys(records[0], "") | {"": f"with {name}"}
            if other.best is None:
                cells |= {"step by graph": "does not fit"}
            else:
                cells |= self._cells(other, other.best)
            records.append(cells)
        unused = [name for name in records[0] if not any(each[name] for each in records)]
        yield from record_table(
            [{name: text for name, text in each.items() if name not in unused} for each in records]
        )
        counted = len(search.counted)
        compiled = sum(each.compiled is not None for each in search.counted.values())
        choices = "1 choice" if counted == 1 else f"{counted} choices"
        yield f"{choices} counted, {compiled} compiled; times are PREDICTED, not measured"
        yield from (f"not with {name}: {reason}" for name, reason in self.refused)
        if isinf(search.gap):
            yield "no choice of residuals was proven the best: the solver found none in time"
        elif search.gap > _PROVEN:
            yield f"no choice of residuals was proven the best: one may be {search.gap:.1%} faster"

    @property
    def _own(self) -> str:
        """Return what the program's own choice of residuals is called."""
        return "its own residuals" if self._has_other_cores else "the program's own"

    @property
    def _has_other_cores(self) -> bool:
        """Return whether the cores shard something else than the program says."""
        search = self.search
        chosen = next((c for c in search.core_choices if c.traced is search.traced), None)
        return chosen is not None and chosen.axes is not None

    def _cells(self, search: PlanSearch, each: CountedPlan) -> dict[str, str]:
        counted, compiled = each.counted, each.compiled
        cells = {
            "step by graph": time_text(counted.timeline.seconds) if counted.timeline else "",
            "peak by graph": size_text(counted.needed_bytes),
            "step compiled": _step_compiled(each),
            "peak compiled": size_text(compiled.needed_bytes)
            if compiled and not compiled.is_refused_without_sizes
            else "",
        }
        if self.others:  # steps of different inputs
            cells["elements/s"] = count_text(search.elements_per_second(each))
        return cells

    def _cores(self) -> Iterator[str]:
        """Yield the choices of what cores shard, the fastest first."""
        choices = sorted(self.search.core_choices, key=lambda each: each.seconds)
        if not choices:
            return
        yield "what the cores of a replica shard, by its graph, without a choice of residuals"
        records = []
        for each in choices[:_MOST_CHOICES]:
            is_best = each.traced is self.search.traced
            records.append(
                {
                    "": "the plan" if is_best else "",
                    "step": time_text(each.seconds),
                    "peak": size_text(each.report.needed_bytes),
                    "sharded": "as the program says" if each.axes is None else _named(each.axes),
                }
            )
        yield from record_table(records)
        if len(choices) > _MOST_CHOICES:
            yield f"and {len(choices) - _MOST_CHOICES} slower ones"
        yield ""

    def _values(self, best: CountedPlan) -> Iterator[str]:
        sizes = dict(self.search.values)
        own = self.search.own_residuals
        if not sizes:
            yield "nothing to choose: no backward pass of the step needs values of a forward pass"
            return
        changed = [
            (name, keep) for name, keep in best.plan.residuals.items() if own.get(name) is not keep
        ]
        if best.plan.unrolled and not self.search.traced.plan.unrolled:
            yield "the plan runs layers one after another, without a loop"
        elif not changed:
            but = " but what the cores shard" if self._has_other_cores else ""
            yield f"the plan changes nothing{but}"
        if not changed:
            return
        yield "what the plan changes: values of the forward pass, and the bytes of all with a name"
        changed.sort(key=lambda item: -sizes.get(item[0], 0))
        for name, keep in changed[:_MOST_VALUES]:
            yield f"  {_WORDS[keep]:<10}  {size_text(sizes.get(name, 0)):>10}  {name}"
        if len(changed) > _MOST_VALUES:
            yield f"  and {len(changed) - _MOST_VALUES} smaller ones"


def _named(axes: Sequence[VariableAxis]) -> str:
    """Return the axes by the first of their variables."""
    return "; ".join(map(str, axes)) or "nothing"


def _figures(search: PlanSearch, each: CountedPlan) -> dict[str, Any]:
    return {
        "seconds": each.seconds,
        "elements_per_second": search.elements_per_second(each),
        "peak_bytes": each.peak_bytes,
        "is_compiled": each.compiled is not None,
        "plan": each.plan.to_items(),
    }


def _step_compiled(each: CountedPlan) -> str:
    """Return the seconds of the compiled step, or what the compiler says in their place."""
    compiled = each.compiled
    if compiled is None:
        return "XLA fails" * bool(each.failure)
    if compiled.refusal:
        return "does not fit"
    return time_text(compiled.timeline.seconds) if compiled.timeline else ""
