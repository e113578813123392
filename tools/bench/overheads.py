"""The overheads of graphdist: of a call, a compilation, an odd replica, the input.

* dispatch: seconds per call of a step with 100 variables, against `jax.jit` of the same emitted
  program;
* compile: trace, passes and emission of an unrolled step, against `jax.jit(..).trace().lower()` of
  the same step written by hand with `shard_map`, and the passes alone, per node;
* first: the first call of a step, from the Python function to the loss, against the first call of
  the same step by hand, and the shares of tracing, passes, emission and XLA;
* unequal: the compilation of a step for 64 replicas, one of which has other shapes, against a step
  for 64 equal replicas, in a process with 64 devices;
* feeding: a step of 2 layers of 1024 fed from NumPy batches of 1 MB, against the same step on a
  batch that is on the devices already;
* epochs: a step in `dataset.reduce`, against a loop that calls a function for each batch.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any  # Any: steps and their arguments

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from graphdist.garbage import collection_put_off
from graphdist.passes.manager import run_passes
from graphdist.program.progress import Progress, compiling
from graphdist.runtime.executable import jitted
from graphdist.tools.bench.by_hand import ShardMap
from graphdist.tools.bench.models import Mlp
from graphdist.tools.bench.programs import BenchProgram
from graphdist.tools.bench.systems import Graphdist


@dataclass(frozen=True)
class Overhead:
    """One line of the report: medians in seconds of ours and of the peer."""

    name: str
    ours: float
    peer: float
    bound: str

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.name:<46} {_seconds(self.ours)}  {_seconds(self.peer)}  "
            f"{self.ours / self.peer:6.2f}x  {self.bound}"
        )


def _seconds(value: float) -> str:
    return f"{value * 1e6:10,.1f} us" if value < 0.1 else f"{value:10,.3f} s "


def medians_in_turns(
    ours: Callable[[], object], peer: Callable[[], object], rounds: int, calls: int
) -> tuple[float, float]:
    """Return the median seconds per call of both, measured in turns of `calls` calls."""
    medians: tuple[list[float], list[float]] = ([], [])
    for step in (ours, peer):
        for _ in range(3):
            step()
    for _ in range(rounds):
        for step, seconds in zip((ours, peer), medians, strict=True):
            start = time.perf_counter()
            for _ in range(calls):
                step()
            seconds.append((time.perf_counter() - start) / calls)
    return statistics.median(medians[0]), statistics.median(medians[1])


def bench_dispatch() -> list[Overhead]:
    """Measure the call of a step with 100 variables, on 1 and on 2 devices."""
    results = []
    for strategy in (gd.OneDeviceStrategy("cpu:0"), gd.MirroredStrategy(["cpu:0", "cpu:1"])):
        with strategy.scope():
            variables = gd.variables([jnp.zeros(()) for _ in range(100)])

        @gd.function
        def step(x: Any, variables: Any = variables) -> Any:
            for variable in variables:
                variable.assign_add(x)
            return x

        replicas = strategy.num_replicas_in_sync
        x = jax.device_put(jnp.float32(1), strategy.devices.mirrored)
        step(x)
        emitted, state = _emitted(step, x, variables, strategy)

        def ours(step: Any = step, x: Any = x) -> None:
            step(x).block_until_ready()

        def peer(emitted: Any = emitted, state: Any = state, x: Any = x) -> None:
            *new, result = emitted(*state, x)
            state[:] = new
            result.block_until_ready()

        mine, theirs = medians_in_turns(ours, peer, rounds=3000, calls=1)
        bound = f"{(mine - theirs) * 1e6:+.1f} us per call (at most +15)"
        results.append(
            Overhead(f"dispatch, 100 variables, {replicas} devices", mine, theirs, bound)
        )
    return results


def _emitted(step: Any, x: Any, variables: Any, strategy: Any) -> tuple[Any, list[Any]]:
    """Return `jax.jit` of the program that a function emits, with every variable as an argument."""
    graph = step.trace(x).unpacked().lower().graph
    state = [strategy.place_variable(v.read_value(), v.spec("v").type.layout) for v in variables]
    return jitted(graph, strategy.devices), state


def bench_compile() -> list[Overhead]:
    """Measure trace, passes and emission at about 1,000 and 10,000 equations; passes at 100,000."""
    results = []
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    for layers in (56, 560, 4000):  # about 18 equations per layer by hand
        program = BenchProgram("compile", "", Mlp(layers, 16), rows=16)
        with_graphdist = Graphdist(program, strategy)
        traced = with_graphdist.function.trace(with_graphdist.batch)
        nodes = len(traced.graph.nodes)
        rounds = 11 if layers < 100 else 5
        results.append(_bench_passes(traced, nodes, rounds))
        if layers == 4000:  # XLA would take minutes
            continue
        by_hand = ShardMap(program, strategy)

        def ours(system: Graphdist = with_graphdist) -> object:
            jax.clear_caches()
            return system.lower().stablehlo

        def peer(system: ShardMap = by_hand) -> object:
            jax.clear_caches()
            return system.lower()

        mine, theirs = medians_in_turns(ours, peer, rounds, 1)
        name = f"compile, {nodes:,} nodes"
        results.append(Overhead(name, mine, theirs, "trace, passes, emission (at most 1.5x)"))
    return results


def bench_first() -> list[Overhead]:
    """Measure the first call of steps on many small variables, and on some larger ones."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    results = []
    for layers, width, rounds in ((50, 16, 5), (20, 256, 5), (200, 16, 3), (1000, 16, 1)):
        program = BenchProgram("first", "", Mlp(layers, width), rows=16)
        seconds: dict[str, list[float]] = {"ours": [], "peer": []}
        phases: dict[str, list[float]] = {}
        for turn in range(rounds + (rounds > 1)):  # the first is not counted
            spent, progress = _first_call(Graphdist(program, strategy))
            theirs, _ = _first_call(ShardMap(program, strategy))
            if turn or rounds == 1:
                seconds["ours"].append(spent)
                seconds["peer"].append(theirs)
                for what, part in progress.seconds.items():
                    phases.setdefault(what, []).append(part)
        parts = ", ".join(f"{what} {statistics.median(p):.2f}" for what, p in phases.items())
        mine, its = statistics.median(seconds["ours"]), statistics.median(seconds["peer"])
        name = f"first call, {layers} layers of {width}"
        results.append(Overhead(name, mine, its, f"at most 1.3x; {parts} s"))
    return results


