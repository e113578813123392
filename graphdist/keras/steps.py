"""The functions that run the steps of `fit`, `evaluate` and `predict` of a distributed model.

Keras calls `train_function(state, iterator)`, which trains on `steps_per_execution` batches of the
iterator, and returns logs and the new state. Here each batch is split over the replicas, and one
compiled program runs the model's own `train_step` on every replica.

A batch is a pytree of NumPy arrays with the same number of rows. The rows are split in order: each
of the n replicas gets ceil(rows / n) rows until all rows are assigned, so the last replicas may get
fewer rows or none. Every process of a cluster passes the full batch, and places the rows of its own
replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any  # Any: arrays, pytrees and objects of Keras

import jax
import jax.numpy as jnp
import keras
import numpy as np

from graphdist.context import Scope
from graphdist.data.elements import batch_size, flattened
from graphdist.data.rebatching import even_sizes, parts_of
from graphdist.errors import UnsupportedError
from graphdist.keras.placed_variables import HandedBackList, placed_variables
from graphdist.keras.python_state import python_state_watched
from graphdist.keras.replica_batch import ReplicaBatch
from graphdist.program.function import function
from graphdist.strategies.base import Strategy
from graphdist.strategies.current import get_replica_context
from graphdist.user_warnings import warn_user
from graphdist.values.components import on_devices
from graphdist.values.distributed import PerReplicaArray, is_distributed

_STATE = {
    "train": ("trainable", "non_trainable", "optimizer", "metrics"),
    "test": ("trainable", "non_trainable", "metrics"),
    "predict": ("trainable", "non_trainable"),
}
"""The lists of variables in a step's state, in Keras's order."""


def variables_of(model: keras.Model) -> dict[str, list[keras.Variable]]:
    """Return the variables of a model, in the lists in which Keras passes them to steps."""
    optimizer = getattr(model, "optimizer", None)
    return {
        "trainable": model.trainable_variables,
        "non_trainable": model.non_trainable_variables,
        "optimizer": [] if optimizer is None else optimizer.variables,
        "metrics": model.metrics_variables,
    }


class Steps:
    """Steps of one kind ("train", "test" or "predict") of a model on a strategy."""

    def __init__(self, kind: str, model: keras.Model, strategy: Strategy) -> None:
        """Place the variables of a built model. Nothing is compiled yet."""
        self.kind, self.model, self.strategy = kind, model, strategy
        variables = variables_of(model)
        self.placed = {name: placed_variables(variables[name], strategy) for name in _STATE[kind]}
        self.handed_back = tuple(map(HandedBackList, self.placed.values()))
        self.program = function(self._global_step, name=f"{model.name}_{kind}_step")
        self._has_warned = False
        self._counted: set[str] = set()
        """The names of the metrics that the step updates. They are known after the first trace."""

    def __call__(self, state: Any, iterator: Iterator[Any]) -> Any:
        """Run the steps of one execution; return the logs or outputs, and the state.

        `state` is not read, because the strategy's variables have the values.
        """
        results = [self._step(next(iterator))]
        for _ in range(self.model.steps_per_execution - 1):
            batch = next(iterator, None)
            if batch is None:
                break
            results.append(self._step(batch))
        return self._joined(results), self.handed_back

    def _joined(self, results: list[Any]) -> Any:
        if self.kind != "predict" or len(results) == 1:
            return results[-1]
        return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *results)

    def _step(self, batch: Any) -> Any:
        if not self._has_warned:
            warn_of_idle_replicas(self.model, batch, self.strategy)
            self._has_warned = True
        with Scope(self.strategy):
            result, totals = self.program(split(batch, self.strategy))
        if self.kind == "predict":
            return jax.tree.map(self._rows_of_all, result, is_leaf=is_distributed)
        for metric, total in zip(self.placed["metrics"], totals, strict=True):
            metric.keep_total(total)
        return result

    def _rows_of_all(self, output: Any) -> Any:
        """Return an output for all rows of the batch."""
        if not isinstance(output, PerReplicaArray):
            return output
        if output.shapes is None and self.strategy.devices.workers is None:
            return output.array
        return self.strategy.gather(output, axis=0)

    # What follows is traced.

    def _global_step(self, batch: Any) -> tuple[Any, list[jax.Array]]:
        """Return logs or outputs, and the totals of the metrics' variables."""
        run = {"train": self._train, "test": self._test, "predict": self._predict}[self.kind]
        result = self.strategy.run(run, args=(batch,))
        if self.kind == "predict":
            return result, []
        totals = [metric.read() for metric in self.placed["metrics"]]
        metrics = self._metrics(totals)

        def logged(name: str, value: Any) -> Any:
            if name in self._counted:
                return metrics[name]
            # A value that is no metric is the mean over all rows, equal on all replicas.
            return self.strategy.reduce("MEAN", value, axis=None)

        return _mapped_logs(logged, result), totals

    def _metrics(self, values: list[jax.Array]) -> dict[str, Any]:
        variables = [metric.keras for metric in self.placed["metrics"]]
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return dict(self.model.get_metrics_result())

    def _train(self, data: Any) -> dict[str, Any]:
        batch = ReplicaBatch.of(data)
        logs = self._with_state(self.model.train_step, batch)
        if not batch.are_gradients_applied and self.placed["trainable"]:
            raise UnsupportedError(
                f"train_step of {type(self.model).__name__} does not call "
                f"self.optimizer.stateless_apply: the replicas' gradients cannot be added up",
                hint="pass gradients to self.optimizer.stateless_apply, as Keras's own step does",
            )
        return logs

    def _test(self, data: Any) -> dict[str, Any]:
        return self._with_state(self.model.test_step, ReplicaBatch.of(data))

    def _with_state(self, step: Callable[..., Any], batch: ReplicaBatch) -> dict[str, Any]:
        """Run a step of Keras on the replica's rows, store the new state, and return the logs.

        Logged values that are no metrics become means over all rows.
        """
        old = self._read()
        with batch.entered(), python_state_watched(self.model):
            logs, new = step(tuple(map(list, old)), batch.data)
        self._store(old, new, batch)
        self._counted = self._metrics(old[-1]).keys() - self._not_counted(old[-1], new[-1])
        share, all_reduce = batch.share_of_rows, get_replica_context().all_reduce

        def shared(name: str, value: Any) -> Any:
            if name in self._counted:
                return value
            value = jnp.asarray(value, jnp.float32)
            return all_reduce("SUM", value * share if share else jnp.zeros_like(value))

        return _mapped_logs(shared, logs)

    def _read(self) -> tuple[list[jax.Array], ...]:
        return tuple([each.read() for each in placed] for placed in self.placed.values())

    def _store(self, old: Any, new: Any, batch: ReplicaBatch) -> None:
        """Store the values that a step has changed.

        A replica without rows makes the same assignments, but its metrics keep their old values.
        """
        for name, before, after in zip(self.placed, old, new, strict=True):
            counts = bool(batch.num_rows) or name != "metrics"
            for each, value, changed in zip(self.placed[name], before, after, strict=True):
                if changed is not value:
                    each.write(changed if counts else value)

    def _not_counted(self, old: list[Any], new: list[Any]) -> set[str]:
        """Return the names of the metrics that a custom step has not changed."""
        pairs = zip(self.placed["metrics"], old, new, strict=True)
        changed = {id(each.keras) for each, before, after in pairs if after is not before}
        names: set[str] = set()
        for metric in self.model.metrics:
            variables = metric.variables
            if variables and not any(id(variable) in changed for variable in variables):
                result = metric.stateless_result(variables)
                names.update(result if isinstance(result, dict) else [metric.name])
        return names

    def _predict(self, data: Any) -> Any:
        batch = ReplicaBatch.of(data)
        old = self._read()
        with batch.entered():
            outputs, others = self.model.predict_step(old, batch.data)
        self._store(old, (old[0], others), batch)
        return outputs if batch.num_rows else jax.tree.map(lambda output: output[:0], outputs)


