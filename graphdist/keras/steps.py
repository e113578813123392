"""The functions that run the steps of `fit`, `evaluate` and `predict` of a distributed model.

Keras calls `train_function(state, iterator)`, which trains on `steps_per_execution` batches of the
iterator, and returns logs and the new state. Here each batch is split over the replicas, and one
compiled program runs the model's own `train_step` on every replica.

The batches of an execution are stacked, and one program runs their steps in a loop. Batches of
another shape, such as the last one, are a group by themselves. A group of another length is another
program. The first `_MOST_LENGTHS` lengths get a program each; groups of other lengths, such as the
ends of epochs that are never alike, run step by step. Metrics are summed over the
replicas after the last step of a group, and the logs are those of the last step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any  # Any: arrays, pytrees and objects of Keras

import jax
import jax.numpy as jnp
import keras
import numpy as np

from graphdist.context import Scope
from graphdist.data.dataset_reduction import MOST_STEPS, TIMED, steps_worth
from graphdist.data.elements import batch_size, flattened
from graphdist.errors import UnsupportedError
from graphdist.ir.types import MIRRORED
from graphdist.keras.automatic_steps import Automatic
from graphdist.keras.batch_agreement import BatchAgreement
from graphdist.keras.placed_variables import HandedBackList, placed_variables
from graphdist.keras.python_state import python_state_watched
from graphdist.keras.replica_batch import ReplicaBatch
from graphdist.keras.stacked_batches import StackedBatches, groups_of, split
from graphdist.program.function import Function, function
from graphdist.strategies.base import Strategy
from graphdist.strategies.current import get_replica_context
from graphdist.tracing.marks import marked
from graphdist.tracing.user_lines import here
from graphdist.user_warnings import warn_user
from graphdist.values.distributed import PerReplicaArray, TracedPerReplica, is_distributed

_STATE = {
    "train": ("trainable", "non_trainable", "optimizer", "metrics"),
    "test": ("trainable", "non_trainable", "metrics"),
    "predict": ("trainable", "non_trainable"),
}
"""The lists of variables in a step's state, in Keras's order."""
_MOST_LENGTHS = 4
"""The most lengths of groups for which programs are compiled."""


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
        self._several = function(self._global_steps, name=f"{model.name}_{kind}_steps")
        self._lengths: set[int] = set()
        self.automatic_size = 1
        """How many steps an execution has if `steps_per_execution` is "auto"."""
        self._seconds: list[float] = []
        self._has_warned = False
        self._agreement = BatchAgreement(strategy.devices)
        self._counted: set[str] = set()
        """The names of the metrics that the step updates. They are known after the first trace."""

    @property
    def are_of_model(self) -> bool:
        """Return whether the model still has the variables for which the steps were made."""
        present = variables_of(self.model)
        return all(
            [id(each.keras) for each in placed] == list(map(id, present[name]))
            for name, placed in self.placed.items()
        )

    def __call__(self, state: Any, iterator: Iterator[Any]) -> Any:
        """Run the steps of one execution; return the logs or outputs, and the state.

        `state` is not read, because the strategy's variables have the values. Raises
        `StopIteration` if the iterator has no batch.
        """
        steps = self.model.steps_per_execution
        iterator = self._agreement.compared(iterator)
        if isinstance(steps, Automatic) and self.automatic_size > 1:
            steps = MOST_STEPS  # the iterator has those of this execution alone
        elif steps == 1:
            return self._timed_step(next(iterator)), self.handed_back
        results: list[Any] = []
        for group in groups_of(iterator, steps, self.strategy):
            results += self._steps(group)
        if not results:
            raise StopIteration
        return self._joined(results), self.handed_back

    def _joined(self, results: list[Any]) -> Any:
        if self.kind != "predict" or len(results) == 1:
            return results[-1]
        return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *results)

    def _timed_step(self, batch: Any) -> Any:
        """Run a step. The first steps with an automatic size are timed, but for the very first."""
        if not isinstance(self.model.steps_per_execution, Automatic) or self._is_timed:
            return self._step(batch)
        start = time.perf_counter()
        result = jax.block_until_ready(self._step(batch))
        self._seconds.append(time.perf_counter() - start)
        if self._is_timed:
            self.automatic_size = self._agreed(steps_worth(min(self._seconds[1:])))
        return result

    @property
    def _is_timed(self) -> bool:
        return len(self._seconds) > TIMED

    def _agreed(self, steps: int) -> int:
        """Return the smallest of the numbers of all workers, which time their own steps."""
        workers = self.strategy.devices.workers
        if workers is None:
            return steps
        key = f"steps per execution {workers.ordinal('steps per execution')}"
        return min(workers.exchange(key, steps, "the number of steps of an execution", here()))

    def _step(self, batch: Any) -> Any:
        if not self._has_warned:
            self._warn_once(batch_size(flattened(batch)))
        return self._run(self.program, split(batch, self.strategy))

    def _steps(self, group: StackedBatches) -> list[Any]:
        """Run a step with each batch of a group; return the result of each program that ran."""
        self._warn_once(group.rows)
        if group.count > 1 and len(self._lengths) < _MOST_LENGTHS:
            self._lengths.add(group.count)
        if group.count in self._lengths:
            return [self._run(self._several, group.stacked())]
        return [self._run(self.program, batch) for batch in group.single()]

    def _run(self, program: Function[Any, Any], batches: Any) -> Any:
        """Run a program; return the logs, or the outputs for all rows."""
        with Scope(self.strategy):
            result, totals = program(batches)
        if self.kind == "predict":
            rows_of = self._rows_of_steps if program is self._several else self._rows_of_all
            return jax.tree.map(rows_of, result, is_leaf=is_distributed)
        for metric, total in zip(self.placed["metrics"], totals, strict=True):
            metric.keep_total(total)
        return result

    def _rows_of_all(self, output: Any) -> Any:
        """Return an output for all rows of the batch."""
        if not isinstance(output, PerReplicaArray):
            return output
        is_split = output.type.layout is not MIRRORED  # an output may be the same on all replicas
        if is_split and output.shapes is None and self.strategy.devices.workers is None:
            return output.array
        return self.strategy.gather(output, axis=0)

    def _rows_of_steps(self, output: Any) -> Any:
        """Return an output for all rows of stacked batches, on the host, which reorders them."""
        if isinstance(output, PerReplicaArray):
            if self.strategy.devices.workers is None:
                output = np.concatenate(list(map(np.asarray, output.values)), axis=1)
            else:
                output = self.strategy.gather(output, axis=1)
        return np.asarray(output).reshape(-1, *output.shape[2:])

    def _warn_once(self, rows: int) -> None:
        """Warn if the first batch has fewer rows than the strategy has replicas."""
        replicas = self.strategy.num_replicas_in_sync
        if rows < replicas and not self._has_warned:
            warn_user(
                f"a batch of {rows} rows for model {self.model.name!r} leaves replicas without "
                f"any: {self.strategy} has {replicas}. batch_size is the size of the global batch: "
                f"make it at least {replicas}"
            )
        self._has_warned = True

    # What follows is traced.

    def _global_step(self, batch: Any) -> tuple[Any, list[jax.Array]]:
        """Return logs or outputs, and the totals of the metrics' variables."""
        return self._with_totals(self._on_replicas(batch))

    def _global_steps(self, batches: Any) -> tuple[Any, list[jax.Array]]:
        """Return the logs after the last of the stacked batches, or the stacked outputs."""

        def step(_: None, batch: Any) -> tuple[None, Any]:
            batch = jax.tree.map(partial(marked, steps=True), batch)
            return None, self._on_replicas(_with_shapes(batch, lambda shape: shape[1:]))

        _, results = jax.lax.scan(step, None, batches)
        if self.kind == "predict":
            count = jax.tree.leaves(batches)[0].shape[0]
            return _with_shapes(results, lambda shape: (count, *shape)), []
        return self._with_totals(jax.tree.map(lambda values: values[-1], results))

    def _on_replicas(self, batch: Any) -> Any:
        """Return the outputs of a step on each replica, or the logs that are no metrics."""
        run = {"train": self._train, "test": self._test, "predict": self._predict}[self.kind]
        result = self.strategy.run(run, args=(batch,))
        if self.kind == "predict":
            return result
        return _mapped_logs(lambda name, value: None if name in self._counted else value, result)

    def _with_totals(self, result: Any) -> tuple[Any, list[jax.Array]]:
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


def _with_shapes(tree: Any, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Any:
    """Return traced per-replica values; if shapes on the replicas differ, apply `change`."""

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, TracedPerReplica) or leaf.shapes is None:
            return leaf
        return TracedPerReplica(leaf.local, tuple(map(change, leaf.shapes)))

    return jax.tree.map(of, tree, is_leaf=is_distributed)


def _mapped_logs(change: Callable[[str, Any], Any], logs: dict[str, Any]) -> dict[str, Any]:
    """Apply `change(name, value)` to each logged value.

    A custom step may log the metrics of `compile` as a dictionary inside the logs.
    """
    return {
        name: _mapped_logs(change, value) if isinstance(value, dict) else change(name, value)
        for name, value in logs.items()
    }
