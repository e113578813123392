"""Measure a step of several workers against JAX by hand.

    python -m graphdist.tools.bench.workers --workers 2 --rounds 10

`graphdist-run` starts the workers on this machine, each with one CPU device, joined by JAX's
distributed runtime. There the same program runs on `MultiWorkerMirroredStrategy` and as a user of
`jax.distributed` writes it: `jax.shard_map` and a `pmean` for each gradient. The systems take
turns. In a turn all workers run the same number of steps, since their collectives wait for each
other. Worker 0 prints medians, and their ratio round by round.

Then `large` runs with a comparison of the workers' values before every step, in turns with one that
compares them at its first call: the difference is the time of a comparison.
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
from graphdist.tools.bench.by_hand import ShardMap
from graphdist.tools.bench.measurement import OURS, ratio_by_round, seconds_of
from graphdist.tools.bench.models import Mlp
from graphdist.tools.bench.programs import PROGRAMS as ALL_PROGRAMS
from graphdist.tools.bench.programs import BenchProgram
from graphdist.tools.bench.systems import Graphdist, Running
from graphdist.tools.console import CommandParser, console_tool

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
    systems: dict[str, Running], rounds: int, steps_per_turn: int
) -> dict[str, list[list[float]]]:
    """Return the seconds of each step of each turn; all workers run the same steps."""
    turns: dict[str, list[list[float]]] = {name: [] for name in systems}
    for turn in range(rounds):
        names = list(systems) if turn % 2 else list(reversed(systems))
        for name in names:
            systems[name].step()  # not counted: the caches hold the other's data
            turns[name].append(seconds_of(systems[name], steps_per_turn))
    return turns


def measure_workers(rounds: int, steps_per_turn: int) -> None:
    """Measure as one of the workers."""
    strategy = gd.MultiWorkerMirroredStrategy()
    for program in PROGRAMS:
        systems: dict[str, Running] = {
            OURS: Graphdist(program, strategy),
            BY_HAND: ShardMap(program, strategy),
        }
        losses = [[system.step() for _ in range(FIRST_STEPS)] for system in systems.values()]
        for ours, theirs in zip(*losses, strict=True):
            assert abs(ours - theirs) <= 1e-4 * abs(theirs), losses
        turns = steps_in_turns(systems, rounds, steps_per_turn)
        if strategy.extended.should_checkpoint:
            print(_line(program, strategy, turns), flush=True)
    compared = _compared(strategy, rounds, steps_per_turn)
    if strategy.extended.should_checkpoint:
        print(compared, flush=True)


def _compared(strategy: gd.Strategy, rounds: int, steps_per_turn: int) -> str:
    """Return a line with the time of a comparison of values, as a share of a step of `large`."""
    program, interval, systems = LARGE, value_check_interval(), {}
    for name, every in (("once", None), ("always", 1)):
        gd.config.set_value_checks(every)
        systems[name] = Graphdist(program, strategy)
        systems[name].step()  # compiles it for this interval
    gd.config.set_value_checks(interval)
    turns = steps_in_turns({**systems}, rounds, steps_per_turn)
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
        f"{program.title}, {strategy.num_replicas_in_sync} workers: {ours * 1e3:.2f} ms per step, "
        f"by hand {theirs * 1e3:.2f} ms: {times:.2f}x, at most {program.bounds[BY_HAND]}x"
    )


@console_tool("workers")
def main(arguments: Sequence[str] | None = None) -> int:
    """Start the workers, or measure as one of them."""
    parser = CommandParser(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20, help="of each system in a round")
    parser.add_argument("--is-worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.is_worker:
        measure_workers(options.rounds, options.steps)
        return 0
    program = ["-m", "graphdist.tools.bench.workers", "--is-worker"]
    effort = ["--rounds", str(options.rounds), "--steps", str(options.steps)]
    launcher = ["-n", str(options.workers), "--devices-per-worker", "1"]
    return run.main([*launcher, *program, *effort])


if __name__ == "__main__":
    sys.exit(main())
