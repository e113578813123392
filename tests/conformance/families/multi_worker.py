"""Programs of two workers with one device each, run in two processes.

All cases run in one job, one after the other, the first time one is asked for. A program gives what
its worker sees: of a value per replica, its own replica's.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any  # Any: the values of any program, and JSON

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.conformance.encode import Encoded, attempt, class_name
from tests.conformance.environment import (
    Environment,
    NoProgramError,
    array,
    components,
    context,
    gradient,
    replica_id,
)
from tests.conformance.families.datasets import dataset_range, drain, with_policy

ROOT = Path(__file__).parents[3]
WORKERS = 2
SECONDS = 55
MARK = "] RESULTS "


class Worker:
    """What a program is given: the strategy, and which worker it runs on."""

    def __init__(self) -> None:
        self.strategy: Any = gd.MultiWorkerMirroredStrategy()
        self.rank: int = self.strategy.cluster_resolver.task_id

    def local(self, value: Any) -> tuple[Any, ...]:
        """Return what this worker's replicas hold of a value."""
        return self.strategy.experimental_local_results(value)

    def per_replica(self, values: Any, dtype: str = "f32") -> Any:
        """Return these values, one a replica."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda each: array(values[each.replica_id_in_sync_group], dtype)
        )

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return what this worker's one replica gets of `run`."""
        return own(self.strategy.run(fn, args=args))

    def function(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return the same of `run` inside a function."""
        return own(gd.function(lambda *given: self.strategy.run(fn, args=given))(*args))


def own(value: Any) -> Any:
    """Return a result with this worker's component in place of each distributed value."""

    def component(leaf: Any) -> Any:
        return leaf.values[0] if isinstance(leaf, gd.DistributedValues) else leaf

    return jax.tree.map(component, value, is_leaf=lambda one: isinstance(one, gd.DistributedValues))


def all_reduce(op: str, value: Any) -> Any:
    """Return what the context's all_reduce does."""
    return context().all_reduce(op, value)


def _fields(w: Worker) -> Any:
    extended = w.strategy.extended
    return [
        w.strategy.num_replicas_in_sync,
        list(extended.worker_devices),
        type(w.strategy.cluster_resolver).__name__,
        w.strategy.cluster_resolver.task_id,
        extended.should_checkpoint,
        extended.should_save_summary,
        w.strategy.devices.workers is not None,
    ]


def _reduced(w: Worker) -> Any:
    floats, integers = w.per_replica([1.0, 2.0]), w.per_replica([1, 2], "i32")
    reduce = w.strategy.reduce
    values = [("SUM", floats), ("MEAN", floats), ("MEAN", integers)]
    return [reduce(op, value, None) for op, value in values]


def _reduced_along(w: Worker) -> Any:
    values = w.per_replica([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]])
    return [w.strategy.reduce(op, values, 0) for op in ("SUM", "MEAN")]


def _of_computed(w: Worker) -> Any:
    x = w.per_replica([1.0, 2.0])
    return [
        w.run(lambda x: all_reduce("SUM", [x * 1.0, x * 2.0]), x),
        w.function(lambda x: all_reduce("MEAN", x * 1.0), x),
        w.function(lambda x: all_reduce("SUM", {"a": x * 1.0, "b": [x * 2.0]}), x),
    ]


def _of_input(w: Worker) -> Any:
    x = w.per_replica([1.0, 2.0])
    return [
        w.run(lambda x: all_reduce("SUM", [x, x * 2.0]), x),
        w.function(lambda x: all_reduce("MEAN", x), x),
    ]


def _in_cond(w: Worker) -> Any:
    def replica(x: Any) -> Any:
        is_positive = all_reduce("SUM", x) > 0.0  # the same on all: a collective is inside
        return jax.lax.cond(is_positive, lambda y: all_reduce("SUM", y), lambda y: y, x)

    return w.function(replica, w.per_replica([1.0, 2.0]))


