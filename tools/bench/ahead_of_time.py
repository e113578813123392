"""Compile examples/aot_transformer.py ahead of time with graphdist and with plain JAX.

    python -m graphdist.tools.bench.ahead_of_time --size 1b v5e:16x16 v5p:8x8x8

Prints, for each topology, the processor seconds from the Python function to the executable of
graphdist and of the same step written by hand with `jax.jit` and `jax.shard_map`, in turns, the
best of each, and the bytes of parameters and slots, counted by hand and by the compiler.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any  # Any: the example's module, pytrees and jitted functions

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from graphdist.errors import DeviceMemoryError
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.tools.compilation import StepOptions, chosen_for, lower_target, strategy_for
from graphdist.tools.console import CommandParser, console_tool
from graphdist.tools.targets import load_factory

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "aot_transformer.py"


def with_graphdist(topology: Topology, settings: dict[str, Any]) -> Any:
    """Compile the example's step and return it."""
    target, chosen = f"{EXAMPLE}:make_step", chosen_for(topology, shard_parameters=False)
    return lower_target(target, chosen, StepOptions(settings)).compile()


def with_jax(topology: Topology, settings: dict[str, Any]) -> Any:
    """Compile the same step written by hand."""
    example: Any = sys.modules[load_factory(f"{EXAMPLE}:make_step").__module__]
    chosen = example.Settings(**settings)
    model = example.SIZES[chosen.size]
    devices = strategy_for(topology).devices.devices
    mesh = Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,))
    everywhere = NamedSharding(mesh, PartitionSpec())
    by_row = NamedSharding(mesh, PartitionSpec("data"))

    def step(params: Any, state: Any, count: Any, tokens: Any) -> Any:
        attention = example.attention_for(model, chosen, topology.chip.platform)
        loss_fn = partial(example.loss_fn, model, chosen, attention)
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        grads = jax.lax.pmean(grads, "data")
        params, state = example.adam(chosen, grads, state, params, count)
        return params, state, count + 1, jax.lax.pmean(loss, "data")

    shapes = example.parameter_shapes(model, chosen.parameter_dtype)
    slots = example.parameter_shapes(model, chosen.state_dtype)
    tokens = jax.ShapeDtypeStruct((chosen.batch * len(devices), chosen.length + 1), jnp.int32)
    replicated, split = PartitionSpec(), PartitionSpec("data")
    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(replicated, replicated, replicated, split),
        out_specs=(replicated, replicated, replicated, replicated),
        check_vma=False,
    )
    jitted = jax.jit(
        mapped,
        in_shardings=(everywhere, everywhere, everywhere, by_row),
        out_shardings=everywhere,
        donate_argnums=(0, 1, 2),
    )
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return jitted.lower(shapes, {"mean": slots, "square": slots}, count, tokens).compile()


def timed_compilation(compile: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor seconds of a compilation in all threads, and its result.

    The result is None if the step does not fit. Other load of the machine does not count.
    """
    jax.clear_caches()
    start = time.process_time()
    try:
        compiled = compile()
    except (DeviceMemoryError, jax.errors.JaxRuntimeError):
        compiled = None
    return time.process_time() - start, compiled


@console_tool("ahead_of_time")
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = CommandParser(__doc__)
    parser.add_argument("topologies", nargs="+")
    parser.add_argument("--num-slices", type=int, default=1)
    parser.add_argument("--size", default="10m")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    settings = {"size": options.size, "length": options.length}
    for name in options.topologies:
        topology = find_topology(name, options.num_slices)
        strategy_for(topology)  # the compiler is loaded once
        ours, plain = [], []
        for _ in range(options.rounds):
            ours.append(timed_compilation(partial(with_graphdist, topology, settings)))
            plain.append(timed_compilation(partial(with_jax, topology, settings)))
        best, best_plain = min(t for t, _ in ours), min(t for t, _ in plain)
        print(
            f"{topology}: graphdist {best:.2f} s, JAX {best_plain:.2f} s, "
            f"{best / best_plain:.2f} times",
            flush=True,
        )
        compiled = ours[-1][1]
        if compiled is not None:
            example: Any = sys.modules[load_factory(f"{EXAMPLE}:make_step").__module__]
            by_hand = 12 * example.num_parameters(example.SIZES[options.size])
            state, peak = compiled.memory.argument_bytes, compiled.memory.peak_bytes
            print(
                f"  state {by_hand:,} bytes by hand, {state:,} by the compiler "
                f"({state / by_hand - 1:+.2%}), peak {peak:,}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
