"""What stands for compilers, browsers, workers and measurements where command lines are tested.

Each function replaces some, and has them record what they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # Any: what is recorded of calls

import pytest

import graphdist as gd
from graphdist.program.stages import Lowered, Traced
from graphdist.report.step_report import Report
from graphdist.report.step_timeline import StepTimeline
from graphdist.tools import compile, measure, run, viz
from graphdist.tools.bench import command as bench
from graphdist.tools.bench import history
from graphdist.tools.bench.overheads import OVERHEADS
from graphdist.tools.chosen_strategy import ChosenStrategy
from graphdist.tools.find_plan import PlanOptions
from graphdist.tools.truth import command as truth
from graphdist.viz.formats import render


class StubReport(Report):
    """A report that prints as one line."""

    def __str__(self) -> str:
        return f"report on {self.target}"


def report(**changed: Any) -> Report:
    timeline = StepTimeline(
        seconds=1e-3,
        low=1e-3,
        high=1e-3,
        compute=1e-3,
        exposed=0.0,
        idle=0.0,
        utilization=0.5,
        model_flops=1,
        collectives=(),
        lines=(),
        fitted="",
    )
    figures = dict.fromkeys(("argument", "output", "alias", "temp", "needed"), 8)
    return StubReport(
        **{
            **{f"{name}_bytes": size for name, size in figures.items()},
            **{"name": "step", "target": "chips", "num_devices": 4, "available_bytes": 16},
            **{"flops": {}, "memory_traffic": 1, "collectives": (), "module_collectives": ()},
            **{"constants": (), "timeline": timeline, **changed},
        }
    )


def chosen_here(seen: list[Any]) -> Callable[..., ChosenStrategy]:
    """Return what chooses CPU devices in place of a topology's."""

    def chosen(topology: Any, shard_parameters: Any, cores: int) -> ChosenStrategy:
        seen.append(("chosen", str(topology), shard_parameters, cores))
        devices = ["cpu:0", "cpu:1", "cpu:2"]
        return ChosenStrategy("--topology", lambda: gd.MirroredStrategy(devices))

    return chosen


