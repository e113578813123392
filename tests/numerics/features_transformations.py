"""Transformations and control flow of JAX."""

from __future__ import annotations

from functools import partial
from typing import Any  # Any: pytrees

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from tests.numerics.feature import booleans, feature, floats, integers, key

Array = jax.Array


def loss(w: Array, x: Array) -> Array:
    return jnp.mean(jnp.tanh(x @ w) ** 2)


@feature(floats(3, 2), floats(4, 3))
def grad(w: Array, x: Array) -> Array:
    return jax.grad(loss)(w, x)


@feature(floats(3, 2), floats(4, 3))
def grad_of_both(w: Array, x: Array) -> Any:
    return jax.grad(loss, argnums=(0, 1))(w, x)


@feature(floats(3, 2), floats(4, 3))
def value_and_grad_with_aux(w: Array, x: Array) -> Any:
    return jax.value_and_grad(lambda w: (loss(w, x), {"norm": jnp.sum(w)}), has_aux=True)(w)


@feature(floats(3, 2), floats(5, 4, 3))
def vmap(w: Array, x: Array) -> Any:
    return jax.vmap(loss, (None, 0))(w, x)


@feature(floats(3, 2), floats(5, 3))
def vmap_of_grad(w: Array, x: Array) -> Any:
    return jax.vmap(jax.grad(lambda w, x: jnp.sum(jnp.sin(x @ w))), (None, 0), 1)(w, x)


@feature(floats(4))
def jacfwd(x: Array) -> Array:
    return jax.jacfwd(lambda x: jnp.sin(x) * jnp.sum(x))(x)


@feature(floats(4))
def jacrev(x: Array) -> Array:
    return jax.jacrev(lambda x: jnp.cumsum(x**2))(x)


@feature(floats(4))
def hessian(x: Array) -> Array:
    return jax.hessian(lambda x: jnp.prod(jnp.cos(x)))(x)


@feature(floats(4), floats(4))
def jvp_vjp_and_linearize(x: Array, v: Array) -> Any:
    def f(x: Array) -> Array:
        return jnp.exp(x) * x[::-1]

    y, tangent = jax.jvp(f, (x,), (v,))
    _, pullback = jax.vjp(f, x)
    _, linear = jax.linearize(f, x)
    return y, tangent, pullback(v), linear(v), jax.linear_transpose(linear, x)(v)


def layers(w: Array, x: Array) -> Array:
    for _ in range(3):
        x = jnp.sin(x @ w)
    return jnp.sum(x)


@feature(floats(3, 3), floats(4, 3))
def checkpoint(w: Array, x: Array) -> Array:
    return jax.grad(jax.checkpoint(layers))(w, x)


@feature(floats(3, 3), floats(4, 3))
def checkpoint_with_policies(w: Array, x: Array) -> Any:
    policies = jax.checkpoint_policies
    return [
        jax.grad(jax.checkpoint(layers, policy=policy))(w, x)
        for policy in (policies.dots_saveable, policies.everything_saveable)
    ]


@feature(floats(3, 3), floats(4, 3))
def checkpoint_of_named_values(w: Array, x: Array) -> Array:
    from jax.ad_checkpoint import checkpoint_name

    def f(w: Array) -> Array:
        return jnp.sum(jnp.sin(checkpoint_name(jnp.sin(x @ w), "kept") @ w))

    policy = jax.checkpoint_policies.save_only_these_names("kept")
    return jax.grad(jax.checkpoint(f, policy=policy))(w)


@feature(floats(3, 3), floats(4, 3))
def checkpoint_without_barrier(w: Array, x: Array) -> Array:
    return jax.grad(jax.checkpoint(layers, prevent_cse=False))(w, x)


@feature(floats(3, 3), floats(4, 3))
def checkpoint_in_scan(w: Array, x: Array) -> Any:
    def body(x: Array, _: None) -> Any:
        return jnp.sin(x @ w), x.sum()

    def f(x: Array) -> Array:
        last, ys = lax.scan(jax.checkpoint(body, prevent_cse=False), x, None, length=3)
        return jnp.sum(last) + jnp.sum(ys)

    return jax.value_and_grad(f)(x)


def step(carry: Array, x: Array) -> Any:
    return jnp.sin(carry + x), carry * x


@feature(floats(3), floats(4, 3))
def scan(c: Array, xs: Array) -> Any:
    return lax.scan(step, c, xs)


