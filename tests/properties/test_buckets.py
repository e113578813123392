"""Random reductions that depend on one another, packed: the same sums, packed once and for all.

Buffers are so small that some are full and some collectives are too large for them. Values are
small integers, which no order of additions rounds.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from graphdist.passes.bucket_collectives import BucketCollectives, Packing
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import execute
from tests.properties.effort import programs

Reduction: TypeAlias = tuple[int, str, int, str]

REDUCTIONS = st.tuples(
    st.integers(0, 99),
    st.sampled_from(["all_reduce", "all_reduce", "reduce_scatter", "all_gather"]),
    st.sampled_from([2, 4, 6, 16]),
    st.sampled_from(["sum", "max"]),
)
"""Of which earlier value, what, of how many of its elements, and how."""
START = 16


def text_of(reductions: list[Reduction]) -> str:
    """Return a graph of these reductions, each of elements of the input or of an earlier result."""
    sizes = {"x": START}
    lines: list[str] = []
    for number, (of, kind, wanted, reducer) in enumerate(reductions):
        names = list(sizes)
        name = names[of % len(names)]
        size = min(wanted, sizes[name])
        cut = f"{{start_indices=(0,), limit_indices=({size},), strides=none}}"
        full = sizes[name]
        lines.append(
            f"%s{number} = jax.mul(%{name}, %k) {{out_dtype=none}} : f32[{full}] per_replica"
        )
        lines.append(f"%p{number} = jax.slice(%s{number}) {cut} : f32[{size}] per_replica")
        params, length, held = f'reducer="{reducer}", group_size=2', size, "mirrored"
        if kind == "all_gather":
            params, length = "axis=0, group_size=2", 2 * size
        elif kind == "reduce_scatter" and size % 2 == 0:
            params, length, held = 'reducer="sum", axis=0, group_size=2', size // 2, "sharded(0)"
        else:
            kind = "all_reduce"
        lines.append(f"%r{number} = {kind}(%p{number}) {{{params}}} : f32[{length}] {held}")
        sizes[f"r{number}"] = length
    body = "\n".join(f"  {line}" for line in lines)
    outputs = ", ".join(f"per_replica %{name}" for name in sizes)
    head = (
        f"graph f on 2 replicas, stage spmd\n(%x: f32[{START}] per_replica, %k: f32[] per_replica)"
    )
    return f"{head} {{\n{body}\n  return {outputs}\n}}"


@programs(150)
@given(
    st.lists(REDUCTIONS, min_size=1, max_size=12),
    st.integers(4, 80),
    st.integers(4, 160),
    st.integers(0, 99),
)
def test_packed_once_and_for_all(
    reductions: list[Reduction], largest: int, buffer: int, seed: int
) -> None:
    graph = parse(text_of(reductions), ops=resolve)
    verify(graph, full=True)
    bucket = BucketCollectives(Packing(largest, buffer, largest))
    packed = bucket(graph)
    verify(packed, full=True)
    assert bucket(packed) is packed
    numbers = np.random.default_rng(seed)
    held = [
        [numbers.integers(-8, 9, value.type.shape).astype("f") for _ in range(2)]
        for value in graph.inputs
    ]
    expected, given = execute(graph, held, {}), execute(packed, held, {})
    for one, other in zip(given.outputs, expected.outputs, strict=True):
        np.testing.assert_array_equal(one, other)
