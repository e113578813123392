"""Random graphs of collectives that depend on one another, on 2 or more replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hypothesis import strategies as st

from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.tracing.jax_ops import resolve

Reduction: TypeAlias = tuple[int, str, int, str]

"""Of which earlier value, what, of how many of its elements, and how."""
KINDS = ["all_reduce", "all_reduce", "reduce_scatter", "all_gather"]
START = 32
LARGEST = 512


def text_of(reductions: list[Reduction], replicas: int) -> str:
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
        params, length, held = f'reducer="{reducer}", group_size={replicas}', size, "mirrored"
        if kind == "all_gather" and size * replicas <= LARGEST:
            params, length = f"axis=0, group_size={replicas}", replicas * size
        elif kind == "reduce_scatter" and size % replicas == 0:
            params = f'reducer="sum", axis=0, group_size={replicas}'
            length, held = size // replicas, "sharded(0)"
        else:
            kind = "all_reduce"
        lines.append(f"%r{number} = {kind}(%p{number}) {{{params}}} : f32[{length}] {held}")
        sizes[f"r{number}"] = length
    body = "\n".join(f"  {line}" for line in lines)
    outputs = ", ".join(f"per_replica %{name}" for name in sizes)
    return (
        f"graph f on {replicas} replicas, stage spmd\n"
        f"(%x: f32[{START}] per_replica, %k: f32[] per_replica) {{\n"
        f"{body}\n  return {outputs}\n}}"
    )


@st.composite
def reduction_graphs(draw: st.DrawFn, num_replicas: int, sizes: Sequence[int]) -> Graph:
    """Draw SPMD graphs of collectives of so many elements, where there are so many."""
    reduction = st.tuples(
        st.integers(0, 99),
        st.sampled_from(KINDS),
        st.sampled_from(sizes),
        st.sampled_from(["sum", "max"]),
    )
    reductions = draw(st.lists(reduction, min_size=4, max_size=12))
    return parse(text_of(reductions, num_replicas), ops=resolve)