def _in_while(w: Worker) -> Any:
    def body(state: Any) -> Any:
        return state[0] + 1, all_reduce("SUM", state[1]) / 2.0

    def replica(x: Any) -> Any:
        return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

    return w.function(replica, w.per_replica([1.0, 2.0]))


def _nested(w: Worker) -> Any:
    inner = gd.function(lambda y: all_reduce("SUM", y))
    return w.function(lambda x: inner(x), w.per_replica([1.0, 2.0]))


def _gathered(w: Worker) -> Any:
    values = w.per_replica([[1.0, 2.0], [3.0]])
    return [w.strategy.gather(values, 0), w.run(lambda x: context().all_gather(x, 0), values)]


def _square_of_sum(x: Any) -> Any:
    return gradient(lambda y: all_reduce("SUM", y * 1.0) ** 2, x)


def _broadcast(w: Worker) -> Any:
    with w.strategy.scope():
        v = gd.Variable(float(w.rank + 10))
    return [class_name(v), np.asarray(v)]


def _aggregation(w: Worker) -> Any:
    return [
        _aggregated(w, "AUTO", "SUM"),
        _aggregated(w, "AUTO", "MEAN"),
        _aggregated(w, "AUTO", "ONLY_FIRST_REPLICA"),
        _aggregated(w, "AUTO", "NONE"),
        _aggregated(w, "ON_READ", "SUM"),
        _aggregated(w, "ON_READ", "MEAN"),
        _aggregated(w, "ON_READ", "ONLY_FIRST_REPLICA"),
    ]


def _aggregated(w: Worker, synchronization: str, aggregation: str) -> Any:
    with w.strategy.scope():
        v = gd.Variable(
            1.0,
            synchronization=gd.VariableSynchronization[synchronization],
            aggregation=gd.VariableAggregation[aggregation],
        )

    def replica() -> None:
        v.assign(jnp.float32(replica_id() + 1), read_value=False)

    attempt(lambda: w.strategy.run(replica))
    return [synchronization, aggregation, attempt(v.read_value), attempt(components, v)]


def _range(count: int, batch: int, drop: bool) -> Callable[[Worker], Any]:
    return lambda w: _steps(w, dataset_range(count).batch(batch, drop_remainder=drop))


def _steps(w: Worker, dataset: Any) -> Any:
    environment: Any = w
    return drain(environment, w.strategy.experimental_distribute_dataset(dataset))


def _policy(policy: str) -> Callable[[Worker], Any]:
    return lambda w: _steps(w, with_policy(dataset_range(6).batch(4), policy))


def _spec(w: Worker) -> Any:
    def spec(dataset: Any) -> Any:
        return w.strategy.experimental_distribute_dataset(dataset).element_spec

    return [
        spec(dataset_range(8).batch(4)),
        spec(dataset_range(8).batch(4, drop_remainder=True)),
        spec(dataset_range(8).repeat().batch(4, drop_remainder=True)),
    ]


def _context(w: Worker) -> Any:
    seen: list[Any] = []

    def dataset_fn(each: gd.InputContext) -> Any:
        pipelines = each.num_input_pipelines, each.input_pipeline_id
        seen.append([*pipelines, each.num_replicas_in_sync])
        part = dataset_range(6).shard(*pipelines)
        return part.batch(each.get_per_replica_batch_size(4))

    environment: Any = w
    return [seen, drain(environment, w.strategy.distribute_datasets_from_function(dataset_fn))]


def _uneven(w: Worker) -> Any:
    environment: Any = w
    return drain(
        environment,
        w.strategy.distribute_datasets_from_function(
            lambda each: dataset_range(2 if each.input_pipeline_id else 6).batch(2)
        ),
    )


def _value_context(w: Worker) -> Any:
    seen: list[Any] = []

    def value_fn(each: gd.ValueContext) -> float:
        seen.append([each.replica_id_in_sync_group, each.num_replicas_in_sync])
        return 0.0

    w.strategy.experimental_distribute_values_from_function(value_fn)
    return seen


