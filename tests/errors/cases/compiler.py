"""Graphs and passes, for those who write their own, and steps that fail on the devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import graphdist as gd
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph
from graphdist.ir.ops import ALL_REDUCE
from graphdist.ir.parser import parse
from tests.errors.programs import pair
from tests.errors.refusal import Refused


def text_is_no_graph(refused: Refused) -> None:
    with refused(ValueError):
        parse("graph f on 2 replicas, stage logical\n(%x: f32[2]) {\n  return %y\n}\n")


def pass_breaks_the_graph(refused: Refused) -> None:
    def drop_nodes(graph: Graph) -> Graph:
        return graph.replace(nodes=())

    @gd.function(passes=[drop_nodes])
    def double(x: Any) -> Any:
        return x * 2

    with refused(AssertionError):
        double(jnp.ones(2))


def pass_returns_nothing(refused: Refused) -> None:
    def forget(graph: Graph) -> Any:
        graph.replace(nodes=())

    @gd.function(passes=[forget])
    def double(x: Any) -> Any:
        return x * 2

    with refused(AssertionError):
        double(jnp.ones(2))


def pipeline_without_lowering(refused: Refused) -> None:
    w = gd.Variable(jnp.zeros(2), name="w")

    @gd.function(passes=[])
    def step(x: Any) -> None:
        w.assign(x)

    with refused(AssertionError):
        step(jnp.ones(2))


def pass_makes_a_node_that_does_not_fit(refused: Refused) -> None:
    def reduce_all(graph: Graph) -> Graph:
        builder = Builder("reduce_all")
        for node in graph.nodes:
            builder.add(
                ALL_REDUCE, node.operands, {"reducer": "sum", "group_size": 1}, at=node.source
            )
        return graph.replace(nodes=tuple(builder.nodes))

    @gd.function(passes=[reduce_all])
    def both(x: Any, y: Any) -> Any:
        return x + y

    with refused(TypeError):
        both(jnp.ones(2), jnp.ones(2))


def step_fails_on_the_device(refused: Refused) -> None:
    w = gd.Variable(jnp.zeros(2), name="w")

    @gd.function
    def step(x: jax.Array) -> None:
        w.assign(x)

    step(jnp.ones(2))
    w.storage.buffer.delete()
    with refused(RuntimeError):
        step(jnp.ones(2))
    w.assign(jnp.zeros(2))
    step(jnp.ones(2))
    assert w.read_value().tolist() == [1, 1]


def value_lost_in_a_step(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        w = gd.Variable(jnp.zeros(2), name="w")

    @gd.function
    def train_step(x: jax.Array) -> None:
        w.assign_add(x)

    @gd.function
    def reset() -> None:
        w.assign(jnp.zeros(2))

    reset()
    train_step(jnp.ones(2))
    w.storage.buffer.delete()
    with refused(RuntimeError):
        w.read_value()
    w.assign(jnp.zeros(2))
    train_step(jnp.ones(2))
    assert w.read_value().tolist() == [1, 1]
