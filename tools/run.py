"""`graphdist-run`: starts a program once for every worker, on this machine.

The workers get `TF_CONFIG` and communicate over loopback. Their output is printed line by line,
each line with the number of its worker. When a worker fails, the others get a moment to report it
and are stopped, and the last output of the failed worker is printed again at the end. If the reader
of the output goes away, the workers are told to end. No worker outlives the launcher: the kernel
kills it when the launcher ends for any reason.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import IO

from graphdist.config import worker_environment
from graphdist.runtime.processes.addresses import join_address
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.tools.console import console_tool

SECONDS_TO_END = 3.0
"""How long a worker may take to end after SIGTERM."""
LINES_SHOWN_LAST = 60
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FOLLOWS_ANOTHER = re.compile(r"graphdist\.[\w.]*(WorkerError|CollectiveTimeoutError): ")
PR_SET_PDEATHSIG = 1


@console_tool("graphdist-run")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status of the worker that failed, 0 if none did."""
    options = command_line().parse_args(arguments)
    refuse_nonsense(options)
    least = options.n if options.min_workers is None else options.min_workers
    command = [sys.executable, "-u", *(["-m"] if options.m else []), *options.program]
    num_workers, restarts = options.n, 0
    identity = JobIdentity(secrets.token_hex(8), token=secrets.token_hex(32))
    while True:
        try:
            ports = free_ports(num_workers, options.host)
        except OSError as error:
            command_line().error(
                f"the workers cannot listen at --host {options.host}: {error.strerror}"
            )
        job = Job(
            command,
            [join_address(options.host, port) for port in ports],
            options.devices_per_worker or 0,
            options.grace,
            replace(identity, generation=restarts),
        )
        status = job.run()
        if status == 0 or job.is_asked_to_end or restarts == options.max_restarts:
            return status
        restarts += 1
        num_workers = max(least, num_workers - 1)
        say(f"restart {restarts} of {options.max_restarts}, with {num_workers} workers")


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser("graphdist-run", description=(__doc__ or "").split("\n\n")[1])
    found.add_argument("-n", type=int, required=True, metavar="N", help="how many workers")
    found.add_argument(
        "--devices-per-worker",
        type=int,
        metavar="D",
        help="how many devices each worker has: logical ones of the CPU, or that many of the GPUs",
    )
    found.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="K",
        help="start all workers again when one fails, K times at most",
    )
    found.add_argument(
        "--min-workers",
        type=int,
        metavar="M",
        help="each restart has one worker less, and M at least; by default all have N",
    )
    found.add_argument(
        "--grace",
        type=float,
        default=5.0,
        metavar="S",
        help="how many seconds the others may go on when one has failed: they say who it was",
    )
    found.add_argument(
        "--host", default="127.0.0.1", help="the address the workers listen at (loopback)"
    )
    found.add_argument("-m", action="store_true", help="the program is a module, as for python -m")
    found.add_argument(
        "program", nargs=argparse.REMAINDER, help="the program and its own arguments"
    )
    return found


def refuse_nonsense(options: argparse.Namespace) -> None:
    """End the command with exit status 2 for options that cannot be meant."""
    refuse = command_line().error
    for option, value, least in (
        ("-n", options.n, 1),
        ("--devices-per-worker", options.devices_per_worker, 1),
        ("--max-restarts", options.max_restarts, 0),
        ("--grace", options.grace, 0),
    ):
        if value is not None and not value >= least:  # nan too
            refuse(f"{option} is {value}: it is at least {least}")
    least = options.n if options.min_workers is None else options.min_workers
    if not 1 <= least <= options.n:
        refuse(f"--min-workers is {least}: it is from 1 to the number of workers, {options.n}")
    if options.min_workers is not None and not options.max_restarts:
        refuse("--min-workers goes with --max-restarts: give that too, or leave it out")
    if not options.program:
        refuse("no program is given: write for instance graphdist-run -n 2 train.py")
    program = options.program[0]
    if not options.m and not program.startswith("-") and not os.path.exists(program):
        refuse(f"there is no file {program}; a module is started with -m")


