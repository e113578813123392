"""The graph of a function that loops over distributed datasets."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import graphdist as gd
from tests.program.test_looping_functions import STRATEGIES, Training, distributed, sum_of


def nodes(stage: Any, name: str) -> list[Any]:
    return [node for node in stage.graph.nodes if node.op.name == name]


def test_a_trace_has_the_loop_over_a_chunk() -> None:
    strategy = STRATEGIES["mirrored"]()
    training = Training(strategy)
    (loop,) = nodes(training.inside.trace(distributed(strategy)), "scan")
    assert loop.params.length == 64
    assert [str(each.type) for each in loop.results] == ["i32[]", "f32[]"]  # what is carried
    lowered = training.inside.trace(distributed(strategy)).lower()
    (loop,) = nodes(lowered, "scan")
    body = [node.op.name for node in loop.graphs[0].nodes]
    assert body.count("all_reduce") == 1  # of the gradient and the loss, joined
    assert body.count("jax.tanh") == 1

    short = gd.function(training.epoch, steps_per_execution=3)
    by_three = short.trace(distributed(strategy))
    assert [node.params.length for node in nodes(by_three, "scan")] == [3]
    compiled = by_three.lower().compile()
    assert compiled.report().collectives


def test_a_trace_of_breaks_new_variables_pairs_and_numbers() -> None:
    strategy = STRATEGIES["mirrored"]()

    @gd.function(steps_per_execution=5)
    def fn(dataset: Any, pairs: Any) -> Any:
        for number, batch in enumerate(dataset, 10):
            last = strategy.reduce("SUM", batch, axis=None)[0]
            if number > 12:
                break
        for _, (x, y) in enumerate(zip(pairs, pairs, strict=False)):
            last += sum_of(strategy, x) + sum_of(strategy, y)
        return last, number, dataset.reduce(0.0, lambda state, x: state + sum_of(strategy, x))

    dataset = distributed(strategy)
    graph = fn.trace(dataset, dataset)
    assert [node.params.length for node in nodes(graph, "scan")] == [5, 5, 5]
    assert [str(each.type) for each in graph.lower().graph.outputs] == [
        "f32[6] mirrored",
        "i32[] mirrored",
        "f32[] mirrored",
    ]


def test_a_state_that_grows_is_refused_in_the_trace_as_in_the_call() -> None:
    strategy = STRATEGIES["mirrored"]()

    @gd.function
    def growing(dataset: Any) -> Any:
        x = jnp.zeros(2)
        for _ in dataset:
            x = jnp.concatenate([x, x])
        return x

    for use in (growing.trace, growing):
        with pytest.raises(gd.ArgumentError, match=r"a step returns state\['x'\] as float32"):
            use(distributed(strategy))


def test_a_trace_needs_datasets_as_arguments() -> None:
    strategy = STRATEGIES["mirrored"]()
    dataset = distributed(strategy)

    @gd.function
    def closing_over() -> Any:
        total = 0.0
        for batch in dataset:
            total += sum_of(strategy, batch)
        return total

    with pytest.raises(gd.UnsupportedError, match="a dataset that is no argument") as at:
        closing_over.trace()
    assert type(at.value) is gd.UnsupportedError

    @gd.function
    def asking(dataset: Any) -> Any:
        return next(iter(dataset))

    with pytest.raises(
        gd.UnsupportedError, match="an iterator over a dataset is read inside a function"
    ):
        asking.trace(dataset)
