"""`graphdist-compile --find-plan FILE`: find how to run a step, and write the plan.

The plan is found by `graphdist.planning`. `--vary batch=2,4,8` tries several values of a setting of
the step, `--vary cores=1,2,4` of an option of its strategy: the best plan of each is counted on its
graph, and that with the most elements of input per second is compiled. The file is written whenever
a better plan is found, so that an interrupt loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any  # Any: users' settings

from graphdist.errors import ArgumentError
from graphdist.passes.plans import Plan
from graphdist.planning.found_plan import FoundPlan
from graphdist.planning.plan_function import require_available
from graphdist.planning.planner import PlanSearch
from graphdist.runtime.files.artifact import replace_file
from graphdist.tools.chosen_strategy import ChosenStrategy
from graphdist.tools.compilation import StepOptions, traced_target
from graphdist.tools.steps import parse_settings

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>B|KiB|MiB|GiB)", re.ASCII | re.IGNORECASE)

STRATEGY_OPTIONS = ("cores", "shard_parameters")
"""The options of a strategy that `--vary` takes."""


def parse_size(text: str) -> int:
    """Return a number of bytes; raises `ArgumentError` for a text that is none.

    >>> parse_size("12GiB"), parse_size("1.5 mib")
    (12884901888, 1572864)
    """
    found = _SIZE.fullmatch(text.strip())
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    size = 0 if found is None else int(float(found["number"]) * units[found["unit"].lower()])
    if not 0 < size < 2**63:
        raise ArgumentError(
            f"{text!r} is not a size of memory", hint=f"write 12GiB: units are {', '.join(_UNITS)}"
        )
    return size


def parse_varied(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return all combinations of the values that `name=a,b` texts give to settings.

    >>> parse_varied(["batch=2,4", "size=1b"])
    [{'batch': 2, 'size': '1b'}, {'batch': 4, 'size': '1b'}]
    """
    varied: dict[str, list[Any]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name in varied:
            raise ArgumentError(f"--vary gives {name} twice: write {name}=a,b once")
        varied[name] = [
            parse_settings([f"{name}={value}"])[name] for value in values.split(",") if value
        ]
        if not varied[name]:
            raise ArgumentError(f"--vary {text!r} has no values", hint="write --vary batch=2,4,8")
    return [dict(zip(varied, values, strict=True)) for values in product(*varied.values())]


@dataclass(frozen=True)
class PlanOptions:
    """The options of the search; `memory_bytes` is None for all memory of a device."""

    path: Path
    memory_bytes: int | None
    compilations: int
    varied: Sequence[Mapping[str, Any]]

    def __post_init__(self) -> None:
        if self.compilations < 0:
            raise ArgumentError(f"--compilations is {self.compilations}, and at least 0")


def find_plan(
    target: str,
    chosen: Callable[..., ChosenStrategy],
    step: StepOptions,
    options: PlanOptions,
    progress: Callable[[str], None],
) -> FoundPlan:
    """Return the best plan for the step of a target, and write it to the file of the options.

    `chosen` returns the strategy; keywords override its `STRATEGY_OPTIONS`.
    """
    searches: list[tuple[str, PlanSearch]] = []
    refused: list[tuple[str, ArgumentError]] = []
    for settings in options.varied:
        title = ", ".join(f"{name}={value}" for name, value in settings.items())
        name = f" of {title}" if title else ""
        both = settings.keys() & step.settings.keys()
        if both:
            raise ArgumentError(f"--vary and --set both give {', '.join(sorted(both))}")
        own = {key: value for key, value in settings.items() if key not in STRATEGY_OPTIONS}
        strategy = {key: settings[key] for key in settings.keys() - own.keys()}
        progress(f"tracing{name}")
        changed = replace(step, settings={**step.settings, **own})
        try:
            traced = traced_target(target, chosen(**strategy), changed)
        except ArgumentError as error:  # cores=4 may leave too few replicas for shard_parameters=8
            refused.append((title, error))
            continue
        traced = replace(
            traced, compiler_options={**(traced.compiler_options or {}), **(step.compiler or {})}
        )
        available = traced.devices.memory_bytes
        require_available(options.memory_bytes or available, available)
        search = PlanSearch(traced, options.memory_bytes or available, 0, progress)
        search.run()
        searches.append((title, search))
    if not searches:
        raise refused[0][1]
    title, best = max(searches, key=lambda item: _worth(item[1]))
    best.compilations = options.compilations
    best.found = lambda plan: _write(options.path, replace(plan, compared=best.compared))
    best.run()
    others = [(title, search) for title, search in searches if search is not best]
    found = FoundPlan(best, title, others, [(name, error.what) for name, error in refused])
    if found.plan is None:
        options.path.unlink(missing_ok=True)  # a plan that did not fit once it was compiled
    else:
        _write(options.path, found.plan)  # with what was compared after it was found
    return found


def _worth(search: PlanSearch) -> float:
    """Return how much input a step takes in a second; below 0 if no plan fits."""
    if search.best is not None:
        return search.elements_per_second(search.best)
    return -float(min(each.peak_bytes for each in search.counted.values()))


def _write(path: Path, plan: Plan) -> None:
    replace_file(path, (plan.to_json() + "\n").encode())
