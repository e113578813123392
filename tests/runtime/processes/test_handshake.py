"""Who is let in at worker 0's address, and who is not; strangers do no harm there."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

import graphdist as gd
from graphdist.runtime.processes import messages, server
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.handshake import PROTOCOL, JobIdentity
from graphdist.runtime.processes.workers import WorkerTimeouts
from tests.free_port import free_port

JOB = JobIdentity("a", 1, "secret", "graphdist 1, jax 1")
TIMEOUTS = WorkerTimeouts(start=5.0)


@contextmanager
def started(job: JobIdentity = JOB, seconds: float = 1.0) -> Iterator[tuple[list[str], Any]]:
    """Start worker 0 of two; give the addresses, and what will have its error."""
    addresses = [f"127.0.0.1:{free_port('127.0.0.1')}", "127.0.0.1:1"]
    first = ClusterWorkers(addresses, 0, WorkerTimeouts(start=seconds), job)
    with ThreadPoolExecutor(1) as pool:
        yield addresses, pool.submit(first.rendezvous)


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "message"),
    [
        (replace(JOB, id="b"), r"worker 1 is of the job 'b', worker 0 of another one"),
        (replace(JOB, token="guess"), r"the job's token that worker 1 was given is another than"),
        (replace(JOB, token=""), r"the job's token that worker 1 was given is another than"),
        (replace(JOB, generation=0), r"worker 1 is of start 0 of the job, worker 0 of start 1"),
        (
            replace(JOB, versions="graphdist 1, jax 2"),
            r"worker 1 runs graphdist 1, jax 2, worker 0 runs graphdist 1, jax 1",
        ),
    ],
    ids=["job", "token", "no token", "generation", "versions"],
)
def test_a_worker_of_another_kind_is_refused_on_both_sides(job: JobIdentity, message: str) -> None:
    with started() as (addresses, first):
        with pytest.raises(gd.WorkerError, match=rf"worker 1 .* cannot reach worker 0 .*{message}"):
            ClusterWorkers(addresses, 1, TIMEOUTS, job).rendezvous()
        with pytest.raises(gd.WorkerError, match=rf"worker 1 .* did not start .*{message}"):
            first.result()


@pytest.mark.parametrize(
    ("index", "count", "message"),
    [(1, 3, "there are 3 workers, worker 0 says 2"), (0, 2, "there is a worker 0 already")],
)
def test_clusters_that_disagree(index: int, count: int, message: str) -> None:
    with started() as (addresses, first):
        other = ClusterWorkers(addresses[:1] + ["127.0.0.1:1"] * (count - 1), index, TIMEOUTS, JOB)
        other.__class__ = _WithoutServer
        time.sleep(0.3)  # worker 0 is greeted
        with pytest.raises(gd.WorkerError, match=message):
            other.rendezvous()
        with pytest.raises(gd.WorkerError, match=r"worker 1 .* did not start within 1 s"):
            first.result()


class _WithoutServer(ClusterWorkers):
    """A second process that takes itself for worker 0, whose port would be in use."""

    def _joined(self, rendezvous: Any) -> Any:
        return rendezvous.connection()


def test_a_worker_of_a_later_start_waits_for_its_server() -> None:
    job = replace(JOB, generation=0)
    with started(job, seconds=0.5) as (addresses, old), ThreadPoolExecutor(1) as pool:
        second = pool.submit(ClusterWorkers(addresses, 1, TIMEOUTS, JOB).rendezvous)
        with pytest.raises(gd.WorkerError, match=r"did not start"):
            old.result()
        assert not second.done()
        new = ClusterWorkers(addresses, 0, TIMEOUTS, JOB)
        place = _until_it_listens(new)
        assert second.result().port == place.port
    new.leave()


def _until_it_listens(workers: ClusterWorkers) -> Any:
    deadline = time.monotonic() + 5
    while True:
        try:
            return workers.rendezvous()
        except gd.WorkerError as error:
            if "in use" not in str(error) or time.monotonic() > deadline:
                raise


def test_a_server_that_does_not_know_the_token_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        second = pool.submit(ClusterWorkers([address, "127.0.0.1:1"], 1, TIMEOUTS, JOB).rendezvous)
        stream, _ = listener.accept()
        stream.sendall(JOB.challenge().line())
        hello = json.loads(stream.makefile("rb").readline())
        stream.sendall(messages.Welcome("0" * 64).line())
        with pytest.raises(gd.WorkerError, match="does not know the job's token"):
            second.result()
        stream.close()
    assert JOB.token not in json.dumps(hello)
    assert JOB.token not in repr(JOB)


def test_a_proof_is_of_no_use_on_another_connection() -> None:
    first, second = JOB.challenge(), JOB.challenge()
    hello = JOB.hello(first, 1, 2)
    assert JOB.refusal(hello, first, 2) is None
    refused = JOB.refusal(hello, second, 2)
    assert refused is not None
    assert "token" in refused.why
    for changed in ({"worker": 0}, {"workers": 3}, {"generation": 2}, {"versions": "other"}):
        assert JOB.refusal(replace(hello, **changed), first, 2) is not None


PAYLOADS = [
    b"GET / HTTP/1.0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"\n",
    b"\n" * 10_000,
    b"[]\n",
    b"1\n",
    b"null\n",
    b"\xff\xfe\n",
    b"\0" * 5_000,
    b"x" * 100_000,
    b"[" * 2_000 + b"\n",
    b'{"a":' * 800 + b"1" + b"}" * 800 + b"\n",
    b'{"kind": "hello"}\n',
    b'{"kind": ["hello"]}\n',
    b'{"kind": {"hello": 1}}\n',
    b'{"kind": "put", "key": "start", "value": "1"}\n',
    b'{"kind": "bye", "steps": 0}\n',
    b'{"kind": "fail", "why": "x"}\n',
    b'{"kind": "beat", "steps": ' + b"9" * 4_000 + b"}\n",
    b'{"kind": "hello", "worker": NaN}\n',
    b'{"kind": "hello", "kind": "hello"}\n',
    b'{"hello": "graphdist 1", "worker": 1, "workers": 2}\n',
    JOB.hello(JOB.challenge(), 1, 2).line(),
    replace(JOB.hello(JOB.challenge(), 1, 2), worker=-1).line(),
    replace(JOB.hello(JOB.challenge(), 1, 2), worker=10**30).line(),
    replace(JOB.hello(JOB.challenge(), 1, 2), protocol="x" * 3_000).line(),
    JobIdentity().hello(JOB.challenge(), 1, 2).line(),
    JOB.hello(JOB.challenge(), 1, 2).line()[:-2],
]


@pytest.fixture
def pair() -> Iterator[list[ClusterWorkers]]:
    addresses = [f"127.0.0.1:{free_port('127.0.0.1')}", "127.0.0.1:1"]
    made = [ClusterWorkers(addresses, index, TIMEOUTS, JOB) for index in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ClusterWorkers.rendezvous, made))
    yield made
    for one in reversed(made):
        one.leave()


def exchanges(pair: list[ClusterWorkers], key: str) -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda one: one.exchange(key, one.index, "a test"), pair))


def connected(pair: list[ClusterWorkers]) -> socket.socket:
    host, port = pair[0].addresses[0].split(":")
    stream = socket.create_connection((host, int(port)), timeout=10)
    assert json.loads(stream.makefile("rb").readline())["protocol"] == PROTOCOL
    return stream


def test_what_strangers_say_does_no_harm(pair: list[ClusterWorkers]) -> None:
    for payload in PAYLOADS:
        with connected(pair) as stranger:
            try:
                stranger.sendall(payload)
                if payload.endswith(b"\n") or len(payload) > messages.MAX_HELLO_BYTES:
                    while stranger.recv(1 << 16):  # refused with a word, or without
                        pass
            except ConnectionError:
                pass
    assert exchanges(pair, "afterwards") == [[0, 1]] * 2
    assert pair[0].failure is None


def test_strangers_that_say_nothing_are_dropped(
    pair: list[ClusterWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SECONDS_FOR_HELLO", 0.2)
    with connected(pair) as silent:
        assert silent.recv(1) == b""


def test_strangers_do_not_keep_others_out(pair: list[ClusterWorkers]) -> None:
    crowd = [connected(pair) for _ in range(server.MAX_STRANGERS + 20)]
    found = pair[0]._server
    assert found is not None
    assert len(found._strangers) <= server.MAX_STRANGERS
    assert crowd[0].recv(1) == b""  # the oldest made room
    assert exchanges(pair, "afterwards") == [[0, 1]] * 2
    for one in crowd:
        one.close()


@pytest.mark.parametrize("line", [b"x", b'{"kind": "beat", "steps": true}', b'{"kind": "beat"}'])
def test_what_is_no_message(line: bytes) -> None:
    with pytest.raises(messages.MessageError):
        messages.parsed(line, messages.FROM_WORKERS)


def test_messages_come_back_as_they_were() -> None:
    for message in (
        messages.Put("key", json.dumps({"nested": [[1.5, None]]})),
        messages.All("key", ["1", "null"]),
        messages.Beats([3, -1], [0.5, 0]),
        messages.Failed(1, "died: \u2028 \n"),
    ):
        assert messages.parsed(message.line(), [type(message)]) == message
