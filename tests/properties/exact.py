"""Operations on small integers of four dtypes, exact in each of them.

What grows is clamped, what is not whole is rounded. Then the order of a sum, or a multiplication
fused with an addition, changes no bit, and results can be compared for equality. Every dimension
has size 4, so that few operations are new to JAX's cache of compiled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias  # Any: numpy's dtypes

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array: TypeAlias = jax.Array
Kind: TypeAlias = tuple[str, int]
"""A dtype and a rank."""

SIZE = 4
LIMIT = 8
DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "i32": jnp.int32, "bool": jnp.bool_}
NUMBERS = ("f32", "bf16", "i32")
ALL = (*NUMBERS, "bool")


def bounded(x: Array) -> Array:
    """Return the numbers, the large ones replaced by the limit; flags as they are."""
    if x.dtype == jnp.bool_:
        return x
    return lax.clamp(jnp.array(-LIMIT, x.dtype), x, jnp.array(LIMIT, x.dtype))


def whole(x: Array) -> Array:
    """Return the nearest integers, the large ones replaced by the limit."""
    return bounded(jnp.round(x))


def convert(x: Array, kind: Kind) -> Array:
    """Return a value of this kind made of a value of any kind."""
    dtype, rank = kind
    while x.ndim > rank:
        x = x.any(0) if x.dtype == jnp.bool_ else bounded(x.sum(0))
    if x.ndim < rank:
        x = jnp.broadcast_to(x, (SIZE,) * rank)
    return x.astype(DTYPES[dtype])


def random_array(kind: Kind, numbers: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a random array of this kind."""
    dtype, rank = kind
    drawn = numbers.integers(-3, 4, (SIZE,) * rank)
    return np.asarray(drawn > 0 if dtype == "bool" else drawn).astype(DTYPES[dtype])


def random_arrays(kinds: Sequence[Kind], *seeds: int) -> list[Array]:
    """Return random arrays of these kinds, the same for the same seeds."""
    numbers = np.random.default_rng(seeds)
    return [jnp.asarray(random_array(kind, numbers)) for kind in kinds]


def _of_numpy(array: Any) -> np.ndarray[Any, Any]:
    """Return an array of NumPy, which has no random keys: their bits."""
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


def check_arrays(given: Any, expected: Any, where: str) -> None:
    """Compare two arrays: 0.0 equals -0.0, and nan nan, which NumPy denies in bfloat16."""
    given, expected = map(_of_numpy, (given, expected))
    assert (given.dtype, given.shape) == (expected.dtype, expected.shape), where
    if given.dtype == jnp.bfloat16:
        given, expected = given.astype("f"), expected.astype("f")
    np.testing.assert_array_equal(given, expected, where)


UNARY: dict[str, dict[str, Callable[[Array], Array]]] = {
    "f32": {
        "neg": jnp.negative,
        "abs": jnp.abs,
        "sin": lambda x: whole(8 * jnp.sin(x)),
        "exp": lambda x: whole(8 * jnp.exp(-jnp.abs(x))),
        "sigmoid": lambda x: whole(16 * jax.nn.sigmoid(x)),
        "square": lambda x: bounded(x**2),
        "half": lambda x: whole(x / 2),
        "relu": jax.nn.relu,
        "sign": jnp.sign,
    },
    "bf16": {
        "neg": jnp.negative,
        "square": lambda x: bounded(x * x),
        "half": lambda x: whole(x / 2),
        "floor": jnp.floor,
    },
    "i32": {
        "neg": jnp.negative,
        "abs": jnp.abs,
        "not": lambda x: bounded(~x),
        "mod": lambda x: x % 3,
        "half": lambda x: x // 2,
        "shift": lambda x: bounded(x << 1),
    },
    "bool": {"not": jnp.logical_not},
}
_ARITHMETIC = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "max": jnp.maximum,
    "min": jnp.minimum,
}
_BITS = {"and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor}
BINARY: dict[str, dict[str, Callable[[Any, Any], Array]]] = {
    "f32": {**_ARITHMETIC},
    "bf16": {**_ARITHMETIC},
    "i32": {**_ARITHMETIC, **_BITS, "rem": lambda x, y: x % jnp.maximum(y, 1)},
    "bool": {**_BITS, "implies": lambda x, y: jnp.logical_or(~x, y)},
}
COMPARE = {
    "lt": jnp.less,
    "ge": jnp.greater_equal,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
}
REDUCE: dict[str, Callable[[Array, int | None], Array]] = {
    "sum": lambda x, axis: jnp.sum(x, axis),
    "mean": lambda x, axis: whole(jnp.mean(x.astype(np.float32), axis)).astype(x.dtype),
    "max": lambda x, axis: jnp.max(x, axis),
    "min": lambda x, axis: jnp.min(x, axis),
    "prod": lambda x, axis: jnp.prod(jnp.clip(x, -2, 2), axis),
}
MOVE: dict[str, Callable[[Array], Array]] = {
    "transpose": jnp.transpose,
    "reverse": lambda x: x[::-1],
    "rotate": lambda x: jnp.concatenate([x[1:], x[:1]]),
    "roll": lambda x: jnp.roll(x, 2, -1),
    "sort": lambda x: jnp.sort(x, -1),
    "pad": lambda x: jnp.pad(x, [(1, 0)] * x.ndim)[(slice(SIZE),) * x.ndim],
    "reshape": lambda x: x.reshape(-1, 2).T.reshape(x.shape),
    "halves": lambda x: jnp.stack(jnp.split(x, 2), 1).reshape(x.shape),
    "squeeze": lambda x: jnp.squeeze(x[None, ..., None], (0, -1)),
    "tile": lambda x: jnp.tile(x, 2)[..., 1 : SIZE + 1],
}
