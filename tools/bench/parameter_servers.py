"""Measure closures per second with parameter servers.

    python -m graphdist.tools.bench parameter_server
    python -m graphdist.tools.bench parameter_server --tensorflow /path/to/python
    python -m graphdist.tools.bench parameter_server --sending  # by sockets, and by Ray's objects

A closure reads 1 MB of parameters, computes a gradient of as many bytes from a small batch, and
writes it: nearly all of the work is sending. The same model runs on TensorFlow's
`ParameterServerStrategy`, in turns, each turn in a process of its own, if this Python or the one of
`--tensorflow` has TensorFlow. TensorFlow's workers and servers are threads of one process,
graphdist's are processes.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any  # Any: iterators of workers

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from graphdist.tools.bench.sending_values import measure_sending
from graphdist.tools.console import CommandParser, console_tool
from graphdist.tools.given_options import given_options, refuse_unused

_OF_TENSORFLOW = Path(__file__).with_name("parameter_servers_on_tensorflow.py")


@dataclass(frozen=True)
class Load:
    """The load: the rows and columns of a dense layer, and how many closures run."""

    num_workers: int = 2
    rows: int = 512
    columns: int = 512
    batch: int = 8
    closures: int = 300


def closures_per_second(load: Load) -> float:
    """Return how many closures graphdist runs per second."""
    strategy = gd.ParameterServerStrategy(num_workers=load.num_workers, num_servers=1)
    coordinator = gd.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = gd.Variable(jnp.ones((load.rows, load.columns)) / load.rows)
    x = np.ones((load.batch, load.rows), np.float32)
    y = np.zeros((load.batch, load.columns), np.float32)

    @gd.function
    def step(iterator: Any) -> jax.Array:
        x, y = next(iterator)
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights[...])
        weights.assign_sub(0.1 * gradient, read_value=False)
        return loss

    def make_dataset() -> Any:
        return gd.data.Dataset.from_tensors((x, y)).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(make_dataset))
    seconds = 0.0
    for count in (max(20, load.closures // 5), load.closures):
        start = time.perf_counter()
        for _ in range(count):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        seconds = time.perf_counter() - start
    strategy.shutdown()
    return load.closures / seconds


def in_a_process(command: Sequence[str], load: Load) -> float:
    """Return the last number that a command prints, for a load."""
    done = subprocess.run(
        [*command, *map(str, astuple(load))], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


@console_tool("bench parameter_server")
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in turns and print the medians."""
    parser = CommandParser(__doc__, "python -m graphdist.tools.bench parameter_server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--closures", type=int, default=Load.closures)
    parser.add_argument("--workers", type=int, default=Load.num_workers)
    parser.add_argument("--tensorflow", metavar="PYTHON", help="a Python that has TensorFlow")
    parser.add_argument(
        "--sending", action="store_true", help="only send values, by our sockets and by Ray"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}: at least 1")
    if options.sending:
        refuse_unused(given_options(parser, options), "--sending", ("sending", "rounds"))
        measure_sending(options.rounds)
        return 0
    load = Load(options.workers, closures=options.closures)
    commands = {"graphdist": [sys.executable, "-m", "graphdist.tools.bench.parameter_servers"]}
    python = options.tensorflow
    if python is None and importlib.util.find_spec("tensorflow"):
        python = sys.executable
    if python is None:
        print("TensorFlow is not installed here: --tensorflow names a Python that has it")
    else:
        commands["TensorFlow"] = [python, str(_OF_TENSORFLOW)]
    megabytes = 4 * load.rows * load.columns / 1e6
    size = f"{megabytes:.2f} MB of parameters"
    print(f"{load.num_workers} workers, 1 server, {size}; closures per second")
    rates: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            rates[name].append(in_a_process(command, load))
            print(f"  {name:12} {rates[name][-1]:8.1f}", flush=True)
    print(
        *(f"median {name} {statistics.median(all_of):.1f}" for name, all_of in rates.items()),
        sep="\n",
    )
    return 0


if __name__ == "__main__":
    print(closures_per_second(Load(*map(int, sys.argv[1:]))))
