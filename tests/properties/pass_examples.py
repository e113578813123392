"""Random programs for the test of every pass, `test_passes.py`.

A source draws programs that make some passes act, and targets under which these run. What it draws
is a function that makes the example: tracing is no part of drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any  # Any: distributed values

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.ir.residual_loops import outermost_loops
from graphdist.ir.value_names import ValueName
from graphdist.passes import Target, pipelines
from graphdist.passes.cores.split_over_cores import SplitOverCores
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.logical.local_steps import LocalSteps
from graphdist.passes.order.products_around_rings import ProductsAroundRings
from graphdist.passes.pipelines import PASSES
from graphdist.passes.plans import Keep, Plan
from graphdist.strategies.local_steps import OuterOptimizer
from tests.passes.cut_execution import SHAPES, traced_step
from tests.passes.execution import Trial, close, equal
from tests.properties import (
    looked_up_rows,
    losses,
    sent_rows,
    stacked_layers,
    whole_matrices,
)
from tests.properties.arithmetic_graphs import arithmetic_graphs
from tests.properties.examples import PLATFORMS, SEEDS, Drawn, Example, example, passes_for
from tests.properties.packed_updates import packed_updates
from tests.properties.random_bit_graphs import random_bit_graphs
from tests.properties.reduction_graphs import reduction_graphs
from tests.properties.replicated_programs import Distributed, distributed_programs
from tests.properties.splits import on_cores
from tests.properties.test_cut_updates import TRANSFORMATIONS
from tests.properties.test_local_steps import GRADIENTS
from tests.properties.test_pack_variables import variable_graphs
from tests.properties.test_reductions import SHAPE, STRATEGY, TERMS, Term, in_a_loop
from tests.properties.test_replicated import Case


def replicated(program: Distributed, num_replicas: int, platform: str, seed: int) -> Drawn:
    """Return a program in the strategy's words."""

    def make() -> Example:
        case = Case(program, num_replicas, seed)
        target = Target(platform, shard_update=bool(seed % 2))
        return Example(Trial(case.traced.graph, case.held, case.state), passes_for(target), equal)

    return make


def rows_of_its_own(x: Any) -> Any:
    """Return as many rows as there are for each replica, from the replica's number on."""
    context = gd.get_replica_context()
    count = x.shape[0] // context.num_replicas_in_sync
    number = jnp.int32(context.replica_id_in_sync_group)
    return jax.lax.dynamic_slice_in_dim(x, number * count, count)


def reduced_rows(x: Any) -> Any:
    return gd.get_replica_context().all_reduce("SUM", jnp.tile(x, (4, 1)))


AFTER: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: x,
    "own of gathered": lambda x: rows_of_its_own(gd.get_replica_context().all_gather(x, 0)),
    "own of reduced": lambda x: rows_of_its_own(reduced_rows(x)),
    "gathered again": lambda x: gd.get_replica_context().all_gather(
        rows_of_its_own(reduced_rows(x)), 0
    ),
}


def summed(term: Term, loops: bool, after: str, platform: str, seed: int) -> Drawn:
    """Return sums of scaled reductions, of which replicas may take rows of their own."""

    def make() -> Example:
        body = in_a_loop(term) if loops else term

        def replica_fn(x: Any, shared: Any) -> Any:
            return AFTER[after](body(x, shared))

        function = gd.function(lambda x, shared: STRATEGY.run(replica_fn, args=(x, shared)))
        with STRATEGY.scope():
            x = gd.PerReplicaSpec(SHAPE, jnp.float32)
            graph = function.trace(x, jax.ShapeDtypeStruct(SHAPE, jnp.float32)).graph
        return example(graph, Target(platform), seed, is_exact=True)

    return make