def _of_plain(w: Worker) -> Any:
    reduce, three = w.strategy.reduce, array(3.0)
    return [
        attempt(reduce, "SUM", 3.0, None),
        attempt(reduce, "SUM", three, None),
        attempt(reduce, "MEAN", three, None),
    ]


def _merged(w: Worker) -> Any:
    def merge(strategy: Any, v: Any) -> Any:
        return [class_name(v), len(strategy.experimental_local_results(v))]

    return w.run(lambda x: context().merge_call(merge, args=(x,)), w.per_replica([1.0, 2.0]))


def _other_shapes(w: Worker) -> Any:
    return [
        attempt(lambda: w.run(lambda: all_reduce("SUM", jnp.ones(w.rank + 1)))),
        attempt(lambda: w.strategy.reduce("SUM", w.per_replica([1.0, 2.0]), None)),
    ]


POLICIES = ("OFF", "DATA", "FILE")
PROGRAMS: dict[str, Callable[[Worker], Any]] = {
    "fields": _fields,
    "reduce_sum_mean": _reduced,
    "reduce_axis0_partial": _reduced_along,
    "all_reduce_of_computed_value": _of_computed,
    "all_reduce_of_function_input": _of_input,
    "all_reduce_in_cond_graph": _in_cond,
    "all_reduce_in_while_graph": _in_while,
    "all_reduce_in_nested_tf_function": _nested,
    "all_gather_and_gather": _gathered,
    "grad_through_all_reduce": lambda w: w.function(_square_of_sum, w.per_replica([1.0, 2.0])),
    "grad_through_all_reduce_eager": lambda w: w.run(_square_of_sum, w.per_replica([1.0, 2.0])),
    "replica_ids": lambda w: w.run(lambda: [replica_id(), context().num_replicas_in_sync]),
    "local_results_only_local": lambda w: w.local(w.per_replica([1.0, 2.0])),
    "variable_initial_value_broadcast": _broadcast,
    "variable_aggregation": _aggregation,
    **{
        f"dataset_range{count}_batch{batch}_drop={drop}": _range(count, batch, drop)
        for count, batch in ((8, 4), (6, 4), (5, 4), (7, 3), (0, 4), (1, 4), (4, 5))
        for drop in (False, True)
    },
    **{f"dataset_range6_batch4_policy_{policy}": _policy(policy) for policy in POLICIES},
    "dataset_element_spec": _spec,
    "dataset_from_function_context": _context,
    "dataset_from_function_uneven_workers": _uneven,
    "value_context": _value_context,
    "reduce_python_value": _of_plain,
    "deepcopy_strategy": lambda w: copy.deepcopy(w.strategy),
    "merge_call_per_worker": _merged,
    "shape_mismatch_all_reduce": _other_shapes,
}


@cache
def results() -> dict[str, list[Any]]:
    """Return what each worker got of every program, by label."""
    job = [sys.executable, "-m", "graphdist.tools.run", "-n", str(WORKERS), "-m", __name__]
    kept = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(job, env=kept, capture_output=True, text=True, timeout=SECONDS)
    lines = [line for line in done.stdout.splitlines() if MARK in line]
    if len(lines) != WORKERS:
        raise NoProgramError(f"the job ended with status {done.returncode}: {done.stderr[-2000:]}")
    of_each = [json.loads(line.partition(MARK)[2]) for line in sorted(lines)]
    return {label: [of_worker[label] for of_worker in of_each] for label in PROGRAMS}


def multi_worker(env: Environment) -> Any:
    """Return what the two workers got of a case."""
    if env.label not in PROGRAMS:
        raise NoProgramError(f"no program for {env.name}")
    return Encoded(workers=results()[env.label])


def main() -> None:
    """Run all programs on one worker, and print what it got."""
    worker = Worker()
    found = {label: attempt(program, worker) for label, program in PROGRAMS.items()}
    print(MARK.lstrip("] "), json.dumps(found), sep="")


if __name__ == "__main__":
    main()
