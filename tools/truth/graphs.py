"""Predictions from graphs, which compile nothing, beside those from compiled modules.

Both have the constants of `chip_timing.py`. What counts besides the difference is the order: a pair
of steps of which one takes over 5 % longer by the modules should be in that order by the graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from graphdist.errors import GraphdistError
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.tools.truth.runs import CompiledRun, PublishedRun, graph_seconds

_DIFFERS = 1.05


@dataclass(frozen=True)
class Counted:
    """A run with the predicted seconds of its compiled module and of its graph."""

    run: PublishedRun
    compiled: float
    counted: float

    @property
    def difference(self) -> float:
        """Return the relative difference: above 0 if the graph's prediction is longer."""
        return self.counted / self.compiled - 1


def counted(runs: Sequence[CompiledRun]) -> Iterator[Counted]:
    """Yield the runs with both predictions; print why others have none."""
    for each in runs:
        try:
            seconds = graph_seconds(each.run)
        except GraphdistError as error:  # the topology needs a package
            print(f"row {each.run.row}, {each.run.title}: {error.what}", file=sys.stderr)
        else:
            yield Counted(each.run, each.seconds(TIMINGS[each.run.chip.name]), seconds)


def differences_line(results: Sequence[Counted]) -> str:
    """Return the differences and the pairs in the same order, in words.

    >>> from types import SimpleNamespace
    >>> runs = [SimpleNamespace(compiled=x, difference=d, counted=x * (1 + d))
    ...         for x, d in ((1.0, 0.1), (1.2, -0.1), (4.0, 0.02))]
    >>> differences_line(runs)
    'median difference 10.0%, largest 10.0%; 2 of 3 pairs in the same order'
    """
    sizes = [abs(each.difference) for each in results]
    pairs = [
        (one.counted < other.counted) == (one.compiled < other.compiled)
        for one, other in combinations(results, 2)
        if max(one.compiled, other.compiled) > _DIFFERS * min(one.compiled, other.compiled)
    ]
    return (
        f"median difference {median(sizes):.1%}, largest {max(sizes):.1%}; "
        f"{sum(pairs)} of {len(pairs)} pairs in the same order"
    )


def graphs_table(results: Sequence[Counted]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield "| row | model, hardware, rows x length per chip | compiled | graph | difference |"
    yield "| --- | --- | --- | --- | --- |"
    for each in results:
        yield (
            f"| {each.run.row} | {each.run.title} | {each.compiled:.3g} s "
            f"| {each.counted:.3g} s | {each.difference:+.1%} |"
        )
    yield ""
    yield f"{len(results)} rows: {differences_line(results)}."
