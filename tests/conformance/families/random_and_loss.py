"""Random numbers, of which only the pattern of equality is compared, and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp

import graphdist as gd
from tests.conformance.encode import class_name
from tests.conformance.environment import (
    Environment,
    NoProgramError,
    Program,
    array,
    from_table,
    in_scope,
    replica_id,
)

Body = Callable[[], Any]


def _own() -> Any:
    """Return what a stateful operation of TensorFlow draws from: a stream a replica."""
    return gd.random.replica_key(jax.random.key(1))


def _dropout() -> Any:
    kept = jax.random.bernoulli(_own(), 0.5, (8,))
    return jnp.where(kept, 2.0, 0.0)


REPLICA_FUNCTIONS: dict[str, Body] = {
    "same_seed_uniform_in_replicas_eager": lambda: jax.random.uniform(_own(), (2,)),
    "op_seed_in_replicas_eager": lambda: jax.random.uniform(jax.random.key(7), (2,)),
    "stateless_same": lambda: jax.random.uniform(jax.random.key(12), (2,)),
    "stateless_folded_by_id": lambda: jax.random.uniform(
        jax.random.fold_in(jax.random.key(1), replica_id()), (2,)
    ),
    "generator_created_in_replica": lambda: gd.random.Generator.from_seed(5).uniform([2]),
    "dropout_masks_differ": _dropout,
}
IN_FUNCTIONS: dict[str, Body] = {
    "uniform_in_replicas_function": lambda: jax.random.uniform(_own(), (2,)),
    "op_seed_in_replicas_function": lambda: jax.random.uniform(jax.random.key(7), (2,)),
}


def _generator(env: Environment) -> Any:
    return in_scope(env.strategy, lambda: gd.random.Generator.from_seed(5))


def _drawn(env: Environment, generator: Any, count: int) -> Any:
    return env.strategy.run(lambda: generator.uniform([count]))


def _twice(env: Environment) -> Any:
    generator = _generator(env)
    return [_drawn(env, generator, 1), _drawn(env, generator, 1)]


def _cross(env: Environment) -> Any:
    generator = _generator(env)
    return in_scope(env.strategy, lambda: generator.uniform([2]))


def _global(env: Environment) -> Any:
    gd.random.set_global_generator(gd.random.Generator.from_seed(5))
    return env.strategy.run(lambda: gd.random.get_global_generator().uniform([1]))


def _on_one_device(env: Environment) -> Any:
    make = gd.random.Generator.from_seed
    return [make(5).uniform([2]), [one.uniform([2]) for one in make(5).split(2)]]


GENERATORS: dict[str, Program] = {
    "generator_in_scope_from_seed": lambda env: _drawn(env, _generator(env), 2),
    "generator_in_scope_twice": _twice,
    "generator_in_scope_cross_replica_use": _cross,
    "generator_outside_scope_used_in_run": lambda env: _drawn(
        env, gd.random.Generator.from_seed(5), 2
    ),
    "generator_state_variable_type": lambda env: class_name(_generator(env).state),
    "get_global_generator": _global,
    "generator_reference_single_device": _on_one_device,
}


def random(env: Environment) -> Any:
    """Run a case of the family `random`."""
    if env.label in GENERATORS:
        return GENERATORS[env.label](env)
    if env.label in IN_FUNCTIONS:
        body = IN_FUNCTIONS[env.label]
        return gd.function(lambda: env.strategy.run(body))()
    if env.label in REPLICA_FUNCTIONS:
        return env.strategy.run(REPLICA_FUNCTIONS[env.label])
    raise NoProgramError("no program for this label")


EVEN = [[1.0, 3.0], [5.0, 7.0]]
PARTIAL = [[1.0, 3.0], [5.0]]


def _average(values: Any, dtype: str = "f32", **options: Any) -> Program:
    """Return the program that averages per-example losses, those of each replica."""

    def program(env: Environment) -> Any:
        losses = env.per_replica(values[: env.replicas], dtype)
        return env.strategy.run(lambda x: gd.nn.compute_average_loss(x, **options), args=(losses,))

    return program


loss = from_table(
    {
        "compute_average_loss_default": _average(EVEN),
        "compute_average_loss_global": _average(PARTIAL, global_batch_size=3),
        "compute_average_loss_partial_default": _average(PARTIAL),
        "compute_average_loss_weights": _average(EVEN, sample_weight=[1.0, 0.5]),
        "compute_average_loss_scalar": _average([1.0, 5.0]),
        "compute_average_loss_int": _average([[1, 3], [5, 7]], "i32"),
        "compute_average_loss_rank2": _average([[[1.0, 3.0]], [[5.0, 7.0]]]),
        "compute_average_loss_zero_global": _average(EVEN, global_batch_size=0),
        "compute_average_loss_float_global": _average(EVEN, global_batch_size=4.0),
        "compute_average_loss_cross": lambda env: in_scope(
            env.strategy, lambda: gd.nn.compute_average_loss(array([1.0, 3.0]))
        ),
        "scale_regularization_loss": lambda env: env.strategy.run(
            lambda: gd.nn.scale_regularization_loss(array(6.0))
        ),
        "scale_regularization_loss_cross": lambda env: in_scope(
            env.strategy, lambda: gd.nn.scale_regularization_loss(array(6.0))
        ),
    }
)
