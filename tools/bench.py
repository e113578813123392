"""`python -m graphdist.tools.bench`: what graphdist costs and gains, against JAX in the same run.

Each measurement runs ours and the peer in turns and reports medians and their ratio: the machines
this runs on are noisy, so a figure means something only beside its peer. Names on the command line
choose measurements.

* dispatch: seconds a call of a step with 100 variables, against `jax.jit` of the same emitted
  program;
* compile: trace, passes and emission of an unrolled step, against `jax.jit(..).trace().lower()` of
  the same step written by hand with `shard_map`, and the passes alone a node;
* small: a step of a 50-layer MLP, 16 wide, on 2 CPU devices, against `shard_map` with a `pmean` a
  gradient, and against TensorFlow's MirroredStrategy where TensorFlow is installed;
* large: a step of 8 layers of 1024 on a batch of 256, against the same peer;
* unequal: the compilation of a step for 64 replicas of which one has other shapes, against that for
  64 alike;
* feeding: a step of 2 layers of 1024 fed from NumPy batches of 1 MB, against the same step on one
  that is on the devices already.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any  # Any: steps and their arguments

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import graphdist as gd
from graphdist.passes.manager import run_passes
from graphdist.runtime.executable import jitted


@dataclass(frozen=True)
class Result:
    """One line of the report: medians in seconds of ours and of the peer."""

    name: str
    ours: float
    peer: float
    bound: str

    def __str__(self) -> str:
        return (
            f"{self.name:<46} {_seconds(self.ours)}  {_seconds(self.peer)}  "
            f"{self.ours / self.peer:6.2f}x  {self.bound}"
        )


def _seconds(value: float) -> str:
    return f"{value * 1e6:10,.1f} us" if value < 0.1 else f"{value:10,.3f} s "


def in_turns(
    ours: Callable[[], object], peer: Callable[[], object], rounds: int, calls: int
) -> tuple[float, float]:
    """Return the median seconds a call of both, measured in turns, `calls` at a time."""
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


def bench_dispatch() -> list[Result]:
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

        mine, theirs = in_turns(ours, peer, rounds=3000, calls=1)
        bound = f"{(mine - theirs) * 1e6:+.1f} us a call (at most +15)"
        results.append(Result(f"dispatch, 100 variables, {replicas} devices", mine, theirs, bound))
    return results


def _emitted(step: Any, x: Any, variables: Any, strategy: Any) -> tuple[Any, list[Any]]:
    """Return `jax.jit` of what a function emits, and fresh buffers for its variables."""
    graph = step.trace(x).lower().graph
    state = [
        strategy.place_variable(v.read_value(), v.spec("v").type.distribution) for v in variables
    ]
    return jitted(graph, strategy.devices), state


def _mlp_loss(weights: Sequence[Any], x: Any) -> Any:
    for weight, bias in weights:
        x = jnp.tanh(x @ weight + bias)
    return jnp.mean(x**2)


def weights_of_layers(layers: int, width: int) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """Return a weight matrix and a bias for each layer."""
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal((width, width)) / width**0.5 for _ in range(layers)]
    return [(matrix.astype("f"), np.zeros(width, "f")) for matrix in matrices]


def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("replica",), axis_types=(AxisType.Auto,))


def _by_hand(mesh: Mesh) -> Any:
    """Return the training step as a user of JAX writes it: `shard_map`, one `pmean` a gradient."""

    def step(weights: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(_mlp_loss)(weights, x)
        gradients = jax.tree.map(lambda g: jax.lax.pmean(g, "replica"), gradients)
        updated = jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients)
        return updated, jax.lax.pmean(loss, "replica")

    specs = PartitionSpec(), PartitionSpec("replica")
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
    )
    return jax.jit(mapped, donate_argnums=0)


def with_graphdist(strategy: Any, weights: Any) -> Any:
    """Return the training step as a user of graphdist writes it."""
    with strategy.scope():
        variables = gd.variables(weights)

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            loss, gradients = jax.value_and_grad(_mlp_loss)(gd.read(variables), x)
            gradients = gd.get_replica_context().all_reduce("MEAN", gradients)
            updated = jax.tree.map(lambda w, g: w - 0.01 * g, gd.read(variables), gradients)
            gd.assign(variables, updated)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    return step


def bench_compile() -> list[Result]:
    """Measure trace, passes and emission at about 1,000 and 10,000 equations."""
    results = []
    for layers in (56, 560):  # about 18 equations a layer by hand
        weights, x = weights_of_layers(layers, 16), np.ones((32, 16), "f")
        mesh = _mesh(2)
        strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        step = with_graphdist(strategy, weights)
        (batch,) = strategy.experimental_distribute_dataset([x])
        traced = step.trace(batch)
        nodes = len(traced.graph.nodes)

        def ours(step: Any = step, batch: Any = batch) -> object:
            jax.clear_caches()
            return step.trace(batch).lower().stablehlo

        def peer(mesh: Mesh = mesh, weights: Any = weights, x: Any = x) -> object:
            jax.clear_caches()
            return _by_hand(mesh).trace(weights, x).lower()

        rounds = 11 if layers < 100 else 5
        mine, theirs = in_turns(ours, peer, rounds, 1)
        name = f"compile, {nodes:,} nodes"
        results.append(Result(name, mine, theirs, "trace, passes, emission (at most 1.5x)"))
        seconds = []
        for _ in range(rounds):
            gc.collect()
            start = time.perf_counter()
            history = run_passes(traced.graph, traced.pipeline)
            seconds.append((time.perf_counter() - start) / nodes)
        each = ", ".join(f"{r.pass_name} {r.seconds / nodes * 1e6:.1f}" for r in history)
        note = f"us a node, verifier included (at most 20): {each}"
        results.append(
            Result(f"passes, {nodes:,} nodes, a node", statistics.median(seconds), 20e-6, note)
        )
    return results


def _bench_step(name: str, layers: int, width: int, batch: int, bound: str) -> list[Result]:
    weights = weights_of_layers(layers, width)
    x = np.random.default_rng(1).standard_normal((batch, width)).astype("f")
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    step = with_graphdist(strategy, weights)
    (distributed,) = strategy.experimental_distribute_dataset([x])
    mesh = _mesh(2)
    by_hand = _by_hand(mesh)
    state = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("replica")))

    def ours() -> None:
        step(distributed).block_until_ready()

    def peer() -> None:
        state[:], loss = by_hand(state, placed)
        loss.block_until_ready()

    mine, theirs = in_turns(ours, peer, rounds=60, calls=1)
    return [Result(name, mine, theirs, bound)]


def bench_small() -> list[Result]:
    """Measure a step of many small layers, where collectives cost more than arithmetic."""
    layers, width, batch = 50, 16, 32
    name = f"step, {layers} layers of {width}, 2 CPU devices"
    results = _bench_step(name, layers, width, batch, "shard_map, pmean a gradient (at most 0.25x)")
    if importlib.util.find_spec("tensorflow") is None:
        print("TensorFlow is not installed here: not measured against it")
        return results
    (seconds,) = _elsewhere("bench_tensorflow", layers, width, batch)
    bound = "TensorFlow MirroredStrategy (at most 0.5x)"
    return [*results, Result(name, results[0].ours, seconds, bound)]


def _elsewhere(module: str, *arguments: int) -> list[float]:
    """Return the numbers in the last line that a module of ours prints in a process of its own."""
    command = [sys.executable, "-m", f"graphdist.tools.{module}", *map(str, arguments)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [float(word) for word in output.splitlines()[-1].split()]


def bench_unequal() -> list[Result]:
    """Measure what one replica unlike the others costs the compiler."""
    unequal, uniform = _elsewhere("bench_unequal")
    name = "compile, 1 odd replica of 64"
    return [Result(name, unequal, uniform, "64 alike (at most 3x)")]


def bench_large() -> list[Result]:
    """Measure a step of few large layers."""
    return _bench_step("step, 8 layers of 1024, batch 256", 8, 1024, 256, "(at most 1.0x)")


def bench_feeding() -> list[Result]:
    """Measure what a step loses to its input."""
    layers, rows, width, batches = 2, 256, 1024, 32
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    step = with_graphdist(strategy, weights_of_layers(layers, width))
    data = np.random.default_rng(1).standard_normal((batches * rows, width)).astype("f")
    dataset = gd.data.Dataset.from_tensor_slices(data).batch(rows).repeat()
    elements = iter(strategy.experimental_distribute_dataset(dataset))
    there = next(elements)

    def ours() -> None:
        step(next(elements)).block_until_ready()

    def peer() -> None:
        step(there).block_until_ready()

    mine, theirs = in_turns(ours, peer, rounds=20, calls=10)
    name = f"step fed with {there.array.nbytes / 2**20:.0f} MB, {layers} layers of {width}"
    return [Result(name, mine, theirs, "the same step on data already there (at most 1.05x)")]


BENCHES: dict[str, Callable[[], list[Result]]] = {
    "dispatch": bench_dispatch,
    "compile": bench_compile,
    "small": bench_small,
    "large": bench_large,
    "unequal": bench_unequal,
    "feeding": bench_feeding,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m graphdist.tools.bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*BENCHES, []], help="measurements; all if none"
    )
    names = parser.parse_args(arguments).names or list(BENCHES)
    gd.config.set_logical_cpu_devices(2)
    print(f"{'':<46} {'ours':>13}  {'peer':>13}  {'ratio':>7}  bound")
    for name in names:
        for result in BENCHES[name]():
            print(result, flush=True)


if __name__ == "__main__":
    main()
