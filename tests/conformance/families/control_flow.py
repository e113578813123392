"""Control flow in replica functions: what autograph made of Python's is `jax.lax` here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: the values of any program

import jax
import jax.numpy as jnp
import numpy as np

from tests.conformance.environment import (
    Environment,
    NoCounterpartError,
    NoProgramError,
    context,
)


def _while_differs(x: Any) -> Any:
    return jax.lax.while_loop(
        lambda state: jnp.sum(state[1]) < 50.0,
        lambda state: (state[0] + 1, state[1] * 2.0),
        (jnp.int32(0), x),
    )


def _while_with_all_reduce(x: Any) -> Any:
    return jax.lax.while_loop(
        lambda state: state[0] < 3,
        lambda state: (state[0] + 1, context().all_reduce("SUM", state[1]) / 2.0),
        (jnp.int32(0), x),
    )[1]


def _for_range(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, y: y + jnp.float32(i), x)


def _cumulative(x: Any) -> Any:
    def add(total: Any, item: Any) -> tuple[Any, Any]:
        return total + item, total + item

    return jax.lax.scan(add, jnp.float32(0), x)[1]


def _sorted_by_numpy(x: Any) -> Any:
    return jax.pure_callback(
        lambda a: np.sort(a)[::-1].copy(), jax.ShapeDtypeStruct(x.shape, x.dtype), x
    )


def _checked(x: Any) -> Any:
    raise NoCounterpartError("operations that raise for a value")


BODIES: dict[str, Callable[[Any], Any]] = {
    "if_on_tensor": lambda x: jax.lax.cond(jnp.sum(x) > 5.0, lambda: x * 2.0, lambda: -x),
    "tf_cond": lambda x: jax.lax.cond(x[0] > 2.0, lambda: x + 100.0, lambda: x - 100.0),
    "while_differs_per_replica": _while_differs,
    "for_range": _for_range,
    "cond_with_all_reduce": lambda x: jax.lax.cond(
        jnp.bool_(True), lambda: context().all_reduce("SUM", x), lambda: x
    ),
    "while_with_all_reduce": _while_with_all_reduce,
    "map_fn": lambda x: jax.lax.map(lambda z: z * z, x),
    "scan": _cumulative,
    "py_function": _sorted_by_numpy,
    "assert_fails_on_one": _checked,
    "nan_check": _checked,
    "return_in_branch": lambda x: jax.lax.cond(jnp.sum(x) > 5.0, lambda: x, lambda: x * 0.0),
}


def control_flow(env: Environment) -> Any:
    """Run a case of the family `control_flow`."""
    label, *around = env.parts
    if label not in BODIES:
        raise NoProgramError("no program for this label")
    env.mode = "function" if around == ["tf_function"] else env.mode
    return env.run(BODIES[label], env.per_replica(env.input["values"]))