def _mapped_logs(change: Callable[[str, Any], Any], logs: dict[str, Any]) -> dict[str, Any]:
    """Apply `change(name, value)` to each logged value.

    A custom step may log the metrics of `compile` as a dictionary inside the logs.
    """
    return {
        name: _mapped_logs(change, value) if isinstance(value, dict) else change(name, value)
        for name, value in logs.items()
    }


def split(batch: Any, strategy: Strategy) -> Any:
    """Return a batch as per-replica values, in which each part is on the replica's device.

    Raises `BatchDimensionError` for a scalar, `ArgumentError` if leaves differ in rows.
    """
    flat = flattened(batch)
    replicas = strategy.num_replicas_in_sync
    sizes = even_sizes(batch_size(flat), replicas)
    return jax.tree.unflatten(
        flat.structure, [_placed(np.asarray(leaf), sizes, strategy) for leaf in flat.arrays]
    )


def _placed(array: np.ndarray[Any, Any], sizes: tuple[int, ...], strategy: Strategy) -> Any:
    parts = parts_of(array, sizes)
    here = strategy.devices.local_replicas
    shapes = tuple(part.shape for part in parts)
    return on_devices(strategy, parts[here.start : here.stop], shapes)


def warn_of_idle_replicas(model: keras.Model, batch: Any, strategy: Strategy) -> None:
    """Warn if the batch has fewer rows than the strategy has replicas."""
    rows, replicas = batch_size(flattened(batch)), strategy.num_replicas_in_sync
    if rows < replicas:
        warn_user(
            f"a batch of {rows} rows for model {model.name!r} leaves replicas without any: "
            f"{strategy} has {replicas}. batch_size is the size of the global batch: make it at "
            f"least {replicas}"
        )
