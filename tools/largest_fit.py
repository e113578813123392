"""`graphdist-compile --fit`: the largest value of a setting with which a step fits in memory."""

from __future__ import annotations

import re
from collections.abc import Collection

from graphdist.errors import ArgumentError
from graphdist.report.step_report import Report
from graphdist.runtime.targets.topologies import Topology
from graphdist.tools.comparisons import Reporter, Survey
from graphdist.tracing.user_lines import here

_RANGE = re.compile(r"(\w+)=(\d{1,18})\.\.(\d{1,18})")


def find_largest(
    text: str, topology: Topology, report: Reporter, settings: Collection[str] = ()
) -> Survey:
    """Return the survey of the largest value of a setting with which the step fits, by bisection.

    A step that fits with a value is assumed to fit with every smaller one. `settings` are those
    that have values already.
    """
    match = _RANGE.fullmatch(text)
    if match is None or int(match[2]) > int(match[3]) or int(match[2]) < 1:
        raise ArgumentError(
            f"{text!r} is not of the form name=low..high", source=here(), hint="such as batch=1..64"
        )
    name, low, high = match[1], int(match[2]), int(match[3])
    if name in settings:
        raise ArgumentError(f"--fit and --set both give {name}: leave one of them out")
    tried: dict[int, Report] = {}

    def fits(value: int) -> bool:
        tried[value] = report(topology, **{name: value})
        return tried[value].fits

    best = 0
    if fits(low):
        best = low
        if high > low and fits(high):
            best = low = high
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                best = low = middle
            else:
                high = middle
    verdict = f"largest that fits: {name}={best}" if best else f"not even {name}={low} fits"
    reports = tuple((f"{name}={value}", tried[value]) for value in sorted(tried))
    return Survey(f"{name} on {topology}", reports, bool(best), verdict)
