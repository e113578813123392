"""`graphdist-run`: start a program once for every worker, on this machine.

    graphdist-run -n 2 train.py
    graphdist-run -n 4 --max-restarts 3 -m package.train --epochs 10

The workers get `TF_CONFIG` and communicate over loopback. Their output is printed line by line,
each line with the index of its worker. When a worker fails, all other workers have a moment to
report the failure, and are stopped. At the end the last output of the failed worker is printed
again. If the reader of the output goes away, or the output cannot be written, the workers are told
to end. No worker outlives the launcher. When the launcher ends for any reason, the kernel kills the
workers, and a process beside the workers kills the processes that they have started.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from graphdist.config import worker_environment, worker_timeouts
from graphdist.runtime.processes.addresses import ReservedPort, join_address, resolved
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.tools.console import CommandParser, console_tool
from graphdist.tools.given_files import is_given
from graphdist.tools.worker_process import Worker, has_reader, killed_with_the_launcher, write

SECONDS_TO_END = 3.0
"""How long a worker may take to end after SIGTERM."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@console_tool("graphdist-run")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status of the worker that failed, 0 if none did."""
    options = command_line().parse_args(arguments)
    if options.m and options.program[:1] == ["--"]:  # Python accepts `--` only before a file
        del options.program[0]
    refuse_nonsense(options)
    least = options.n if options.min_workers is None else options.min_workers
    command = [sys.executable, "-u", *(["-m"] if options.m else []), *options.program]
    num_workers, restarts = options.n, 0
    identity = JobIdentity(secrets.token_hex(8), token=secrets.token_hex(32))
    while True:
        try:
            ports = reserved_ports(num_workers, options.host)
        except OSError as error:
            command_line().error(
                f"the workers cannot listen at --host {options.host}: {error.strerror or error}"
            )
        job = Job(
            command,
            [join_address(options.host, port.number) for port in ports],
            options.devices_per_worker or 0,
            options.grace,
            replace(identity, generation=restarts),
        )
        with closing(ports[0]):
            status = job.run()
        if status == 0 or job.signal_to_end is not None or restarts == options.max_restarts:
            return status
        restarts += 1
        num_workers = max(least, num_workers - 1)
        say(f"restart {restarts} of {options.max_restarts}, with {num_workers} workers")


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add("-n", type=int, required=True, metavar="N", help="how many workers")
    devices = "each worker has D devices: logical ones of the CPU, or D of the GPUs"
    add("--devices-per-worker", type=int, metavar="D", help=devices)
    restarts = "start all workers again when one fails, K times at most"
    add("--max-restarts", type=int, default=0, metavar="K", help=restarts)
    least = "each restart has one worker less, and M at least; by default all have N"
    add("--min-workers", type=int, metavar="M", help=least)
    grace = "when a worker fails, the others go on for S seconds, to report which worker failed"
    add("--grace", type=float, default=5.0, metavar="S", help=grace)
    add("--host", default="127.0.0.1", help="the address the workers listen at (loopback)")
    add("-m", action="store_true", help="the program is a module, as for python -m")
    add("program", nargs=argparse.REMAINDER, help="the program and its own arguments")
    return parser


def refuse_nonsense(options: argparse.Namespace) -> None:
    """End the command with exit status 2 for options that make no sense."""
    refuse = command_line().error
    for option, value, least in (
        ("-n", options.n, 1),
        ("--devices-per-worker", options.devices_per_worker, 1),
        ("--max-restarts", options.max_restarts, 0),
        ("--grace", options.grace, 0),
    ):
        if value is not None and not value >= least:  # True for nan, too
            refuse(f"{option} is {value}: it must be at least {least}")
    least = options.n if options.min_workers is None else options.min_workers
    if not 1 <= least <= options.n:
        refuse(f"--min-workers is {least}: it is from 1 to the number of workers, {options.n}")
    if options.min_workers is not None and not options.max_restarts:
        refuse("--min-workers goes with --max-restarts: give that too, or leave it out")
    if not options.program:
        refuse("no program is given: write for instance graphdist-run -n 2 train.py")
    program = options.program[0]
    if options.m or program.startswith("-"):
        return
    if not os.path.exists(program):
        refuse(f"there is no file {program}; a module is started with -m")
    path = Path(program)
    if not (is_given(path) or path.is_dir()):
        refuse(f"{program} is a device or a socket, and no program")


