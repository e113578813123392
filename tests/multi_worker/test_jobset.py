"""The pods of a JobSet or of an indexed Job find each other through JAX, which asks the API server.

Each process runs in a mount namespace of its own. There the files of a service account are where
they are in a pod, and the names of the pods lead to this host.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.multi_worker.api_server import ADDRESSES, JOB, SET, api_server
from tests.multi_worker.launch import run
from tests.multi_worker.test_launchers import PROGRAM, outcomes, results
from tests.multi_worker.test_starting import free_address

IN_A_POD = """
set -e
mount -t tmpfs none /var/run
mkdir -p /var/run/secrets/kubernetes.io
ln -s "$1" /var/run/secrets/kubernetes.io/serviceaccount
mount --bind "$1/hosts" /etc/hosts
shift
exec "$@"
"""


def has_namespaces() -> bool:
    """Return whether this process may make mount namespaces."""
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and not subprocess.run(
            [unshare, "-rm", "mount", "-t", "tmpfs", "none", "/mnt"],
            capture_output=True,
            check=False,
        ).returncode
    )


pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("kubernetes"),
    pytest.mark.skipif(not has_namespaces(), reason="mount namespaces are not allowed here"),
]


def in_pods(folder: Path, is_jobset: bool, may_read: bool = True) -> list[tuple[int, str, str]]:
    """Run the two processes of a job; return their exit status, output and errors."""
    names = [f"127.0.0.1 localhost {JOB}-0.{SET}"]
    names += [f"{address} {JOB}-{index}" for index, address in enumerate(ADDRESSES)]
    (folder / "hosts").write_text("\n".join(names) + "\n")
    with api_server(folder, is_jobset, may_read) as port:
        of_pods = [
            {
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(port),
                "HOSTNAME": f"{JOB}-{index}",
                "JOB_COMPLETION_INDEX": str(index),
                "JAX_COORDINATOR_PORT": free_address().rpartition(":")[2],
            }
            for index in range(2)
        ]
        of_pods[1]["JAX_COORDINATOR_PORT"] = of_pods[0]["JAX_COORDINATOR_PORT"]
        line = ["unshare", "-rm", "sh", "-c", IN_A_POD, "sh", str(folder)]
        return outcomes([[*line, *PROGRAM, "launcher", "", ""]] * 2, *of_pods)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """Return the losses, weights and rows of two workers of graphdist-run."""
    return run(2, "training").said[0]


@pytest.mark.parametrize("is_jobset", [True, False])
def test_pods_train_as_workers_of_the_launcher(
    is_jobset: bool, expected: list[Any], tmp_path: Path
) -> None:
    first, second = in_pods(tmp_path, is_jobset)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert results(first[1]) == results(second[1]) == expected
    assert "graphdist: 2 workers of Kubernetes, by jax.distributed: " in first[2]
    assert "graphdist: 2 workers" not in second[2]


def test_an_account_that_may_not_read_pods_is_told(tmp_path: Path) -> None:
    for status, _, error in in_pods(tmp_path, True, may_read=False):
        assert status == 1
        assert "WorkerError: Kubernetes started this process as one of several, and JAX " in error
        assert "cannot connect them: Kubernetes API Error: 403 - Forbidden" in error
