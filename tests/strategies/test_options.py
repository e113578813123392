"""Enums and options: defaults, merging, older names."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist import CommunicationImplementation as Implementation
from graphdist.compat import v1


def test_run_options_are_a_tuple_that_run_accepts() -> None:
    assert tuple(gd.RunOptions()) == (True, False, None)
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    for options in (gd.RunOptions(), "anything"):
        assert strategy.run(lambda: 3, options=options) == 3


def test_communication_options() -> None:
    assert gd.CommunicationOptions() == gd.CommunicationOptions(0, None, Implementation.AUTO)
    options = gd.CommunicationOptions(3, 2, "nccl")
    assert (options.bytes_per_pack, options.timeout_seconds) == (3, 2.0)
    assert options.implementation is Implementation.NCCL
    assert gd.CommunicationOptions(timeout_seconds=-5).timeout_seconds == -5


def test_later_options_win_where_they_are_set() -> None:
    first = gd.CommunicationOptions(100, 1.0, Implementation.RING)
    assert first.merge(gd.CommunicationOptions()) == first
    assert first.merge(None) == first
    assert first.merge(gd.CommunicationOptions(5, 0.0, "NCCL")) == gd.CommunicationOptions(
        5, 0.0, Implementation.NCCL
    )
    assert first.merge(gd.CommunicationOptions(timeout_seconds=0)).timeout_seconds == 0


def test_older_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphdist.user_warnings._warned", set())
    with pytest.warns(DeprecationWarning, match="use CommunicationOptions"):
        hints = gd.experimental.CollectiveHints(3, 2.0)
    assert hints == gd.CommunicationOptions(3, 2.0)
    assert v1.CollectiveCommunication is Implementation
    assert gd.experimental.CollectiveCommunication is Implementation


def test_reduce_ops_of_aggregations() -> None:
    of = gd.ReduceOp.from_variable_aggregation
    assert of(gd.VariableAggregation.SUM) is gd.ReduceOp.SUM
    assert of(gd.VariableAggregation.MEAN) is gd.ReduceOp.MEAN


def test_collectives_take_options() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    options = gd.CommunicationOptions(bytes_per_pack=4, timeout_seconds=5.0)

    def replica_fn() -> Any:
        context = gd.get_replica_context()
        number = jnp.reshape(context.replica_id_in_sync_group, 1)
        return (
            context.all_reduce("SUM", number, options=options),
            context.all_gather(number, axis=0, options=options),
        )

    total, both = strategy.run(replica_fn)
    assert total.values[0].tolist() == [1]
    assert both.values[1].tolist() == [0, 1]
