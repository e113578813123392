"""The cluster that `TF_CONFIG` describes, as for TensorFlow, and the resolver that reads it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any  # Any: JSON

from graphdist.cluster.resolver import ClusterResolver, with_protocol
from graphdist.cluster.spec import ClusterSpec
from graphdist.config import tf_config_text
from graphdist.errors import ArgumentError
from graphdist.quoted import quoted, unquoted
from graphdist.whole_numbers import whole_number


class TFConfigClusterResolver(ClusterResolver):
    """The cluster that the environment variable `TF_CONFIG` describes; without it, none.

    The variable is a JSON object: `cluster` has the addresses by job, `task` the `type` and `index`
    of this process; `rpc_layer` and `session_master` are optional. Each call reads the variable
    again. Arguments take precedence over the variable. A call raises `ArgumentError` if the
    variable is no JSON object.

    >>> TFConfigClusterResolver().cluster_spec()
    ClusterSpec({})
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self._task_type, self._task_id, self._rpc_layer = task_type, task_id, rpc_layer
        self._environment = environment

    def _default(self, name: str) -> Any:
        if name == "rpc_layer":
            return _text(tf_config(), "rpc_layer")
        if name == "task_type":
            return _text(_task(), "type")
        index = _task().get("index")
        return None if index is None else whole_number(index, "the task index in TF_CONFIG")

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of all tasks by job."""
        return ClusterSpec(tf_config().get("cluster", {}))

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, by default this process's; "" for a cluster of one task.

        Raises `ArgumentError` in a larger cluster if the task of this process is unknown.
        """
        session_master = _text(tf_config(), "session_master")
        if session_master is not None:
            return session_master
        cluster = self.cluster_spec()
        if sum(map(cluster.num_tasks, cluster.jobs)) < 2:
            return ""
        kind = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        address = cluster.task_address(kind, index)
        return with_protocol(address, self.rpc_layer if rpc_layer is None else rpc_layer)


def _task() -> dict[str, Any]:
    task = tf_config().get("task", {})
    if not isinstance(task, dict):
        raise ArgumentError(
            f"the task in TF_CONFIG is {quoted(task)}, not an object",
            hint='write {"task": {"type": "worker", "index": 0}}',
        )
    return task


def _text(config: dict[str, Any], name: str) -> str | None:
    text = config.get(name)
    if not isinstance(text, str | None):
        raise ArgumentError(f"{name!r} in TF_CONFIG is {quoted(text)}, not a text")
    return text


def tf_config() -> dict[str, Any]:
    """Return the object in `TF_CONFIG`, {} if unset; raises `ArgumentError` for any other text."""
    text = tf_config_text()
    try:
        config = json.loads(text, object_pairs_hook=_object_of)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"TF_CONFIG is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ArgumentError(
            f"TF_CONFIG is {unquoted(text)}, not a JSON object",
            hint='write {"cluster": {"worker": ["host:port"]}, "task": {...}}',
        )
    return config


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):  # json would keep the last
        counts = Counter(name for name, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise ValueError(f"an object has the name {quoted(twice)} twice")
    return value


def is_cluster_described() -> bool:
    """Return whether `TF_CONFIG` names a cluster."""
    return bool(tf_config().get("cluster"))
