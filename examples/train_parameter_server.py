"""Train the network of `train_digits.py` asynchronously: variables on servers, steps on workers.

    python examples/train_parameter_server.py           # 2 servers and 2 workers, on this machine
    python examples/train_parameter_server.py --kill    # and kill a worker while they run

The network, its loss and its optimizer are those of one device. This program makes the variables
and schedules steps; the workers run them, and none waits for another. While it runs, `kill -9` one
of the processes that it prints, or let `--kill` do it: Ray starts the worker again, and no step is
lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any  # the optimizer's state, and iterators of workers

import jax
import numpy as np
import optax
from train_digits import Batch, Settings, Variables, load_data, loss_fn, make_state, predict

import graphdist as gd


def make_train_step(
    strategy: gd.ParameterServerStrategy, settings: Settings, params: Variables, state: Any
) -> gd.Function[[Any], jax.Array]:
    """Return the function that makes a step with an element of a worker's iterator."""
    optimizer = optax.adam(settings.learning_rate)

    @gd.function
    def train_step(batches: Any) -> jax.Array:
        def replica_fn(batch: Batch) -> jax.Array:
            loss, grads = jax.value_and_grad(loss_fn)(gd.read(params), batch)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            updates, new = optimizer.update(grads, gd.read(state), gd.read(params))
            gd.assign(params, optax.apply_updates(gd.read(params), updates))
            gd.assign(state, new)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(next(batches),)), axis=None)

    return train_step


def make_dataset(settings: Settings) -> gd.data.Dataset:
    """Return batches without end, in an order of its own on each worker."""
    rows, _ = load_data()
    seed = settings.seed + int.from_bytes(os.urandom(2))
    shuffled = gd.data.Dataset.from_tensor_slices(rows).shuffle(len(rows["label"]), seed=seed)
    return shuffled.repeat().batch(settings.batch_size, drop_remainder=True)


def accuracy_of(params: Variables) -> float:
    """Return the share of the test set that is recognised."""
    _, rows = load_data()
    logits = jax.jit(predict)(gd.read(params), rows["image"])
    return float(np.mean(np.argmax(logits, axis=-1) == rows["label"]))


def train(
    strategy: gd.ParameterServerStrategy, settings: Settings, steps: int, kills: bool = False
) -> float:
    """Train, print the progress, and return the test accuracy."""
    coordinator = gd.coordinator.ClusterCoordinator(strategy)
    params, state = make_state(strategy, settings)
    train_step = make_train_step(strategy, settings, params, state)
    batches = iter(coordinator.create_per_worker_dataset(lambda: make_dataset(settings)))
    print("workers:", *coordinator.worker_processes(), flush=True)
    a_line = max(1, steps // 10)
    for done in range(0, steps, a_line):
        count = min(a_line, steps - done)
        losses = [coordinator.schedule(train_step, args=(batches,)) for _ in range(count)]
        if kills and done == a_line:
            os.kill(coordinator.worker_processes()[0], signal.SIGKILL)
        coordinator.join()
        loss = np.mean(coordinator.fetch(losses))
        print(f"{done + count:5} steps   loss {loss:.4f}", flush=True)
    print(coordinator.traffic)
    return accuracy_of(params)


def main() -> None:
    """Train, and print the test accuracy."""
    parser = argparse.ArgumentParser(description="Train on digits, with parameter servers.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=900, help="of all workers together")
    parser.add_argument("--kill", action="store_true", help="kill a worker on the way")
    arguments = parser.parse_args()
    strategy = gd.ParameterServerStrategy(
        num_workers=arguments.workers, num_servers=arguments.servers
    )
    start = time.perf_counter()
    accuracy = train(strategy, Settings(), arguments.steps, arguments.kill)
    print(f"\ntest accuracy {accuracy:.1%} after {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