@dataclass
class Job:
    """One start of all workers: a worker with `num_devices` at each address. `run` starts them."""

    command: Sequence[str]
    addresses: Sequence[str]
    num_devices: int
    grace_seconds: float
    identity: JobIdentity

    signal_to_end: int | None = None
    """The first signal that has requested the end of the job; None without one."""

    def __post_init__(self) -> None:
        self._workers: list[Worker] = []
        self._ended: list[Worker] = []
        self._lost: OSError | None = None
        self._silence_seconds = worker_timeouts().silence

    def run(self) -> int:
        """Start the workers, and return once all have ended."""
        before = {
            number: signal.signal(number, self._forward)
            for number in FORWARDED
            if signal.getsignal(number) is not signal.SIG_IGN  # as after nohup
        }
        with killed_with_the_launcher() as also_kill:
            try:
                for index in range(len(self.addresses)):
                    if self.signal_to_end is None:
                        also_kill(self._start(index))
                self._wait()
            finally:
                for worker in self._workers:
                    worker.send(signal.SIGKILL)
                for number, handler in before.items():
                    signal.signal(number, handler)
        for worker in self._workers:
            worker.process.wait()
            worker.finish_reading()
        if (error := self._lost or self._unwritten()) is not None:
            raise error
        return self._verdict()

    def _start(self, index: int) -> Worker:
        environment = worker_environment(self.addresses, index, self.identity, self.num_devices)
        worker = Worker(index, self.command, environment)
        self._workers.append(worker)
        if self.signal_to_end is not None:  # the signal came before the worker was in the list
            worker.send(self.signal_to_end)
        return worker

    def _unwritten(self) -> OSError | None:
        """Return the error if the output cannot be written any more."""
        return next((worker.unwritten for worker in self._workers if worker.unwritten), None)

    def _end_if_lost(self) -> None:
        self._lost = self._unwritten()
        if not (has_reader(sys.stdout) and has_reader(sys.stderr)):
            self._lost = BrokenPipeError()  # found now: the next write may be an hour away
        if self._lost is not None:
            self._forward(signal.SIGTERM)

    def _forward(self, number: int, frame: FrameType | None = None) -> None:
        if number in ENDING and self.signal_to_end is None:
            self.signal_to_end = number
        for worker in self._workers:
            worker.send(number)

    def _wait(self) -> None:
        deadline, is_stopping, stopped_since = math.inf, False, math.inf
        while self._left:
            for worker in self._left:
                if worker.status is not None:
                    self._ended.append(worker)
                    worker.was_stopped = is_stopping
            if self._lost is None and self.signal_to_end is None:
                self._end_if_lost()
            # Stopped workers cannot report that other workers have failed.
            is_stopped = bool(self._ended) and all(worker.is_stopped for worker in self._left)
            stopped_since = min(stopped_since, time.monotonic()) if is_stopped else math.inf
            if time.monotonic() > stopped_since + self._silence_seconds:
                self._kill_stopped()
            has_failed = any(worker.status for worker in self._ended)
            if deadline == math.inf and (has_failed or self.signal_to_end is not None):
                deadline = time.monotonic() + self.grace_seconds
            if time.monotonic() > deadline:
                for worker in self._workers:
                    worker.send(signal.SIGKILL if is_stopping else signal.SIGTERM)
                    worker.send(signal.SIGCONT)
                deadline, is_stopping = time.monotonic() + SECONDS_TO_END, True
            time.sleep(0.02)

    @property
    def _left(self) -> list[Worker]:
        return [worker for worker in self._workers if worker not in self._ended]

    def _kill_stopped(self) -> None:
        for worker in self._left:
            say(f"worker {worker.index} is stopped, and all others have ended: it is killed")
            worker.send(signal.SIGKILL)
            worker.process.wait()

    def _verdict(self) -> int:
        """Return the exit status of the job, and print the failed worker's last output."""
        failed = [worker for worker in self._ended if worker.status]
        failed = [worker for worker in failed if not worker.was_stopped] or failed
        if not failed:
            return 128 + self.signal_to_end if self.signal_to_end and not self._workers else 0
        first = next((worker for worker in failed if not worker.follows_another()), failed[0])
        assert first.status is not None
        by = signal.Signals(-first.process.returncode) if first.process.returncode < 0 else None
        how = f"was ended by {by.name}" if by else f"failed with exit status {first.status}"
        is_ended = by in ENDING or first.status - 128 in ENDING
        if self.signal_to_end is not None and is_ended:  # no worker has failed
            say(f"worker {first.index} {how}")
            return 128 + self.signal_to_end  # not SIGTERM, which a slow worker got later
        say(f"worker {first.index} {how}" + (", and said last:" if first.last_lines else ""))
        with suppress(OSError):  # `console_tool` flushes stderr again, and reports the error
            write(sys.stderr, b"".join(first.last_lines))
        return first.status


def reserved_ports(count: int, host: str) -> list[ReservedPort]:
    """Return ports of a host. The first port stays reserved, because worker 0 listens there.

    Raises `OSError` for another machine's host.
    """
    address = resolved(host, 0)[0]
    ports = [ReservedPort(address) for _ in range(count)]
    for port in ports[1:]:
        port.close()
    return ports


def say(text: str) -> None:
    """Print a line of the launcher."""
    with suppress(OSError):  # `console_tool` flushes stderr again, and reports the error
        write(sys.stderr, f"[graphdist-run] {text}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
