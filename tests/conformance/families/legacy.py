"""Names of TF1, on strategies and on the classes of `compat.v1`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd
from tests.conformance.encode import attempt
from tests.conformance.environment import Environment, array, context, from_table, replica_id
from tests.conformance.families.datasets import dataset_range, drain
from tests.conformance.families.input import recording


def _iterator(env: Environment, total: int, size: int = 4) -> Any:
    iterator = env.strategy.make_dataset_iterator(dataset_range(total).batch(size))
    iterator.initialize()
    return iterator


def _three_elements(env: Environment) -> Any:
    iterator = _iterator(env, 6)
    later = [attempt(iterator.get_next) for _ in range(3)]
    return later


def _run_on_iterator(env: Environment) -> Any:
    return env.strategy.experimental_run(lambda x: x * 2, _iterator(env, 8))


def _initialized_again(env: Environment) -> Any:
    iterator = _iterator(env, 8)
    first = iterator.get_next()
    iterator.initialize()
    return [first, iterator.get_next()]


def _by_function(env: Environment, input_fn: Any) -> Any:
    iterator = env.strategy.make_input_fn_iterator(input_fn)
    iterator.initialize()
    return iterator


def _two_elements(env: Environment) -> Any:
    iterator = _by_function(env, lambda context: dataset_range(6).batch(2))
    return [iterator.get_next(), attempt(iterator.get_next)]


def _contexts(env: Environment) -> Any:
    seen: list[Any] = []
    env.strategy.make_input_fn_iterator(recording(seen, lambda context: dataset_range(4).batch(1)))
    return seen


def _run_steps(env: Environment) -> Any:
    iterator = _iterator(env, 8)

    def step(steps: Any, x: Any) -> None:
        total = env.strategy.run(jnp.sum, args=(x,))
        steps.set_last_step_output("s", total, reduce_op=gd.ReduceOp.SUM)

    steps = env.strategy.extended.experimental_run_steps_on_iterator(
        step, iterator, iterations=2, initial_loop_values={"s": jnp.int32(0)}
    )
    return steps.last_step_outputs["s"]


legacy = from_table(
    {
        "experimental_run_no_iterator": lambda env: env.strategy.experimental_run(replica_id),
        "make_dataset_iterator": _three_elements,
        "make_dataset_iterator_experimental_run": _run_on_iterator,
        "make_dataset_iterator_unbatched": lambda env: env.strategy.make_dataset_iterator(
            dataset_range(6)
        ),
        "make_dataset_iterator_reinitialize": _initialized_again,
        "make_input_fn_iterator": _two_elements,
        "make_input_fn_iterator_context": _contexts,
        "make_input_fn_iterator_bad_mode": lambda env: env.strategy.make_input_fn_iterator(
            lambda context: dataset_range(4), gd.InputReplicationMode.PER_REPLICA
        ),
        "make_input_fn_iterator_callable": lambda env: _by_function(
            env, lambda context: lambda: array(5.0)
        ).get_next(),
        "make_input_fn_iterator_bad_return": lambda env: env.strategy.make_input_fn_iterator(
            lambda context: 5
        ),
        "run_steps_on_iterator": _run_steps,
    }
)


def _old(env: Environment) -> Any:
    from graphdist.compat import v1

    return v1.MirroredStrategy(["cpu:0", "cpu:1"])


def _pair(strategy: Any) -> Any:
    """Return 1.0 and 2.0 of the strategy, whose old class cannot make values by a function."""
    return strategy.run(lambda: jnp.float32(replica_id() + 1))


def _numpy_dataset(env: Environment) -> Any:
    strategy = _old(env)
    numbers = strategy.experimental_make_numpy_dataset(np.arange(6, dtype=np.float32))
    return drain(env, strategy.experimental_distribute_dataset(numbers.batch(4)))


def _listed(env: Environment, arrays: Any) -> Any:
    rows = _old(env).experimental_make_numpy_dataset(arrays)
    return [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), row) for row in rows]


def _reduced(env: Environment) -> Any:
    strategy = _old(env)
    return strategy.reduce("SUM", _pair(strategy))


def _config(env: Environment) -> Any:
    config = SimpleNamespace(isolate_session_state=False)
    changed = _old(env).update_config_proto(config)
    return [changed is config, changed.isolate_session_state]


def _instances(env: Environment) -> Any:
    from graphdist.compat import v1

    return [isinstance(_old(env), gd.Strategy), isinstance(env.strategy, v1.Strategy)]


def _loss_reduction(env: Environment) -> Any:
    from graphdist.compat import v1

    return v1.get_loss_reduction()


legacy_v1_class = from_table(
    {
        "numpy_dataset": _numpy_dataset,
        "numpy_dataset_nest": lambda env: _listed(env, {"a": np.arange(3), "b": np.ones([3, 2])}),
        "numpy_dataset_list_of_arrays": lambda env: _listed(env, [np.arange(3), np.arange(3) * 2]),
        "numpy_dataset_dtype_kept": lambda env: (
            _old(env).experimental_make_numpy_dataset(np.arange(3, dtype=np.int16)).element_spec
        ),
        "reduce_default_axis": _reduced,
        "experimental_run": lambda env: _old(env).experimental_run(lambda: array(1.0) + 1.0),
        "update_config_proto": _config,
        "is_instance_of_v2": _instances,
        "get_loss_reduction": _loss_reduction,
        "gather_missing": lambda env: _old(env).gather(env.per_replica([[1.0], [2.0]]), 0),
        "replica_context_no_all_gather": lambda env: _old(env).run(
            lambda: hasattr(context(), "all_gather")
        ),
    }
)
