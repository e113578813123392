"""The options of Ray's that workers are started with: the user's, beside those that we set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any  # Any: what users give, and Ray's options

from graphdist.errors import ArgumentError
from graphdist.parameter_server.heartbeats import GROUP
from graphdist.parameter_server.ray_cluster import ray
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name

OWN: Mapping[str, Any] = {
    "max_restarts": -1,
    "max_task_retries": 0,
    "concurrency_groups": {GROUP: 1},
}


class _Actor:
    """Stands for a worker: Ray checks options when it is told of a class."""


def checked_worker_options(given: Any) -> dict[str, Any]:
    """Return the user's options; raises `ArgumentError` for those that Ray does not take."""
    hint = 'worker_options are Ray\'s options of an actor, such as {"num_gpus": 1}'
    if not isinstance(given, Mapping | None):
        raise ArgumentError(
            f"worker_options is of type {type_name(given)}, not a dict", source=here(), hint=hint
        )
    options = dict(given or {})
    for name, value in OWN.items():
        if name in options:
            raise ArgumentError(
                f"worker_options has {name!r}, which is {value!r} for all workers",
                source=here(),
                hint="leave it out",
            )
    module = ray()
    try:
        module.remote(**OWN, **options)(_Actor)
    except (TypeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise ArgumentError(
            f"Ray does not take these worker_options: {first_line}", source=here(), hint=hint
        ) from error
    return options
