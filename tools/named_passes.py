"""`--passes infer_distribution,place_variables,..`: the passes of a step, by their names.

What can be named are the passes that the step's pipeline has for its devices, with the options that
they have there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphdist.errors import ArgumentError
from graphdist.passes.manager import Pass
from graphdist.program.stages import Traced
from graphdist.tracing.user_lines import here


def with_passes(traced: Traced, names: str | None) -> Traced:
    """Return a traced step with the passes of these names, if any are given, with commas.

    Raises `ArgumentError` for a name that no pass of the step has.
    """
    return traced if names is None else replace(traced, pipeline=_named(names, traced))


def _named(names: str, traced: Traced) -> Sequence[Pass]:
    by_name = {entry.name: entry for entry in traced.pipeline}
    chosen = [name for name in names.split(",") if name]
    for name in chosen:
        if name not in by_name:
            raise ArgumentError(
                f"there is no pass {name!r} for {traced.devices}",
                source=here(),
                hint=f"there are {', '.join(by_name)}",
            )
    return [by_name[name] for name in chosen]
