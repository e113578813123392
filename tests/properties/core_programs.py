"""Random replica functions for splits over cores, drawn while JAX traces them.

A program is a number, its seed. Each operation looks at the values that there are and takes some
that fit, so every trace of a seed is the same program. It computes with small integers of several
dtypes: what grows is clamped, so the order of a sum changes no bit, and a split program must equal
the program itself exactly.

The dimensions differ from each other, and cores divide some of them: a layout along a wrong
dimension shows in the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any  # Any: functions and numbers of JAX

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import graphdist as gd
from tests.properties.drawn_values import (
    ALL,
    LARGEST,
    NUMBERS,
    SHAPES,
    Array,
    Drawn,
    Operation,
    bounded,
    is_exact,
)

VARIABLES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("float32", (8, 16)),
    ("float32", (16, 8)),
    ("float32", (16,)),
    ("float32", (2, 8, 16)),
    ("bfloat16", (16, 8)),
    ("int32", (8, 16)),
)


def _unary(at: Drawn) -> Array:
    x = at.any(NUMBERS)
    functions: list[Any] = [jnp.negative, jnp.abs, jnp.sign, lambda x: bounded(x * x)]
    if x.dtype == jnp.float32:
        functions += [lambda x: jnp.round(4 * jnp.sin(x)), jax.nn.relu, jnp.floor]
    return at.choices.choice(functions)(x)


def _binary(at: Drawn) -> Array:
    x = at.any(NUMBERS)
    y = at.like(x.shape, x.dtype)
    name = at.choices.choice(["add", "subtract", "multiply", "maximum", "minimum"])
    return bounded(getattr(jnp, name)(x, y))


def _compared(at: Drawn) -> Array:
    x = at.any(NUMBERS)
    y = at.like(x.shape, x.dtype)
    return at.choices.choice([jnp.less, jnp.equal, jnp.greater_equal])(x, y)


def _selected(at: Drawn) -> Array:
    x = at.any()
    y, flag = at.like(x.shape, x.dtype), at.like(x.shape, jnp.dtype("bool"))
    return jnp.where(flag, x, y)


def _cast(at: Drawn) -> Array:
    x, dtype = at.any(), at.choices.choice(ALL)
    return x > 0 if dtype == "bool" and x.dtype != jnp.bool_ else bounded(x.astype(dtype))


def _product(at: Drawn) -> Array | None:
    """Return a product that contracts one or two dimensions, maybe with one of batches."""
    x = at.any(NUMBERS, (1, 2, 3))
    others = [y for y in at.values if y.dtype == x.dtype and set(y.shape) & set(x.shape)]
    y = at.choices.choice(others or [x])
    pairs = [(i, j) for i in range(x.ndim) for j in range(y.ndim) if x.shape[i] == y.shape[j]]
    at.choices.shuffle(pairs)
    chosen: list[tuple[int, int]] = []
    for i, j in pairs[: at.choices.randint(1, 3)]:
        if all(i != a and j != b for a, b in chosen):
            chosen.append((i, j))
    count = at.choices.randint(0, len(chosen) - 1)
    batch, contracted = chosen[:count], chosen[count:]
    if not is_exact(x, prod(x.shape[i] for i, _ in contracted)):
        return None
    size = x.size * y.size // prod(x.shape[i] ** 2 for i, _ in contracted)
    if size // prod(x.shape[i] for i, _ in batch) > LARGEST:
        return None
    numbers = tuple(tuple(zip(*each, strict=True)) or ((), ()) for each in (contracted, batch))
    return bounded(lax.dot_general(x, y, numbers))  # type: ignore[arg-type]


def _reduced(at: Drawn) -> Array | None:
    x = at.any(ranks=(1, 2, 3))
    axes = tuple(sorted(at.choices.sample(range(x.ndim), at.choices.randint(1, x.ndim))))
    if x.dtype == jnp.bool_:
        return at.choices.choice([jnp.any, jnp.all])(x, axes)
    name = at.choices.choice(["sum", "sum", "sum", "max", "min", "prod", "argmax", "argmin"])
    if name.startswith("arg"):
        return bounded(getattr(jnp, name)(x, axes[0]))
    terms = prod(x.shape[axis] for axis in axes)
    if name == "prod":
        x = lax.clamp(jnp.array(-1, x.dtype), x, jnp.array(1, x.dtype))
    if name == "sum" and not is_exact(x, terms):
        return None
    return bounded(getattr(jnp, name)(x, axes, keepdims=at.choices.random() < 0.2))


def _moved(at: Drawn) -> Array:
    x = at.any(ranks=(1, 2, 3))
    axis, other = at.axis(x), at.axis(x)
    functions: list[Any] = [
        lambda x: jnp.swapaxes(x, axis, other),
        lambda x: jnp.flip(x, axis),
        lambda x: jnp.roll(x, at.choices.randint(-3, 3), axis),
        lambda x: jnp.repeat(x, 2, axis),
        lambda x: jnp.tile(x, (2,) + (1,) * (x.ndim - 1)),
        lambda x: jnp.expand_dims(x, axis),
        lambda x: jnp.broadcast_to(x, (8, *x.shape)),
        jnp.squeeze,
    ]
    return at.choices.choice(functions)(x)


def _reshaped(at: Drawn) -> Array:
    """Return a value with dimensions joined or taken apart."""
    x = at.any(ranks=(1, 2, 3))
    axis = at.axis(x)
    shape = x.shape
    if axis + 1 < x.ndim and at.choices.random() < 0.5:
        return x.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    factors = [f for f in (2, 3, 4, 8) if shape[axis] % f == 0]
    if not factors or at.choices.random() < 0.2:
        return x.reshape(-1)
    factor = at.choices.choice(factors)
    return x.reshape(*shape[:axis], factor, shape[axis] // factor, *shape[axis + 1 :])


def _joined(at: Drawn) -> Array:
    x = at.any(ranks=(1, 2, 3))
    others = [y for y in at.values if y.dtype == x.dtype and y.shape == x.shape]
    parts = at.choices.choices(others or [x], k=at.choices.randint(1, 2))
    parts = [x, *parts]
    if at.choices.random() < 0.3:
        return jnp.stack(parts, at.axis(x))
    return jnp.concatenate(parts, at.axis(x))


def _padded(at: Drawn) -> Array:
    """Return a value with more at its ends, or less, or more between its elements."""
    x = at.any(ranks=(1, 2, 3))
    least = -1 if min(x.shape) > 1 else 0
    ends = at.choices.randint(least, 2), at.choices.randint(0, 2), at.choices.choice([0, 0, 0, 1])
    axis = at.axis(x)
    config = [ends if i == axis else (0, 0, 0) for i in range(x.ndim)]
    if at.choices.random() < 0.5:
        config = [(after, before, between) for before, after, between in config]
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def _sliced(at: Drawn) -> Array:
    x = at.any(ranks=(1, 2, 3))
    starts, ends, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
    axis = at.axis(x)
    starts[axis] = at.choices.randrange(x.shape[axis])
    ends[axis] = at.choices.randint(starts[axis] + 1, x.shape[axis])
    strides[axis] = at.choices.choice([1, 1, 2])
    return lax.slice(x, starts, ends, strides)


def _index(at: Drawn) -> Array:
    return at.any(("int32",), (0,))


def _sliced_at(at: Drawn) -> Array:
    """Return a slice that begins at a number which is computed, or a value with one replaced."""
    x, start = at.any(ranks=(1, 2, 3)), _index(at)
    axis = at.axis(x)
    length = at.choices.randint(1, x.shape[axis])
    part = lax.dynamic_slice_in_dim(x, start, length, axis)
    if at.choices.random() < 0.5:
        return part
    return lax.dynamic_update_slice_in_dim(x, part[::-1], _index(at), axis)


def _indices(at: Drawn, size: int) -> Array:
    """Return indices, some of which are out of range, of several dtypes."""
    x = at.any(("int32",), (0, 1, 2))
    if x.size > 64:
        x = x.reshape(-1)[:8]
    if at.choices.random() < 0.5:
        x = jnp.abs(x * 3) % (size + 2)
    return x.astype(at.choices.choice(["int32", "int32", "int8", "uint32", "int16"]))


def _gathered(at: Drawn) -> Array:
    x = at.any(ranks=(1, 2, 3))
    axis = at.axis(x)
    mode = at.choices.choice(["clip", "fill", "promise_in_bounds"])
    indices = _indices(at, x.shape[axis])
    if mode == "promise_in_bounds":
        indices = jnp.clip(indices, 0, x.shape[axis] - 1)
    if at.choices.random() < 0.3 and x.ndim > 1:
        other = (axis + 1) % x.ndim
        moved = jnp.moveaxis(x, (axis, other), (0, 1))
        rows = _indices(at, moved.shape[0])
        columns = jnp.broadcast_to(_indices(at, moved.shape[1]).reshape(-1)[0], rows.shape)
        return moved.at[rows, columns].get(
            mode="clip" if mode == "promise_in_bounds" else mode, fill_value=1
        )
    return jnp.take(
        x,
        indices,
        axis,
        mode=mode if mode != "promise_in_bounds" else "clip",
        fill_value=1 if mode == "fill" else None,
    )


def _taken_along(at: Drawn) -> Array:
    x = at.any(ranks=(1, 2, 3))
    axis = at.axis(x)
    indices = jnp.argsort(x.astype(jnp.int32), axis)[
        tuple(slice(0, 2) if i == axis else slice(None) for i in range(x.ndim))
    ]
    return jnp.take_along_axis(x, indices, axis)


def _scattered(at: Drawn) -> Array:
    x = at.any(NUMBERS, (1, 2, 3))
    axis = at.axis(x)
    indices = _indices(at, x.shape[axis]).reshape(-1)[:8].astype(jnp.int32)
    moved = jnp.moveaxis(x, axis, 0)
    updates = at.like((*indices.shape, *moved.shape[1:]), x.dtype)
    mode = at.choices.choice(["clip", "drop"])
    name = at.choices.choice(["add", "add", "max", "min", "set"])
    if name == "set":  # of several values for one index, which one stays is not defined
        indices, updates = indices[:1], updates[:1]
    found = getattr(moved.at[indices], name)(updates, mode=mode)
    return bounded(jnp.moveaxis(found, 0, axis))


def _cumulated(at: Drawn) -> Array | None:
    x = at.any(NUMBERS, (1, 2, 3))
    axis, reverse = at.axis(x), at.choices.random() < 0.5
    name = at.choices.choice(["cumsum", "cummax", "cummin"])
    if not is_exact(x, x.shape[axis]):
        return None
    return bounded(getattr(lax, name)(x, axis, reverse=reverse))


def _sorted(at: Drawn) -> Array:
    x = at.any(NUMBERS, (1, 2, 3))
    axis = at.axis(x)
    how = at.choices.choice(["sort", "argsort", "top_k", "by keys"])
    if how == "top_k":
        x = x + jnp.zeros(
            (), x.dtype
        )  # it puts 0.0 before -0.0, which a sum of terms does not keep
        return lax.top_k(x, min(3, x.shape[-1]))
    if how == "by keys":
        return list(lax.sort((x.astype(jnp.int32), at.like(x.shape, x.dtype)), dimension=axis))
    return bounded(getattr(jnp, how)(x, axis))


def _convolved(at: Drawn) -> Array | None:
    x = at.any(("float32", "bfloat16"), (3,))
    batch, space, features = at.choices.sample(range(3), 3)
    lhs = jnp.moveaxis(x, (batch, features, space), (0, 1, 2))
    window = at.choices.choice([w for w in (1, 2, 3) if w <= lhs.shape[2]])
    groups = at.choices.choice([1, 1, lhs.shape[1]])
    outputs = at.choices.choice([4, 8]) * (groups if groups <= 8 else 1)
    if outputs % groups or not is_exact(x, window * lhs.shape[1] // groups):
        return None
    kernel = at.constant(str(x.dtype), (outputs, lhs.shape[1] // groups, window))
    found = lax.conv_general_dilated(
        lhs,
        kernel * at.like((), x.dtype),
        (at.choices.choice([1, 1, 2]),),
        [(at.choices.randint(0, 2), at.choices.randint(0, 2))],
        lhs_dilation=(at.choices.choice([1, 1, 2]),),
        rhs_dilation=(at.choices.choice([1, 1, 2]),),
        feature_group_count=groups,
    )
    return jnp.moveaxis(bounded(found), (0, 1, 2), (batch, features, space))


def _pooled(at: Drawn) -> Array | None:
    x = at.any(("float32", "int32"), (1, 2, 3))
    axis = at.axis(x)
    window, stride = at.choices.choice([(2, 2), (2, 1), (3, 1), (4, 4), (3, 2)])
    sizes = tuple(window if i == axis else 1 for i in range(x.ndim))
    strides = tuple(stride if i == axis else 1 for i in range(x.ndim))
    padding = at.choices.choice(["VALID", "SAME"])
    limits = (-np.inf, np.inf) if x.dtype == jnp.float32 else (-(2**31), 2**31 - 1)
    start, reducer = at.choices.choice([(0, lax.add), (limits[0], lax.max), (limits[1], lax.min)])

    def pooled(x: Array) -> Array:
        neutral = np.array(start, x.dtype)
        return bounded(lax.reduce_window(x, neutral, reducer, sizes, strides, padding))

    if x.dtype == jnp.float32 and at.choices.random() < 0.5:
        return bounded(jax.vjp(pooled, x)[1](bounded(pooled(x)))[0])
    return pooled(x)


def _counted(at: Drawn) -> Array:
    x = at.any(ranks=(1, 2, 3))
    return bounded(lax.broadcasted_iota(jnp.int32, x.shape, at.axis(x)) % 7)


def _constant(at: Drawn) -> Array:
    return at.constant(at.choices.choice(ALL), at.choices.choice(SHAPES))


def _random(at: Drawn) -> Array:
    shape, key = at.choices.choice(SHAPES), jax.random.key(at.choices.randrange(9))
    return bounded((jax.random.bits(key, shape) % 5).astype(jnp.int32))


def _scanned(at: Drawn) -> Array:
    carry, xs = at.any(), at.any(ranks=(1, 2, 3))
    kept = [at.any() for _ in range(at.choices.randint(0, 2))]
    stacked = at.any(ranks=(0, 1, 2))
    body = at.body(PLAIN, [carry, stacked])

    def step(carry: Array, x: Array) -> Any:
        return tuple(body(*kept, carry, x))

    xs = xs if xs.shape[0] <= 8 and at.choices.random() < 0.5 else xs[:3]
    return list(lax.scan(step, carry, xs, reverse=at.choices.random() < 0.3))


def _added_up(at: Drawn) -> Array:
    """Add up sums that iterations compute, from zero."""
    xs, like = at.any(ranks=(1, 2, 3)), at.any(("float32", "bfloat16", "int32"), (1, 2, 3))
    body, axis = at.body(PLAIN, [like]), at.axis(like)
    sign, reads = at.choices.choice([1, 1, 1, -1]), at.choices.random() < 0.2

    def step(total: Array, x: Array) -> Any:
        term = jnp.sum(body(x, like)[0], axis, dtype=like.dtype)
        return sign * total + term.astype(total.dtype), total if reads else None

    shape, dtype = np.delete(like.shape, axis), at.choices.choice([like.dtype, jnp.float32])
    total, totals = lax.scan(step, jnp.zeros(shape, dtype), xs[:3])
    return [bounded(total), *([bounded(totals)] if reads else [])]


def _repeated(at: Drawn) -> Array:
    first, second = at.any(), at.any()
    kept = [at.any() for _ in range(at.choices.randint(0, 2))]
    body = at.body(PLAIN, [first, second])

    def step(i: Array, carries: Any) -> Any:
        return tuple(body(*kept, i.astype(jnp.int32), *carries))

    return list(lax.fori_loop(0, at.choices.randint(0, 3), step, (first, second)))


def _while(at: Drawn) -> Array:
    carry, kept = at.any(), at.any()
    test, body = at.body(PLAIN, [jnp.zeros((), bool)], 2), at.body(PLAIN, [carry])
    bound = jnp.abs(at.any(("int32",), (0,))) % 4
    return lax.while_loop(
        lambda c: (c[0] < bound) & test(kept, c[1])[0],
        lambda c: (c[0] + 1, body(kept, c[0], c[1])[0]),
        (jnp.int32(0), carry),
    )[1]


def _branched(at: Drawn) -> Array:
    taken = [at.any() for _ in range(at.choices.randint(1, 3))]
    gives = [at.any(), at.any()]
    count = at.choices.randint(1, 3)
    branches = [at.body(PLAIN, gives) for _ in range(count)]
    return lax.switch(at.any(("int32",), (0,)), branches, *taken)


def _mapped(at: Drawn) -> Array:
    x = at.any(ranks=(1, 2, 3))
    axis = at.axis(x)
    body = at.body(PLAIN, [at.any(ranks=(0, 1, 2))], 3)
    kept = at.any(ranks=(0, 1, 2))
    return jax.vmap(lambda row: body(kept, row)[0], axis)(x)


def _differentiated(at: Drawn) -> Array:
    x, y = at.any(("float32",)), at.any(("float32",))
    body = at.body(PLAIN, [jnp.zeros((), jnp.float32)], 3)
    function: Any = lambda *args: body(*args)[0]  # noqa: E731
    if at.choices.random() < 0.3:
        function = jax.checkpoint(function)
    return [jnp.round(bounded(each)) for each in jax.grad(function, (0, 1))(x, y)]


def _read(at: Drawn) -> Array | None:
    if not at.variables:
        return None
    return bounded(at.choices.choice(at.variables).read_value())


def _assigned(at: Drawn) -> None:
    if at.variables:
        variable = at.choices.choice(at.variables)
        value = at.given(variable.shape, variable.dtype)
        context = gd.get_replica_context()
        if context.num_replicas_in_sync > 1:
            total = context.all_reduce("SUM", value)
            value = bounded(total).astype(variable.dtype)
        variable.assign(value)


def _between_replicas(at: Drawn) -> Array | None:
    if not at.variables:  # in a nested function, which replicas may leave at different times
        return None
    context, x = gd.get_replica_context(), at.any(("float32", "int32"), (1, 2, 3))
    if at.choices.random() < 0.5:
        return bounded(context.all_reduce("SUM", x))
    return bounded(context.all_gather(x, at.axis(x)))


PLAIN: tuple[Operation, ...] = (
    _unary, _binary, _binary, _binary, _compared, _selected, _cast, _product, _product, _product,
    _reduced, _reduced, _moved, _moved, _reshaped, _reshaped, _joined, _padded, _sliced,
    _sliced_at, _gathered, _gathered, _taken_along, _scattered, _scattered, _cumulated, _sorted,
    _convolved, _pooled, _counted, _constant,
)  # fmt: skip
OPERATIONS: tuple[Operation, ...] = (
    *PLAIN, _random, _scanned, _scanned, _added_up, _added_up, _repeated, _while, _branched,
    _mapped, _differentiated, _differentiated, _read, _read, _read, _assigned, _assigned,
    _between_replicas,
)  # fmt: skip


def replica_function(seed: int, variables: Sequence[gd.Variable]) -> Callable[..., Any]:
    """Return the replica function of a seed, which takes arrays and returns what it computed."""

    def replica_fn(*values: Array) -> Any:
        at = Drawn(seed, values, variables)
        at.values += [bounded(variable.read_value()) for variable in variables[:3]]
        at.grow(at.choices.randint(3, 12), OPERATIONS)
        return at.values[len(values) + 3 :]

    return replica_fn
