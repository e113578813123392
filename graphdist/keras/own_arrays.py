"""The array that a Keras variable holds itself, while its value is on no strategy.

Keras reads and writes a variable in scopes: scopes of given values, scopes that cast to the dtype
in which a layer computes, and the traces of JAX. All of them belong to a thread. So what another
thread does to a variable is done to the variable itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar  # Any: variables of Keras

import jax
import keras
import numpy as np

Result = TypeVar("Result")


def in_another_thread(compute: Callable[[], Result]) -> Result:
    """Return what a function returns in a thread without scopes of Keras and traces of JAX."""
    is_wide = jax.dtypes.canonicalize_dtype("float64") == "float64"  # set for this thread alone?

    def computed() -> Result:
        with jax.enable_x64(is_wide):
            return compute()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(computed).result()


def own_arrays(variables: Sequence[Any]) -> list[jax.Array]:
    """Return the variables' arrays.

    A variable that was made inside a function has none yet: it is its first value, made now.
    """
    return in_another_thread(lambda: [variable.value for variable in variables])


def release_own_arrays(variables: Sequence[Any]) -> None:
    """Free the memory of the variables' arrays.

    Keras cannot let go of an array. Somebody else may hold it, so that it is replaced by one that
    nobody else has, which is deleted.
    """

    def replace_and_delete() -> None:
        for variable in variables:
            variable.assign(np.zeros(tuple(variable.shape), variable.dtype))
            variable.value.delete()

    in_another_thread(replace_and_delete)


def is_seed(variable: Any) -> bool:
    """Return whether a variable is the state of a random generator."""
    return variable.name == name_of_seeds() and tuple(variable.shape) == (2,)


@cache
def name_of_seeds() -> str:
    """Return the name that Keras gives to the state of its random generators."""
    return in_another_thread(lambda: str(keras.random.SeedGenerator(0).state.name))
