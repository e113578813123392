"""Random numbers, constants, callbacks, refs, optimisers, and the forms of results."""

from __future__ import annotations

from typing import Any, NamedTuple  # Any: pytrees

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from tests.numerics.feature import EXACT, feature, floats, integers, key

Array = jax.Array
Key = jax.Array


@feature(key)
def random_numbers(key: Key) -> Any:
    keys = jax.random.split(key, 6)
    return (
        jax.random.normal(keys[0], (3,)),
        jax.random.permutation(keys[1], 7),
        jax.random.bernoulli(keys[2], 0.3, (4,)),
        jax.random.randint(keys[3], (4,), 0, 9),
        jax.random.categorical(keys[4], jnp.zeros(4)),
        jax.random.exponential(keys[5], (2,)),
    )


@feature(key)
def keys_as_results(key: Key) -> Any:
    first, *others = jax.random.split(key, 3)
    return first, jnp.stack(others), jax.random.fold_in(key, 7), jax.random.key_data(key), key


@feature(key)
def keys_made_inside(key: Key) -> Any:
    return jax.random.key(3), jax.random.normal(jax.random.key(3)), jax.random.clone(key)


@feature(key)
def keys_of_another_kind(_: Key) -> Any:
    key = jax.random.key(1, impl="rbg")
    return jax.random.uniform(key, (3,)), jax.random.split(key)


@feature(integers(2, dtype=np.uint32))
def raw_keys(key: Array) -> Any:
    return jax.random.split(key), jax.random.uniform(key, (2,)), jax.random.PRNGKey(0)


@feature(key)
def keys_in_scan(key: Key) -> Any:
    def body(key: Key, _: None) -> Any:
        key, now = jax.random.split(key)
        return key, (jax.random.normal(now, (2,)), now)

    return lax.scan(body, key, None, length=3)


@feature(key)
def keys_in_loops_and_branches(key: Key) -> Any:
    def split(_: Any, key: Key) -> Key:
        return jax.random.split(key)[0]

    key = lax.fori_loop(0, 3, split, key)
    flag = jax.random.bernoulli(key)
    key = lax.cond(flag, lambda key: key, lambda key: jax.random.fold_in(key, 1), key)
    return key, jax.vmap(jax.random.normal)(jax.random.split(key, 3))


@feature(key, floats(4, 6))
def grad_through_dropout(key: Key, x: Array) -> Array:
    def f(x: Array) -> Array:
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.sum(jnp.where(keep, x / 0.5, 0) ** 2)

    return jax.grad(f)(x)


SCALAR = np.float32(1.5)
SMALL = np.arange(3, dtype=np.float32)
LARGE = np.linspace(0, 1, 3000, dtype=np.float32).reshape(1000, 3)
OF_JAX = jnp.arange(3.0)
KEY = jax.random.key(5)


@feature(floats(3))
def constants(x: Array) -> Any:
    return x * SCALAR + SMALL + LARGE.sum(0), x @ LARGE.T[:, :5], OF_JAX * x, x + np.pi


@feature(floats(3))
def constants_in_loops(x: Array) -> Any:
    def body(c: Array, i: Array) -> Any:
        return c + jnp.asarray(LARGE)[i] * SMALL, jax.random.normal(KEY) + OF_JAX[0]

    return lax.scan(body, x, jnp.arange(4)), lax.cond(x[0] > 0, lambda: SMALL, lambda: SMALL + 1)


@feature(floats(3), tolerance=EXACT)
def constants_as_results(x: Array) -> Any:
    return SCALAR, SMALL, OF_JAX, KEY, jnp.float32(3), jnp.zeros(3), jnp.int8(2)


@feature(floats(3))
def numbers_as_constants(x: Array) -> Any:
    return x * 2, 1 / (x + 3), x > 1, x + True, x * 1e-3, 2**x, x // 1, jnp.maximum(x, 0)


@feature(floats(3))
def pure_callback(x: Array) -> Any:
    out = jax.ShapeDtypeStruct((3,), np.float32)
    one = jax.ShapeDtypeStruct((), np.float32)
    call: Any = jax.pure_callback  # its own annotations are partial
    mapped: Any = jax.vmap(lambda x: call(np.negative, one, x, vmap_method="expand_dims"))
    return call(lambda x: np.sort(np.asarray(x)), out, x), mapped(x)


@feature(floats(3))
def refs(x: Array) -> Any:
    cell = jax.new_ref(x)
    before = cell[...]
    cell[...] = before * 2
    cell[...] += 1
    total = jax.new_ref(jnp.float32(0))

    def body(i: Array, _: None) -> None:
        total[...] += cell[...].sum() * i

    lax.fori_loop(0, 3, body, None)
    return before, jax.freeze(cell), total[...]


@feature(floats(3))
def refs_in_branches(x: Array) -> Any:
    cell = jax.new_ref(x)

    def write() -> None:
        cell[...] = cell[...] + 1

    lax.cond(x[0] > 0, write, lambda: None)
    return cell[...]


@feature(floats(3, 2), floats(4, 3))
def optax_adam(w: Array, x: Array) -> Any:
    params = {"w": w, "b": jnp.zeros(2)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
    state = optimizer.init(params)

    def loss(params: Any) -> Array:
        return jnp.mean((x @ params["w"] + params["b"]) ** 2)

    for _ in range(2):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


class Pair(NamedTuple):
    first: Any
    second: Any


@feature(floats(3))
def containers(x: Array) -> Any:
    return {"a": (x, [x + 1]), "b": None, "c": Pair(x.sum(), {}), "d": x, "e": ()}


@feature(floats(3))
def nothing(x: Array) -> None:
    return None


@feature(floats(3), floats(3), tolerance=EXACT)
def arguments_as_results(x: Array, y: Array) -> Any:
    return y, x, x


@feature(floats(3))
def one_result_twice(x: Array) -> Any:
    y = jnp.sin(x)
    return y, y, jnp.sin(x)


@feature(floats(), integers())
def scalars(x: Array, i: Array) -> Any:
    return x * 2, i + 1, x[None], jnp.float32(i) * x
