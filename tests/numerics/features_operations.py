"""Operations of jax.numpy and jax.lax, and dtypes."""

from __future__ import annotations

from typing import Any  # Any: pytrees

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.numerics.feature import (
    EXACT,
    SMALL_FLOATS,
    booleans,
    complexes,
    definite,
    feature,
    floats,
    integers,
)

Array = jax.Array


@feature(floats(2, 8, 8, 3), floats(3, 3, 3, 4))
def convolution(x: Array, w: Array) -> Array:
    return lax.conv_general_dilated(
        x, w, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@feature(floats(2, 6, 6, 2), floats(3, 3, 1, 4))
def grad_of_grouped_convolution(x: Array, w: Array) -> Any:
    def f(x: Array, w: Array) -> Array:
        y = lax.conv_general_dilated(
            x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=2,
        )  # fmt: skip
        return jnp.sum(y**2)

    return jax.grad(f, (0, 1))(x, w)


@feature(floats(2, 6, 6, 2))
def max_pool_and_its_grad(x: Array) -> Any:
    def pool(x: Array) -> Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")

    return pool(x), jax.grad(lambda x: jnp.sum(pool(x) ** 2))(x)


@feature(floats(2, 6))
def general_reduce_and_reduce_window(x: Array) -> Any:
    def add_abs(a: Array, b: Array) -> Array:
        return a + jnp.abs(b)

    return (
        lax.reduce(x, np.float32(0), add_abs, (1,)),
        lax.reduce_window(x, np.float32(0), lax.add, (1, 3), (1, 1), "VALID"),
        lax.reduce_precision(x, 5, 10),
    )


@feature(floats(6, 3), integers(4, high=6))
def gathers(x: Array, i: Array) -> Any:
    return x[i], jnp.take(x, i, axis=0), jnp.take_along_axis(x, x.argsort(0), 0), x[i, 1], x[-1]


@feature(floats(6, 3), integers(4, high=6), floats(4, 3))
def scatters(x: Array, i: Array, u: Array) -> Any:
    at = x.at[i]
    return at.add(u), x.at[0].set(1), at.max(u), at.multiply(2), x.at[:, 1:].min(0)


@feature(floats(6, 3), integers(4, high=6))
def grad_of_gather(x: Array, i: Array) -> Array:
    return jax.grad(lambda x: jnp.sum(jnp.sin(x[i])))(x)


@feature(floats(6, 3), integers(4, low=-8, high=9))
def gathers_out_of_range(x: Array, i: Array) -> Any:
    at = x.at[i]
    return at.get(mode="fill"), at.get(mode="clip"), at.set(1.0, mode="drop")


@feature(floats(6, 3), integers(high=4), floats(2, 3))
def dynamic_slices(x: Array, i: Array, u: Array) -> Any:
    return (
        lax.dynamic_slice(x, (i, 0), (2, 3)),
        lax.dynamic_update_slice(x, u, (i, 0)),
        lax.dynamic_index_in_dim(x, i),
        lax.dynamic_update_index_in_dim(x, u[0], i, 0),
    )


@feature(floats(6, 3))
def slices_and_pads(x: Array) -> Any:
    return x[1:5:2, ::-1], jnp.pad(x, 1), lax.pad(x, 0.0, ((-1, 2, 1), (0, 0, 0))), jnp.roll(x, 2)


@feature(floats(6, 3), integers(6))
def sorts(x: Array, i: Array) -> Any:
    return (
        jnp.sort(x, 0),
        jnp.argsort(x, 1),
        lax.top_k(x, 2),
        lax.sort((i, x[:, 0]), num_keys=2),
        jnp.argmax(x, 0),
        jnp.median(x),
        jnp.searchsorted(jnp.sort(x[:, 0]), x[:, 1]),
    )


@feature(floats(8), complexes(4, 4))
def fft(x: Array, z: Array) -> Any:
    return jnp.fft.fft(x), jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.ifft2(z)


@feature(complexes(3, 3), complexes(3))
def complex_numbers(z: Array, y: Array) -> Any:
    return z @ y, jnp.abs(z), z.conj() * 1j, jnp.angle(y), jax.grad(lambda z: jnp.abs(z).sum())(z)


@feature(integers(4), integers(4, low=1))
def integer_arithmetic(x: Array, y: Array) -> Any:
    return x // y, x % y, x / y, x**2, x << 1, x >> 1, ~x, lax.population_count(x), -x, abs(x - y)


@feature(integers(4, high=256, dtype=np.uint8), integers(4, dtype=np.int8))
def small_integers(x: Array, y: Array) -> Any:
    return x + 1, x * x, x.astype(np.int32) - y, x.sum(), (y - 3).astype(np.uint8), x > 128


@feature(booleans(4, 3), booleans(3))
def bools(x: Array, y: Array) -> Any:
    return x & y, x ^ y, ~x, x.any(0), x.all(), x.sum(), x.astype(np.float32), x.argmax(1)


@feature(floats(4, 3, dtype=jnp.bfloat16), floats(3, 2), tolerance=SMALL_FLOATS)
def bfloat16(x: Array, w: Array) -> Any:
    y = x @ w.astype(jnp.bfloat16)
    return y, x.sum(0), jnp.exp(x) * 2, y.astype(np.float32), x + 1.0, jnp.mean(x)


@feature(floats(4, 3, dtype=np.float16), floats(3, 2), tolerance=SMALL_FLOATS)
def float16(x: Array, w: Array) -> Any:
    return jax.value_and_grad(lambda x: jnp.sum(jnp.tanh(x @ w.astype(x.dtype))))(x)


@feature(floats(4), tolerance=SMALL_FLOATS)
def float8(x: Array) -> Any:
    return x.astype(jnp.float8_e4m3fn), x.astype(jnp.float8_e5m2).astype(np.float32)


@feature(floats(4), integers(4))
def casts(x: Array, i: Array) -> Any:
    return (
        (x * 3).astype(np.int32), i.astype(np.float32), x.astype(bool), i.astype(np.uint8),
        x.view(np.int32), x.astype(np.complex64), lax.bitcast_convert_type(i, np.float32),
    )  # fmt: skip


@feature(definite(3), floats(3, 2))
def solve_and_cholesky(a: Array, b: Array) -> Any:
    solve = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b)
    return jnp.linalg.solve(a, b), jnp.linalg.cholesky(a), solve, jnp.linalg.inv(a)


