"""How large values are cut in parts, what is declined, and the same bits on devices."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph
from graphdist.ir.mesh import REPLICA
from graphdist.ir.ops import REDUCE_SCATTER, TAKE_PART
from graphdist.ir.parser import parse
from graphdist.passes.layouts.scatter_in_parts import ScatterInParts
from graphdist.passes.order.stage_collectives import StageCollectives
from graphdist.runtime.emit import emit
from graphdist.tracing.jax_ops import resolve

MIB = 2**20


def scatter(shape: tuple[int, ...], axis: int, replicas: int, reducer: str = "sum") -> Graph:
    """Return a graph that widens and scatters a value of a shape."""
    slice = (*shape[:axis], shape[axis] // replicas, *shape[axis + 1 :])
    full, own = (",".join(map(str, sizes)) for sizes in (shape, slice))
    text = f"""graph f on {replicas} replicas, stage spmd
(%x: bf16[{full}] per_replica) {{
  %w = jax.convert_element_type(%x) {{new_dtype=dtype<f32>, weak_type=false, sharding=none}} : f32[{full}] per_replica
  %s = reduce_scatter(%w) {{reducer="{reducer}", axis={axis}, group_size={replicas}}} : f32[{own}] sharded({axis})
  return per_replica %s
}}"""  # noqa: E501 - a node is one line
    return parse(text, ops=resolve)


@pytest.mark.parametrize(
    ("shape", "axis", "replicas", "expected"),
    [
        ((128256, 8192), 0, 256, (1, 16)),
        ((8192, 128256), 1, 256, (0, 16)),
        ((53248, 16384), 0, 256, (1, 16)),  # 13 parts are enough, and do not divide
        ((80, 8192, 1024), 1, 256, (0, 10)),
        ((262144, 1536), 0, 256, (1, 6)),
        ((262144, 1920), 0, 256, (1, 15)),  # 8 parts are enough, and cut tiles of columns
        ((262144, 1000), 0, 256, (1, 4)),
        ((8192, 8192), 0, 256, None),  # of the size that parts have
        ((2**27,), 0, 256, None),
        ((2**20, 131), 0, 256, None),
    ],
)
def test_parts_are_few_and_end_with_tiles(
    shape: tuple[int, ...], axis: int, replicas: int, expected: tuple[int, int] | None
) -> None:
    graph = ScatterInParts(256 * MIB)(scatter(shape, axis, replicas))
    taken = [node.params for node in walk(graph) if node.op is TAKE_PART]
    assert [(params["axis"], params["count"]) for params in taken] == ([expected] * bool(expected))


def test_declined_with_reason() -> None:
    (said,) = ScatterInParts(MIB).declined(scatter((2**20, 3), 0, 4))
    assert said.startswith("12,582,912 bytes reduced at ")
    assert "[1048576, 3]" in said
    assert ScatterInParts(4 * MIB).declined(scatter((2**20, 16), 0, 4)) == []
    assert ScatterInParts(64 * MIB).declined(scatter((2**20, 3), 0, 4)) == []


@pytest.mark.parametrize("reducer", ["sum", "mean"])
@pytest.mark.parametrize(("shape", "axis"), [((16, 24), 0), ((24, 16), 1), ((6, 8, 10), 1)])
@pytest.mark.parametrize("staged", [False, True])
def test_same_bits_on_devices(
    shape: tuple[int, ...], axis: int, reducer: str, staged: bool
) -> None:
    replicas = 8
    at_once = scatter(shape, axis, replicas, reducer)
    in_parts = ScatterInParts(256)(at_once)
    assert in_parts is not at_once
    if staged:
        at_once, in_parts = map(in_two_stages, (at_once, in_parts))
    numbers = np.random.default_rng(0).standard_normal((replicas, *shape))
    held = jnp.asarray(numbers, jnp.bfloat16)
    expected, given = (np.asarray(on_devices(graph, held)) for graph in (at_once, in_parts))
    assert expected.any()
    assert expected.tobytes() == given.tobytes()


def in_two_stages(graph: Graph) -> Graph:
    """Return the graph as for a TPU slice of 8 chips, if its compiler made all_reduces of these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graphdist.passes.order.stage_collectives._SCATTER_FROM", 8)
        staged = StageCollectives()(graph)
    assert any(
        node.op is REDUCE_SCATTER and REDUCE_SCATTER.of(node).stages for node in walk(staged)
    )
    return staged


def on_devices(graph: Graph, held: jax.Array) -> jax.Array:
    """Run a graph, replica r on row r of what is held; return a row for each replica."""
    mesh = jax.make_mesh((len(held),), (REPLICA,), axis_types=(AxisType.Auto,))
    rows = PartitionSpec(REPLICA)
    run = partial(jax.shard_map, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return jax.jit(run(lambda x: emit(graph, [x[0]])[0][None]))(held)
