"""The graph that `lower()` shows is the graph that runs, for every example and benchmark program.

What runs is what reaches the emission: its graphs are noted while the step is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aot_transformer
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import train_digits
import train_text

import graphdist as gd
from graphdist.ir.compare import first_difference
from graphdist.ir.graph import Graph
from graphdist.runtime import executable
from graphdist.tools.bench.programs import TINY
from graphdist.tools.bench.systems import Graphdist

Step = tuple[Any, tuple[Any, ...]]


def two_devices() -> gd.Strategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def transformer() -> Step:
    strategy = two_devices()
    step, (tokens,) = aot_transformer.make_step(strategy, size="10m", length=8)
    for variable in step.trace(tokens).variables:
        variable.assign(jnp.ones(variable.shape, variable.dtype))
    shape = (tokens.shape[0], tokens.shape[1])
    values = strategy.experimental_distribute_values_from_function(
        lambda _: np.ones(shape, np.int32)
    )
    return step, (values,)


def program(name: str) -> Callable[[], Step]:
    def make() -> Step:
        running = Graphdist(TINY[name], two_devices())
        return running.function, (running.batch,)

    return make


SMALL_TEXT = {"batch_size": 4, "context": 8, "layers": 1, "width": 32}
STEPS: dict[str, Callable[[], Step]] = {
    "train_digits": lambda: train_digits.make_step(two_devices(), batch_size=8),
    "train_digits on one device": lambda: train_digits.make_step(gd.OneDeviceStrategy("cpu:0")),
    "train_text": lambda: train_text.make_step(two_devices(), **SMALL_TEXT),
    "train_multi_worker": lambda: train_digits.make_step(gd.MultiWorkerMirroredStrategy()),
    "aot_transformer": transformer,
    **{f"{name} of the benchmark": program(name) for name in TINY},
}


@pytest.mark.long
@pytest.mark.parametrize("name", STEPS)
def test_what_is_shown_is_what_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, arguments = STEPS[name]()
    emitted: list[Graph] = []
    emit = vars(executable)["emit"]

    def noted(graph: Graph, arrays: Any) -> Any:
        emitted.append(graph)
        return emit(graph, arrays)

    monkeypatch.setattr(executable, "emit", noted)
    shown = step.trace(*arguments).lower()
    assert emitted == []
    jax.block_until_ready(jax.tree.leaves(step(*arguments)))
    run = [graph for graph in emitted if graph.name == shown.graph.name]
    assert run, "the step was not emitted"
    for graph in run:
        assert first_difference(shown.graph, graph) is None
    assert shown.history[-1].graph is shown.graph
    again = step.trace(*arguments).lower().graph
    assert first_difference(again, run[-1]) is None


def test_a_pack_is_shown() -> None:
    step, arguments = STEPS["small of the benchmark"]()
    lowered = step.trace(*arguments).lower()
    packs = [variable for variable in lowered.graph.variables if variable.pieces]
    assert packs
    assert len(lowered.graph.variables) < len(lowered.logical.variables)
    by_name = {record.pass_name: record.graph for record in lowered.history}
    assert any(variable.pieces for variable in by_name["pack_variables"].variables)
    assert not any(variable.pieces for variable in by_name["simplify"].variables)
