"""What the page on several machines tells to write is understood by whom it is for."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

import graphdist as gd
from graphdist.tools.run import command_line

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "several-machines.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_launching() -> None:
    line, script = blocks("sh")
    name, *arguments = line.split()
    assert name == "graphdist-run"
    options = command_line().parse_args(arguments)
    assert (options.n, options.devices_per_worker) == (4, 2)
    assert options.program == ["train.py", "--epochs", "3"]
    assert script.startswith("#!/bin/bash\n#SBATCH")


def test_slurm_job() -> None:
    script = blocks("sh")[1]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script, re.MULTILINE))
    nodes, tasks = int(options["nodes"]), int(options["ntasks-per-node"])
    step = {
        "SLURM_PROCID": "5",
        "SLURM_STEP_NUM_TASKS": str(nodes * tasks),
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": f"{tasks}(x{nodes})",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(int(options["gpus-per-node"])))),
    }
    with mock.patch.dict(os.environ, step):
        resolver = gd.cluster.SlurmClusterResolver()
        assert resolver.cluster_spec().num_tasks("worker") == 8
        assert (resolver.task_id, resolver.master()) == (5, "grpc://n2:8889")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


def test_config() -> None:
    (text,) = blocks("json")
    with mock.patch.dict(os.environ, TF_CONFIG=text):
        resolver = gd.cluster.TFConfigClusterResolver()
        assert resolver.master() == "10.0.0.1:2222"


@pytest.mark.parametrize("index", [0, 3])
def test_kubernetes_job(index: int) -> None:
    (text,) = (each for each in blocks("yaml") if "TF_CONFIG" in each)
    service, job = yaml.safe_load_all(text)
    spec: dict[str, Any] = job["spec"]
    assert service["spec"]["clusterIP"] == "None" or service["spec"]["clusterIP"] is None
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    (container,) = spec["template"]["spec"]["containers"]
    given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    (secret,) = (one for one in container["env"] if "valueFrom" in one)
    assert secret["name"] == "GRAPHDIST_JOB_TOKEN"
    assert int(given["WORKERS"]) == spec["completions"] == spec["parallelism"]
    shell, flag, script = container["command"]
    script = script.replace("exec python train.py", 'echo "$TF_CONFIG"')
    done = subprocess.run(
        [shell, flag, script],
        env={**os.environ, **given, "JOB_COMPLETION_INDEX": str(index)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)
    with mock.patch.dict(os.environ, TF_CONFIG=done.stdout):
        resolver = gd.cluster.TFConfigClusterResolver()
        assert resolver.cluster_spec().num_tasks("worker") == 4
        assert resolver.master() == f"train-{index}.train:2222"
