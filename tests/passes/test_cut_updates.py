"""Halves of steps: what is sent, what servers hold together, and what could not be cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.errors import VerifyError
from graphdist.ir.analyses import walk
from graphdist.ir.errors import ParseError
from graphdist.ir.graph import Stage
from graphdist.ir.interpreter import interpret
from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from graphdist.passes import pipeline
from graphdist.passes.cut_updates import cut_step
from graphdist.passes.halves import parted
from graphdist.passes.manager import run_passes
from graphdist.passes.pulls import row_reads
from graphdist.passes.split_branches import split_branches
from graphdist.runtime.emit import emit
from graphdist.runtime.evaluate import evaluate_jax_node
from graphdist.tracing.jax_ops import resolve
from tests.passes.cut_execution import TARGET, check_cut, step_graph

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
    assert slots.isdisjoint(cut.reads)


def test_a_count_has_an_update_of_its_own_that_takes_nothing() -> None:
    cut = check_cut(step_graph(MODEL, optax.adam(0.1)), "count")
    (count,) = [update for update in cut.updates if len(update.variables) == 1]
    assert count.sent == ()
    assert count.variables[0] in cut.reads
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
    assert slots.isdisjoint(cut.reads)
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
    assert "not cut: variable" in str(cut)


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
        cut_step(parse("graph f on 1 replica, stage logical\n() {\n  return\n}"))


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
    with pytest.raises(VerifyError, match="each of the 2 replicas of a worker has its own"):
        cut_step(parse(own, ops=resolve))


LOOKUPS = """graph f on 1 replica, stage spmd
  variable @t: f32[12,3] mirrored {server=1}
(%t: f32[12,3] mirrored = @t, %x: i32[2,1] mirrored) {
  %r = pull(%t, %x) {bytes=24, server=1} : f32[2,3] mirrored
  return %r
}"""


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


def test_row_numbers_are_computed_before_the_rest() -> None:
    half = parse(LOOKUPS, ops=resolve)
    parts = row_reads(half)
    assert [node.op.name for node in parts.worker.nodes] == []
    assert [value.type.shape for value in parts.worker.inputs] == [(2, 3), (2, 1)]
    assert (parts.reads, [lookup.variables for lookup in parts.lookups]) == ((), [("t",)])
    both = embedding(lambda t, x: jnp.take(t[...], x + x, axis=0))
    parts = row_reads(cut_step(both).worker)
    verify(parts.numbers, full=True)
    verify(parts.worker, full=True)
    (numbers,) = interpret(
        parts.numbers, [[np.array([1, 2, 3, 4, 9], np.int32)]], evaluate_jax_node
    ).outputs
    assert numbers[0][:, 0].tolist() == [2, 4, 6, 8, 18]


@pytest.mark.parametrize("fill", ["", ", fill=7.0", ", fill=nan"])
def test_rows_that_are_not_there(fill: str) -> None:
    graph = parse(
        LOOKUPS.replace("server=1} : f32[2,3]", f"server=1{fill}}} : f32[2,3]"), ops=resolve
    )
    table = np.arange(36, dtype="f").reshape(12, 3)
    for numbers in ([[-1], [12]], [[3], [400]], [[-400], [11]]):
        given = np.array(numbers, np.int32)
        (expected,) = interpret(graph, [[given]], evaluate_jax_node, {"t": [table]}).outputs
        (emitted,) = jax.jit(lambda *inputs: emit(graph, inputs))(table, given)
        np.testing.assert_array_equal(emitted, expected[0])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pull(%t, %x) {bytes=20} : f32[2,3] mirrored", "pull of 24 bytes, .* has 20"),
        ("pull(%t, %t) {bytes=24} : f32[2,3] mirrored", "row numbers are i32"),
        ("pull() {bytes=24} : f32[2,3] mirrored", "not 0 operands"),
    ],
)
def test_refused_reads(line: str, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        parse(LOOKUPS.replace("pull(%t, %x) {bytes=24, server=1} : f32[2,3] mirrored", line))


def test_passes_behind_the_cut_change_the_half_of_the_worker() -> None:
    graph = step_graph(("table", "dense"), optax.adam(0.1), lowered=False)
    passes = list(pipeline(replace(TARGET, cuts_updates=True)))
    names = [entry.name for entry in passes]
    history = run_passes(graph, passes[names.index("cut_updates") :])
    first, last = history[0].graph, history[-1].graph
    assert (first.stage, last.stage) == (Stage.PLACED, Stage.SPMD)
    before, after = parted(first), parted(last)
    assert len(after.worker.nodes) < len(before.worker.nodes)
    for update, other in zip(before.updates, after.updates, strict=True):
        assert update.variables == other.variables
        assert len(update.graph.nodes) == len(other.graph.nodes)