def _first_call(system: Graphdist | ShardMap) -> tuple[float, Progress]:
    """Return the seconds of the first step, with nothing compiled, and of its phases."""
    jax.clear_caches()
    gc.collect()
    start = time.perf_counter()
    with compiling("first") as progress:
        system.step()
    return time.perf_counter() - start, progress


def _bench_passes(traced: Any, nodes: int, rounds: int) -> Overhead:
    seconds = []
    for _ in range(rounds):
        gc.collect()
        with collection_put_off():  # as when a function is compiled
            start = time.perf_counter()
            history = run_passes(traced.graph, traced.pipeline)
            seconds.append((time.perf_counter() - start) / nodes)
    each = ", ".join(f"{r.pass_name} {r.seconds / nodes * 1e6:.1f}" for r in history)
    note = f"us per node, verifier included (at most 25): {each}"
    return Overhead(f"passes, {nodes:,} nodes, per node", statistics.median(seconds), 25e-6, note)


def bench_unequal() -> list[Overhead]:
    """Measure the compilation time that one replica unlike the others costs."""
    command = [sys.executable, "-m", "graphdist.tools.bench.unequal_replicas"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    unequal, uniform = json.loads(output.splitlines()[-1])
    name = "compile, 1 odd replica of 64"
    return [Overhead(name, unequal, uniform, "64 alike (at most 3x)")]


def bench_feeding() -> list[Overhead]:
    """Measure the time that a step loses to its input."""
    layers, rows, width, batches = 2, 256, 1024, 32
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    program = BenchProgram("feeding", "", Mlp(layers, width), rows=rows // 2)
    step = Graphdist(program, strategy).function
    data = np.random.default_rng(1).standard_normal((batches * rows, width)).astype("f")
    dataset = gd.data.Dataset.from_tensor_slices({"x": data}).batch(rows).repeat()
    elements = iter(strategy.experimental_distribute_dataset(dataset))
    there = next(elements)

    def ours() -> None:
        step(next(elements)).block_until_ready()

    def peer() -> None:
        step(there).block_until_ready()

    mine, theirs = medians_in_turns(ours, peer, rounds=20, calls=10)
    name = f"step fed with {there['x'].array.nbytes / 2**20:.0f} MB, {layers} layers of {width}"
    return [Overhead(name, mine, theirs, "the same step on data already there (at most 1.05x)")]


def bench_epochs() -> list[Overhead]:
    """Measure a step of an epoch in one call, for a model of many short steps and one of few."""
    results = []
    for devices in (1, 2):
        strategy = gd.MirroredStrategy([f"cpu:{device}" for device in range(devices)])
        for layers, width, rows, steps, bound in (
            (1, 16, 16, 500, "at most 0.33x"),
            (4, 1024, 64, 20, "at most 1.02x"),
        ):
            program = BenchProgram("epochs", "", Mlp(layers, width), rows=rows)
            step = Graphdist(program, strategy).function
            batch = program.batch(devices)
            dataset = gd.data.Dataset.from_tensor_slices(batch).batch(rows * devices).repeat(steps)
            batches = strategy.experimental_distribute_dataset(dataset)

            def adding(total: Any, batch: Any, step: Any = step) -> Any:
                return total + step(batch)

            add = gd.function(adding)

            def ours(batches: Any = batches, adding: Any = adding) -> None:
                batches.reduce(np.float32(0), adding).block_until_ready()

            def peer(batches: Any = batches, add: Any = add) -> None:
                total: Any = np.float32(0)
                for batch in batches:
                    total = add(total, batch)
                total.block_until_ready()

            mine, theirs = medians_in_turns(ours, peer, rounds=11, calls=1)
            name = f"epoch, per step, {layers} layers of {width}, {devices} devices"
            results.append(Overhead(name, mine / steps, theirs / steps, bound))
    return results


OVERHEADS: dict[str, Callable[[], list[Overhead]]] = {
    "dispatch": bench_dispatch,
    "compile": bench_compile,
    "first": bench_first,
    "unequal": bench_unequal,
    "feeding": bench_feeding,
    "epochs": bench_epochs,
}
"""Measurements by name."""
