"""Train the network of `train_digits.py` in several processes, and go on where they were stopped.

    graphdist-run -n 2 --devices-per-worker 2 --max-restarts 3 examples/train_multi_worker.py
    python examples/train_multi_worker.py      # one process: a worker without a cluster

Every worker runs this program. What several of them need is in `train`: the input is shuffled with
a seed, and parameters, optimizer state, position in the input and the number of steps are saved
together. While it runs, `kill -9` one of the workers: the launcher starts all again, and they go
on from the last checkpoint. On SIGTERM all save after the same step, and leave.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any  # a strategy's resolver and what it distributes

import jax
import numpy as np
from train_digits import Settings, load_data, make_state, make_train_step, predict

import graphdist as gd

STEPS_A_LINE = 50  # of progress


@dataclass(frozen=True)
class Plan:
    """How long to train, and where and how often to save.

    A checkpoint is written while the steps go on; a worker killed meanwhile leaves the one before.
    Steps that wait for it cost that time, and no more than `steps_a_checkpoint` are ever repeated.
    """

    directory: str
    steps: int = 440
    steps_a_checkpoint: int = 50
    steps_wait: bool = False


def make_dataset(settings: Settings) -> gd.data.Dataset:
    """Return batches without end; the seed makes the order the same on every worker."""
    rows, _ = load_data()
    dataset = gd.data.Dataset.from_tensor_slices(rows)
    shuffled = dataset.shuffle(len(rows["label"]), seed=settings.seed).repeat()
    return shuffled.batch(settings.batch_size, drop_remainder=True)


def train(
    strategy: gd.Strategy,
    settings: Settings,
    plan: Plan,
    on_step: Callable[[int, Any], None],
) -> Any:
    """Train from the last checkpoint on, and return the parameters.

    `on_step` is given the number of each step and its loss, which nobody has waited for.
    """
    params, optimizer_state = make_state(strategy, settings)
    train_step = make_train_step(strategy, settings, params, optimizer_state)
    batches = iter(strategy.experimental_distribute_dataset(make_dataset(settings)))

    checkpoint = gd.train.Checkpoint(params=params, optimizer=optimizer_state, batches=batches)
    manager = gd.train.CheckpointManager(checkpoint, plan.directory, max_to_keep=2)
    handler = gd.train.PreemptionCheckpointHandler(strategy.cluster_resolver, manager)

    def take_step(step: int) -> None:
        # All of it is in `run`, which ends the program after the step where workers save and leave.
        on_step(step, train_step(next(batches)))

    for step in range(handler.total_run_calls, plan.steps):
        handler.run(take_step, step)
        if (step + 1) % plan.steps_a_checkpoint == 0:
            manager.save()
            if plan.steps_wait:
                manager.sync()
    manager.sync()
    handler.close()
    return params


def accuracy_of(params: Any) -> float:
    """Return the share of the test set that is recognised; every worker computes all of it."""
    _, rows = load_data()
    logits = jax.jit(predict)(gd.read(params), rows["image"])
    return float(np.mean(np.argmax(logits, axis=-1) == rows["label"]))


def main() -> None:
    """Train, and print the progress on the first worker."""
    parser = argparse.ArgumentParser(description="Train on digits, in one process or several.")
    parser.add_argument("--directory", default="digits_checkpoints", help="where to save")
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--steps-a-checkpoint", type=int, default=Plan.steps_a_checkpoint)
    parser.add_argument("--steps-wait", action="store_true", help="until a checkpoint is written")
    plan = Plan(**vars(parser.parse_args()))
    if plan.steps_a_checkpoint < 1:
        parser.error(f"--steps-a-checkpoint is {plan.steps_a_checkpoint}: at least 1")

    strategy = gd.MultiWorkerMirroredStrategy()  # the first thing that touches a device
    is_first = strategy.extended.should_checkpoint
    if is_first:
        print(f"{strategy.num_replicas_in_sync} replicas, {plan}", flush=True)

    def report(step: int, loss: Any) -> None:
        if is_first and (step + 1) % STEPS_A_LINE == 0:
            print(f"step {step + 1:4}   loss {float(loss):.4f}", flush=True)

    params = train(strategy, Settings(), plan, report)
    accuracy = accuracy_of(params)
    if is_first:
        print(f"test accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
