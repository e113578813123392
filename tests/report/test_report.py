"""What a report says, against counts made by hand and the text of the compiled module."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import graphdist as gd
from graphdist.ir.collective_bytes import Exchange, collective_of
from graphdist.ir.parser import parse
from graphdist.report.explanation import graph_measure
from graphdist.report.step_report import Report
from graphdist.runtime.compilation import refused
from graphdist.runtime.devices import find_devices
from graphdist.runtime.module.collective_instructions import module_collectives
from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.routes import route_of
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tracing.jax_ops import resolve
from tests.aot.steps import make_step


def bytes_in(text: str) -> int:
    """Add up what the all-reduces of a module with f32 values carry."""
    total = 0
    for line in text.splitlines():
        match = re.search(r" = (.*) all-reduce(-start)?\(", line)
        for shape in re.findall(r"f32\[([\d,]*)\]", match[1]) if match else ():
            total += 4 * prod(int(size) for size in shape.split(",") if size)
    return total


@pytest.mark.parametrize("count", [2, 8])
def test_bytes_of_collectives_are_those_of_the_module(count: int) -> None:
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(count)])
    step, _, batch = make_step(strategy)
    compiled = step.trace(batch, 0.1).lower().compile()
    report = compiled.report()
    assert report.collective_bytes == {"all_reduce": 3 * 8 * 8 * 4 + 4}
    assert report.module_bytes == report.collective_bytes
    assert sum(report.module_bytes.values()) == bytes_in(compiled.as_text("hlo"))
    assert report.fits
    assert report.timeline is None  # nobody publishes the peaks of this CPU


def test_variables_in_slices_are_counted_beside_what_they_take_in_full() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=True)
    with strategy.scope():
        w = gd.Variable(jnp.zeros((1024, 512)), name="w")
        m = gd.Variable(jnp.zeros((1024, 512)), name="m")

    @gd.function
    def step(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            grad = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w[...])
            grad = gd.get_replica_context().all_reduce("SUM", grad)
            m.assign(0.9 * m + grad)
            w.assign(w - 0.1 * m)

        strategy.run(replica_fn, args=(x,))

    x = gd.PerReplicaSpec((4, 1024), jnp.float32, strategy=strategy)
    report = step.trace(x).lower().compile().report()
    full = 1024 * 512 * 4
    stored = report.variables
    assert (stored.count, stored.sliced) == (2, 1)
    assert (stored.full_bytes, stored.held_bytes) == (2 * full, full + full // 2)
    assert "variables     3.00 MiB  of 4.00 MiB: 1 of 2 are stored sharded" in str(report)


@pytest.mark.needs("tpu")
def test_a_report_for_a_pod() -> None:
    strategy = gd.TPUStrategy(topology="v5e:16x16")
    step, _, batch = make_step(strategy, batch=16, width=128)
    compiled = step.trace(batch, 0.1).lower().compile()
    report = compiled.report()
    state = 3 * 128 * 128 * 4
    assert report.fits
    assert abs(report.argument_bytes / (state + 16 * 128 * 4) - 1) < 0.05
    assert sum(report.module_bytes.values()) == bytes_in(compiled.as_text("hlo")) == state + 4
    assert {use.became for use in report.collectives} == {"all-reduce, combined with 3"}
    assert "test_report" not in report.collectives[0].source
    assert "steps.py" in report.collectives[0].source
    matmuls = 3 * 2 * 16 * 128 * 128
    assert report.total_flops >= matmuls * 3 - 2 * 16 * 128 * 128  # no gradient of the input
    assert "  Fits " in str(report)
    assert "PREDICTED, no measurement" in str(report)


def report_of_zero(topology: str, shapes: list[tuple[int, int]], *, num_slices: int = 1) -> Report:
    """Return the report of momentum over variables of these shapes, with momenta in slices."""
    strategy = gd.TPUStrategy(topology=topology, num_slices=num_slices, shard_update=True)
    with strategy.scope():
        weights = [gd.Variable(jax.ShapeDtypeStruct(shape, jnp.float32)) for shape in shapes]
        momenta = [gd.Variable(jax.ShapeDtypeStruct(shape, jnp.float32)) for shape in shapes]

    @gd.function
    def step(x: Any) -> None:
        def loss_fn(weights: Any, x: jax.Array) -> jax.Array:
            return sum((jnp.sum((x[:, : w.shape[0]] @ w) ** 2) for w in weights), jnp.zeros(()))

        def replica_fn(x: jax.Array) -> None:
            grads = jax.grad(loss_fn)(gd.read(weights), x)
            for w, m, grad in zip(weights, momenta, grads, strict=True):
                m.assign(0.9 * m + gd.get_replica_context().all_reduce("SUM", grad))
                w.assign(w - 0.1 * m)

        strategy.run(replica_fn, args=(x,))

    x = gd.PerReplicaSpec((4, 1024), jnp.float32, strategy=strategy)
    return step.trace(x).lower().compile().report()


@pytest.mark.needs("tpu")
def test_gathers_that_became_all_reduces_are_named_and_counted() -> None:
    report = report_of_zero("tpu7x:2x2x2", [(48, 16), (48, 16)])
    scatter, gather = report.collectives
    assert (scatter.kind, gather.kind) == ("reduce_scatter", "all_gather")
    assert scatter.became.endswith(", as all_reduce")
    assert gather.became.endswith(", as all_reduce")
    topology = find_topology("tpu7x:2x2x2")
    joined = Exchange("all_reduce", 2 * 48 * 16 * 4, range(topology.num_devices))
    expected = pytest.approx(ChipRates.of(topology).collective(joined))
    assert [scatter.seconds, gather.seconds] == [expected, expected]


@pytest.mark.needs("tpu")
def test_collectives_over_several_slices_are_found() -> None:
    report = report_of_zero("v5e:4x4", [(1024, 512)], num_slices=2)
    assert [use.kind for use in report.collectives] == ["reduce_scatter", "all_gather"]
    assert not [use for use in report.collectives if use.became.startswith("removed")]
    sent = {made.bytes for made in report.module_collectives if made.kind == "network_send"}
    gather = report.collectives[1]
    assert gather.bytes in sent  # each replica's part goes to the other slice once
    topology = find_topology("v5e:4x4", 2)
    near = 15 * 2 * gather.bytes / route_of(topology, range(16)).bandwidth
    seconds = near + gather.bytes / topology.chip.network
    assert gather.seconds == pytest.approx(seconds / TIMINGS["v5e"].link_share)


@pytest.mark.needs("tpu")
def test_padded_collectives_are_named_and_counted() -> None:
    report = report_of_zero("v6e:2x2", [(1000, 768)])
    scatter, gather = report.collectives
    assert scatter.became.endswith(", padded")
    padded = report.module_bytes["reduce_scatter"]
    assert scatter.bytes < padded < scatter.bytes * 1.1
    topology = find_topology("v6e:2x2")
    seconds = ChipRates.of(topology).collective
    scattered = seconds(Exchange("reduce_scatter", padded, range(4)))
    assert scatter.seconds == pytest.approx(scattered)
    gathered = seconds(Exchange("all_gather", gather.bytes, range(4)))
    assert gather.seconds == pytest.approx(gathered)


@pytest.mark.long
@pytest.mark.needs("tpu")
def test_state_of_adam_at_a_billion_parameters_falls_by_the_number_of_chips() -> None:
    optimizer, layers, width = optax.adam(1e-3), 64, 4096
    shapes = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * layers
    held = {}
    for shard_update in (False, "auto"):
        strategy = gd.TPUStrategy(topology="v5e:4x4", shard_update=shard_update)
        with strategy.scope():
            params = gd.variables(shapes)
            state = gd.variables(jax.eval_shape(optimizer.init, shapes))

        @gd.function
        def step(x: Any, params: Any = params, state: Any = state) -> None:
            def loss_fn(weights: Any, x: jax.Array) -> jax.Array:
                for weight in weights:
                    x = jnp.tanh(x @ weight)
                return jnp.mean(x)

            def replica_fn(x: jax.Array) -> None:
                old = gd.read(params)
                grads = gd.get_replica_context().all_reduce("MEAN", jax.grad(loss_fn)(old, x))
                updates, new = optimizer.update(grads, gd.read(state))
                gd.assign(params, optax.apply_updates(old, updates))
                gd.assign(state, new)

            gd.get_strategy().run(replica_fn, args=(x,))

        with strategy.scope():
            batch = gd.PerReplicaSpec((8, width), jnp.float32)
            held[shard_update] = step.trace(batch).lower().explain().steps[-1].after.held
    bytes_of_params = 4 * layers * width**2
    assert bytes_of_params > 4 * 10**9
    of_state = {key: bytes - bytes_of_params for key, bytes in held.items()}
    assert of_state[False] == 2 * bytes_of_params + 4
    assert abs(of_state[False] / of_state["auto"] / 16 - 1) < 0.05


@pytest.mark.needs("tpu")
def test_what_does_not_fit_is_reported_with_how_much_is_too_much() -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2", shard_update=False)
    step, _, batch = make_step(strategy, width=2**15, layers=4)
    lowered = step.trace(batch, 0.1).lower()
    report = lowered.report()
    assert not report.fits
    assert report.needed_bytes > 4 * 2**32 > report.available_bytes
    assert "  Does not fit " in str(report)
    with pytest.raises(gd.DeviceMemoryError, match="GiB too much") as caught:
        lowered.compile()
    assert caught.value.needed_bytes == report.needed_bytes


@pytest.mark.parametrize(
    ("text", "needed", "available"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (120.18G) exceeds available HBM (15.75G).",
            120.18,
            15.75,
        ),
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory in memory space hbm. "
            "Used 51.37G of 15.75G hbm. Exceeded hbm capacity by 35.62G.",
            51.37,
            15.75,
        ),
        ("RESOURCE_EXHAUSTED: no more of it", 0, 0),
    ],
)
def test_what_xla_says_of_memory_is_read(text: str, needed: float, available: float) -> None:
    error = refused(text, find_devices(["cpu:0"]))
    assert isinstance(error, gd.DeviceMemoryError)
    assert error.needed_bytes == int(needed * 2**30)
    assert error.available_bytes == int(available * 2**30)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Allocation (size=187904819200) would exceed memory (size=137438953472) :: %s0 = "
            "inlined_call_operand.host [shape: bf16[80,5,8192,28672], index: 0, kind: output, "
            "shape index: {}] /* operand 0 */ :: custom-call.18631:",
            "bf16[80,5,8192,28672] needs 175.00 GiB",
        ),
        (
            "XLA:TPU compile permanent error. Ran out of memory in memory space host. Used 150.00G "
            "of 128.00G host. Exceeded host capacity by 22.00G.",
            "the program needs 150.00 GiB",
        ),
    ],
)
def test_what_is_too_much_for_the_host_is_said(text: str, said: str) -> None:
    error = refused(f"RESOURCE_EXHAUSTED: {text}", find_devices(["cpu:0"]))
    assert isinstance(error, gd.DeviceMemoryError)
    assert f"{said} of the host's memory for each device" in str(error)
    assert "allows 128.00 GiB" in str(error)
    assert error.needed_bytes == 0


def test_other_errors_of_xla_are_left_alone() -> None:
    assert refused("INTERNAL: a bug", find_devices(["cpu:0"])) is None


def test_loops_count_as_often_as_they_run() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])

    @gd.function
    def step(x: Any) -> Any:
        def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            total = gd.get_replica_context().all_reduce("MEAN", carry @ carry)
            return jnp.sin(total), None

        return strategy.run(lambda x: jax.lax.scan(body, x, None, length=5)[0], args=(x,))

    spec = gd.PerReplicaSpec((4, 4), jnp.float32, strategy=strategy)
    report = step.trace(spec).lower().compile().report()
    assert report.collective_bytes == report.module_bytes == {"all_reduce": 5 * 64}
    assert report.collectives[0].times == 5
    assert report.flops["f32"] >= 5 * 2 * 4**3


def test_constants_that_should_be_arguments_are_warned_of() -> None:
    table = jnp.arange(2**19, dtype=jnp.float32)
    step = gd.function(lambda x: x + table)
    report = step.trace(jnp.float32(1)).lower().report()
    (constant,) = report.constants
    assert constant.bytes == 2**21
    assert "test_report.py" in str(constant)
    assert "pass it as an argument" in " ".join(str(report).split())
    small = gd.function(lambda x: x + jnp.arange(4.0))
    assert small.trace(jnp.float32(1)).lower().report().constants == ()


def test_groups_add_up_their_slices_after_they_scattered() -> None:
    graph = parse(SCATTER_OF_GROUPS, ops=resolve)
    (node,) = graph.nodes
    assert collective_of(node).exchanges == (
        Exchange("reduce_scatter", 32, range(2)),
        Exchange("all_reduce", 16, range(0, 4, 2)),
    )
    sent = 32 / 2 + 2 * 16 / 2
    assert graph_measure(graph).moved == sent


SCATTER_OF_GROUPS = """
graph scatter on 4 replicas, stage spmd
(%x: f32[8] per_replica) {
  %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=2, num_groups=2} : f32[4] sharded(0) over member
  return %s
}
"""  # noqa: E501 - a node is one line


MODULE = """
%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%condition (s: (s32[], f32[4])) -> pred[] {
  %n = s32[] constant(7)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%body (s: (s32[], f32[4])) -> (s32[], f32[4]) {
  %g = bf16[16]{0} all-gather(%x), replica_groups=[2,4]<=[8], dimensions={0}
  %r = f32[2]{0} reduce-scatter(%x), replica_groups={{0,1},{2,3}}, to_apply=%add
}

%all-reduce-scatter.1 (x: f32[8]) -> f32[4] {
  %f = f32[8]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
}

%fused_computation.1 (x: f32[4]) -> (f32[4], f32[16]) {
  %c = f32[16]{0} all-gather(%x), replica_groups={{0,1,2,3}}, chain_id="0"
}

%async_collective_fusion.2 (x: f32[4], y: f32[4]) -> (f32[4], f32[16]) {
  %d = f32[16]{0:S(1)} all-gather(%x), replica_groups={{0,1,2,3}}, chain_id="0"
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %w = (s32[], f32[4]) while(%t), condition=%condition, body=%body
  %s = (f32[4]{0}, f32[16]{0}) all-gather-start(%x), replica_groups={{0,1,2,3}}
  %a = (f32[4]{0}, f32[]) all-reduce(%x, %y), replica_groups={}, to_apply=%add
  %p = ((f32[4], f32[8]), (f32[2], f32[4])) reduce-scatter-start(%x, %y), replica_groups={{0,1}}
  %e = (f32[4]{0}, f32[4]{0}) all-to-all(%y, %z), replica_groups={{0,1}}
  %h = (f32[4], u32[], token[]) send(%x, %t), channel_id=1
  %q = (f32[6]{0}, f32[6]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x)
}
"""


def test_the_text_of_a_module_is_read() -> None:
    found = {one.name: one for one in module_collectives(CompiledModule(MODULE), 8)}
    # A send to the host is no collective, and one that goes on in another computation is one.
    assert set(found) == {"g", "r", "f", "s", "a", "p", "c", "e", "q"}
    assert (found["q"].shapes, found["q"].is_async) == ((("f32", 6),), True)
    assert found["c"].is_async
    assert (found["f"].kind, found["f"].bytes, found["a"].kind) == (
        "reduce_scatter",
        32,
        "all_reduce",
    )
    assert (found["g"].bytes, found["g"].group_size, found["g"].times) == (4 * 2, 4, 7)
    assert (found["r"].bytes, found["r"].group_size) == (2 * 2 * 4, 2)
    assert (found["s"].bytes, found["s"].is_async) == (16, True)
    assert (found["a"].bytes, found["a"].group_size, found["a"].times) == (20, 8, 1)
    assert (found["p"].bytes, found["p"].is_async) == (48, True)
    assert found["e"].shapes == (("f32", 8),)