@feature(floats(3), floats(4, 3))
def scan_in_reverse(c: Array, xs: Array) -> Any:
    return lax.scan(step, c, xs, reverse=True)


@feature(floats(3), floats(5, 3))
def scan_unrolled(c: Array, xs: Array) -> Any:
    return lax.scan(step, c, xs, unroll=2), lax.scan(step, c, xs, unroll=True)


@feature(floats(3))
def scan_without_xs(c: Array) -> Any:
    return lax.scan(lambda c, _: (c * 1.5, {"c": c}), c, None, length=4)


@feature(floats(3), floats(4, 3))
def scan_of_pytrees(c: Array, xs: Array) -> Any:
    def body(carry: Any, x: Any) -> Any:
        total, count = carry["total"], carry["count"]
        return {"total": total + x[0], "count": count + 1}, (total, None)

    return lax.scan(body, {"total": c, "count": 0}, (xs, xs[:, 0]))


@feature(floats(3), floats(0, 3))
def scan_of_nothing(c: Array, xs: Array) -> Any:
    return lax.scan(step, c, xs)


@feature(floats(3), floats(4, 3))
def grad_of_scan(c: Array, xs: Array) -> Any:
    return jax.grad(lambda c, xs: jnp.sum(lax.scan(step, c, xs)[1]), (0, 1))(c, xs)


@feature(floats(2, 3), floats(4, 3))
def vmap_of_scan(c: Array, xs: Array) -> Any:
    return jax.vmap(lambda c: lax.scan(step, c, xs))(c)


@feature(floats(3))
def while_loop(x: Array) -> Any:
    return lax.while_loop(lambda c: jnp.sum(c[1]) < 20, lambda c: (c[0] + 1, c[1] ** 2 + 1), (0, x))


@feature(floats(4, 3))
def vmap_of_while_loop(x: Array) -> Array:
    return jax.vmap(lambda x: lax.while_loop(lambda x: x.sum() < 20, lambda x: x**2 + 1, x))(x)


@feature(floats(2, 4, 3), floats(4))
def vmap_of_vmap_of_while_loop(x: Array, limit: Array) -> Any:
    def f(x: Array, limit: Array) -> Any:
        return lax.while_loop(
            lambda c: c[0].sum() < limit + 9, lambda c: (c[0] ** 2 + limit**2, c[1] + 1), (x, 0)
        )

    return jax.vmap(jax.vmap(f), (0, None))(x, limit)


@feature(key)
def vmap_of_while_loop_over_keys(key: Array) -> Any:
    def f(key: Array) -> Any:
        return lax.while_loop(
            lambda c: jax.random.uniform(c[0]) < 0.7,
            lambda c: (jax.random.split(c[0])[1], c[1] + 1),
            (key, 0),
        )

    return jax.vmap(f)(jax.random.split(key, 5))


@feature(floats(3))
def forward_grad_of_while_loop(x: Array) -> Any:
    def f(x: Array) -> Array:
        return lax.while_loop(lambda x: x.sum() < 20, lambda x: x**2 + 1, x)

    return jax.jvp(f, (x,), (x,))


@feature(floats(3), floats())
def cond(x: Array, flag: Array) -> Array:
    return lax.cond(flag > 0, jnp.sin, lambda x: x * 2, x)


@feature(floats(3), floats())
def cond_without_operands(x: Array, flag: Array) -> Any:
    return lax.cond(flag > 0, lambda: (x, 1), lambda: (x + 1, 2))


@feature(floats(3), integers(low=-1, high=4))
def switch(x: Array, index: Array) -> Array:
    return lax.switch(index, [jnp.sin, lambda x: x * 2, lambda x: x - 1], x)


@feature(floats(3), integers())
def grad_of_switch(x: Array, index: Array) -> Array:
    branches = [jnp.sin, lambda x: x**3, jnp.zeros_like]
    return jax.grad(lambda x: jnp.sum(lax.switch(index, branches, x)))(x)


@feature(floats(4, 3), booleans(4))
def vmap_of_cond(x: Array, flag: Array) -> Array:
    return jax.vmap(lambda x, f: lax.cond(f, jnp.sin, jnp.cos, x))(x, flag)


@feature(floats(3))
def fori_loop(x: Array) -> Array:
    return lax.fori_loop(0, 5, lambda i, x: x.at[i % 3].add(i), x)


@feature(floats(3), integers())
def fori_loop_of_unknown_length(x: Array, count: Array) -> Array:
    return lax.fori_loop(0, count, lambda i, x: x * 2 + i, x)