@feature(definite(4), tolerance=1e-4)  # an iteration until it converges
def eigh_svd_and_qr(a: Array) -> Any:
    values, vectors = jnp.linalg.eigh(a)
    _, sizes, _ = jnp.linalg.svd(a[:3])
    return values, jnp.abs(vectors), sizes, jnp.linalg.qr(a)[1], jnp.linalg.slogdet(a)


@feature(definite(3), tolerance=1e-4)
def grads_of_linear_algebra(a: Array) -> Any:
    return (
        jax.grad(lambda a: jnp.linalg.eigh(a)[0][0])(a),
        jax.grad(lambda a: jnp.log(jnp.linalg.cholesky(a)).trace())(a),
        jax.grad(lambda a: jnp.linalg.slogdet(a)[1])(a),
    )


@feature(floats(2, 3, 4), floats(2, 4, 5), floats(5, 3))
def einsum(x: Array, y: Array, z: Array) -> Any:
    return jnp.einsum("bij,bjk,ki->b", x, y, z), jnp.einsum("bij->jb", x), jnp.matmul(x, y)


@feature(floats(4, 3), floats(3, 2))
def dots_of_chosen_precision(x: Array, w: Array) -> Any:
    wide = lax.dot_general(
        x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), (((1,), (0,)), ((), ())),
        preferred_element_type=np.float32,
    )  # fmt: skip
    return wide, jnp.dot(x, w, precision=lax.Precision.HIGHEST), jnp.tensordot(x, w, 1)


@feature(floats(6, 2), integers(6, high=3))
def segment_sum(x: Array, segments: Array) -> Any:
    return jax.ops.segment_sum(x, segments, 3), jax.ops.segment_max(x, segments, 3)


@feature(floats(5, 2))
def cumulative(x: Array) -> Any:
    reverse = lax.cumsum(x, reverse=True)
    return jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x), reverse, lax.cumlogsumexp(x)


@feature(floats(4), integers(4, high=3), booleans(4))
def selections(x: Array, i: Array, flag: Array) -> Any:
    return (
        jnp.where(flag, x, 0),
        lax.select(flag, x, -x),
        jnp.select([i == 0, i == 1], [x, -x], 7.0),
        jnp.choose(i, [x, x + 1, x + 2], mode="clip"),
        jnp.piecewise(x, [x < 0, x >= 0], [jnp.sin, jnp.cos]),
        lax.select_n(i, x, x * 2, x * 3),
        jnp.clip(x, -0.5, 0.5),
    )


@feature(floats(4, 3), integers(4, high=3))
def of_neural_networks(x: Array, labels: Array) -> Any:
    hot = jax.nn.one_hot(labels, 3)
    return (
        hot,
        jax.nn.logsumexp(x, axis=1),
        jax.nn.softmax(x),
        jax.grad(lambda x: -jnp.mean(jnp.sum(jax.nn.log_softmax(x) * hot, 1)))(x),
        jax.nn.gelu(x),
        jax.nn.relu(x),
        jax.nn.silu(x),
        jax.nn.standardize(x),
        jax.nn.dot_product_attention(x[None, :, None], x[None, :, None], x[None, :, None]),
    )


@feature(floats(4))
def special_functions(x: Array) -> Any:
    special = jax.scipy.special
    return special.erf(x), special.gammaln(x + 4), special.logit(jax.nn.sigmoid(x)), jnp.sinc(x)


@feature(floats(0, 3), floats(4, 3), tolerance=EXACT)
def empty_arrays(e: Array, x: Array) -> Any:
    return e * 2, e.sum(), e.sum(0), jnp.concatenate([e, x]), x[2:2], jnp.zeros((3, 0)) @ e


@feature(floats(4, 3))
def reductions(x: Array) -> Any:
    return (
        x.sum(),
        x.max(1),
        x.mean(0),
        x.std(),
        x.prod(),
        jnp.linalg.norm(x),
        x.var(0, keepdims=True),
    )


@feature(floats(2, 3), floats(3))
def shapes(x: Array, y: Array) -> Any:
    return (
        x.reshape(3, 2), x.T, x[None], jnp.squeeze(x[:1]), jnp.broadcast_to(y, (4, 3)),
        jnp.stack([y, y]), jnp.concatenate([x, x], 1), jnp.split(x, 3, 1), jnp.tile(y, 2),
        jnp.repeat(y, 2), jnp.expand_dims(y, 1), jnp.swapaxes(x, 0, 1), x.ravel(), jnp.outer(y, y),
    )  # fmt: skip


@feature(integers(3))
def made_of_nothing(x: Array) -> Any:
    return (
        jnp.arange(4), jnp.eye(3), jnp.linspace(0, 1, 5), jnp.ones((2, 2), jnp.bfloat16),
        jnp.zeros(()), jnp.tri(3), lax.iota(np.int32, 3), jnp.full(2, np.inf), jnp.meshgrid(x, x),
    )  # fmt: skip