class Worker:
    """One process, and the last lines it wrote."""

    def __init__(self, number: int, command: Sequence[str], environment: dict[str, str]) -> None:
        """Start the process."""
        self.number = number
        self.was_stopped = False
        """Whether the launcher stopped it, after another worker had failed."""
        self.has_no_reader = False
        """Whether its output could not be printed, since the launcher's reader went away."""
        self.last_lines: deque[str] = deque(maxlen=LINES_SHOWN_LAST)
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # a terminal's signals reach it through the launcher only
            preexec_fn=_dying_with(os.getpid()),
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(lines, out), daemon=True)
            for lines, out in (
                (self.process.stdout, sys.stdout),
                (self.process.stderr, sys.stderr),
            )
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, lines: IO[str], out: IO[str]) -> None:
        with lines:
            for line in lines:
                if out is sys.stderr:
                    self.last_lines.append(line)
                if not self.has_no_reader:  # else it is read all the same: the worker would wait
                    self._print(line, out)

    def _print(self, line: str, out: IO[str]) -> None:
        try:
            with _writing:
                out.write(f"[worker {self.number}] {line.rstrip()}\n")
                out.flush()
        except BrokenPipeError:
            self.has_no_reader = True

    @property
    def status(self) -> int | None:
        """Return its exit status as shells report it, None while it runs."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Send a signal to the process and to all it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def finish_reading(self) -> None:
        """Wait a moment for the last lines of a process that has ended."""
        for reader in self._readers:
            reader.join(1.0)

    def follows_another(self) -> bool:
        """Return whether it failed because another worker did."""
        return any(FOLLOWS_ANOTHER.match(line) for line in self.last_lines)


class Job:
    """All workers, once started."""

    def __init__(
        self,
        command: Sequence[str],
        addresses: Sequence[str],
        devices_per_worker: int,
        grace_seconds: float,
        identity: JobIdentity,
    ) -> None:
        """Describe the job, of a worker at each address; `run` starts it."""
        self._grace_seconds, self._identity = grace_seconds, identity
        self._command, self._devices, self._addresses = command, devices_per_worker, addresses
        self._workers: list[Worker] = []
        self._ended: list[Worker] = []
        self._signal_to_end: int | None = None

    @property
    def is_asked_to_end(self) -> bool:
        """Return whether a signal has requested the end of the job."""
        return self._signal_to_end is not None

    def run(self) -> int:
        """Start the workers, and return once all have ended."""
        before = {number: signal.signal(number, self._forward) for number in FORWARDED}
        try:
            for number in range(len(self._addresses)):
                environment = worker_environment(
                    self._addresses, number, self._identity, self._devices
                )
                self._workers.append(Worker(number, self._command, environment))
            self._wait()
        finally:
            for worker in self._workers:
                worker.send(signal.SIGKILL)
            for number, handler in before.items():
                signal.signal(number, handler)
        for worker in self._workers:
            worker.process.wait()
            worker.finish_reading()
        if self._has_no_reader():
            raise BrokenPipeError
        return self._verdict()

    def _has_no_reader(self) -> bool:
        return any(worker.has_no_reader for worker in self._workers)

    def _forward(self, number: int, frame: FrameType | None = None) -> None:
        if number in ENDING and self._signal_to_end is None:
            self._signal_to_end = number
        for worker in self._workers:
            worker.send(number)

    def _wait(self) -> None:
        deadline, is_stopping = float("inf"), False
        while len(self._ended) < len(self._workers):
            for worker in self._workers:
                if worker not in self._ended and worker.status is not None:
                    self._ended.append(worker)
                    worker.was_stopped = is_stopping
            if self._has_no_reader() and not self.is_asked_to_end:
                self._forward(signal.SIGTERM)
            has_failed = any(worker.status for worker in self._ended)
            if deadline == float("inf") and (has_failed or self.is_asked_to_end):
                deadline = time.monotonic() + self._grace_seconds
            if time.monotonic() > deadline:
                for worker in self._workers:
                    worker.send(signal.SIGKILL if is_stopping else signal.SIGTERM)
                    worker.send(signal.SIGCONT)
                deadline, is_stopping = time.monotonic() + SECONDS_TO_END, True
            time.sleep(0.02)

    def _verdict(self) -> int:
        """Return the exit status of the job, and print the failed worker's last output."""
        failed = [worker for worker in self._ended if worker.status]
        failed = [worker for worker in failed if not worker.was_stopped] or failed
        if not failed:
            return 0
        first = next((worker for worker in failed if not worker.follows_another()), failed[0])
        assert first.status is not None
        by = signal.Signals(-first.process.returncode) if first.process.returncode < 0 else None
        how = f"was ended by {by.name}" if by else f"failed with exit status {first.status}"
        is_ended = by in ENDING or first.status - 128 in ENDING
        if self._signal_to_end is not None and is_ended:  # there is no failure to look for
            say(f"worker {first.number} {how}")
            return 128 + self._signal_to_end  # a slow worker got SIGTERM after it
        say(f"worker {first.number} {how}" + (", and said last:" if first.last_lines else ""))
        sys.stderr.writelines(first.last_lines)
        sys.stderr.flush()
        return first.status


def free_ports(count: int, host: str) -> list[int]:
    """Return free ports of a host; raises `OSError` for another machine's host."""
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    sockets = [socket.create_server((host, 0), family=family) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def say(text: str) -> None:
    """Print a line of the launcher."""
    with _writing:
        sys.stderr.write(f"[graphdist-run] {text}\n")
        sys.stderr.flush()


def _dying_with(launcher: int) -> Callable[[], None]:
    """Return a function for a new process, which has the kernel kill it with the launcher."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # loaded here: not after the fork

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)  # the launcher ended before `prctl`

    return ask


_writing = threading.Lock()

if __name__ == "__main__":
    sys.exit(main())
