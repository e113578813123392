"""Halves of steps: what is sent, what servers hold together, and what could not be cut."""

from __future__ import annotations

from typing import Any

import optax
import pytest

from graphdist.errors import VerifyError
from graphdist.ir.analyses import walk
from graphdist.ir.parser import parse
from graphdist.passes.cut_updates import cut_updates
from graphdist.tracing.jax_ops import resolve
from tests.passes.cut_execution import check_cut, step_graph

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
    (dense,) = [update for update in cut.updates if "dense" in update.assigned]
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
        (table,) = [update for update in cut.updates if "table" in update.assigned]
        assert table.bytes_written <= rows + more
        assert any(node.op.name.startswith("jax.scatter") for node in walk(table.graph))


def test_a_branch_over_several_variables_is_not_cut_and_says_so() -> None:
    cut = check_cut(step_graph(MODEL, optax.apply_if_finite(optax.adam(0.1), 3)), "finite")
    assert any("is read by the worker: cond at" in note for note in cut.notes)
    assert "not cut: variable" in str(cut)


def test_a_step_without_results() -> None:
    for optimizer in (optax.sgd(0.1), optax.adam(0.1)):
        for names in (MODEL, ("dense",), ("dense", "factor")):
            check_cut(step_graph(names, optimizer, returns="nothing"), "nothing")


def test_slots_that_a_result_needs() -> None:
    check_cut(step_graph(MODEL, optax.adam(0.1), returns="norm"), "norm")


def test_a_placed_graph_is_cut_too_and_a_logical_one_is_refused() -> None:
    check_cut(step_graph(MODEL, optax.adam(0.1), lowered=False), "placed")
    with pytest.raises(VerifyError, match="takes a placed or spmd graph, this one is logical"):
        cut_updates(parse("graph f on 1 replica, stage logical\n() {\n  return\n}"))


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
        cut_updates(parse(own, ops=resolve))
