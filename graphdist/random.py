"""Random numbers of replicas.

A key of JAX gives every replica the same numbers. `replica_key` derives a different key for each
replica. The derived key depends on the key and the replica's id alone, not on the devices and not
on the number of replicas. A `Generator` does the same for numbers drawn one after the other. Its
state is one key in a mirrored variable. Every draw advances the state in the same way on all
replicas.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any  # Any: dtypes and bounds

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.context import in_cross_replica_context, in_replica_context_of_a_run
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError
from graphdist.options import VariableAggregation
from graphdist.state.variable import Variable
from graphdist.strategies.current import get_replica_context
from graphdist.values.distributed import type_name


def replica_key(key: jax.Array) -> jax.Array:
    """Derive from `key` a key for the calling replica; every replica gets a different one.

    `key` is a key of `jax.random`, typed or raw. Outside every strategy the result is the key of
    replica 0. Raises `ContextError` in cross-replica context, `ArgumentTypeError` for a value that
    is not a key.

    >>> import graphdist as gd
    >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    >>> def replica_fn(key):
    ...     return jax.random.bits(gd.random.replica_key(key))
    >>> first, second = strategy.run(replica_fn, args=(jax.random.key(0),)).values
    >>> int(first) == int(second)
    False
    """
    if in_cross_replica_context():
        raise ContextError(
            "replica_key is called in cross-replica context, where there is no replica",
            hint="call it inside the function given to run, or use the key itself",
        )
    _check_key(key)
    return jax.random.fold_in(key, get_replica_context().replica_id_in_sync_group)


def _check_key(key: Any) -> None:
    if not isinstance(key, jax.Array):
        raise ArgumentTypeError(
            f"the key is of type {type_name(key)}, which is no key of jax.random",
            hint="make one: jax.random.key(seed)",
        )


class Generator:
    """Numbers drawn one after the other, different on each replica.

    In a replica function each replica draws its own numbers. Elsewhere one draw is for all
    replicas. All replicas draw equally often. A generator made in a scope belongs to the scope's
    strategy.

    >>> import graphdist as gd
    >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    >>> with strategy.scope():
    ...     generator = gd.random.Generator.from_seed(5)
    >>> numbers = strategy.run(lambda: generator.uniform((2,)))
    >>> len({float(x) for replica in numbers.values for x in replica})
    4
    """

    def __init__(self, key: jax.Array) -> None:
        """Start with a key; see `from_seed`."""
        _check_key(key)
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        if key.shape:
            raise ArgumentError(f"a generator is made with {list(key.shape)} keys, it takes one")
        self._implementation = str(jax.random.key_impl(key))
        # The replicas' new states are equal. If this cannot be proved, because replicas draw
        # numbers of different shapes, the aggregation uses the state of replica 0.
        self.state = Variable(
            lambda: jax.random.key_data(key),
            name="generator",
            trainable=False,
            aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        )

    @classmethod
    def from_seed(cls, seed: int) -> Generator:
        """Return the generator of a seed.

        >>> Generator.from_seed(1).normal((2,)).shape
        (2,)
        """
        if not isinstance(seed, int | np.integer | jax.Array):
            raise ArgumentTypeError(
                f"seed is {seed!r}, not an int",
                hint="write an int, or use Generator.from_non_deterministic_state()",
            )
        with jax.ensure_compile_time_eval():  # otherwise the key is traced inside a function
            return cls(jax.random.key(seed))

    @classmethod
    def from_non_deterministic_state(cls) -> Generator:
        """Return a generator with a random seed, different in every run of the program."""
        return cls.from_seed(secrets.randbits(31))

    def reset_from_seed(self, seed: int) -> None:
        """Continue as a new generator from this seed would."""
        key = jax.random.key(seed, impl=self._implementation)
        self.state.assign(jax.random.key_data(key))

    def next_key(self) -> jax.Array:
        """Return a key not used before: the replica's own in a replica function."""
        state = jax.random.wrap_key_data(self.state.read_value(), impl=self._implementation)
        state, drawn = jax.random.split(state)
        self.state.assign(jax.random.key_data(state))
        return replica_key(drawn) if in_replica_context_of_a_run() else drawn

    def uniform(
        self, shape: Sequence[int], minval: Any = 0, maxval: Any = None, dtype: Any = jnp.float32
    ) -> jax.Array:
        """Return uniformly distributed numbers in `[minval, maxval)`.

        The default `maxval` of floats is 1. Integers have none: raises `ArgumentError` without
        `maxval`.
        """
        if not jnp.issubdtype(dtype, jnp.integer):
            high = 1 if maxval is None else maxval
            return jax.random.uniform(self.next_key(), tuple(shape), dtype, minval, high)
        if maxval is None:
            raise ArgumentError(
                f"uniform of dtype {jnp.dtype(dtype)} without maxval",
                hint="give one above the largest number: maxval=10",
            )
        return jax.random.randint(self.next_key(), tuple(shape), minval, maxval, dtype)

    def normal(
        self, shape: Sequence[int], mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = jnp.float32
    ) -> jax.Array:
        """Return normally distributed numbers."""
        return mean + stddev * jax.random.normal(self.next_key(), tuple(shape), dtype)

    def truncated_normal(
        self, shape: Sequence[int], mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = jnp.float32
    ) -> jax.Array:
        """Return normally distributed numbers within two standard deviations of the mean."""
        drawn = jax.random.truncated_normal(self.next_key(), -2, 2, tuple(shape), dtype)
        return mean + stddev * drawn

    def split(self, count: int = 1) -> list[Generator]:
        """Return new generators, independent of each other and of later draws from this one."""
        return [type(self)(key) for key in jax.random.split(self.next_key(), count)]


_global: list[Generator] = []


def set_global_generator(generator: Generator) -> None:
    """Set the generator that `get_global_generator` returns."""
    _global[:] = [generator]


def get_global_generator() -> Generator:
    """Return the generator last set, or a new one from a non-deterministic state."""
    if not _global:
        set_global_generator(Generator.from_non_deterministic_state())
    return _global[0]
