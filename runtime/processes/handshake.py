"""The handshake, by which a worker and the server of a cluster authenticate each other.

A job has an id, a generation (the count of its restarts), and a token: a secret that only its
workers have. The server sends a nonce. The worker answers with its identity, its own nonce, and a
proof: the HMAC (RFC 2104, with SHA-256) of its identity and both nonces, keyed with the token. The
server proves itself in the same way. So the token is never sent, and a recorded connection cannot
be replayed.

An empty token proves nothing: every program that knows the id of the job is accepted. The server
says why it refuses a worker. Before the proof, the reason reveals nothing to a stranger. After the
proof, it has the details.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict, dataclass, field, replace

from graphdist.quoted import quoted, unquoted
from graphdist.runtime.processes.messages import Challenge, Hello, Refused, Welcome

PROTOCOL = "graphdist 2"


@dataclass(frozen=True)
class JobIdentity:
    """The identity of a job, which its processes prove to each other, and their versions."""

    id: str = ""
    generation: int = 0
    token: str = field(default="", repr=False)
    versions: str = ""

    def challenge(self) -> Challenge:
        """Return the server's first message."""
        return Challenge(PROTOCOL, secrets.token_hex(16))

    def hello(self, challenge: Challenge, worker: int, workers: int) -> Hello:
        """Return a worker's answer."""
        nonce = secrets.token_hex(16)
        unproven = Hello(
            PROTOCOL, self.id, self.generation, worker, workers, self.versions, nonce, proof=""
        )
        return replace(unproven, proof=self._proof_of(unproven, challenge))

    def refusal(self, hello: Hello, challenge: Challenge, workers: int) -> Refused | None:
        """Return the refusal of a worker by a server of `workers` workers; None to accept it."""
        who = f"worker {quoted(hello.worker)}"
        if hello.protocol != PROTOCOL:
            return _refused(f"{who} speaks {quoted(hello.protocol)}, worker 0 speaks {PROTOCOL!r}")
        if hello.job != self.id:
            return _refused(f"{who} is of the job {quoted(hello.job)}, worker 0 of another one")
        expected = self._proof_of(replace(hello, proof=""), challenge)
        if not _are_equal(expected, hello.proof):
            return _refused(f"the job's token that {who} was given is another than worker 0's")
        if hello.generation != self.generation:
            return _refused(
                f"{who} is of start {quoted(hello.generation)} of the job, worker 0 of start "
                f"{self.generation}",
                may_retry=hello.generation > self.generation,  # the server is of an earlier start
            )
        if hello.versions != self.versions:
            return _refused(f"{who} runs {unquoted(hello.versions)}, worker 0 runs {self.versions}")
        if hello.workers != workers or not 0 <= hello.worker < workers:
            return _refused(
                f"{who} says there are {quoted(hello.workers)} workers, worker 0 says {workers}"
            )
        return None

    def welcome(self, hello: Hello, challenge: Challenge) -> Welcome:
        """Return the server's acceptance of a worker."""
        return Welcome(self._digest("server", challenge.nonce, hello.nonce))

    def is_welcome(self, welcome: Welcome, hello: Hello, challenge: Challenge) -> bool:
        """Return whether an acceptance is from this job's server."""
        expected = self.welcome(hello, challenge).proof
        return _are_equal(expected, welcome.proof)

    def _proof_of(self, hello: Hello, challenge: Challenge) -> str:
        return self._digest("worker", challenge.nonce, json.dumps(asdict(hello), sort_keys=True))

    def _digest(self, *parts: str) -> str:
        text = json.dumps(parts)  # different parts have different texts
        key = os.fsencode(self.token)  # the bytes in the environment, which need not be UTF-8
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _are_equal(proof: str, received: str) -> bool:
    """Compare in constant time, so that the time tells nothing about the proof.

    `received` may be any string of JSON, also one with lone surrogates.
    """
    return hmac.compare_digest(proof.encode(), received.encode(errors="surrogatepass"))


def _refused(why: str, *, may_retry: bool = False) -> Refused:
    return Refused(why, int(may_retry))
