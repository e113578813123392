"""Graphs of replicas of several cores: variables and values are split at random."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from graphdist.ir import ops
from graphdist.ir.graph import Graph, GraphVariable, Value
from graphdist.ir.op_parameters import SplittingOverCores
from graphdist.ir.rewrite import Copier
from graphdist.ir.types import PER_REPLICA, Type


def on_cores(graph: Graph, num_cores: int, choices: Random, often: float = 0.2) -> Graph:
    """Return a logical graph whose values are split over cores as a user may ask."""
    variables = tuple(_split_variable(v, num_cores, choices) for v in graph.variables)
    split = _with_requests(graph, num_cores, choices, often)
    return replace(split, variables=variables, num_cores=num_cores)


def _split_variable(variable: GraphVariable, num_cores: int, choices: Random) -> GraphVariable:
    found = _dimensions(variable.type, num_cores)
    is_split = found and not variable.is_local and variable.type.layout is not PER_REPLICA
    if not is_split or choices.random() < 0.3:
        return variable
    return replace(variable, core=choices.choice(found))


def _dimensions(type: Type, num_cores: int) -> list[int]:
    return [i for i, size in enumerate(type.shape) if size and size % num_cores == 0]


def _with_requests(graph: Graph, num_cores: int, choices: Random, often: float) -> Graph:
    copier = Copier()

    def request(value: Value) -> None:
        found = _dimensions(value.type, num_cores)
        if found and choices.random() < often:
            axis = choices.choice([None, *found, *found])
            params = SplittingOverCores(axis, num_cores=num_cores)
            at = graph.nodes[0].source if graph.nodes else None
            assert at is not None
            copier.put((value,), copier.add(ops.SPLIT_OVER_CORES, (value,), params, at=at))

    if graph.nodes:
        for value in graph.inputs:
            request(value)
    for node in graph.nodes:
        graphs = tuple(_with_requests(each, num_cores, choices, often) for each in node.graphs)
        for result in copier.copy(node, graphs):
            request(result)
    return graph.replace(nodes=tuple(copier.nodes), outputs=copier.now(graph.outputs))