@st.composite
def layers(
    draw: st.DrawFn,
    always: Sequence[str] = (),
    runs: Sequence[str] = tuple(stacked_layers.RUNS),
    wrappers: Sequence[str] = tuple(stacked_layers.WRAPPERS),
    repetitions: Sequence[str] = tuple(stacked_layers.REPEATED),
    dimensions: Sequence[int | None] = (None, 0, 1, 1, 1, 2),
    gathered_bytes: Sequence[int] = (0, 100, 2**20),
    largest_widened: Sequence[int] = (4, 16, 64, 2**20),
    platforms: Sequence[str] = PLATFORMS,
) -> Drawn:
    """Draw training steps of stacked layers in slices, with these operations in each layer."""
    # Hypothesis prefers the first of several choices; here all of them are to be tried.
    choices = draw(st.randoms(use_true_random=True))
    others = sorted(stacked_layers.STEPS)
    steps = [*always, *choices.choices(others, k=choices.randint(not always, 3 - len(always)))]
    choices.shuffle(steps)
    run, wrapper = choices.choice(runs), choices.choice(wrappers)
    update = choices.choice(sorted(stacked_layers.UPDATES))
    repeated = choices.choice(repetitions)
    groups = choices.choice(sorted(stacked_layers.STRATEGIES))
    stored = choices.choices(dimensions, k=6)
    widened, seed = choices.choice(largest_widened), choices.randrange(2**16)
    target = Target(
        choices.choice(platforms),
        shard_update=True,
        packs_variables=False,
        shard_parameters=True,
        gathered_bytes=choices.choice(gathered_bytes),
    )
    plan_seed = choices.randrange(2**16)

    def make() -> Example:
        graph = stacked_layers.traced(steps, run, wrapper, update, repeated, groups)
        planned = replace(target, plan=plan_at_random(graph, Random(plan_seed), target.platform))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipelines, "LARGEST_WIDENED", widened)
            patch.setattr(pipelines, "SMALLEST_IN_LOOPS", 0)
            sliced = stacked_layers.in_slices(graph, stored, groups)
            return example(sliced, planned, seed, is_exact=True)

    return make


def plan_at_random(graph: Graph, choices: Random, platform: str) -> Plan:
    """Return a plan for some of the values that gradients may be computed from."""
    keeps = [Keep.DEVICE] if platform == "cpu" else [Keep.DEVICE, Keep.HOST]
    chosen: dict[ValueName, Keep] = {}
    for loops in outermost_loops(infer_layouts(graph)):
        for number in loops.relevant:
            again = [Keep.RECOMPUTE] if loops.can_be_repeated(number) else []
            if choices.random() < 0.3:
                chosen[loops.name_of(number)] = choices.choice([*keeps, *again])
    return Plan(chosen, unrolled=choices.random() < 0.3)


def local_steps(
    gradients: Sequence[tuple[str, str]], loops: bool, every: int, outer: bool, seed: int
) -> Drawn:
    """Return a step of gradient descent that synchronizes: the mean of local steps is the step.

    In a loop all turns synchronize. An outer optimizer takes the mean as it is.
    """

    def make() -> Example:
        strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        with strategy.scope():
            parameters = [gd.Variable(np.zeros(3, "f")) for _ in gradients]

        def turn(carry: None, x: Any) -> tuple[None, None]:
            old = [parameter[...] for parameter in parameters]
            reduce = gd.get_replica_context().all_reduce
            for i, (kind, reducer) in enumerate(gradients):
                gradient = reduce(reducer, GRADIENTS[kind](old[i], old[i - 1], x, jnp))
                parameters[i].assign(old[i] - 0.1 * gradient)
            return None, None

        def replica_fn(rows: Any) -> None:
            if loops:
                jax.lax.scan(turn, None, rows)
            else:
                turn(None, rows[0])

        step = gd.function(lambda rows: strategy.run(replica_fn, args=(rows,)))
        with strategy.scope():
            graph = step.trace(gd.PerReplicaSpec((2, 3), jnp.float32)).graph
        optimizer = OuterOptimizer(optax.sgd(1.0)) if outer else None
        steps = LocalSteps(1 if loops else every, optimizer)
        return example(graph, Target("cpu", local_steps=steps), seed)

    return make


