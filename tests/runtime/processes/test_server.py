"""Each row of the server's table: what a connection says, and what follows for all."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias, TypeVar

import pytest

from graphdist.runtime.processes import messages as ms
from graphdist.runtime.processes import server as server_of
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.runtime.processes.server import CountedWarnings, Server

JOB = JobIdentity("a", 1, "secret", "graphdist 1, jax 1")
SECONDS = 10.0
"""The longest that a message may take: a test fails then, it does not hang."""
Kind = TypeVar("Kind", bound=ms.Message)


class Peer:
    """One connection to a server, message by message."""

    def __init__(self, port: int) -> None:
        self.stream = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.lines = self.stream.makefile("rb")
        challenge = ms.parsed(self.lines.readline(), ms.TO_STRANGERS)
        assert isinstance(challenge, ms.Challenge)
        self.challenge = challenge

    def say(self, message: ms.Message) -> None:
        self.stream.sendall(message.line())

    def next(self, kind: type[Kind]) -> Kind:
        """Return the next message of a kind; heartbeats in between are passed over."""
        while True:
            line = self.lines.readline()
            assert line, f"the connection ended without a {kind.__name__}"
            message = ms.parsed(line, (*ms.TO_STRANGERS, *ms.TO_WORKERS))
            if isinstance(message, kind):
                return message
            assert isinstance(message, ms.Beats), message

    def is_dropped(self) -> bool:
        """Return whether the server closes the connection without another word."""
        with suppress(ConnectionError):
            return self.lines.readline() == b""
        return True

    def close(self) -> None:
        self.lines.close()
        self.stream.close()


Connect: TypeAlias = Callable[[], Peer]
Join: TypeAlias = Callable[[int], Peer]


@pytest.fixture
def silence_seconds() -> float:
    return 60.0


@pytest.fixture
def server(silence_seconds: float) -> Iterator[Server]:
    """Return a server of two workers, none of which is there yet."""
    listener = socket.create_server(("127.0.0.1", 0))
    found = Server(listener, 2, silence_seconds, JOB, pytest.fail)
    found.start()
    yield found
    found.stop()
    found.join(SECONDS)
    assert not found.is_alive()


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    port, made = server.listener.getsockname()[1], []

    def one_more() -> Peer:
        made.append(Peer(port))
        return made[-1]

    yield one_more
    for peer in made:
        peer.close()


@pytest.fixture
def join(connect: Connect) -> Join:
    """Return what connects a worker of a number, which is welcome."""

    def joined(worker: int) -> Peer:
        peer = connect()
        hello = JOB.hello(peer.challenge, worker, 2)
        peer.say(hello)
        assert JOB.is_welcome(peer.next(ms.Welcome), hello, peer.challenge)
        return peer

    return joined


@pytest.fixture
def pair(join: Join) -> tuple[Peer, Peer]:
    return join(0), join(1)


# Strangers.


def test_a_stranger_that_proves_the_job_is_a_worker(join: Join) -> None:
    worker = join(0)
    worker.say(ms.Ask("nothing"))
    assert worker.next(ms.Given) == ms.Given("nothing", [])


def test_a_stranger_without_the_token_is_refused_and_dropped(
    server: Server, connect: Connect
) -> None:
    stranger = connect()
    stranger.say(replace(JOB, token="guess").hello(stranger.challenge, 1, 2))
    assert "token" in stranger.next(ms.Refused).why
    assert stranger.is_dropped()
    assert "127.0.0.1 was refused" in server.refusals[0]


def test_a_number_that_is_taken_is_refused(connect: Connect, pair: tuple[Peer, Peer]) -> None:
    second = connect()
    second.say(JOB.hello(second.challenge, 1, 2))
    assert second.next(ms.Refused) == ms.Refused("there is a worker 1 already", 0)
    assert second.is_dropped()


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.0\r\n", ms.Beat(1).line(), ms.Put("start", "1").line(), b"x" * 5_000],
    ids=["no message", "a worker's message", "a worker's value", "more than 4 KiB"],
)
def test_a_stranger_that_says_anything_else_is_dropped(connect: Connect, said: bytes) -> None:
    stranger = connect()
    stranger.stream.sendall(said)
    assert stranger.is_dropped()


def test_a_proof_that_is_no_utf8_is_a_wrong_one(connect: Connect, join: Join) -> None:
    stranger = connect()
    stranger.say(replace(JOB.hello(stranger.challenge, 1, 2), proof="\ud800"))
    assert "token" in stranger.next(ms.Refused).why
    join(1)


# Workers.


def test_values_are_answered_in_the_order_of_workers(pair: tuple[Peer, Peer]) -> None:
    first, second = pair
    second.say(ms.Put("sizes", "2"))
    second.say(ms.Ask("sizes"))
    assert second.next(ms.Given) == ms.Given("sizes", [1])
    first.say(ms.Put("sizes", "1"))
    for worker in pair:
        assert worker.next(ms.All) == ms.All("sizes", ["1", "2"])


def test_what_is_said_first_under_a_name_stays(pair: tuple[Peer, Peer]) -> None:
    first, second = pair
    first.say(ms.Say("request", "0"))
    assert second.next(ms.Said) == first.next(ms.Said) == ms.Said("request", "0")
    second.say(ms.Say("request", "1"))
    second.say(ms.Ask("request"))
    assert second.next(ms.Given) == ms.Given("request", [])  # nothing was said before it


def test_heartbeats_are_told_to_all(pair: tuple[Peer, Peer]) -> None:
    first, second = pair
    second.say(ms.Beat(7))
    while (beats := first.next(ms.Beats)).steps != [0, 7]:
        assert beats.steps == [0, 0]


def test_a_worker_that_fails_is_told_to_all_and_to_those_that_come_later(join: Join) -> None:
    first = join(0)
    first.say(ms.Fail("failed: ValueError"))
    assert first.next(ms.Failed) == ms.Failed(0, "failed: ValueError")
    assert join(1).next(ms.Failed) == ms.Failed(0, "failed: ValueError")


def test_a_worker_fails_once(pair: tuple[Peer, Peer]) -> None:
    first, second = pair
    first.say(ms.Fail("gave up: a step"))
    first.close()
    assert second.next(ms.Failed) == ms.Failed(0, "gave up: a step")
    assert second.next(ms.Gone) == ms.Gone(0)
    second.say(ms.Ask("nothing"))
    assert second.next(ms.Given).workers == []  # no other failure was told before it


@pytest.mark.parametrize("said", [b"", b"nonsense\n", JOB.hello(JOB.challenge(), 0, 2).line()])
def test_a_worker_whose_connection_breaks_has_failed(pair: tuple[Peer, Peer], said: bytes) -> None:
    first, second = pair
    first.stream.sendall(said)
    if not said:
        first.close()
    assert second.next(ms.Failed) == ms.Failed(0, "died")


@pytest.mark.parametrize("silence_seconds", [0.0])
def test_a_worker_that_is_silent_has_failed(pair: tuple[Peer, Peer]) -> None:
    assert pair[1].next(ms.Failed).why.startswith("was not heard of for ")


# Workers that have left.


def test_nobody_waits_for_a_worker_that_has_left(pair: tuple[Peer, Peer]) -> None:
    first, second = pair
    second.say(ms.Put("before", "2"))
    first.say(ms.Bye(3))
    assert second.next(ms.Left) == ms.Left(0, 3)
    assert second.next(ms.Never) == ms.Never("before", 0)
    second.say(ms.Put("after", "2"))
    assert second.next(ms.Never) == ms.Never("after", 0)


def test_what_a_worker_says_after_it_has_left_is_not_heard(pair: tuple[Peer, Peer]) -> None:
    first, second = pair
    first.say(ms.Bye(3))
    first.say(ms.Fail("too late"))
    first.say(ms.Say("name", "value"))
    first.close()
    assert second.next(ms.Left) == ms.Left(0, 3)
    second.say(ms.Ask("nothing"))
    assert second.next(ms.Given).workers == []  # neither a failure nor a text came before it


# What is logged of strangers.


def test_many_refused_strangers_are_one_line(
    server: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(50):
        stranger = connect()
        stranger.say(replace(JOB, id=f"job {number}").hello(stranger.challenge, 1, 2))
        stranger.next(ms.Refused)
    refused = "127.0.0.1 was refused: worker 1 is of the job 'job {}', worker 0 of another one"
    assert caplog.messages == ["coordination server: " + refused.format(0)]
    assert server.refusals == [refused.format(number) for number in (47, 48, 49)]


def test_refused_strangers_are_counted_once_a_minute() -> None:
    seconds, lines = [100.0], list[str]()
    warnings = CountedWarnings(lines.append, lambda: seconds[0])
    for time, number in ((100, 0), (101, 1), (159, 2), (160, 3), (161, 4), (500, 5), (560, 6)):
        seconds[0] = float(time)
        warnings.add(f"{number} was refused")
    seconds[0] = 10_000.0
    warnings.remind()
    assert lines == [
        "0 was refused",
        "3 was refused (3 of this kind in 60 s)",
        "5 was refused (2 of this kind in 340 s)",
        "6 was refused",
    ]


def test_what_a_stranger_says_of_itself_is_one_short_line() -> None:
    hostile = "\x1b]0;title\x07\r\nworker 0 failed\u202e\x00" + "x" * 3_000
    for changed in ({"job": hostile}, {"protocol": hostile}, {"worker": 10**3_000, "job": "b"}):
        challenge = JOB.challenge()
        hello = replace(JOB.hello(challenge, 1, 2), **changed)
        refused = JOB.refusal(hello, challenge, 2)
        assert refused is not None
        assert refused.why.isprintable()
        assert len(refused.why) < 200
    open_job = replace(JOB, token="", versions=hostile)
    challenge = JOB.challenge()
    refused = replace(JOB, token="").refusal(open_job.hello(challenge, 1, 2), challenge, 2)
    assert refused is not None
    assert "title" in refused.why
    assert refused.why.isprintable()
    assert len(refused.why) < 600


def test_what_a_worker_sent_before_a_write_to_it_failed_is_read(server: Server) -> None:
    # The worker says goodbye and closes, while the server sends it something: the write fails.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ours.setblocking(False)
    peer = server_of.Peer(server, ours, JOB.challenge())
    peer.worker = 1
    theirs.sendall(ms.Beat(4).line() + ms.Bye(5).line())
    theirs.close()
    peer.connection_lost(BrokenPipeError())
    assert (peer.has_left, peer.steps) == (True, 5)
    ours.close()
