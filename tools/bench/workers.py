"""A step of several workers against JAX by hand: `python -m graphdist.tools.bench.workers`.

`graphdist-run` starts the workers on this machine, each with one CPU device, joined by JAX's
distributed runtime. There the same program runs on `MultiWorkerMirroredStrategy` and as a user of
`jax.distributed` writes it: `jax.shard_map` and a `pmean` for each gradient. The systems take
turns. In a turn all workers take the same number of steps, since their collectives need each other.
Worker 0 prints medians, and their ratio round by round.

At last `large` runs with a comparison of the workers' values before every step, in turn with one
that compares them at its first call: the difference is what a comparison takes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from itertools import chain

import graphdist as gd
from graphdist.config import value_check_interval
from graphdist.tools import run
from graphdist.tools.bench.measurement import OURS, ratio_by_round, seconds_of
from graphdist.tools.bench.models import Mlp
from graphdist.tools.bench.programs import PROGRAMS as ALL_PROGRAMS
from graphdist.tools.bench.programs import BenchProgram
from graphdist.tools.bench.systems import Graphdist, Running, ShardMap
from graphdist.tools.console import console_tool

BY_HAND = "shard_map"
FIRST_STEPS = 5
MOST_COMPARED = 0.01
"""The largest share of a step's time that comparisons of values may take."""
LARGE = ALL_PROGRAMS["large"]
PROGRAMS = (
    BenchProgram("layers", "4 layers of 256", Mlp(4, 256), rows=64, bounds={BY_HAND: 1.05}),
    BenchProgram(
        "gradients", "100 gradients of 8 or 64", Mlp(50, 8), rows=16, bounds={BY_HAND: 0.3}
    ),
)


def steps_in_turns(
    systems: dict[str, Running], rounds: int, steps_a_turn: int
) -> dict[str, list[list[float]]]:
    """Return the seconds of each step of each turn; all workers make the same steps."""
    turns: dict[str, list[list[float]]] = {name: [] for name in systems}
    for number in range(rounds):
        names = list(systems) if number % 2 else list(reversed(systems))
        for name in names:
            systems[name].step()  # the first of a turn is not counted: caches are the other's
            turns[name].append(seconds_of(systems[name], steps_a_turn))
    return turns


def measure_workers(rounds: int, steps_a_turn: int) -> None:
    """Be one of the workers."""
    strategy = gd.MultiWorkerMirroredStrategy()
    for program in PROGRAMS:
        systems: dict[str, Running] = {
            OURS: Graphdist(program, strategy),
            BY_HAND: ShardMap(program, strategy),
        }
        losses = [[system.step() for _ in range(FIRST_STEPS)] for system in systems.values()]
        for ours, theirs in zip(*losses, strict=True):
            assert abs(ours - theirs) <= 1e-4 * abs(theirs), losses
        turns = steps_in_turns(systems, rounds, steps_a_turn)
        if strategy.extended.should_checkpoint:
            print(_line(program, strategy, turns), flush=True)
    compared = _compared(strategy, rounds, steps_a_turn)
    if strategy.extended.should_checkpoint:
        print(compared, flush=True)


def _compared(strategy: gd.Strategy, rounds: int, steps_a_turn: int) -> str:
    """Return the line on what a comparison of values takes, of a step of `large`."""
    program, interval, systems = LARGE, value_check_interval(), {}
    for name, every in (("once", None), ("always", 1)):
        gd.config.set_value_checks(every)
        systems[name] = Graphdist(program, strategy)
        systems[name].step()  # it is compiled for the interval of now
    gd.config.set_value_checks(interval)
    turns = steps_in_turns({**systems}, rounds, steps_a_turn)
    once, always = (statistics.median(chain(*turns[name])) for name in ("once", "always"))
    share = (always - once) / (interval or math.inf) / once
    return (
        f"{program.title}, a comparison of values: {(always - once) * 1e3:.2f} ms, a step "
        f"{once * 1e3:.2f} ms: {share:.3%} at one in {interval} steps, at most {MOST_COMPARED:.0%}"
    )


def _line(program: BenchProgram, strategy: gd.Strategy, turns: dict[str, list[list[float]]]) -> str:
    ours, theirs = (statistics.median(chain(*turns[name])) for name in (OURS, BY_HAND))
    times = ratio_by_round(turns[OURS], turns[BY_HAND])
    return (
        f"{program.title}, {strategy.num_replicas_in_sync} workers: {ours * 1e3:.2f} ms a step, "
        f"by hand {theirs * 1e3:.2f} ms: {times:.2f}x, at most {program.bounds[BY_HAND]}x"
    )


@console_tool("workers")
def main(arguments: Sequence[str] | None = None) -> int:
    """Start the workers, or be one of them."""
    parser = argparse.ArgumentParser(description="Measure a step of several workers.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20, help="of each system in a round")
    parser.add_argument("--is-worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.is_worker:
        measure_workers(given.rounds, given.steps)
        return 0
    program = ["-m", "graphdist.tools.bench.workers", "--is-worker"]
    effort = ["--rounds", str(given.rounds), "--steps", str(given.steps)]
    launcher = ["-n", str(given.workers), "--devices-per-worker", "1"]
    return run.main([*launcher, *program, *effort])


if __name__ == "__main__":
    sys.exit(main())