def loss_in_chunks(
    forms: tuple[str, str, str, str, str],
    dtype: str,
    width: int,
    tied: bool,
    largest: int,
    platform: str,
    seed: int,
) -> Drawn:
    """Return a step with a loss of scores that are computed in chunks."""

    def make() -> Example:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipelines, "LARGEST_CHUNK", largest)
            patch.setattr(pipelines, "MORE_ON_CPUS", 1)
            return example(losses.traced(*forms, dtype, width, tied), Target(platform), seed)

    return make


def of_whole_matrices(
    shapes: Sequence[whole_matrices.Shape],
    direction: str,
    afterwards: str,
    returns: bool,
    shards: bool | int,
    replicas: int,
    platform: str,
    seed: int,
) -> Drawn:
    """Return updates by directions of matrices, each of which may have an owner."""

    def make() -> Example:
        strategy = gd.MirroredStrategy(
            [f"cpu:{i}" for i in range(replicas)], shard_parameters=shards
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipelines, "FLOPS_PER_BYTE", 0)
            graph = whole_matrices.traced(shapes, direction, afterwards, returns, strategy)
            target = Target(platform, shard_update=bool(seed % 2), shard_parameters=bool(shards))
            return example(graph, target, seed)

    return make


def on_servers(names: Sequence[str], chain: Sequence[str], returns: str, seed: int) -> Drawn:
    """Return a training step whose variables are on parameter servers."""

    def make() -> Example:
        optimizer = optax.chain(*(TRANSFORMATIONS[name] for name in chain), optax.scale(-0.1))
        graph = traced_step(names, optimizer, returns)
        return example(graph, Target("cpu", cuts_updates=True), seed)

    return make


def of_graphs(
    graphs: st.SearchStrategy[Graph],
    platforms: Sequence[str],
    bytes_per_pack: Sequence[int] = (0,),
    num_slices: Sequence[int] = (1,),
    is_exact: bool = False,
) -> st.SearchStrategy[Drawn]:
    """Return a source of graphs that are drawn as they are."""

    def drawn(graph: Graph, platform: str, packed: int, slices: int, seed: int) -> Drawn:
        target = Target(platform, bytes_per_pack=packed, num_slices=slices)
        return lambda: example(graph, target, seed, is_exact=is_exact)

    options = (st.sampled_from(options) for options in (platforms, bytes_per_pack, num_slices))
    return st.builds(drawn, graphs, *options, SEEDS)


def of_cores(drawn: Drawn, num_cores: int, seed: int) -> Drawn:
    """Return a program whose replicas have several cores, and whose values are split at random."""

    def make() -> Example:
        alone = drawn()
        graph = on_cores(alone.trial.graph, num_cores, Random(seed))
        first, *others = alone.passes
        splitting = PASSES["split_over_cores"].holding(SplitOverCores())
        rings = PASSES["products_around_rings"].holding(ProductsAroundRings(smallest=1))
        before = next(i for i, each in enumerate(others) if each.name == "compute_in_chunks")
        passes = [first, splitting, *others[:before], rings, *others[before:]]
        return Example(replace(alone.trial, graph=graph), passes, close)

    return make


@dataclass(frozen=True)
class Source:
    """Programs, and how many of them are drawn in CI."""

    programs: st.SearchStrategy[Drawn]
    count: int


