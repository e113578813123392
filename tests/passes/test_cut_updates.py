"""Cut steps: what is sent, what servers hold together, and what could not be cut."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.errors import VerifyError
from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph, GraphVariable, Stage
from graphdist.ir.interpreter import interpret
from graphdist.ir.parser import parse
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED, Type
from graphdist.ir.variable_storage import StoredOnServer
from graphdist.parameter_server.program import Reads
from graphdist.passes import pipeline
from graphdist.passes.manager import Pass, replay, run_passes
from graphdist.passes.pipelines import cutting
from graphdist.passes.servers.cut_step import ServerRead, graphs_of
from graphdist.passes.servers.cut_updates import cut_graph
from graphdist.passes.servers.split_branches import split_branches
from graphdist.runtime.bind_primitive import evaluate_jax_node
from graphdist.tracing.jax_ops import resolve
from tests.passes.cut_execution import TARGET, check_cut, step_graph, traced_step, up_to
from tests.passes.execution import Servers

MODEL = ("dense", "bias")
GRADIENTS = 4 * (12 + 4)
SCHEDULE = optax.linear_schedule(0.1, 0.2, 10)

# The optimizer, the bytes that are sent beside the gradients (counts of steps, learning rates), the
# variables held together with "dense", and the variables that have an update of their own.
OPTIMIZERS: dict[str, tuple[Any, int, int, int]] = {
    "sgd": (optax.sgd(0.1), 0, 1, 0),
    "momentum": (optax.sgd(0.1, momentum=0.9), 0, 2, 0),
    "schedule": (optax.sgd(SCHEDULE, momentum=0.9), 2 * 4, 2, 1),
    "adam": (optax.adam(SCHEDULE), 2 * 2 * 4, 3, 2),
    "adamw": (optax.adamw(0.1, weight_decay=0.1), 2 * 4, 3, 1),
    "clipped": (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), 0, 1, 0),
    "lamb": (optax.lamb(0.1), 2 * 4, 3, 1),
    "average": (optax.chain(optax.scale_by_rms(), optax.ema(0.9, debias=False)), 0, 3, 1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_are_sent_once_and_slots_stay_on_servers(name: str) -> None:
    optimizer, more, together, alone = OPTIMIZERS[name]
    cut = check_cut(step_graph(MODEL, optimizer), name)
    assert cut.bytes_written == GRADIENTS + more
    assert cut.notes == ()
    (dense,) = [update for update in cut.updates if "dense" in update.variables]
    assert len(dense.variables) == together
    assert len(cut.updates) == 2 + alone
    slots = {name for group in cut.together for name in group} - set(MODEL)
    assert slots.isdisjoint(cut.variables_read)


def test_a_count_has_an_update_of_its_own_that_takes_nothing() -> None:
    cut = check_cut(step_graph(MODEL, optax.adam(0.1)), "count")
    (count,) = [update for update in cut.updates if len(update.variables) == 1]
    assert count.sent == ()
    assert count.variables[0] in cut.variables_read
    assert cut.bytes_read == GRADIENTS + 4


def test_what_several_gradients_need_stays_on_the_worker() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1))
    cut = check_cut(step_graph(MODEL, optimizer), "norm")
    for update in cut.updates:
        assert not {node.op.name for node in walk(update.graph)} & {"jax.reduce_sum"}


def test_gradients_of_a_table_are_sent_as_rows() -> None:
    rows = 5 * 3 * 4 + 5 * 4  # and their indices
    for name, optimizer, more in (
        ("sgd", optax.sgd(0.1), 0),
        ("adam", optax.adam(0.1), 2 * 4),
        # The worker makes the table for the norm, and the server once more of the rows.
        ("clipped", optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), 5),
    ):
        cut = check_cut(step_graph(("table", "dense"), optimizer), name)
        (table,) = [update for update in cut.updates if "table" in update.variables]
        assert table.bytes_written <= rows + more
        assert any(node.op.name.startswith("jax.scatter") for node in walk(table.graph))


@pytest.mark.parametrize("inner", [optax.adam(0.1), optax.sgd(0.1, momentum=0.9)])
def test_a_branch_over_several_variables_becomes_one_for_each(inner: Any) -> None:
    cut = check_cut(step_graph(MODEL, optax.apply_if_finite(inner, 3)), "finite")
    assert cut.notes == ()
    slots = {name for update in cut.updates for name in update.variables[1:]}
    assert slots.isdisjoint(cut.variables_read)
    for name in MODEL:
        (update,) = [update for update in cut.updates if name in update.variables]
        assert any(node.op.name == "cond" for node in update.graph.nodes)
        assert len(update.variables) == (3 if len(slots) == 4 else 2)
    assert cut.bytes_written <= GRADIENTS + 10 * 4


def test_a_loop_over_several_variables_is_not_cut_and_says_so() -> None:
    cut = check_cut(parse(LOOP, ops=resolve), "loop")
    first, second = cut.notes
    assert "variable 'm' is read by the worker: scan at" in first
    assert "makes new values of 'w', 'v', 'm' and others together" in first
    assert "variable 'n' is read by the worker: scan at" in second


def test_branches_that_are_left_alone() -> None:
    graph = parse(BRANCH, ops=resolve)
    assert [len(node.results) for node in split_branches(graph).nodes] == [1, 1]
    shared = graph.replace(outputs=(*graph.outputs[:1], graph.outputs[0]))
    assert len(split_branches(shared).nodes) <= 2
    alone = parse(LOOP, ops=resolve)
    assert split_branches(alone) is alone


BRANCH = """graph f on 1 replica, stage spmd
  variable @w: f32[2] mirrored {assigned=true}
  variable @v: f32[3] mirrored {assigned=true}
