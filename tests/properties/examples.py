"""Examples for passes: graphs on random numbers, with the passes that they are sent through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from graphdist.ir.graph import Graph
from graphdist.passes import Target, pipeline
from graphdist.passes.cleanup.simplify import ROUND
from graphdist.passes.manager import Pass
from tests.passes.execution import Compare, Trial, close, equal, small_integers


@dataclass(frozen=True)
class Example:
    """A graph on random numbers, the passes it is sent through, and how numbers are compared."""

    trial: Trial
    passes: Sequence[Pass]
    compare: Compare


Drawn: TypeAlias = Callable[[], Example]

PLATFORMS = ("cpu", "gpu", "tpu")
SEEDS = st.integers(0, 2**16)


def example(graph: Graph, target: Target, seed: int, *, is_exact: bool = False) -> Example:
    """Return the example of a graph, an exact one on integers, of which no sum is rounded."""
    numbers = np.random.default_rng(seed)
    trial = Trial.at_random(graph, numbers, small_integers if is_exact else None)
    return Example(trial, passes_for(target), equal if is_exact else close)


def passes_for(target: Target) -> list[Pass]:
    """Return the pipeline for a target; the passes that `simplify` runs stand in front of it."""
    found: list[Pass] = []
    for entry in pipeline(target):
        if entry.name == "simplify":
            found += [Pass(step.__name__, step) for step in ROUND]
        found.append(entry)
    return found
