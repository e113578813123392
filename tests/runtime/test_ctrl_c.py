"""Ctrl-C at any moment ends a program with KeyboardInterrupt; variables are as after whole steps.

The programs run in processes of their own, which get the signal as a terminal would send it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, random, signal, sys, threading, time, warnings
import jax
jax.config.update("jax_num_cpu_devices", 2)
import numpy as np
import graphdist as gd

warnings.simplefilter("ignore", gd.RetraceWarning)
doing, longest, folder = sys.argv[1], float(sys.argv[2]), sys.argv[3]
strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
with strategy.scope():
    parts = [gd.Variable(np.zeros(8, np.float32)) for _ in range(5)]
    large = gd.Variable(np.zeros(50_000, np.float32))


@gd.function
def step(x):
    def replica_fn(x):
        for variable in (*parts, large):
            ones = x.sum() * 0 + variable * 0 + 1
            variable.assign_add(gd.get_replica_context().all_reduce("MEAN", ones))

    strategy.run(replica_fn, args=(x,))


def batches():
    while True:
        yield np.ones((2, 3), np.float32)


def compile(rows):
    for number in range(1000):
        step(rows[: number % 100 + 1])


def run(rows):
    while True:
        step(rows)


def read(rows):
    for batch in strategy.experimental_distribute_dataset(
        gd.data.Dataset.from_generator(batches, gd.ArraySpec((2, 3), np.float32))
    ):
        step(batch)


def save(rows):
    checkpoint = gd.train.Checkpoint(large=large)
    while True:
        step(rows)
        checkpoint.save(folder)


def send():
    time.sleep(random.random() * longest)
    os.kill(os.getpid(), signal.SIGINT)


def again(unraisable):
    # Python drops what a callback of its garbage collector raises, and JAX has one. A user presses
    # Ctrl-C once more. No other interrupt may be lost.
    sys.__unraisablehook__(unraisable)
    if getattr(unraisable.object, "__name__", "") == "_xla_gc_callback":
        threading.Thread(target=send, daemon=True).start()


sys.unraisablehook = again
rows = np.ones((100, 3), np.float32)
if doing != "compile":
    step(rows)
threading.Thread(target=send, daemon=True).start()
try:
    globals()[doing](rows)
except KeyboardInterrupt:
    seen = {float(one) for variable in (*parts, large) for one in variable.read_value()[:8]}
    assert len(seen) == 1, seen
    step(rows)
    assert float(large[0]) == seen.pop() + 1
    print("as after whole steps", flush=True)
    raise
"""


@pytest.mark.parametrize(
    ("doing", "longest"),
    [
        ("compile", 2.0),
        ("run", 0.3),
        pytest.param("read", 0.4, marks=pytest.mark.long),
        pytest.param("save", 0.4, marks=pytest.mark.long),
    ],
)
def test_ctrl_c_ends_a_program(doing: str, longest: float, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, doing, str(longest), str(tmp_path / "state")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode in (-signal.SIGINT, 128 + signal.SIGINT), ended.stderr
    assert "KeyboardInterrupt" in ended.stderr.splitlines(), ended.stderr
    assert ended.stdout == "as after whole steps\n"
