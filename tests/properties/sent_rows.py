"""Examples in which rows are sent in place of tables and of weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir import sharded_parameters
from graphdist.ir.arrays import Held
from graphdist.passes import Target, pipelines
from tests.properties import classified_rows, looked_up_rows
from tests.properties.examples import PLATFORMS, SEEDS, Drawn, Example, example

NARROW_TABLE = "narrow table"
"""Of this table rows of bfloat16 are added up in float32, while JAX adds them up in bfloat16."""

REDUCERS = st.sampled_from(["MEAN", "SUM"])


@contextmanager
def sending_small_rows() -> Iterator[pytest.MonkeyPatch]:
    """Let rows be sent, and added to tables, however few bytes that saves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "SAVING_OF_ROWS", 0)
        patch.setattr(pipelines, "FEWEST_BYTES_SAVED", -(2**40))
        patch.setattr(pipelines, "FEWER_ROWS", 0)
        yield patch


def of_lookups(
    lookup: str,
    shape: tuple[int, int],
    reducer: str,
    momentum: float,
    shards: bool | int,
    replicas: int,
    platform: str,
    seed: int,
) -> Drawn:
    """Return a step that looks up rows, which are sent in place of the table if they can be."""

    def make() -> Example:
        devices = [f"cpu:{i}" for i in range(replicas)]
        strategy = gd.MirroredStrategy(devices, shard_parameters=shards)
        with sending_small_rows():
            graph = looked_up_rows.traced(lookup, shape, reducer, momentum, strategy)
            target = Target(platform, shard_update=bool(seed % 2), shard_parameters=bool(shards))
            found = example(graph, target, seed)
        return replace(found, compare=close_in_bfloat16) if lookup == NARROW_TABLE else found

    return make


def of_classifiers(
    program: classified_rows.Program,
    reducer: str,
    shards: bool,
    replicas: int,
    platform: str,
    seed: int,
) -> Drawn:
    """Return a step that classifies rows, whose product is computed on shards if it can be."""

    def make() -> Example:
        devices = [f"cpu:{i}" for i in range(replicas)]
        strategy = gd.MirroredStrategy(devices, shard_parameters=shards)
        with sending_small_rows() as patch:
            patch.setattr(sharded_parameters, "_SMALLEST_SHARD", 1)
            patch.setattr(pipelines, "FEWEST_SHARDED", 0)
            graph = classified_rows.traced(program, reducer, strategy)
            target = Target(platform, shard_update=True, shard_parameters=shards)
            found = example(graph, target, seed)
        return replace(found, compare=close_in_bfloat16) if program.logits == "narrow" else found

    return make


def close_in_bfloat16(one: Held, other: Held) -> bool:
    return all(np.allclose(a, b, rtol=0.03, atol=0.03) for a, b in zip(one, other, strict=True))


def looked_up(lookups: Iterable[str], replicas: Sequence[int]) -> st.SearchStrategy[Drawn]:
    """Return steps that look up rows in these ways."""
    return st.builds(
        of_lookups,
        st.sampled_from(sorted(lookups)),
        st.sampled_from(looked_up_rows.SHAPES),
        REDUCERS,
        st.sampled_from([0, 0.9]),
        st.sampled_from([False, True, 2]),
        st.sampled_from(replicas),
        st.sampled_from(PLATFORMS),
        SEEDS,
    )


def classified() -> st.SearchStrategy[Drawn]:
    """Return steps that classify rows."""
    return st.builds(
        of_classifiers,
        st.builds(
            classified_rows.Program,
            st.sampled_from(sorted(classified_rows.LOGITS)),
            st.sampled_from(sorted(classified_rows.LOSSES)),
            st.sampled_from(classified_rows.CLASSES),
            st.sampled_from(classified_rows.ROWS),
            st.booleans(),
            st.sampled_from([1, 1, 3]),
            st.sampled_from([0, 0, 0.1]),
        ),
        REDUCERS,
        st.booleans(),
        st.sampled_from([2, 2, 4]),
        st.sampled_from(PLATFORMS),
        SEEDS,
    )
