"""The package without Ray, with a cluster of the program's own, and who can connect to Ray's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # Any: results of all kinds

import jax.numpy as jnp
import pytest
import ray

import graphdist as gd
import graphdist.compat.v1 as gd1
from graphdist.parameter_server import ray_cluster
from tests.parameter_server.test_silence import descendants


def test_graphdist_is_imported_without_ray() -> None:
    program = "import sys, graphdist; assert 'ray' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(gd.errors.MissingExtraError, match=r"graphdist\[ps\]"):
        gd.ParameterServerStrategy()


@pytest.mark.long
def test_strategies_share_a_cluster_and_the_last_ends_it() -> None:
    first = gd.ParameterServerStrategy(num_workers=1)
    second = gd1.ParameterServerStrategy(num_workers=1)
    with second.scope():
        v = gd.Variable(2.0)
    first.shutdown()
    assert float(v) == 2
    assert ray.is_initialized()
    second.shutdown()
    second.shutdown()
    assert not ray.is_initialized()


@pytest.mark.long
def test_what_was_shut_down_is_refused_and_starts_no_cluster(tmp_path: Path) -> None:
    strategy = gd.ParameterServerStrategy(num_workers=1)
    coordinator = gd.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        v = gd.Variable(2.0)
    add = gd.function(lambda: v.assign_add(1.0))
    coordinator.schedule(add).fetch()
    checkpoint = gd.train.Checkpoint(v=v)

    def made() -> None:
        with strategy.scope():
            gd.Variable(1.0)

    uses: list[Callable[[], Any]] = [
        lambda: float(v),
        lambda: v.assign(1.0),
        made,
        add,
        lambda: checkpoint.save(str(tmp_path / "c")),
        lambda: coordinator.worker_processes(),
        lambda: coordinator.schedule(add),
    ]
    # With the cluster, and while another strategy keeps it.
    other = gd.ParameterServerStrategy(num_workers=1)
    for last in (strategy, other):
        last.shutdown()
        for use in uses:
            with pytest.raises(gd.errors.ContextError, match="the strategy was shut down") as error:
                use()
            assert f"{__file__}:" in str(error.value)
        assert ray.is_initialized() is (last is strategy)
    with pytest.raises(gd.errors.ContextError, match="the strategy was shut down"):
        gd.coordinator.ClusterCoordinator(other)
    assert not ray.is_initialized()


@pytest.mark.long
def test_a_folder_of_temporary_files_may_have_a_long_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    dead = Path(f"/tmp/gd-ray-{2**30}-{folder.parent.name}")  # no system has such a process
    dead.mkdir()
    strategy = gd.ParameterServerStrategy(num_workers=1)
    with strategy.scope():
        assert float(gd.Variable(2.0)) == 2
    found = ray_cluster.Cluster._folder
    strategy.shutdown()
    assert found is not None
    assert found.parent == Path("/tmp")
    assert not found.exists()
    assert not dead.exists()


@pytest.mark.parametrize(("name", "expected"), [("/tmp/short", "/tmp/short"), ("/a" * 9, "/tmp")])
def test_sockets_have_short_names(
    name: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", name)
    assert ray_cluster._place() == Path(expected)


@pytest.mark.long
def test_a_program_that_ends_ray_itself_is_told_so() -> None:
    strategy = gd.ParameterServerStrategy(num_workers=1)
    with strategy.scope():
        v = gd.Variable(2.0)
    ray.shutdown()
    for use in (lambda: float(v), lambda: gd.coordinator.ClusterCoordinator(strategy)):
        with pytest.raises(gd.errors.ContextError, match="the cluster of Ray was shut down"):
            use()
    strategy.shutdown()
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_workers": 1.5}, "num_workers is 1.5"),
        ({"num_servers": "many"}, "num_servers is 'many'"),
        ({"devices_per_worker": 0}, "devices_per_worker is 0"),
        ({"worker_options": [1]}, "worker_options is of type list"),
        ({"worker_options": {"max_restarts": 1}}, "'max_restarts', which is -1 for all"),
        ({"worker_options": {"num_gpus": "a"}}, "does not take these worker_options: The type"),
        ({"worker_options": {"nonsense": 1}}, "does not take these worker_options: Invalid"),
        ({"worker_options": {1: 2}}, "does not take these worker_options: keywords"),
    ],
    ids=str,
)
def test_options_are_checked_before_anything_starts(given: dict[str, Any], said: str) -> None:
    with pytest.raises(gd.errors.ArgumentError, match=said):
        gd.ParameterServerStrategy(**given)
    assert not ray.is_initialized()


@pytest.mark.long
def test_a_worker_that_fails_to_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHDIST_WORKER_START_SECONDS", "25")
    options = {"runtime_env": {"env_vars": {"JAX_PLATFORMS": "nonsense"}}}
    strategy = gd.ParameterServerStrategy(num_workers=1, worker_options=options)
    coordinator = gd.coordinator.ClusterCoordinator(strategy)
    value = coordinator.schedule(gd.function(lambda: 1))
    said = r"has not started within 25 s \(RuntimeError: .*'nonsense'"
    for ask in (value.fetch, coordinator.join):
        with pytest.raises((gd.ClosureCancelledError, gd.WorkerError), match=said):
            ask()
    strategy.shutdown()


@pytest.mark.long
def test_a_large_result_is_lost_with_the_strategy() -> None:
    strategy = gd.ParameterServerStrategy(num_workers=1)
    coordinator = gd.coordinator.ClusterCoordinator(strategy)
    value = coordinator.schedule(gd.function(lambda: jnp.zeros(1 << 20)))
    coordinator.join()
    strategy.shutdown()
    for timeout in (60, None):
        with pytest.raises(gd.ClosureCancelledError, match="lost: the strategy was shut down"):
            value.fetch(timeout)
    assert not ray.is_initialized()


def test_no_process_is_asked_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked:
        def remote(self) -> None:
            pytest.fail("Ray would start a cluster")

    def kill(actor: object, no_restart: bool) -> None:
        pytest.fail("Ray would start a cluster")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "kill", kill)
    actor = SimpleNamespace(place=Asked(), address=Asked())
    with pytest.raises(ray_cluster.ProcessIsSilent, match="is gone"):
        ray_cluster.ask(actor.place)
    ray_cluster.kill(actor)
    assert ray_cluster.problem_of_server(actor, 1.0) == "is gone, with the cluster"
    with pytest.raises(ConnectionError, match="is gone"):
        ray_cluster.address_of_server(actor, 1.0)


@pytest.mark.long
def test_a_cluster_started_here_listens_on_loopback_and_its_folder_is_private() -> None:
    strategy = gd.ParameterServerStrategy(num_workers=1)
    with strategy.scope():
        gd.Variable(1.0)
    gd.coordinator.ClusterCoordinator(strategy).worker_processes()
    found = list(listeners([os.getpid(), *descendants(os.getpid())]))
    folder = ray_cluster.Cluster._folder
    assert folder is not None
    mode, is_asked = stat.S_IMODE(folder.stat().st_mode), os.environ["RAY_AUTH_MODE"]
    strategy.shutdown()
    names = " ".join(name for name, _ in found)
    for process in ("gcs_server", "raylet", "ray::ParameterServer", "ray::ClosureWorker"):
        assert process in names
    # One for each process of Ray's at least, and the one of our server.
    assert len(found) >= 7
    assert [(name, str(address)) for name, address in found if not is_loopback(address)] == []
    assert mode == 0o700
    assert is_asked == "token"


def is_loopback(address: IPv4Address | IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def listeners(processes: list[int]) -> Iterator[tuple[str, IPv4Address | IPv6Address]]:
    """Yield the name of a process, and an address that it listens at."""
    listening = _listening()
    for process in processes:
        with suppress(OSError):
            entries = list(Path(f"/proc/{process}/fd").iterdir())
            name = Path(f"/proc/{process}/cmdline").read_text().split("\0")[0]
            for entry in entries:
                with suppress(OSError):
                    address = listening.get(os.readlink(entry))
                    if address is not None:
                        yield name, address


def _listening() -> dict[str, IPv4Address | IPv6Address]:
    """Return the addresses of sockets of this machine that listen, by the name of the socket."""
    found: dict[str, IPv4Address | IPv6Address] = {}
    for table, kind in (("tcp", IPv4Address), ("tcp6", IPv6Address)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A":
                words = bytes.fromhex(local.partition(":")[0])  # of four bytes, the last first
                host = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found[f"socket:[{rest[5]}]"] = kind(host)
    return found


@pytest.mark.long
def test_a_cluster_without_authentication_is_warned_of(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import graphdist as gd\nstrategy = gd.ParameterServerStrategy(num_workers=1)\n"
    )
    ran = subprocess.run(
        [sys.executable, str(program)],
        env={
            **os.environ,
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        check=True,
        capture_output=True,
        text=True,
    )
    assert f"{program}:2: UserWarning: this cluster of Ray has no authentication" in ran.stderr


def test_the_file_of_the_token_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".ray" / "auth_token"
    ray_cluster._make_token_private()
    token = file.read_text()
    assert len(token) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    ray_cluster._make_token_private()
    assert file.read_text() == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_that_the_environment_names_is_taken(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(name, "given")
    ray_cluster._make_token_private()
    assert list(tmp_path.iterdir()) == []
