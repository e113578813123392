"""`gd.plan`: find a plan for a function and its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any  # Any: users' arguments

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.program.function import BoundFunction, Function
from graphdist.program.stages import Traced
from graphdist.report.amounts import size_text
from graphdist.values.distributed import type_name

if TYPE_CHECKING:
    from graphdist.planning.found_plan import FoundPlan

DEFAULT_COMPILATIONS = 4


def require_available(memory_bytes: int, available: int) -> None:
    """Raise `ArgumentError` for more memory than a device has."""
    if memory_bytes > available:
        raise ArgumentError(
            f"a plan for {size_text(memory_bytes)} is asked for, and a device has "
            f"{size_text(available)}",
            hint="leave the memory out, and the plan is for all of it",
        )


def plan(
    function: Function | BoundFunction | Traced,
    *args: Any,
    memory_bytes: int | None = None,
    compilations: int = DEFAULT_COMPILATIONS,
) -> FoundPlan:
    """Find how to run a step: which values wait for the backward pass, which it computes again.

    The step is traced for `args`, arrays or their shapes; its strategy is for a topology, whose
    devices need not be here. The plan is for `memory_bytes` of each device; None stands for all of
    its memory. At most `compilations` choices are compiled. With 0 time and memory are counted on
    the graph alone, in seconds. Print the result, and give its `plan` to `gd.function(plan=..)`:
    the step's values do not change, its memory and time do.

    Raises `ArgumentError` for a strategy without a topology, and for a memory that is no number of
    bytes.
    """
    # Here, since SciPy's optimizer takes half a second to import.
    from graphdist.planning.found_plan import FoundPlan
    from graphdist.planning.planner import PlanSearch

    if not isinstance(function, Function | BoundFunction | Traced):
        raise ArgumentTypeError(
            f"a plan is for a gd.function, not for a value of type {type_name(function)}",
            hint="write gd.plan(step, batch), with a step that @gd.function decorates",
        )
    traced = function if isinstance(function, Traced) else function.trace(*args)
    if traced.devices.topology is None:
        raise ArgumentError(
            f"{traced.graph.name} is for {traced.devices}, whose rates are not known",
            hint="a plan is for a topology: use TPUStrategy(topology='v5e:2x4')",
        )
    most = traced.devices.memory_bytes if memory_bytes is None else memory_bytes
    if isinstance(most, bool) or not isinstance(most, int) or most <= 0:
        raise ArgumentError(
            f"memory_bytes is {most!r}, not a positive integer",
            hint="write memory_bytes=12 * 2**30",
        )
    require_available(most, traced.devices.memory_bytes)
    if isinstance(compilations, bool) or not isinstance(compilations, int) or compilations < 0:
        raise ArgumentError(f"compilations is {compilations!r}, not a number from 0 on")
    search = PlanSearch(traced, most, compilations)
    search.run()
    return FoundPlan(search)
