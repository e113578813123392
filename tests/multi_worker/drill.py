"""The fault drill: workers that train get signals at random moments, and must lose nothing.

    python -m tests.multi_worker.drill --kills 20 --ends 10

The launcher runs the example of several workers and restarts it. Each kill is a signal for one
worker: at any moment of its training, as soon as a checkpoint is being written, or while workers
meet, start their devices, compile and restore. At the end a SIGTERM to the launcher has all save
and leave, and a job without kills makes the same steps. What must hold is in `Drill.check`.

An end is a job of few steps, of which one worker gets a signal while it comes to its end: the last
checkpoint, the goodbye, the exit. What must hold is in `check_end`.

SIGKILL ends the worker at once, SIGTERM asks it to save and leave, SIGINT is Ctrl-C, and SIGSTOP
leaves it there and silent.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

import graphdist as gd
from tests.multi_worker.launch import command, environment

SECONDS_TO_RECOVER = 30.0
STEPS_TO_THE_END = 12
FEW_STEPS = ("--steps-a-checkpoint", "4", "--steps", str(STEPS_TO_THE_END))
SECONDS_OF_AN_END = 0.8
SECONDS_TO_START = 4.0
"""From the start of a worker to its first step, about."""
Moment: TypeAlias = Literal["in a write", "at any", "at a start"]
MOMENTS: tuple[Moment, ...] = ("at any", "in a write", "at a start")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)
LIMITS = {"GRAPHDIST_WORKER_SILENCE_SECONDS": "6", "GRAPHDIST_WORKER_START_SECONDS": "30"}
"""How long workers wait for one that is stopped; the launcher then waits for its `--grace`."""
_PATIENCE = 120.0
"""Seconds after which a job that says nothing is given up."""


@dataclass
class Life:
    """What the workers of one start of the job said: process ids, and the losses of each step.

    A loss is in hexadecimal, digit for digit; where the workers of a step agree there is one.
    """

    processes: dict[int, int] = field(default_factory=dict)
    losses: dict[int, set[str]] = field(default_factory=dict)
    first_step_at: float | None = None

    def numbers(self) -> dict[int, float]:
        """Return the loss of each step, of which the workers have one."""
        return {step: float.fromhex(next(iter(said))) for step, said in self.losses.items()}


@dataclass(frozen=True)
class Kill:
    """One worker with a signal: in which life of the job, at what moment, and after which step.

    The job went on from `resumed_at`. `seconds` passed until it made a step again; None where the
    next kill came before.
    """

    worker: int
    number: signal.Signals
    moment: Moment
    last_step: int
    resumed_at: int
    seconds: float | None

    @property
    def repeated(self) -> int:
        """Return how many steps are made again."""
        return self.last_step + 1 - self.resumed_at

    def __str__(self) -> str:
        """Return a line."""
        return (
            f"worker {self.worker} {self.number.name:7} {self.moment:11} after step "
            f"{self.last_step:5}: goes on from {self.resumed_at:5}, "
            f"{self.repeated:3} steps repeated"
            f"{'' if self.seconds is None else f', {self.seconds:5.1f} s'}"
        )


class Training:
    """A job of the launcher, as its output tells of it."""

    def __init__(
        self, workers: int, directory: Path, *arguments: str, options: tuple[str, ...] = ()
    ) -> None:
        """Start it."""
        self.directory = directory
        self.lives = [Life()]
        self._changed = threading.Condition()
        options = ("--grace", "20", "--devices-per-worker", "1", *options)
        self.process = subprocess.Popen(
            command(workers, "drilled", str(directory), *arguments, options=options),
            env=environment(**LIMITS),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            match line.split():
                case ["[worker", worker, "PID", process]:
                    self._start(int(worker.rstrip("]")), int(process))
                case ["[worker", _, "STEP", step, loss]:
                    self._step(int(step), loss)

    def _start(self, worker: int, process: int) -> None:
        with self._changed:
            if worker in self.lives[-1].processes:
                self.lives.append(Life())
            self.lives[-1].processes[worker] = process
            self._changed.notify_all()

    def _step(self, step: int, loss: str) -> None:
        with self._changed:
            life = self.lives[-1]
            life.first_step_at = life.first_step_at or time.monotonic()
            life.losses.setdefault(step, set()).add(loss)
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def wait_for_steps(self, life: int, count: int) -> None:
        """Wait until so many steps are made in a life of the job."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: len(self.lives) > life and len(self.lives[life].losses) >= count, _PATIENCE
            )
        if not came:
            self.process.send_signal(signal.SIGUSR1)  # the workers write where they are
            time.sleep(2)
            self.process.send_signal(signal.SIGINT)
            self.finish()
            raise AssertionError("".join(["the job does not go on\n", *self.errors]))

    def wait_for_workers(self, life: int, count: int) -> None:
        """Wait until so many workers have started in a life of the job."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: len(self.lives) > life and len(self.lives[life].processes) == count,
                _PATIENCE,
            )
        assert came, "".join(["the workers do not start\n", *self.errors[-40:]])

    def kill(
        self, worker: int, moment: Moment, number: signal.Signals = signal.SIGKILL
    ) -> tuple[Moment, float]:
        """Send a worker of this life a signal; return if it was in a write after all, and when."""
        deadline = time.monotonic() + _PATIENCE
        written = False
        while moment == "in a write" and not written and time.monotonic() < deadline:
            written = any(".partial" in path.name for path in self.directory.glob("*"))
        os.kill(self.lives[-1].processes[worker], number)
        at = time.monotonic()
        return (moment if written or moment != "in a write" else "at any"), at

    def outcome(
        self,
        life: int,
        worker: int,
        moment: Moment,
        at: float,
        number: signal.Signals = signal.SIGKILL,
    ) -> Kill:
        """Return what became of a kill in a life, once the job has gone on."""
        last = max((step for one in self.lives[: life + 1] for step in one.losses), default=-1)
        following = next(one for one in self.lives[life + 1 :] if one.losses)
        is_next = following is self.lives[life + 1]
        assert following.first_step_at is not None
        seconds = following.first_step_at - at if is_next else None
        return Kill(worker, number, moment, last, min(following.losses), seconds)

    def finish(self) -> int:
        """Return the exit status, once the job has ended."""
        status = self.process.wait(_PATIENCE)
        streams = self.process.stdout, self.process.stderr
        for reader, stream in zip(self._readers, streams, strict=True):
            reader.join()
            assert stream is not None
            stream.close()
        return status

    @property
    def processes(self) -> list[int]:
        """Return all workers there ever were."""
        return [process for life in self.lives for process in life.processes.values()]


@dataclass(frozen=True)
class Drill:
    """What became of a job whose workers were killed, and of one that was left alone."""

    kills: list[Kill]
    steps_a_checkpoint: int
    steps_wait: bool
    drilled: Training
    undisturbed: Training

    def check(self) -> None:
        """Raise `AssertionError` unless nothing was lost."""
        (expected,) = (life.losses for life in self.undisturbed.lives)
        for step, losses in expected.items():
            assert len(losses) == 1, f"workers differ at step {step}: {losses}"
        for life in self.drilled.lives:
            for step, losses in life.losses.items():
                assert losses == expected[step], (step, losses, expected[step])
        made = set().union(*(life.losses for life in self.drilled.lives))
        assert made == set(expected), "a step was left out"
        for kill in self.kills:
            assert kill.repeated <= self.most_repeated, kill
        for process in self.drilled.processes:
            assert not Path(f"/proc/{process}").exists(), f"process {process} is left"

    @property
    def most_repeated(self) -> int:
        """Return how many steps a kill may cost.

        A checkpoint being written is lost. The steps that go on meanwhile are fewer than are
        between two checkpoints, since a checkpoint waits for the one before; and workers are a step
        apart.
        """
        return self.steps_a_checkpoint if self.steps_wait else 2 * self.steps_a_checkpoint + 1


def run_drill(
    workers: int,
    num_kills: int,
    steps_a_checkpoint: int,
    steps_wait: bool = False,
    seed: int = 0,
    *,
    in_slices: bool = False,
    signals: tuple[signal.Signals, ...] = (signal.SIGKILL,),
) -> Drill:
    """Return what became of a job with kills, and of one without that made as many steps.

    The optimizer's state may be in slices over the workers.
    """
    chosen = random.Random(seed)
    flags = ["--steps-wait"] * steps_wait + ["--in-slices"] * in_slices
    often = ("--steps-a-checkpoint", str(steps_a_checkpoint), *flags)
    with tempfile.TemporaryDirectory() as folder:
        drilled = Training(
            workers, Path(folder, "drilled"), *often, options=("--max-restarts", str(num_kills))
        )
        made: list[tuple[int, Moment, float, signal.Signals]] = []
        for number in range(num_kills):
            moment = MOMENTS[number % len(MOMENTS)]
            if moment == "at a start":
                drilled.wait_for_workers(number, workers)
                time.sleep(chosen.uniform(0, SECONDS_TO_START))
            else:
                drilled.wait_for_steps(number, 1)
                time.sleep(chosen.uniform(0, 1.5))
            worker, sent = chosen.randrange(workers), chosen.choice(signals)
            made.append((worker, *drilled.kill(worker, moment, sent), sent))
        drilled.wait_for_steps(num_kills, steps_a_checkpoint + 2)
        kills = [drilled.outcome(life, *kill) for life, kill in enumerate(made)]
        print(*kills, sep="\n", flush=True)
        drilled.process.send_signal(signal.SIGTERM)
        status = drilled.finish()
        assert status == 143, "".join(drilled.errors[-40:])
        steps = 1 + max(step for life in drilled.lives for step in life.losses)
        undisturbed = Training(workers, Path(folder, "undisturbed"), *often, "--steps", str(steps))
        assert undisturbed.finish() == 0, "".join(undisturbed.errors[-40:])
    return Drill(kills, steps_a_checkpoint, steps_wait, drilled, undisturbed)


def final_values(folder: Path) -> dict[str, bytes]:
    """Return the arrays of the last checkpoint in a folder, bit for bit."""
    return {
        name: np.asarray(gd.train.load_variable(folder, name)).tobytes()
        for name, _ in gd.train.list_variables(folder)
    }


def run_end(
    workers: int, folder: Path, worker: int, number: signal.Signals, seconds: float
) -> Training:
    """Return a job one of whose workers got a signal, so long after its last step."""
    job = Training(workers, folder, *FEW_STEPS, options=("--max-restarts", "1"))
    job.wait_for_steps(0, STEPS_TO_THE_END)
    time.sleep(seconds)
    with suppress(ProcessLookupError):  # it has ended already
        os.kill(job.lives[0].processes[worker], number)
    return job


def check_end(job: Training, expected: Training) -> None:
    """Raise `AssertionError` unless the job made all steps, and saved the values of the last."""
    status = job.finish()
    assert status == 0, "".join([f"status {status}\n", *job.errors[-40:]])
    (losses,) = (life.losses for life in expected.lives)
    for life in job.lives:
        assert all(said == losses[step] for step, said in life.losses.items())
    assert set().union(*(life.losses for life in job.lives)) == set(losses)
    assert final_values(job.directory) == final_values(expected.directory)
    assert not any(Path(f"/proc/{process}").exists() for process in job.processes)


def run_ends(
    workers: int, count: int, seed: int, signals: tuple[signal.Signals, ...] = SIGNALS
) -> None:
    """Run and check so many ends, and print each."""
    chosen = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        expected = Training(workers, Path(folder, "undisturbed"), *FEW_STEPS)
        assert expected.finish() == 0, "".join(expected.errors[-40:])
        for number in range(count):
            worker, sent = chosen.randrange(workers), chosen.choice(signals)
            seconds = chosen.uniform(0, SECONDS_OF_AN_END)
            began = time.monotonic()
            job = run_end(workers, Path(folder, str(number)), worker, sent, seconds)
            check_end(job, expected)
            print(
                f"worker {worker} {sent.name:7} {seconds:.2f} s after the last step: "
                f"{len(job.lives)} starts, {time.monotonic() - began:.1f} s",
                flush=True,
            )


def main() -> None:
    """Run the drill, and print what it came to."""
    parser = argparse.ArgumentParser(description="Kill workers that train, and see what is lost.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ends", type=int, default=0)
    parser.add_argument(
        "--signals",
        default="SIGKILL",
        type=lambda text: tuple(signal.Signals[name] for name in text.split(",")),
        help="their names with commas between, of which each kill and end is one",
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps-a-checkpoint", type=int, default=20)
    parser.add_argument("--steps-wait", action="store_true", help="until a checkpoint is written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-slices", action="store_true", help="the optimizer's state")
    given = parser.parse_args()
    drill = run_drill(
        given.workers,
        given.kills,
        given.steps_a_checkpoint,
        given.steps_wait,
        given.seed,
        in_slices=given.in_slices,
        signals=given.signals,
    )
    drill.check()
    seconds = [
        kill.seconds
        for kill in drill.kills
        if kill.seconds is not None and kill.number != signal.SIGSTOP
    ]
    assert max(seconds) < SECONDS_TO_RECOVER, seconds
    counts = Counter(kill.moment for kill in drill.kills)
    repeated = max(kill.repeated for kill in drill.kills)
    (expected,) = (life.losses for life in drill.undisturbed.lives)
    print(
        f"{len(drill.kills)} kills, {counts['in a write']} inside a write and "
        f"{counts['at a start']} at a start; "
        f"{len(expected)} losses equal bit for bit; recovery {statistics.median(seconds):.1f} s, "
        f"{max(seconds):.1f} s at most; {repeated} steps repeated at most, "
        f"{drill.steps_a_checkpoint} between checkpoints; no process is left",
        flush=True,
    )
    run_ends(given.workers, given.ends, given.seed, given.signals)


if __name__ == "__main__":
    main()
