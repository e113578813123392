"""A trainer that saves, an evaluator that restores, and one that makes managers, in one folder.

    python -m tests.train.readers --saves 500

Each is a process of its own. The trainer restores what it has saved, each time, into new objects;
the evaluator restores the latest, by its path and by a manager, in turns; the third makes managers
as fast as it can. Arrays hold the number of their save, so that a mixture is seen.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import graphdist as gd

SIZES = (20_000, 3, 500)
_ROOT = Path(__file__).parents[2]
_DONE = "done"
_SECONDS = 1800.0


def objects(step: int) -> gd.train.Checkpoint:
    """Return a checkpoint whose arrays hold a number."""
    return gd.train.Checkpoint(step=step, arrays=[np.full(size, step) for size in SIZES])


def check(checkpoint: gd.train.Checkpoint) -> int:
    """Return the number that all arrays hold."""
    for array in checkpoint.arrays:
        assert (array == checkpoint.step).all(), checkpoint.step
    assert checkpoint.step > 0
    return int(checkpoint.step)


def train(directory: Path, saves: int) -> int:
    """Save so often, and restore each; return how many were restored."""
    checkpoint = objects(0)
    manager = gd.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
    restored = 0
    for step in range(1, saves + 1):
        checkpoint.step = step
        checkpoint.arrays = [np.full(size, step) for size in SIZES]
        path = manager.save()
        manager.sync()
        again = objects(0)
        again.restore(path).assert_consumed()
        restored += check(again) == step
    return restored


def is_done(directory: Path) -> bool:
    """Return whether the trainer is, which the parent says by a file beside the folder."""
    return directory.with_name(_DONE).exists()


def evaluate(directory: Path, _: int) -> int:
    """Restore the latest again and again; return how often that was done."""
    restored = last = 0
    while not is_done(directory) or not restored:
        checkpoint = objects(0)
        if restored % 2:
            manager = gd.train.CheckpointManager(checkpoint, directory, 2, read_only=True)
            latest = manager.restore_or_initialize()
        elif latest := gd.train.latest_checkpoint(directory):
            try:
                checkpoint.restore(latest).assert_consumed()
            except gd.UnreadableCheckpointError:
                assert not Path(latest).exists(), "what is there can be restored"
                continue  # two newer ones came since `latest_checkpoint` returned
        if latest is not None:
            step = check(checkpoint)
            assert step >= last, "the latest does not go back"
            restored, last = restored + 1, step
    return restored


def make_managers(directory: Path, _: int) -> int:
    """Make managers, as an evaluator that polls does; return how many."""
    made = 0
    while not is_done(directory):
        gd.train.CheckpointManager(objects(0), directory, max_to_keep=1)
        made += 1
    return made


ROLES = {role.__name__: role for role in (train, evaluate, make_managers)}


@dataclass(frozen=True)
class Outcome:
    """How often each did what it does."""

    train: int
    evaluate: int
    make_managers: int


def run(saves: int) -> Outcome:
    """Run all three until so many checkpoints are saved; raise `AssertionError` if one fails."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "saved")
        processes: dict[str, subprocess.Popen[str]] = {}
        for role in ROLES:
            line = [sys.executable, "-W", "ignore", "-m", "tests.train.readers", "--role", role]
            processes[role] = subprocess.Popen(
                [*line, "--saves", str(saves), "--directory", str(directory)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=_ROOT,
            )
        found: dict[str, int] = {}
        for role, process in processes.items():
            out, err = process.communicate(timeout=_SECONDS)
            directory.with_name(_DONE).touch()
            assert process.returncode == 0, f"{role}: {err}"
            assert "Warning" not in err, err
            assert "damaged" not in err, err
            found[role] = int(out)
        left = sorted(path.name for path in directory.iterdir())
        assert left == [f"ckpt-{number}" for number in sorted((saves - 1, saves), key=str)], left
    return Outcome(**found)


def main(arguments: Any = None) -> None:
    """Run all three, or one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--saves", type=int, default=500)
    parser.add_argument("--role", choices=ROLES)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args(arguments)
    if given.role:
        print(ROLES[given.role](given.directory, given.saves))
        return
    start = time.monotonic()
    print(f"{run(given.saves)}, in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
