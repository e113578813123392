"""Random graphs whose replicas use shards of random bits, and some of the bits unsharded too."""

from __future__ import annotations

from hypothesis import strategies as st

from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from graphdist.tracing.jax_ops import resolve


@st.composite
def random_bit_graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph in which shards of several arrays of random bits are made of keys."""
    count = draw(st.sampled_from([2, 4]))
    inputs, lines, outputs = [], [], []
    for number in range(draw(st.integers(1, 3))):
        shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        axis = draw(st.integers(0, len(shape) - 1))
        shard = [*shape]
        shape[axis] *= count
        width = draw(st.sampled_from([8, 16, 32]))
        sizes = [",".join(map(str, each)) for each in (shape, shard)]
        inputs.append(f"%key{number}: key<fry>[] mirrored")
        written = f"({', '.join(map(str, shape))},)" if len(shape) == 1 else f"{tuple(shape)}"
        lines += [
            f"%b{number} = jax.random_bits(%key{number}) {{shape={written}, bit_width={width}}}"
            f" : u{width}[{sizes[0]}] mirrored",
            f"%s{number} = own_slice(%b{number}) {{axis={axis}, group_size={count}}}"
            f" : u{width}[{sizes[1]}] sharded({axis})",
        ]
        outputs.append(f"per_replica %s{number}")
        if draw(st.booleans()):
            outputs.append(f"%b{number}")
    graph = parse(
        "\n".join(
            [
                f"graph random on {count} replicas, stage spmd",
                f"({', '.join(inputs)}) {{",
                *(f"  {line}" for line in lines),
                f"  return {', '.join(outputs)}",
                "}",
            ]
        ),
        ops=resolve,
    )
    verify(graph)
    return graph
