"""The stages of a function, and that the graph is the program."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.ir.analyses import collectives, walk
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques, print_graph
from graphdist.passes import pipeline
from graphdist.passes.manager import run_passes
from graphdist.runtime.executable import Executable, emitted
from graphdist.tracing.jax_ops import resolve

MODULE_NAMES = {
    "all_reduce": "stablehlo.all_reduce",
    "all_gather": "stablehlo.all_gather",
    "reduce_scatter": "stablehlo.reduce_scatter",
}


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def values(strategy: gd.Strategy, *shape: int) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.full(shape, context.replica_id_in_sync_group + 1, np.float32)
    )


def all_kinds(strategy: gd.Strategy) -> gd.Function:
    """Return a function with every collective, some in a loop and some in a branch."""
    with strategy.scope():
        w = gd.Variable(jnp.ones(4), aggregation=gd.VariableAggregation.MEAN)

    @gd.function
    def step(x: Any, flag: Any) -> Any:
        def replica_fn(x: jax.Array) -> Any:
            context = gd.get_replica_context()
            w.assign(x)
            gathered = context.all_gather(x * 2, axis=0)
            scattered = jax.grad(lambda x: (context.all_gather(x, axis=0) ** 2).sum())(x)
            total, _ = jax.lax.scan(
                lambda c, row: (c + context.all_reduce("SUM", row), None), jnp.float32(0), x
            )
            chosen = jax.lax.cond(
                flag > 0, lambda: context.all_reduce("SUM", x * 3), lambda: jnp.zeros_like(x)
            )
            large = context.all_reduce("SUM", jnp.outer(jnp.tile(x, 128), jnp.tile(x, 128)))
            return gathered, scattered, total, chosen, large.sum()

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    return step


def test_the_modules_collectives_are_the_graphs(strategy: gd.Strategy) -> None:
    lowered = all_kinds(strategy).trace(values(strategy, 4), 1.0).lower()
    module = lowered.as_text("stablehlo")
    for kind, name in MODULE_NAMES.items():
        nodes = [node for node in collectives(lowered.graph) if node.op.name == kind]
        assert nodes, f"the program has no {kind} to compare"
        assert len(re.findall(rf'"{name}"', module)) == len(nodes)


@pytest.mark.parametrize(
    "deleted", ["remove_redundant_collectives", "bucket_collectives", "simplify"]
)
def test_deleting_a_pass_changes_the_module(strategy: gd.Strategy, deleted: str) -> None:
    def step(x: Any) -> Any:
        def replica_fn(x: jax.Array) -> Any:
            context = gd.get_replica_context()
            twice = jnp.sin(x) * jnp.sin(x)
            return context.all_reduce("SUM", context.all_reduce("SUM", x)), context.all_reduce(
                "SUM", x * 2 + twice
            )

        return strategy.run(replica_fn, args=(x,))

    x = values(strategy, 4)
    whole = gd.function(step).trace(x).lower()
    kept = tuple(one for one in pipeline("cpu") if one.name != deleted)
    without = gd.function(step, passes=kept).trace(x).lower()
    assert without.as_text("stablehlo") != whole.as_text("stablehlo")
    given = jax.tree.leaves([v.values for v in gd.function(step, passes=kept)(x)])
    expected = jax.tree.leaves([v.values for v in gd.function(step)(x)])
    assert [float(v.sum()) for v in given] == [float(v.sum()) for v in expected]


def test_deleting_the_pass_that_lowers_is_an_error(strategy: gd.Strategy) -> None:
    kept = tuple(one for one in pipeline("cpu") if one.name != "lower_cross_replica")
    function = gd.function(lambda x: strategy.reduce("SUM", x, axis=None), passes=kept)
    with pytest.raises(gd.errors.VerifyError, match="takes a spmd graph, this one is placed"):
        function(values(strategy, 4))


def test_a_constant_edited_in_the_text_changes_the_result(strategy: gd.Strategy) -> None:
    function = gd.function(
        lambda x: strategy.reduce("SUM", strategy.run(lambda x: x * 3.0, (x,)), None)
    )
    lowered = function.trace(values(strategy, 2)).lower()
    text = print_graph(lowered.graph)
    assert text.count("3.0:f32") == 1
    edited = parse(text.replace("3.0:f32", "5.0:f32"), opaques(lowered.graph), resolve)
    of_text = emitted(edited, strategy.devices)
    executable = Executable(edited, strategy.devices, of_text.function, of_text.lowered.compile())
    x = jnp.array([1.0, 1.0, 2.0, 2.0])
    (result,) = executable(jax.device_put(x, strategy.devices.per_replica))
    assert result.tolist() == [15.0, 15.0]
    assert function(values(strategy, 2)).tolist() == [9.0, 9.0]


def test_stages_hold_graph_history_and_texts(strategy: gd.Strategy) -> None:
    traced = all_kinds(strategy).trace(values(strategy, 4), 1.0)
    assert traced.graph.stage.value == "logical"
    assert traced.history == ()
    lowered = traced.lower()
    assert [record.pass_name for record in lowered.history] == [p.name for p in pipeline("cpu")]
    assert lowered.history[-1].graph is lowered.graph
    assert all(record.seconds >= 0 for record in lowered.history)
    assert str(lowered.history[0]).startswith("# after infer_layouts, ")
    compiled = lowered.compile()
    assert "ENTRY" in compiled.as_text("hlo")
    assert compiled.as_text("graph") == lowered.as_text("graph") == str(lowered.graph)
    assert compiled.as_text("stablehlo").startswith("module @jit_step")
    with pytest.raises(gd.ArgumentError, match="this stage has 'graph', 'stablehlo'"):
        lowered.as_text("hlo")


def test_collectives_say_what_they_are_and_where_from(strategy: gd.Strategy) -> None:
    def replica_fn(x: jax.Array) -> jax.Array:
        return gd.get_replica_context().all_reduce("MEAN", x)  # the line that is looked for

    lowered = (
        gd.function(lambda x: strategy.run(replica_fn, (x,))).trace(values(strategy, 5)).lower()
    )
    (one,) = lowered.collectives
    assert (one.kind, one.reducer, one.bytes, one.group_size) == ("all_reduce", "mean", 20, 2)
    assert one.pass_name == ""
    assert one.source.frame is not None
    assert one.source.frame.text.endswith("# the line that is looked for")
    assert "all_reduce(test_stages.py:" in lowered.stablehlo.as_text(debug_info=True)

    reduced = gd.function(lambda x: strategy.reduce("SUM", x, axis=None)).trace(values(strategy, 5))
    assert reduced.collectives[0].kind == "reduce"
    (made,) = reduced.lower().collectives
    assert (made.kind, made.pass_name) == ("all_reduce", "lower_cross_replica")


def test_memory_and_cost_are_per_device(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(jnp.zeros((256, 256)))

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            w.assign_add(gd.get_replica_context().all_reduce("SUM", x.T @ x))
            return w.read_value().sum()

        return strategy.run(replica_fn, (x,))

    compiled = step.trace(values(strategy, 8, 256))
    memory = compiled.lower().compile().memory
    variable, batch = 256 * 256 * 4, 8 * 256 * 4
    assert memory.argument_bytes == variable + batch
    assert memory.alias_bytes == variable
    assert memory.output_bytes >= variable
    assert memory.temp_bytes > 0
    assert memory.peak_bytes >= variable + batch
    assert compiled.lower().compile().cost["flops"] > 2 * 8 * 256 * 256


def test_tracing_takes_shapes_in_place_of_values(strategy: gd.Strategy) -> None:
    step = all_kinds(strategy)
    with strategy.scope():
        spec = gd.PerReplicaSpec((4,), np.float32)
        by_shape = step.trace(spec, jax.ShapeDtypeStruct((), np.float32))
        by_value = step.trace(values(strategy, 4), np.float32(1))
    assert str(by_shape.graph) == str(by_value.graph)


def test_one_program_a_signature(strategy: gd.Strategy) -> None:
    traces = []

    @gd.function
    def double(x: Any) -> Any:
        traces.append(x.shape)
        return x * 2

    for x in (np.zeros(2, "f"), np.ones(2, "f"), jnp.ones(2), np.zeros(3, "f"), 1.0, 2.0):
        double(x)
    assert traces == [(2,), (3,), ()]


def test_static_arguments_are_part_of_the_signature() -> None:
    traces = []

    def power(x: Any, n: int, mode: str = "plus") -> Any:
        traces.append((n, mode))
        return x**n if mode == "plus" else -(x**n)

    function = gd.function(power, static_argnames="n")
    x = np.float32(3)
    assert float(function(x, 2)) == 9
    assert float(function(x, n=2)) == 9
    assert float(function(x, 3, mode="minus")) == -27
    assert float(function(x, 2)) == 9
    assert traces == [(2, "plus"), (2, "plus"), (3, "minus")]
    assert function.trace(x, 2).graph.inputs[0].hint == "x"


def test_methods_are_bound() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = gd.Variable(2.0)

        @gd.function
        def apply(self, x: float) -> jax.Array:
            return self.w * x

    model = Model()
    assert float(model.apply(3.0)) == 6
    assert "jax.mul" in model.apply.trace(3.0).as_text()


def test_a_function_inside_another_is_part_of_it() -> None:
    inner = gd.function(lambda x: x + 1)
    outer = gd.function(lambda x: inner(inner(x)))
    assert float(outer(1.0)) == 3
    assert [node.op.name for node in walk(outer.trace(1.0).graph)] == ["jax.add", "jax.add"]


def test_retracing_often_is_warned_of_with_the_reason() -> None:
    function = gd.function(lambda batch: batch["image"].sum(), name="step")
    for size in range(1, 8):
        function({"image": np.zeros(size, "f")})
    reason = r"compiled 8 times, now because batch\['image'\] was f32\[7\], is f32\[8\]"
    with pytest.warns(gd.RetraceWarning, match=f"step was {reason}"):
        function({"image": np.zeros(8, "f")})


def test_compiler_options_reach_xla() -> None:
    with pytest.raises(Exception, match="No such compile option"):
        gd.function(lambda x: x, compiler_options={"xla_no_such_option": True})(1.0)


def test_a_failing_pass_leaves_a_reproducer(tmp_path: Any, strategy: gd.Strategy) -> None:
    def explode(graph: Any) -> Any:
        raise ZeroDivisionError("in the pass")

    traced = gd.function(lambda x: strategy.reduce("SUM", x, axis=None)).trace(values(strategy, 2))
    bad = gd.passes.manager.Pass("explode", explode)
    with pytest.raises(ZeroDivisionError) as caught:
        run_passes(traced.graph, (pipeline("cpu")[0], bad), reproducer_folder=tmp_path)
    (path,) = tmp_path.iterdir()
    assert any(str(path) in note for note in caught.value.__notes__)
    with pytest.raises(ZeroDivisionError):
        gd.passes.manager.replay(path, [bad], resolve)