def without_compilers(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    def compiled(lowered: Lowered, options: Any = None) -> Any:
        seen.append(("compiled", str(lowered.graph), options))
        return SimpleNamespace(report=report)

    def estimated(lowered: Lowered) -> Any:
        seen.append(("estimated", str(lowered.graph)))
        return report()

    def found(target: str, chosen: Any, step: Any, options: PlanOptions, progress: Any) -> Any:
        seen.append(("found", target, chosen().option, step, options))
        return SimpleNamespace(fits=True, title="", to_json=dict, picture="<svg/>")

    patch.setattr(Lowered, "compile", compiled)
    patch.setattr(Lowered, "estimate", estimated)
    patch.setattr(compile, "find_plan", found)
    patch.setattr(compile, "replace_file", lambda path, content: seen.append((path, content)))
    without_plans(patch, seen)
    patch.setattr(compile, "chosen_for", chosen_here(seen))
    patch.setattr(compile, "trace_of", lambda timeline, name: {})
    patch.setattr(gd.aot, "save", lambda *args, **kwargs: seen.append((args[0], kwargs)))
    patch.setattr(compile, "variable_table", lambda path, as_json: f"{path} {as_json}")


def without_plans(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    def planned(traced: Traced, plan: gd.Plan) -> Traced:
        seen.append(("planned", plan))
        return traced

    patch.setattr(Traced, "planned", planned)


def without_browser(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    def compiled(lowered: Lowered, options: Any = None) -> Any:
        seen.append(("compiled", options))
        return lowered

    def reported(lowered: Lowered, options: Any = None) -> None:
        seen.append(("reported", options))

    def opened(*args: Any) -> str:
        seen.append(("opened", *args))
        return "page"

    patch.setattr(Lowered, "compile", compiled)
    patch.setattr(Lowered, "report", reported)
    without_plans(patch, seen)
    patch.setattr(viz, "chosen_for", chosen_here(seen))
    patch.setattr(viz, "render", lambda stage, form: f"{form} " + render(stage, "stablehlo"))
    patch.setattr(viz, "open_page", opened)
    patch.setattr(viz, "open_file", opened)


def without_measuring(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    def measured(strategy: Any, step: Any, steps: int, below: int) -> measure.MeasuredStep:
        seen.append(("measured", strategy, str(step[1]), steps, below))
        return measure.MeasuredStep("chip", 8, steps, 1.0, None)

    def predicted(target: str, settings: Any, chosen: ChosenStrategy) -> dict[str, Any]:
        seen.append(("predicted", target, settings, chosen.option))
        return {"predicted_seconds": 2.0}

    def profiled(path: Path, report: str | None) -> Any:
        seen.append(("profiled", str(path), report))
        return measure.MeasuredStep("profile", 8, 1, 1.0, None)

    patch.setattr(measure, "compared_profile", profiled)
    patch.setattr(measure, "MirroredStrategy", lambda **options: _Devices(options))
    patch.setattr(measure, "measure", measured)
    patch.setattr(measure, "predicted", predicted)


class _Devices:
    """Stands for a strategy of eight devices."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.devices = SimpleNamespace(devices=range(8))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Devices) and other.options == self.options

    __hash__ = None  # type: ignore[assignment]


def without_predicting(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    def kept(found: Any, modules: Any) -> None:
        seen.append(("kept", found.row, modules))

    def compiled(found: Any, modules: Any, *, again: bool) -> None:
        seen.append(("compiled", found.row, modules, again))

    def counted(runs: Any) -> list[Any]:
        seen.append("counted")
        return []

    patch.setattr(truth, "kept_run", kept)
    patch.setattr(truth, "compiled_run", compiled)
    patch.setattr(truth, "write_page", lambda folder, found: seen.append(("page", folder)))
    patch.setattr(truth, "counted", counted)
    patch.setattr(truth, "write_table", lambda folder, name, _: seen.append((name, folder)))


def without_benchmarks(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    def measured(program: Any, strategy: Any, systems: Any, effort: Any, *, is_tiny: bool) -> Any:
        seen.append(("measured", program.name, strategy.num_replicas_in_sync, systems, effort))
        seen.append(is_tiny)
        return []

    def compiled_on(program: Any, strategy: Any, systems: Any) -> Any:
        seen.append(("compiled", program, systems))
        return {}, {}

    def elsewhere(place: str) -> list[Any]:
        seen.append(("passes", place))
        return []

    def dispatch() -> list[Any]:
        seen.append("dispatch")
        return []

    patch.setattr("graphdist.config.set_logical_cpu_devices", lambda number: None)
    patch.setattr(bench, "measured", measured)
    patch.setattr(bench, "compiled_on", compiled_on)
    patch.setattr(bench, "effects_elsewhere", elsewhere)
    patch.setitem(OVERHEADS, "dispatch", dispatch)
    patch.setattr(bench, "is_installed", lambda name: True)
    strategy = SimpleNamespace(num_replicas_in_sync=4)
    patch.setattr(bench, "strategy_for", lambda topology, **options: strategy)
    patch.setattr(bench, "program_table", lambda *_: "")
    patch.setattr(bench, "passes_table", lambda *_: "")
    patch.setattr(history, "FIGURES", Path("figures.jsonl"))
    patch.setattr(history, "record_of", lambda found: found.to_json())
    patch.setattr(history, "append", lambda path, record: seen.append((path, record)))


def without_workers(patch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    def job(command: list[str], addresses: Any, *others: Any) -> Any:
        seen.append((command[1:], addresses, others[:-1]))
        return SimpleNamespace(run=lambda: 1, signal_to_end=None)

    patch.setattr(run, "Job", job)

    def ports(count: int, host: str) -> list[Any]:
        return [SimpleNamespace(number=number, close=lambda: None) for number in range(count)]

    patch.setattr(run, "reserved_ports", ports)
