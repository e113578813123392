"""Checkpoints: what is saved of a variable, and what a variable of another strategy gets of it."""

from __future__ import annotations

import os
import tempfile
from typing import Any  # Any: the values of any program

import jax.numpy as jnp

import graphdist as gd
from tests.conformance.encode import class_name
from tests.conformance.environment import (
    Environment,
    aggregation,
    components,
    in_scope,
    replica_id,
    strategy_of,
    synchronization,
    without,
)


def checkpoint(env: Environment) -> Any:
    """Return what became of a variable that was saved and restored."""
    if env.parts[0] == "misc":
        return _misc(env)
    return _saved_and_restored(env, **env.input)


def _saved_and_restored(
    env: Environment, synchronization: str, aggregation: str, restore: str, restore_replicas: int
) -> Any:
    variable = env.variable(1.0, synchronization, aggregation)
    if aggregation != "NONE" or synchronization == "AUTO":
        env.strategy.run(lambda: variable.assign(jnp.float32(replica_id() + 1)))
    with tempfile.TemporaryDirectory() as folder:
        path = gd.train.Checkpoint(v=variable).save(os.path.join(folder, "c"))
        saved = float(gd.train.load_variable(path, "v"))
        other = _fresh(variable, restore, restore_replicas)
        gd.train.Checkpoint(v=other).restore(path).assert_consumed()
    return {
        "components_before": components(variable),
        "saved": saved,
        "components_after": components(other),
        "read_after": float(other.read_value()),
    }


def _fresh(like: Any, kind: str, replicas: int) -> Any:
    if kind == "none":
        return gd.Variable(0.0)
    return in_scope(
        strategy_of(kind, replicas),
        lambda: gd.Variable(
            0.0,
            synchronization=synchronization(like.synchronization.name),
            aggregation=aggregation(like.aggregation.name),
        ),
    )


def _misc(env: Environment) -> Any:
    label = env.parts[1]
    if label == "restore_deferred_in_scope":
        return _deferred(env)
    if label == "save_in_replica_ctx":
        variable = env.variable()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint_path")
            return env.strategy.run(lambda: gd.train.Checkpoint(v=variable).write(path))
    return without("SavedModel")(env)


def _deferred(env: Environment) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        saved = gd.train.Checkpoint(v=gd.Variable(7.0)).save(os.path.join(folder, "c"))
        restored = gd.train.Checkpoint()
        restored.restore(saved)
        with env.strategy.scope():
            restored.v = gd.Variable(0.0)
    return {"type": class_name(restored.v), "components": components(restored.v)}
