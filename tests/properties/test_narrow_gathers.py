"""Random conversions and gathers that depend on one another: the same bits, fewer bytes sent."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdist.ir.analyses import use_counts
from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.ir.types import numpy_dtype
from graphdist.ir.verifier import verify
from graphdist.passes.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.narrow_gathers import narrow_gathers
from graphdist.tracing.jax_ops import resolve
from tests.passes.execution import check_same_meaning
from tests.properties.effort import programs

Step: TypeAlias = tuple[int, str, str, int]

STEPS = st.tuples(
    st.sampled_from([1, 1, 1, 1, 2, 3, 4]),
    st.sampled_from(["convert", "convert", "gather", "mul"]),
    st.sampled_from(["bool", "i8", "bf16", "f16", "i32", "f32"]),
    st.integers(0, 1),
)
"""Of which value, counted from the last, what, to which dtype, and along which dimension."""
LARGEST = 400


def text_of(steps: list[Step], start: str, replicas: int, returned: int) -> str:
    """Return a graph of these steps, each on the input or an earlier result.

    The bits of `returned` say which values are returned beside the last.
    """
    values = [("x", start, (2, 3), "per_replica")]
    lines: list[str] = []
    for number, (of, kind, dtype, axis) in enumerate(steps):
        name, old, shape, held = values[-min(of, len(values))]
        if kind == "gather" and shape[0] * shape[1] * replicas <= LARGEST:
            rows, columns = shape
            shape = (rows, columns * replicas) if axis else (rows * replicas, columns)
            line = f"all_gather(%{name}) {{axis={axis}, group_size={replicas}}}"
            dtype, held = old, "mirrored"
        elif kind == "mul" and old != "bool":
            line, dtype = f"jax.mul(%{name}, %{name}) {{out_dtype=none}}", old
        else:
            line = (
                f"jax.convert_element_type(%{name}) "
                f"{{new_dtype=dtype<{dtype}>, weak_type=false, sharding=none}}"
            )
        type = f"{dtype}[{shape[0]},{shape[1]}] {held}"
        lines.append(f"  %v{number} = {line} : {type}\n")
        values.append((f"v{number}", dtype, shape, held))
    kept = [value for i, value in enumerate(values) if returned >> i & 1 or value is values[-1]]
    outputs = ", ".join(f"per_replica %{value[0]}" for value in kept)
    head = f"graph f on {replicas} replicas, stage spmd\n(%x: {start}[2,3] per_replica)"
    return f"{head} {{\n{''.join(lines)}  return {outputs}\n}}"


def sent(graph: Graph) -> int:
    """Return the bytes that all gathers of a graph take."""
    return sum(node.operands[0].type.bytes for node in graph.nodes if node.op.is_collective)


def widened_first(graph: Graph) -> int:
    """Return how many gathers take what was just converted to a wider dtype."""
    narrow = {
        node.results[0]: node.operands[0].type.dtype
        for node in graph.nodes
        if node.op.name == "jax.convert_element_type"
    }
    return sum(
        numpy_dtype(narrow[node.operands[0]]).itemsize
        < numpy_dtype(node.operands[0].type.dtype).itemsize
        for node in graph.nodes
        if node.op.is_collective and node.operands[0] in narrow
    )


def narrowed_after(graph: Graph) -> int:
    """Return how many gathers give a value that is used in one narrower dtype alone."""
    gathered = {node.results[0] for node in graph.nodes if node.op.is_collective}
    counts = use_counts(graph)
    return sum(
        node.operands[0] in gathered
        and counts[node.operands[0]] == 1
        and node.results[0].type.bytes < node.operands[0].type.bytes
        for node in graph.nodes
        if node.op.name == "jax.convert_element_type"
    )


@pytest.mark.long
@programs(150)
@given(
    st.lists(STEPS, min_size=1, max_size=10),
    st.sampled_from(["bool", "i8", "bf16", "f32"]),
    st.integers(2, 3),
    st.integers(0, 2**11 - 1),
    st.integers(0, 99),
)
def test_fewer_bytes_and_the_same_bits(
    steps: list[Step], start: str, replicas: int, returned: int, seed: int
) -> None:
    graph = parse(text_of(steps, start, replicas, returned), ops=resolve)
    graph = eliminate_dead_code(graph)
    verify(graph, full=True)
    after = narrow_gathers(graph)
    verify(after, full=True)
    assert narrow_gathers(after) is after
    left = eliminate_dead_code(after)
    assert narrow_gathers(left) is left
    assert not widened_first(left)
    assert not narrowed_after(left)
    assert (sent(left) < sent(graph)) == (after is not graph)
    assert (after is not graph) == bool(widened_first(graph) or narrowed_after(graph))
    check_same_meaning(graph, after, str(seed), to_the_bit=True)