(%w: f32[2] mirrored = @w, %v: f32[3] mirrored = @v, %i: i32[] mirrored, %g: f32[2] mirrored) {
  %a, %b = cond(%i, %w, %v, %g) : f32[2] mirrored, f32[3] mirrored
    stay(%w1: f32[2] mirrored, %v1: f32[3] mirrored, %g1: f32[2] mirrored) {
      return %w1, %v1
    }
    change(%w2: f32[2] mirrored, %v2: f32[3] mirrored, %g2: f32[2] mirrored) {
      %c = jax.sub(%w2, %g2) : f32[2] mirrored
      %d = jax.neg(%v2) : f32[3] mirrored
      return %c, %d
    }
  return %a -> @w, %b -> @v
}"""
LOOP = """graph f on 1 replica, stage spmd
  variable @w: f32[2] mirrored {assigned=true}
  variable @v: f32[2] mirrored {assigned=true}
  variable @m: f32[2] mirrored {assigned=true}
  variable @n: f32[2] mirrored {assigned=true}
(%w: f32[2] mirrored = @w, %v: f32[2] mirrored = @v, %m: f32[2] mirrored = @m, \
%n: f32[2] mirrored = @n) {
  %a, %b, %c, %d = scan(%w, %v, %m, %n) {num_consts=0, num_carry=4, length=3, reverse=false} : \
f32[2] mirrored, f32[2] mirrored, f32[2] mirrored, f32[2] mirrored
    turn(%w1: f32[2] mirrored, %v1: f32[2] mirrored, %m1: f32[2] mirrored, %n1: f32[2] mirrored) {
      %e = jax.add(%m1, %w1) : f32[2] mirrored
      %f = jax.add(%n1, %v1) : f32[2] mirrored
      %g = jax.sub(%w1, %e) : f32[2] mirrored
      %h = jax.sub(%v1, %f) : f32[2] mirrored
      return %g, %h, %e, %f
    }
  %i = jax.add(%w, %v) : f32[2] mirrored
  return %a -> @w, %b -> @v, %c -> @m, %d -> @n, %i
}"""


def test_a_step_without_results() -> None:
    for optimizer in (optax.sgd(0.1), optax.adam(0.1)):
        for names in (MODEL, ("dense",), ("dense", "factor")):
            check_cut(step_graph(names, optimizer, returns="nothing"), "nothing")


def test_slots_that_a_result_needs() -> None:
    check_cut(step_graph(MODEL, optax.adam(0.1), returns="norm"), "norm")


def test_a_placed_graph_is_cut_too_and_a_logical_one_is_refused() -> None:
    check_cut(step_graph(MODEL, optax.adam(0.1), lowered=False), "placed")
    with pytest.raises(VerifyError, match="takes a placed or spmd graph, this one is logical"):
        cut_graph(parse("graph f on 1 replica, stage logical\n() {\n  return\n}"))


def test_workers_with_several_replicas_send_what_is_the_same_on_all() -> None:
    text = """graph f on 2 replicas, stage spmd
      variable @w: f32[2] mirrored {assigned=true}
    (%w: f32[2] mirrored = @w, %x: f32[2] per_replica) {
      %0 = jax.mul(%x, %w) : f32[2] per_replica
      %g = all_reduce(%0) {reducer="mean", group_size=2} : f32[2] mirrored
      %1 = jax.sub(%w, %g) : f32[2] mirrored
      return %1 -> @w
    }"""
    cut = check_cut(parse(text, ops=resolve), "replicas")
    assert cut.bytes_written == 8
    assert cut.updates[0].graph.num_replicas == 1
    own = text.replace(
        "%1 = jax.sub(%w, %g) : f32[2] mirrored", "%1 = jax.sub(%w, %0) : f32[2] per_replica"
    )
    with pytest.raises(VerifyError, match="differs between the 2 replicas of a worker"):
        cut_graph(parse(own, ops=resolve))


def embedding(read: Any) -> Any:
    """Return the graph of a step that reads a table f32[12,3] in some way, for i32[5]."""
    strategy = gd.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        table = gd.Variable(np.arange(36, dtype="f").reshape(12, 3), name="table")
        step = gd.function(lambda x: read(table, x))
        traced = step.trace(jax.ShapeDtypeStruct((5,), np.int32))
    return run_passes(traced.graph, pipeline(TARGET))[-1].graph


@pytest.mark.parametrize(
    ("read", "size"),
    [
        (lambda t, x: t[...][x], 60),
        (lambda t, x: jnp.take(t[...], x, axis=0), 60),
        (lambda t, x: jnp.take(t[...], x, axis=0, mode="clip"), 60),
        (lambda t, x: jnp.take(t[...], x, axis=0, fill_value=7), 60),
        (lambda t, x: gd.nn.embedding_lookup(t, x), 60),
        (lambda t, x: (t[...][x], gd.nn.embedding_lookup(t, x) * 2), 60),
        (lambda t, x: t[...][x[0]], 12),
        (lambda t, x: t[...][jnp.concatenate([x, x, x])], 144),  # more than the table has
        (lambda t, x: (t[...][x], t[...].sum()), 144),
        (lambda t, x: t[...][:, x[:1] % 3], 144),
        (lambda t, x: t[...][t[0].astype(int)[:1] + x], 144),
        (lambda t, x: jax.lax.cond(x[0] > 1, lambda: t[...][x], lambda: t[...][x + 1]), 144),
    ],
)
def test_a_table_that_is_looked_up_alone_is_read_by_rows(read: Any, size: int) -> None:
    cut = check_cut(embedding(read), "rows")
    assert cut.bytes_read == size


def test_indices_of_rows_are_computed_before_the_rest() -> None:
    cut = cut_graph(embedding(lambda t, x: jnp.take(t[...], x + x, axis=0)))
    assert cut.rows is not None
    (indices,) = interpret(
        cut.rows, [[np.array([1, 2, 3, 4, 9], np.int32)]], evaluate_jax_node
    ).outputs
    assert indices[0][:, 0].tolist() == [2, 4, 6, 8, 18]
    (read,) = cut.reads
    assert (read.variables[0].name, read.type.shape) == ("table", (5, 3))
    assert "jax.add" not in {node.op.name for node in cut.worker.nodes}


@pytest.mark.parametrize("fill", [None, 7.0, math.nan])
def test_rows_that_are_not_there(fill: float | None) -> None:
    table = np.arange(36, dtype="f").reshape(12, 3)
    shards = [
        GraphVariable(name, Type("f32", (rows, 3), MIRRORED)) for name, rows in (("a", 5), ("b", 7))
    ]
    read = ServerRead(tuple(shards), Type("f32", (2, 3), MIRRORED), UNKNOWN, True, fill)
    servers = Servers({"a": [table[:5]], "b": [table[5:]]})
    for indices in ([-1, 12], [3, 400], [-400, 11], [4, 5]):
        (found,) = Reads([read], {"a": 0, "b": 1}).values(
            servers, [np.array(indices, np.int32)[:, None]]
        )
        expected = table[np.clip(indices, 0, 11)]
        if fill is not None:
            expected[[not 0 <= index < 12 for index in indices]] = fill
        np.testing.assert_array_equal(found, expected)


def test_the_text_has_all_graphs() -> None:
    names = ("table", "dense")
    graph = step_graph(names, optax.adam(0.1))
    servers = [
        replace(variable, storage=StoredOnServer(i % 2))
        for i, variable in enumerate(graph.variables)
    ]
    text = str(cut_graph(graph.replace(variables=tuple(servers))))
    assert "# the worker computes which rows it reads\ngraph step_rows on 1 replica" in text
    assert "rows of @table, at most 60 bytes from server" in text
    assert re.search(r"# the worker reads %dense: @dense, 48 bytes from server \d\n", text)
    assert re.search(r"\n# server \d updates @dense, @\w+, @\w+ with %.*: 52 bytes\ngraph up", text)
    assert text.count("\ngraph ") == 5


def test_passes_behind_the_cut_run_on_the_graphs_of_the_worker() -> None:
    graph = step_graph(("table", "dense"), optax.adam(0.1), lowered=False)
    passes = list(pipeline(replace(TARGET, cuts_updates=True)))
    names = [entry.name for entry in passes]
    history = run_passes(graph, passes[names.index("cut_updates") :])
    before, after = history[0].cut, history[-1].cut
    assert before is not None
    assert after is not None
    assert history[-1].graph is after.worker
    assert {part.stage for part in (before.rows, before.worker) if part} == {Stage.PLACED}
    assert {part.stage for part in graphs_of(after)} == {Stage.SPMD}
    assert len(after.worker.nodes) < len(before.worker.nodes)
    assert after.updates is before.updates


def test_an_error_of_a_pass_behind_the_cut_names_the_graph_of_the_worker(tmp_path: Path) -> None:
    def fails(graph: Graph) -> Graph:
        raise ValueError("fails")

    until_cut = up_to("cut_updates", pipeline(replace(TARGET, cuts_updates=True)))
    passes = [*until_cut, Pass("fails", fails)]
    graph = traced_step(("dense",), optax.sgd(0.1), "loss")
    with pytest.raises(ValueError, match="fails") as caught:
        run_passes(graph, passes, reproducer_folder=tmp_path)
    assert "in pass 'fails' on graph 'step'" in caught.value.__notes__[0]
    (file,) = tmp_path.iterdir()
    with pytest.raises(ValueError, match="fails"):
        replay(file, passes, resolve)


def test_a_users_passes_are_cut_when_variables_are_placed() -> None:
    own = pipeline(TARGET)
    names = [entry.name for entry in cutting(own)]
    assert names == [entry.name for entry in pipeline(replace(TARGET, cuts_updates=True))]
    assert cutting(cutting(own)) == cutting(own)
    assert cutting(own[:1]) == own[:1]