@feature(floats(3))
def grad_of_fori_loop(x: Array) -> Array:
    return jax.grad(lambda x: jnp.sum(lax.fori_loop(0, 4, lambda i, x: jnp.sin(x) * i, x)))(x)


@feature(floats(8))
def associative_scan(x: Array) -> Any:
    return lax.associative_scan(jnp.add, x), lax.associative_scan(jnp.maximum, x, reverse=True)


@feature(floats(6, 3))
def lax_map(x: Array) -> Any:
    return lax.map(jnp.sum, x), lax.map(jnp.sin, x, batch_size=4)


@feature(floats(3))
def custom_jvp(x: Array) -> Any:
    @jax.custom_jvp
    def f(x: Array) -> Array:
        return x**2

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return f(*primals), 7 * tangents[0]

    return f(x), jax.grad(lambda x: f(x).sum())(x), jax.vmap(f)(x)


@feature(floats(3), floats())
def custom_vjp(x: Array, c: Array) -> Any:
    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def f(power: int, x: Array, c: Array) -> Array:
        return c * x**power

    def forward(power: int, x: Array, c: Array) -> Any:
        return f(power, x, c), (x, c)

    def backward(power: int, kept: Any, ct: Array) -> Any:
        return ct * kept[0] * power, jnp.sum(ct) + kept[1]

    f.defvjp(forward, backward)
    return f(2, x, c), jax.grad(lambda x, c: f(3, x, c).sum(), (0, 1))(x, c)


@feature(floats(3))
def custom_gradient(x: Array) -> Array:
    clip = jax.custom_gradient(lambda x: (x, lambda ct: (jnp.clip(ct, -0.1, 0.1),)))
    return jax.grad(lambda x: jnp.sum(clip(x) ** 2))(x)


@feature(floats(3))
def stop_gradient(x: Array) -> Array:
    return jax.grad(lambda x: jnp.sum(lax.stop_gradient(x) * x))(x)


@feature(floats(3))
def nested_jit(x: Array) -> Any:
    double = jax.jit(lambda x: x * 2)
    return jax.jit(lambda x: double(double(x)) + double(x))(x), double(x[0])


@feature(floats(3))
def nested_jit_with_static_arguments(x: Array) -> Array:
    power = jax.jit(lambda x, n: x**n, static_argnums=1)
    return power(x, 2) + power(x, 3)


@feature(floats(3))
def nested_jit_in_grad_of_scan(x: Array) -> Array:
    body = jax.jit(lambda c, x: (jnp.tanh(c * x), c))
    return jax.grad(lambda x: lax.scan(body, x[0], x)[1].sum())(x)


@feature(floats(3))
def named_scope(x: Array) -> Array:
    with jax.named_scope("layer"):
        return jnp.sin(x)


@feature(floats(3, 3))
def custom_root_and_linear_solve(a: Array) -> Any:
    b = a[0]
    matrix = a @ a.T + 3 * jnp.eye(3)
    return lax.custom_linear_solve(
        lambda x: matrix @ x, b, lambda _, b: jnp.linalg.solve(matrix, b), symmetric=True
    ), jax.scipy.sparse.linalg.cg(matrix, b, maxiter=5)[0]


@feature(floats(3))
def platform_dependent(x: Array) -> Array:
    return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)


@feature(floats(4, 8), floats(3, 8, 8))
def pallas_kernel_in_checkpoint_in_scan(x: Array, weights: Array) -> Any:
    def product(x: Array, w: Array) -> Array:
        def kernel(x_ref: Any, w_ref: Any, out_ref: Any) -> None:
            out_ref[...] = jnp.zeros_like(out_ref)
            out_ref[...] += x_ref[...] @ w_ref[...]

        rows = pl.BlockSpec((2, 8), lambda i: (i, 0))
        specs = [rows, pl.BlockSpec((8, 8), lambda i: (0, 0))]
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(
            kernel, shape, grid=(2,), in_specs=specs, out_specs=rows, interpret=True
        )(x, w)

    matmul = jax.custom_vjp(product)
    matmul.defvjp(
        lambda x, w: (product(x, w), (x, w)),
        lambda kept, ct: (product(ct, kept[1].T), kept[0].T @ ct),
    )

    @jax.checkpoint
    def layer(x: Array, w: Array) -> tuple[Array, None]:
        return jnp.tanh(matmul(x, w)), None

    return jax.value_and_grad(lambda w: jnp.sum(lax.scan(layer, x, w)[0] ** 2))(weights)
