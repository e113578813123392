"""Who is chief, who is a worker, in what order; and clusters that have no such task."""

from __future__ import annotations

from typing import Any

import pytest

import graphdist as gd
from graphdist.cluster import roles

WITH_CHIEF = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "evaluator": ["e:1"], "ps": ["p:1"]}
WORKERS: dict[str, Any] = {"worker": {3: "w:3", 5: "w:5"}}


@pytest.mark.parametrize(
    ("cluster", "task", "is_chief", "number"),
    [
        (WITH_CHIEF, ("chief", 0), True, 0),
        (WITH_CHIEF, ("worker", 0), False, 1),
        (WITH_CHIEF, ("worker", 1), False, 2),
        (WITH_CHIEF, ("evaluator", 0), True, 0),
        ({"worker": ["w:1", "w:2"]}, ("worker", 0), True, 0),
        ({"worker": ["w:1", "w:2"]}, ("worker", 1), False, 1),
        (WORKERS, ("worker", 5), False, 1),
    ],
)
def test_each_task_has_its_role(
    cluster: Any, task: tuple[str, int], is_chief: bool, number: int
) -> None:
    assert roles.is_chief(cluster, *task) is is_chief
    assert roles.id_in_cluster(cluster, *task) == number


def test_numbers_are_those_of_the_addresses() -> None:
    addresses = roles.worker_addresses(WITH_CHIEF)
    assert addresses == ["c:1", "w:1", "w:2"]
    assert roles.worker_count(WITH_CHIEF, "worker") == len(addresses)
    assert addresses[roles.id_in_cluster(WITH_CHIEF, "worker", 1)] == "w:2"
    assert roles.worker_count(WITH_CHIEF, "evaluator") == 1


def test_leaders_are_the_first_of_their_kinds() -> None:
    assert roles.collective_leader(WITH_CHIEF, "worker", 1) == "/job:chief/replica:0/task:0"
    assert roles.coordination_leader(WITH_CHIEF) == "/job:ps/replica:0/task:0"
    assert roles.collective_leader(WITH_CHIEF, "evaluator", 0) == ""
    assert roles.collective_leader({}, None, None) == roles.coordination_leader({}) == ""


@pytest.mark.parametrize(
    ("cluster", "task", "message"),
    [
        ({"master": ["m:1"]}, (None, None), "a task of kind 'master'"),
        (WITH_CHIEF, ("master", 0), "a task of kind 'master'"),
        ({"worker": ["w:1"]}, ("chief", 0), "the cluster has no 'chief'"),
        ({"chief": ["a:1", "b:1"]}, ("chief", 0), "2 tasks of kind 'chief': one at most"),
        ({"worker": ["w:1"]}, ("worker", 1), "is worker 1, the last worker of the cluster is 0"),
    ],
)
def test_a_task_that_cannot_be_is_refused(cluster: Any, task: Any, message: str) -> None:
    with pytest.raises(gd.errors.ArgumentError, match=message):
        roles.checked_cluster(cluster, *task)


def test_an_evaluator_need_not_be_in_the_cluster() -> None:
    assert roles.is_chief({"worker": ["w:1"]}, "evaluator", 0)
    with pytest.raises(gd.errors.ClusterError, match="no 'evaluator' to count"):
        roles.worker_count({"worker": ["w:1"]}, "evaluator")
