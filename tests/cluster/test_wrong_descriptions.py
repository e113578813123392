"""Descriptions of clusters that cannot be meant: each is refused with the value that is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any  # Any: what nobody should write

import pytest

import graphdist as gd
from graphdist.cluster import roles
from graphdist.config import job_identity, worker_bind_address, worker_timeouts
from graphdist.runtime.processes.addresses import split_address

WORKERS = {"worker": ["a:1", "b:1"]}


def config(**parts: Any) -> str:
    return json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 0}, **parts})


def task(index: str) -> str:
    return config(task={"type": "worker", "index": "INDEX"}).replace('"INDEX"', index)


def read_tf_config() -> None:
    """Do what a strategy does with the variable."""
    resolver = gd.cluster.TFConfigClusterResolver()
    spec = resolver.cluster_spec()
    roles.worker_addresses(spec)
    roles.id_in_cluster(spec, resolver.task_type, resolver.task_id)
    resolver.master()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (task("1.5"), "task index in TF_CONFIG is 1.5, not a whole number"),
        (task("true"), "task index in TF_CONFIG is True"),
        (task("NaN"), "task index in TF_CONFIG is nan"),
        (task("1e400"), "task index in TF_CONFIG is inf"),
        (task("-1"), "task index in TF_CONFIG is -1"),
        (task('"one"'), "task index in TF_CONFIG is 'one'"),
        (task('"²"'), "task index in TF_CONFIG is '²'"),
        (task("[0]"), r"task index in TF_CONFIG is \[0\]"),
        (task("2"), "is worker 2, the last worker of the cluster is 1"),
        (task("9" * 4_000), "task index in TF_CONFIG is 9999"),
        (task("9" * 5_000), "TF_CONFIG is no JSON"),
        ("[" * 100_000, "TF_CONFIG is no JSON"),
        ('{"cluster":' * 100_000, "TF_CONFIG is no JSON"),
        ("[" + "1," * 1_000_000 + "1]", r"TF_CONFIG is \[1,1.*, not a JSON object"),
        ('{"task": {}, "task": {}}', "an object has the name 'task' twice"),
        ("\\udcff", "TF_CONFIG is no JSON"),
        (config(task={"type": 5, "index": 0}), "'type' in TF_CONFIG is 5, not a text"),
        (config(task=["x" * 10_000]), "the task in TF_CONFIG is .*, not an object"),
        (config(rpc_layer=["grpc"]), "'rpc_layer' in TF_CONFIG is"),
        (config(session_master=3), "'session_master' in TF_CONFIG is 3"),
        (config(cluster={"worker": {"0": "a:1", "00": "b:1"}}), "'worker' has the task 0 twice"),
        (config(cluster={"worker": {"1.5": "a:1"}}), "of job 'worker' is '1.5', not a whole"),
        (config(cluster={"worker": {"-1": "a:1"}}), "of job 'worker' is '-1', not a whole"),
        (config(cluster={"worker": {"9" * 30: "a:1"}}), "of job 'worker' is '999"),
        (config(cluster={"x" * 10_000: ["a:1"]}), "a task of kind 'xxx"),
        (config(cluster={"worker": ["a:1", "a:1"]}), r"worker 0 \(a:1\) and worker 1 \(a:1\) have"),
        (config(cluster={"worker": ["A.b:1", "a.b.:1"]}), "have the same address"),
        (config(cluster={"chief": ["a:1"], "worker": ["a:1"]}), "have the same address"),
    ],
    ids=range(28),
)
def test_what_tf_config_cannot_mean(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(gd.ArgumentError, match=said) as caught:
        read_tf_config()
    assert len(caught.value.what) < 1000
    assert caught.value.what.isprintable()


@pytest.mark.parametrize(
    "address",
    [
        *("a", ":1", "a:", "a:0", "a:65536", "a:8o", "a:-1", "a:1.5", "a:²", "a:" + "9" * 5_000),
        *("a..b:1", ".a:1", "a" * 64 + ":1", "a." * 200 + ":1", "ü" * 64 + ":1", "a b:1", "a\n:1"),
        *("grpc://a:1", "a/b:1", "\x1b[31m:1", "\udcff:1", "a_\N{SNOWMAN}" * 30 + ":1"),
        *(
            "256.1.1.1:1",
            "1.2.3:1",
            "::1:1",
            "[a]:1",
            "[]:1",
            "[[::1]]:1",
            "[10.0.0.1]:1",
            "[::1:1",
        ),
        *("[fd00::12345]:1", "::1]:1", "[::1]", "[::1]x:1"),
    ],
)
def test_what_is_no_address_is_named_before_anything_starts(address: str) -> None:
    with pytest.raises(gd.WorkerError, match="address '") as caught:
        roles.worker_addresses({"worker": ["a:1", address]})
    assert len(caught.value.what) < 300
    assert caught.value.what.isprintable()


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("bücher.example:1", ("bücher.example", 1)),
        ("xn--bcher-kva.example.:65535", ("xn--bcher-kva.example.", 65535)),
        ("a_b-c.svc:22", ("a_b-c.svc", 22)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("[::ffff:10.0.0.1]:1", ("::ffff:10.0.0.1", 1)),
        ("a" * 63 + ":1", ("a" * 63, 1)),
    ],
)
def test_what_is_an_address(address: str, found: tuple[str, int]) -> None:
    assert split_address(address) == found


@pytest.mark.parametrize("index", [1.5, True, float("nan"), -1, "x", 1 << 40])
def test_a_task_that_a_program_gives_is_a_number(index: Any) -> None:
    with pytest.raises(gd.ArgumentError, match="the index of this process's task"):
        roles.checked_cluster(WORKERS, "worker", index)
    with pytest.raises(gd.ArgumentError, match="the index of a task of job 'worker' is"):
        gd.cluster.ClusterSpec({"worker": {index: "a:1"}})


SLURM = {
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1,2",
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SLURM_PROCID": "x\x1b[31m"}, r"SLURM_PROCID is 'x\\x1b\[31m', not a whole number"),
        ({"SLURM_PROCID": "-1"}, "SLURM_PROCID is '-1'"),
        ({"SLURM_PROCID": "9" * 5_000}, "SLURM_PROCID is '999"),
        ({"SLURM_PROCID": "3"}, "SLURM_PROCID is 3, and the Slurm step has 3 tasks"),
        ({"SLURM_NTASKS": "3.0"}, "SLURM_STEP_NUM_TASKS is '3.0'"),
        ({"SLURM_NTASKS": "4"}, "the jobs have 4 tasks, the Slurm step has 3"),
        ({"SLURM_STEP_NODELIST": "n[1-999999999999]"}, "no list of Slurm nodes"),
        ({"SLURM_STEP_NODELIST": "n[1-" + "9" * 5_000 + "]"}, "no list of Slurm nodes"),
        ({"SLURM_STEP_NODELIST": "n1"}, "SLURM_STEP_NODELIST has 1 nodes"),
        ({"SLURM_STEP_NODELIST": "n[1,1]"}, "SLURM_STEP_NODELIST has 1 nodes"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x99999999999)"}, "the number of nodes in"),
        ({"SLURM_STEP_TASKS_PER_NODE": "9" * 5_000}, "the number of tasks of a node is"),
        ({"SLURM_STEP_TASKS_PER_NODE": "²"}, "does not say how many tasks"),
    ],
)
def test_what_slurm_would_not_write(
    changed: Mapping[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {**SLURM, "CUDA_VISIBLE_DEVICES": "", **changed}.items():
        monkeypatch.setenv(name, text)
    with pytest.raises((gd.ArgumentError, gd.ContextError), match=said) as caught:
        gd.cluster.SlurmClusterResolver()
    assert len(caught.value.what) < 500
    assert caught.value.what.isprintable()


@pytest.mark.parametrize("jobs", [{"worker": -3}, {"worker": 1.5}, {"worker": "x"}])
def test_jobs_of_slurm_have_numbers_of_tasks(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SLURM.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(gd.ArgumentError, match="the number of tasks of job 'worker' is"):
        gd.cluster.SlurmClusterResolver(jobs)


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "9" * 5_000])
def test_the_number_of_a_host_of_a_tpu(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_WORKER_ID", text)
    with pytest.raises(gd.ArgumentError, match="TPU_WORKER_ID is '"):
        gd.cluster.TPUClusterResolver("a:1,b:1")


def test_pods_at_ipv6_addresses_are_in_brackets() -> None:
    status = SimpleNamespace(phase="Running", pod_ip="fd00::7")
    pod = SimpleNamespace(metadata=SimpleNamespace(name="a"), status=status)
    client = SimpleNamespace(
        list_pod_for_all_namespaces=lambda label_selector: SimpleNamespace(items=[pod])
    )
    resolver = gd.cluster.KubernetesClusterResolver(tf_server_port=9, override_client=client)
    assert resolver.cluster_spec() == {"worker": ["[fd00::7]:9"]}


@pytest.mark.parametrize("name", ["START", "SILENCE", "STEP"])
@pytest.mark.parametrize("text", ["nan", "0", "-1", "x" * 5_000, "-inf", "1e300", "1e400", "inf"])
def test_seconds_of_the_environment(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = f"GRAPHDIST_WORKER_{name}_SECONDS"
    monkeypatch.setenv(variable, text)
    if name == "STEP" and float("inf") == (float(text) if text[0] != "x" else 0):
        assert worker_timeouts().step is None
        return
    with pytest.raises(gd.ArgumentError, match=f"{variable} is ") as caught:
        worker_timeouts()
    assert len(caught.value.what) < 200


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("GRAPHDIST_JOB_GENERATION", "1.5"),
        ("GRAPHDIST_JOB_GENERATION", "9" * 5_000),
        ("SLURM_RESTART_COUNT", "²"),
        ("GRAPHDIST_JOB_ID", "x" * 300),
    ],
)
def test_the_job_of_the_environment(
    variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    said = "the id of the job is" if variable.endswith("ID") else f"{variable} is"
    with pytest.raises(gd.ArgumentError, match=said) as caught:
        job_identity()
    assert len(caught.value.what) < 200


@pytest.mark.parametrize("text", ["0.0.0.0:1", "a" * 64, "a b", "[::]"])
def test_the_address_to_listen_at(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHDIST_WORKER_BIND", text)
    with pytest.raises(gd.ArgumentError, match="GRAPHDIST_WORKER_BIND is '"):
        worker_bind_address()
