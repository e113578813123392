"""What `gd.function`, `run` and `merge_call` take for a function, and its options."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

import graphdist as gd
from tests.errors.programs import pair
from tests.errors.refusal import Refused


def async_step_function(refused: Refused) -> None:
    async def step(x: jax.Array) -> jax.Array:
        return x * 2

    with refused(TypeError):
        gd.function(step)


def generator_step_function(refused: Refused) -> None:
    def steps(batches: Any) -> Any:
        for batch in batches:
            yield batch * 2

    with refused(TypeError):
        gd.function(functools.partial(steps, [1.0]))


def async_generator_run_on_replicas(refused: Refused) -> None:
    class Model:
        async def batches(self) -> Any:
            yield jnp.ones(2)

    with refused(TypeError):
        pair().run(Model().batches)


def object_with_an_async_call(refused: Refused) -> None:
    class Step:
        async def __call__(self, x: jax.Array) -> jax.Array:
            return x * 2

    with refused(TypeError):
        gd.function(Step())


def wrapped_async_step_function(refused: Refused) -> None:
    async def step(x: jax.Array) -> jax.Array:
        return x * 2

    @gd.function
    @functools.wraps(step)
    def logged(x: jax.Array) -> Any:
        return step(x)

    with refused(TypeError):
        logged(jnp.ones(2))


def wrapped_generator_on_replicas(refused: Refused) -> None:
    def parts(x: jax.Array) -> Any:
        yield x * 2

    with refused(TypeError):
        pair().run(lambda x: parts(x), args=(jnp.ones(2),))


def generator_merged(refused: Refused) -> None:
    def merge(strategy: gd.Strategy, x: Any) -> Any:
        yield strategy.reduce("SUM", x, axis=None)

    def replica_fn() -> Any:
        return gd.get_replica_context().merge_call(merge, args=(jnp.ones(2),))

    with refused(TypeError):
        pair().run(replica_fn)


def generator_accumulated(refused: Refused) -> None:
    def loss(x: jax.Array) -> Any:
        yield x.sum()

    with refused(TypeError):
        gd.accumulate(loss, microbatches=2)


def most_programs_none_at_all(refused: Refused) -> None:
    with refused(ValueError):
        gd.function(lambda x: x, max_programs=0)


def most_programs_in_words(refused: Refused) -> None:
    most: Any = "8"
    with refused(TypeError):
        gd.function(max_programs=most)(lambda x: x)


def static_names_that_are_numbers(refused: Refused) -> None:
    positions: Any = (0,)
    with refused(TypeError):
        gd.function(lambda x: x, static_argnames=positions)


def name_that_is_a_number(refused: Refused) -> None:
    name: Any = 3
    with refused(TypeError):
        gd.function(lambda x: x, name=name)


def compiler_options_in_one_string(refused: Refused) -> None:
    options: Any = "xla_cpu_enable_fast_math"
    with refused(TypeError):
        gd.function(lambda x: x, compiler_options=options)


def argument_of_tensorflows_function(refused: Refused) -> None:
    function: Any = gd.function
    with refused(ValueError):
        function(lambda x: x, reduce_retracing=True)


def argument_that_no_function_takes(refused: Refused) -> None:
    function: Any = gd.function
    with refused(TypeError):
        function(lambda x: x, static_args="x")


def values_from_a_list(refused: Refused) -> None:
    values: Any = [1, 2]
    with refused(TypeError):
        pair().experimental_distribute_values_from_function(values)


def update_without_a_function(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        w = gd.Variable(1.0)
    update: Any = None
    with refused(TypeError):
        strategy.extended.update(w, update)


def arguments_of_merge_call_not_in_a_tuple(refused: Refused) -> None:
    def replica_fn(x: Any) -> Any:
        return gd.get_replica_context().merge_call(lambda strategy, x: x, args=x)

    with refused(ValueError):
        pair().run(replica_fn, args=(jnp.ones(2),))
