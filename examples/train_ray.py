"""Train the network of `train_digits.py` in a `JaxTrainer` of Ray, which restarts failed workers.

    pip install 'graphdist[ray-train,examples]'
    python examples/train_ray.py                   # 2 workers, by a Ray that is started here
    python examples/train_ray.py --address auto --directory /shared/digits   # in a cluster of Ray

Metrics, checkpoints and restarts are Ray's: `ray.train.report` takes them, `FailureConfig` says how
often Ray starts the workers again, and `ray.train.get_checkpoint` is where they go on. `gd.train`
writes the files, every worker its part. While it runs, `kill -9` a process called
`ray::RayTrainWorker`: the losses stay those of a run without it. A program that is started again
with the same directory goes on, too.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any  # what Ray passes on as it is

import numpy as np
import ray
import ray.train
from ray.train.v2.jax import JaxTrainer
from train_digits import Settings, make_state, make_train_step
from train_multi_worker import STEPS_A_LINE, Plan, accuracy_of, make_dataset

import graphdist as gd

_log = logging.getLogger(__name__)
ray_train: Any = ray.train  # its annotations are those of an earlier version


def train(plan: Plan, on_step: Callable[[int, Any], None]) -> float:
    """Train in a worker of Ray, from Ray's checkpoint on, and return the test accuracy.

    `on_step` is given the number of each step and its loss, which nobody has waited for.
    """
    strategy, settings = gd.MultiWorkerMirroredStrategy(), Settings()  # of all workers of Ray
    params, optimizer_state = make_state(strategy, settings)
    train_step = make_train_step(strategy, settings, params, optimizer_state)
    batches = iter(strategy.experimental_distribute_dataset(make_dataset(settings)))

    state = gd.train.Checkpoint(params=params, optimizer=optimizer_state, batches=batches, step=0)
    last = ray_train.get_checkpoint()
    if last is not None:
        with last.as_directory() as folder:
            state.read(folder).assert_consumed()

    losses: list[Any] = []
    while state.step < plan.steps:
        losses.append(train_step(next(batches)))
        on_step(state.step, losses[-1])
        state.step += 1
        if state.step % plan.steps_a_checkpoint == 0 or state.step == plan.steps:
            report(state, plan, float(np.mean(losses)))
            losses = []
    return accuracy_of(params)


def report(state: gd.train.Checkpoint, plan: Plan, loss: float) -> None:
    """Write a checkpoint, and give it and the metrics to Ray; all workers call it together."""
    path = state.write(f"{plan.directory}/step-{state.step}")
    state.sync()
    # It is one folder, with the parts of all workers: one of them gives it to Ray, which copies it.
    is_first = ray_train.get_context().get_world_rank() == 0
    ray_train.report(
        {"step": state.step, "loss": loss},
        checkpoint=ray_train.Checkpoint.from_directory(path) if is_first else None,
        delete_local_checkpoint_after_upload=True,
    )


def train_loop(config: dict[str, Any]) -> float:
    """Train as the plan says, and print the progress on the first worker."""
    is_first = ray_train.get_context().get_world_rank() == 0

    def log(step: int, loss: Any) -> None:
        if is_first and (step + 1) % STEPS_A_LINE == 0:
            _log.info("step %4d   loss %.4f", step + 1, float(loss))

    return train(Plan(**config), log)


def make_trainer(
    loop: Callable[[dict[str, Any]], float],
    plan: Plan,
    workers: int,
    max_failures: int,
    **scale: Any,
) -> JaxTrainer:
    """Return a trainer of so many workers, with one CPU each; `scale` is more of Ray's scaling."""
    return JaxTrainer(
        loop,
        train_loop_config=asdict(plan),
        scaling_config=ray_train.ScalingConfig(num_workers=workers, **scale),
        run_config=ray_train.RunConfig(
            name="run",
            storage_path=plan.directory,
            failure_config=ray_train.FailureConfig(max_failures=max_failures),
            checkpoint_config=ray_train.CheckpointConfig(num_to_keep=2),
        ),
    )


def main() -> None:
    """Train, and print the test accuracy."""
    parser = argparse.ArgumentParser(description="Train on digits, in a JaxTrainer of Ray.")
    parser.add_argument("--address", help="of a cluster of Ray; without it one is started here")
    parser.add_argument("--directory", default="digits_of_ray", help="which all workers see")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true", help="one GPU for each worker")
    parser.add_argument("--max-failures", type=int, default=3, help="restarts; -1: any number")
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--steps-a-checkpoint", type=int, default=Plan.steps_a_checkpoint)
    arguments = parser.parse_args()
    for name, least in (
        ("workers", 1),
        ("steps", 1),
        ("steps_a_checkpoint", 1),
        ("max_failures", -1),
    ):
        if getattr(arguments, name) < least:
            option = name.replace("_", "-")
            parser.error(f"--{option} is {getattr(arguments, name)}: at least {least}")
    plan = Plan(
        str(Path(arguments.directory).absolute()), arguments.steps, arguments.steps_a_checkpoint
    )
    # Workers import the modules beside this one; on other machines they are not there.
    ray.init(arguments.address, runtime_env={"working_dir": str(Path(__file__).parent)})
    trainer = make_trainer(
        train_loop, plan, arguments.workers, arguments.max_failures, use_gpu=arguments.use_gpu
    )
    result: Any = trainer.fit()
    print(f"{result.metrics}, test accuracy {result.return_value:.1%}")
    ray.shutdown()


if __name__ == "__main__":
    main()
