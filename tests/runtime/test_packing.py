"""How collectives are packed and staged: `bytes_per_pack`, groups of replicas."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.ir.ops import ALL_GATHER, REDUCE_SCATTER
from graphdist.ir.parser import parse
from graphdist.ir.rewrite import rewrite
from graphdist.passes import Target, pipeline
from graphdist.passes.order.stage_collectives import StageCollectives
from graphdist.runtime.compilation import step_options

VALUES = 8
SIZE = 64  # floats each


def packs(strategy: gd.Strategy, options: Any) -> list[int]:
    """Return the bytes of each collective of a function that reduces values."""

    @gd.function
    def step(x: Any) -> Any:
        context_options = options

        def replica_fn(x: Any) -> Any:
            values = [x + i for i in range(VALUES)]
            return gd.get_replica_context().all_reduce("SUM", values, options=context_options)

        return strategy.run(replica_fn, args=(x,))

    spec = gd.PerReplicaSpec((SIZE,), jnp.float32, strategy=strategy)
    return [one.bytes for one in step.trace(spec).lower().collectives]


@pytest.mark.parametrize(
    ("bytes_per_pack", "expected"),
    [(0, [2048]), (1024, [1024] * 2), (256, [256] * 8), (100, [256] * 8), (600, [512] * 4)],
)
def test_packs_are_of_so_many_bytes(bytes_per_pack: int, expected: list[int]) -> None:
    devices = ["cpu:0", "cpu:1"]
    options = gd.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    assert packs(gd.MirroredStrategy(devices), options) == expected
    workers = gd.MultiWorkerMirroredStrategy(communication_options=options, devices=devices)
    assert packs(workers, None) == expected


def test_accelerators_get_it_as_an_option_of_their_compiler() -> None:
    assert step_options(Target("tpu", bytes_per_pack=2**20), "TPU v5") == {
        "xla_jf_crs_combiner_threshold_in_bytes": 2**20
    }
    names = list(step_options(Target("gpu", bytes_per_pack=5), "NVIDIA H100"))
    assert len(names) == 3
    assert all(name.startswith("xla_gpu_") for name in names)
    assert step_options(Target("gpu"), "NVIDIA H100") == {}
    assert step_options(Target("cpu", bytes_per_pack=5), "cpu") == {}


def test_steps_that_gather_parameters_on_v5e_get_an_option_that_hides_it() -> None:
    slices = Target("tpu", shard_parameters=True)
    assert step_options(slices, "TPU v5 lite") == {"xla_tpu_scoped_vmem_limit_kib": 24_576}
    assert step_options(slices, "TPU v6 lite") == {}
    assert step_options(Target("tpu"), "TPU v5 lite") == {}


@pytest.mark.needs("tpu")
def test_the_options_of_a_function_override_those_of_its_target() -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2", shard_parameters=True)
    spec = gd.PerReplicaSpec((8,), jnp.float32, strategy=strategy)

    def options(given: dict[str, Any] | None) -> Any:
        step = gd.function(
            lambda x: strategy.run(lambda x: 2 * x, args=(x,)), compiler_options=given
        )
        return step.trace(spec).lower().compiler_options

    name = "xla_tpu_scoped_vmem_limit_kib"
    assert options(None) == {name: 24_576}
    assert options({name: 16_384}) == {name: 16_384}


def test_staged_collectives_give_what_those_in_one_stage_do() -> None:
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(8)], shard_update=True)
    with strategy.scope():
        m = gd.Variable(jnp.zeros((8, 3)))

    def staged(graph: Graph) -> Graph:
        def rule(node: Any, operands: Any, builder: Any) -> Any:
            params = {**node.params, "stages": (2, 4)}
            return builder.add(node.op, operands, params, at=node.source)

        return rewrite(graph, rule, "staged", {REDUCE_SCATTER.name, ALL_GATHER.name})

    passes: list[Any] = [*pipeline(Target("cpu", shard_update=True)), staged]

    @gd.function(passes=passes)
    def step(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            m.assign(gd.get_replica_context().all_reduce("MEAN", x) + m * 0.5)

        strategy.run(replica_fn, args=(x,))

    @gd.function(passes=passes)
    def read() -> jax.Array:
        return m.read_value()

    rows = np.arange(24, dtype="f").reshape(8, 3)
    x = strategy.experimental_distribute_values_from_function(
        lambda context: rows * context.replica_id_in_sync_group
    )
    step(x)
    np.testing.assert_allclose(m.read_value(), rows * 3.5)
    np.testing.assert_allclose(read(), rows * 3.5)
    assert step.trace(x).lower().as_text("stablehlo").count('"stablehlo.reduce_scatter"') == 2
    assert read.trace().lower().as_text("stablehlo").count('"stablehlo.all_gather"') == 2


@pytest.mark.parametrize(("rows", "is_staged"), [(2**15, True), (2**15 + 1, False)])
def test_all_gathers_of_more_than_16_mib_are_the_compilers(rows: int, is_staged: bool) -> None:
    graph = parse(f"""graph f on 64 replicas, stage spmd
(%x: f32[{rows},2] sharded(0)) {{
  %g = all_gather(%x) {{group_size=64, axis=0}} : f32[{64 * rows},2] mirrored
  return %g
}}""")
    (node,) = StageCollectives()(graph).nodes
    assert bool(ALL_GATHER.of(node).stages) == is_staged