_platforms = st.sampled_from(PLATFORMS)
_in_slices: dict[str, Any] = {"dimensions": (1, 2), "gathered_bytes": (0, 100)}
_sending: dict[str, Any] = {**_in_slices, "platforms": ("gpu", "tpu")}
SOURCES = {
    "replicated": Source(
        st.builds(replicated, distributed_programs(), st.integers(1, 4), _platforms, SEEDS), 5
    ),
    "sums": Source(
        st.builds(summed, TERMS, st.booleans(), st.sampled_from(sorted(AFTER)), _platforms, SEEDS),
        30,
    ),
    "layers": Source(layers(), 6),
    "layers that convert weights": Source(
        layers(("narrow",), runs=("loop", "tied"), wrappers=("kept",), **_in_slices), 4
    ),
    "layers that are computed again": Source(
        layers(("product",), runs=("loop", "tied"), wrappers=("recomputed",), **_in_slices), 6
    ),
    "layers with narrow gradients": Source(
        layers(("narrow rows", "clip"), runs=("loop",), largest_widened=(16, 32), **_sending), 6
    ),
    "layers one by one": Source(layers(runs=("apart",), repetitions=("once",), **_in_slices), 6),
    "loops beside each other": Source(layers(runs=("beside",), **_sending), 5),
    "local steps": Source(
        st.builds(
            local_steps,
            st.lists(
                st.tuples(st.sampled_from(sorted(GRADIENTS)), sent_rows.REDUCERS),
                min_size=1,
                max_size=3,
            ),
            st.booleans(),
            st.integers(1, 3),
            st.booleans(),
            SEEDS,
        ),
        10,
    ),
    "parameter servers": Source(
        st.builds(
            on_servers,
            st.lists(st.sampled_from(sorted(SHAPES)), min_size=1, unique=True),
            st.lists(st.sampled_from(sorted(TRANSFORMATIONS)), max_size=2),
            st.sampled_from(["loss", "norm", "nothing"]),
            SEEDS,
        ),
        5,
    ),
    "losses": Source(
        st.builds(
            loss_in_chunks,
            st.tuples(*(st.sampled_from(sorted(forms)) for forms in losses.FORMS)),
            st.sampled_from(["float32", "float32", "bfloat16"]),
            st.sampled_from(losses.WIDTHS),
            st.booleans(),
            st.sampled_from([100, 200, 400, 1000]),
            st.sampled_from(PLATFORMS),
            SEEDS,
        ),
        30,
    ),
    "whole matrices": Source(
        st.builds(
            of_whole_matrices,
            st.lists(st.sampled_from(whole_matrices.SHAPES), min_size=1, max_size=4),
            st.sampled_from(sorted(whole_matrices.DIRECTIONS)),
            st.sampled_from(sorted(whole_matrices.AFTERWARDS)),
            st.booleans(),
            st.sampled_from([False, True, 2]),
            st.sampled_from([2, 4, 4]),
            _platforms,
            SEEDS,
        ),
        20,
    ),
    "looked up rows": Source(
        sent_rows.looked_up(looked_up_rows.LOOKUPS, (2, 4, 4)),
        20,
    ),
    "classified rows": Source(sent_rows.classified(), 30),
    "replicas of several cores": Source(
        st.builds(
            of_cores,
            st.builds(replicated, distributed_programs(), st.integers(1, 3), _platforms, SEEDS)
            | st.builds(
                loss_in_chunks,
                st.tuples(*(st.sampled_from(sorted(forms)) for forms in losses.FORMS)),
                st.just("float32"),
                st.sampled_from(losses.WIDTHS),
                st.booleans(),
                st.sampled_from([200, 1000]),
                _platforms,
                SEEDS,
            )
            | sent_rows.looked_up(looked_up_rows.LOOKUPS.keys() - {sent_rows.NARROW_TABLE}, (2,)),
            st.sampled_from([2, 2, 4]),
            SEEDS,
        ),
        20,
    ),
    "arithmetic": Source(of_graphs(arithmetic_graphs(), PLATFORMS), 40),
    "updates in packs": Source(of_graphs(packed_updates(), ("cpu",)), 30),
    "random bits": Source(of_graphs(random_bit_graphs(), PLATFORMS), 20),
    "small variables": Source(of_graphs(variable_graphs(), ("cpu",)), 20),
    "collectives": Source(
        of_graphs(
            reduction_graphs(2, (2, 4, 6, 16)), ("cpu", "cpu", "tpu"), (0, 16, 64), is_exact=True
        ),
        30,
    ),
    "collectives of many replicas": Source(
        of_graphs(reduction_graphs(16, (16, 32)), ("tpu",), (0, 64), (1, 1, 2), is_exact=True), 12
    ),
}
