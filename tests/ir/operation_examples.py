"""Small programs with each operation of the table, by the name of the operation.

All are functions of float32 arrays; what else they take they make themselves. Sizes that divide by
2 and 4 stand beside sizes that do not. In one example of each operation, the dimensions that must
be unsharded divide, too: a wrong factor of theirs is tried only there, and
`tests/ir/test_wrong_rows.py` checks that it is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any  # Any: functions of JAX, and their arrays

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from graphdist.ir import ops
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Op, Stage, Value
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED, Type
from tests.tracing.traces import Shape, graph_of

Example = Callable[[], Graph]

PAIR: Shape = (2,)
LINE: Shape = (4,)
A: Shape = (4, 8)
B: Shape = (8, 6, 4)
MATRICES: Shape = (4, 2, 4, 4)
IMAGES: Shape = (4, 4, 6, 8)
TABLE_OF_ROWS: Shape = (8, 8)


def of(fn: Callable[..., Any], *shapes: Shape) -> Example:
    """Return the graph of a function of arrays of these shapes, when it is asked for."""
    return partial(graph_of, fn, *shapes, num_replicas=1)


def of_op(op: Op, params: dict[str, object], *operands: Type) -> Example:
    """Return a graph with one of our own operations."""

    def graph() -> Graph:
        builder = Builder()
        inputs = [Value(type.with_layout(MIRRORED)) for type in operands]
        results = builder.add(op, inputs, params, at=UNKNOWN)
        nodes, returned = tuple(builder.nodes), (False,) * len(results)
        return Graph("f", Stage.LOGICAL, 1, tuple(inputs), nodes, results, (), returned)

    return graph


def f32(*sizes: int) -> Type:
    return Type("f32", sizes)


def integers(x: Any) -> Any:
    return (8 * x).astype(jnp.int32)


def lax_of(name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function of `lax` of changed arrays."""
    return lambda *xs: getattr(lax, name)(*map(change, xs))


def beyond_one(x: Any) -> Any:
    return jnp.abs(x) + 1


def both(fn: Callable[..., Any]) -> list[Example]:
    """Return examples of two arrays, of an array and a number, and of an array and one row."""
    return [of(fn, A, A), of(fn, A, ()), of(lambda x: fn(x, x[:1]), A)]


def on_integers(fn: Callable[..., Any], count: int = 1) -> list[Example]:
    return [of(lambda *xs: fn(*map(integers, xs)), *(LINE,) * count)]


def of_integers(name: str) -> list[Example]:
    """Return an example of a function of `lax` of two integers."""
    return [of(lax_of(name, integers), LINE, LINE)]


def shift(name: str) -> list[Example]:
    """Return an example of a shift by some of the bits: a shift by more gives zeros."""
    shifted = getattr(lax, name)
    return [of(lambda x, y: shifted(integers(x), lax.clamp(1, integers(y), 7)), LINE, LINE)]


def positive(x: Any) -> Any:
    """Return positive matrices."""
    return x @ jnp.swapaxes(x, -1, -2) + jnp.eye(x.shape[-1])


UNARY = {
    name: [of(lambda x, name=name: getattr(lax, name)(x), LINE)]
    for name in (
        "abs", "asinh", "atan", "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "cos", "cosh", "erf",
        "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "is_finite", "logistic", "neg", "round",
        "sign", "sin", "sinh", "square", "tan", "tanh", "one_minus_square",
    )
}  # fmt: skip
OF_POSITIVE = {
    name: [of(lax_of(name, beyond_one), LINE)]
    for name in ("acosh", "digamma", "lgamma", "log", "log1p", "log2", "rsqrt", "sqrt")
}
IN_THE_UNIT = {name: [of(lax_of(name, jnp.tanh), LINE)] for name in ("acos", "asin", "atanh")}
BINARY = {
    name: both(getattr(lax, name))
    for name in (
        "add", "atan2", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne",
        "nextafter", "rem", "sub",
    )
}  # fmt: skip
OF_TWO_POSITIVE = {
    name: [of(lax_of(name, beyond_one), PAIR, PAIR)]
    for name in ("igamma", "igamma_grad_a", "igammac", "pow", "zeta")
}
OF_BITS = {
    name: of_integers(function)
    for name, function in {
        "and": "bitwise_and",
        "or": "bitwise_or",
        "xor": "bitwise_xor",
        "mulhi": "mulhi",
    }.items()
}
SHIFTS = {
    name: shift(name) for name in ("shift_left", "shift_right_arithmetic", "shift_right_logical")
}


def complex_of(x: Any) -> Any:
    return lax.complex(x, 2 * x)


OTHER_ELEMENTS: dict[str, list[Example]] = {
    "add_any": [of(jax.grad(lambda x: jnp.sum(jnp.sin(x) + jnp.cos(x))), A)],
    "bitcast_convert_type": [
        of(lambda x: lax.bitcast_convert_type(x, jnp.int32), A),
        of(lambda x: lax.bitcast_convert_type(x, jnp.int8), A),
        of(lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int8), jnp.int32), A),
    ],
    "clamp": [of(lax.clamp, A, A, A), of(lambda x: lax.clamp(-0.5, x, 0.5), A)],
    "clz": on_integers(lax.clz),
    "complex": [of(complex_of, A)],
    "conj": [of(lambda x: jnp.conj(complex_of(x)), A)],
    "convert_element_type": [of(lambda x: x.astype(jnp.bfloat16), A)],
    "copy": [of(jnp.copy, A)],
    **{
        name: [of(lambda x, y, name=name: getattr(lax, f"{name}_p").bind(x, y), A, A)]
        for name in ("eq_to", "le_to", "lt_to")
    },
    "imag": [of(lambda x: jnp.imag(complex_of(x)), A)],
    "integer_pow": [of(lambda x: x**3, A)],
    "name": [of(lambda x: checkpoint_name(x, "x"), A)],
    "not": on_integers(lax.bitwise_not),
    "polynomial": [
        of(lambda x: vars(lax)["polynomial"](x, [0.5, 2.0, -1.0]), A),
    ],
    "polygamma": [of(lambda x: lax.polygamma(jnp.full(PAIR, 2.0), jnp.abs(x) + 1), PAIR)],
    "population_count": on_integers(lax.population_count),
    "real": [of(lambda x: jnp.real(complex_of(x)), A)],
    "reduce_precision": [of(lambda x: lax.reduce_precision(x, 5, 6), A)],
    "regularized_incomplete_beta": [
        of(lambda x: lax.betainc(jnp.abs(x) + 1, jnp.abs(x) + 2, jax.nn.sigmoid(x)), PAIR)
    ],
    "select_n": [
        of(lambda x, y: lax.select(x > y, x, y), A, A),
        of(lambda x, y: lax.select_n(x[0, 0] > 0, x, y), A, A),
        *on_integers(lambda x, y: lax.select_n(x > y, x, y), 2),
    ],
}


def rows_of(x: Any, *shape: int, below: int) -> Any:
    """Return indices below a number that depend on an array."""
    return jnp.abs(integers(jnp.resize(x, shape))) % below


def gathered(numbers: Any, sizes: Sequence[int], mode: str, indices: Shape, below: int) -> Any:
    """Return a gather by indices of this shape."""

    def fn(x: Any) -> Any:
        return lax.gather(x, rows_of(x, *indices, below=below), numbers, sizes, mode=mode)

    return fn


MOVES: dict[str, list[Example]] = {
    "broadcast_in_dim": [
        of(lambda x: lax.broadcast_in_dim(x, (8, 4, 8), (1, 2)), A),
        of(lambda x: lax.broadcast_in_dim(x[:, :1], (4, 8, 4), (2, 1)), A),
        of(lambda x: jnp.full(A, x), ()),
    ],
    "concatenate": [
        of(lambda x, y: lax.concatenate([x, y, x], 1), A, (4, 3)),
        of(lambda x, y: lax.concatenate([x, y, x], 1), A, A),
    ],
    "device_put": [of(lambda x, y: jax.device_put((x, y)), A, B)],
    "dynamic_slice": [of(lambda x, i: lax.dynamic_slice(x, (integers(i), 0), (2, 8)), A, ())],
    "dynamic_update_slice": [
        of(lambda x, y, i: lax.dynamic_update_slice(x, y, (0, integers(i))), A, (4, 6), ())
    ],
    "optimization_barrier": [of(lambda x, y: lax.optimization_barrier((x, y)), A, B)],
    "pad": [
        of(lambda x, y: lax.pad(x, y, ((0, 0, 0), (1, 0, 3), (-1, 1, 0))), B, ()),
    ],
    "reshape": [
        of(lambda x: x.reshape(32), A),
        of(lambda x: x.reshape(8, 24), B),
        of(lambda x: x.reshape(4, 2, 6, 2, 2), B),
        of(lambda x: x.reshape(12, 16), B),
        of(lambda x: x.reshape(1, 4, 1, 8), A),
        of(lambda x: lax.reshape(x, (32,), (1, 0)), A),
    ],
    "rev": [of(lambda x: lax.rev(x, (1,)), B)],
    "slice": [
        of(lambda x: lax.slice(x, (0, 1, 0), (8, 5, 4), (2, 1, 1)), B),
        of(lambda x: lax.slice(x, (4, 0, 2), (8, 6, 4)), B),
    ],
    "split": [of(partial(lax.split, sizes=sizes, axis=1), A) for sizes in ((3, 5), (4, 4))],
    "squeeze": [of(lambda x: lax.squeeze(x, (1,)), (4, 1, 8))],
    "stack": [of(lambda x, y: lax.stack([x, y], 1), A, A)],
    "tile": [of(lambda x: lax.tile(x, (1, 3)), A)],
    "transpose": [of(lambda x: lax.transpose(x, (2, 0, 1)), B)],
    "unstack": [of(lambda x: lax.unstack(x, 1), B)],
}

REDUCTIONS: dict[str, list[Example]] = {
    **{
        f"reduce_{name}": [
            of(lambda x, name=name: getattr(jnp, name)(x, axis=(0, 2)), B),
            of(lambda x, name=name: getattr(jnp, name)(x), A),
            of(lambda x, name=name: getattr(jnp, name)(integers(x), axis=1), A),
        ]
        for name in ("sum", "max", "min", "prod")
    },
    "reduce_and": [
        of(lambda x: jnp.all(x > -1, axis=0), B),
        of(lambda x: lax.reduce_and(integers(x), (0,)), A),
    ],
    "reduce_or": [
        of(lambda x: jnp.any(x > 1, axis=0), B),
        of(lambda x: lax.reduce_or(integers(x), (0,)), A),
    ],
    "reduce_xor": [of(lambda x: lax.reduce_xor(integers(x), (0,)), A)],
    "reduce": [of(lambda x: lax.reduce(x, 1.0, lambda a, b: a + b + a * b, (1,)), B)],
    "argmax": [of(lambda x: jnp.argmax(x, 1), B)],
    "argmin": [of(lambda x: jnp.argmin(x, 1), B)],
    **{
        name: [of(lambda x, name=name: getattr(lax, name)(x, 1, reverse=True), B)]
        for name in ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")
    },
    "sort": [
        of(lambda x: lax.sort(x, dimension=1), B),
        of(lambda x: lax.sort([x, 2 * x], dimension=0), A),
    ],
    "top_k": [of(lambda x: lax.top_k(x, 2), B)],
    "approx_top_k": [of(lambda x: lax.approx_max_k(x, 2), B)],
    "iota": [of(lambda: lax.broadcasted_iota(jnp.float32, (4, 6, 8), 1))],
}

_RAGGED_ROWS, _RAGGED_SUM = (
    lax.RaggedDotDimensionNumbers(((contracted, ((), ()))), (0,), groups)
    for contracted, groups in ((((1,), (1,)), (0,)), (((0,), (0,)), ()))
)


def convolved(spec: tuple[str, str, str], **options: Any) -> Any:
    def fn(x: Any, weights: Any) -> Any:
        given = {"window_strides": (1, 1), "padding": "SAME", **options}
        return lax.conv_general_dilated(x, weights, dimension_numbers=spec, **given)

    return fn


_IMAGES_LAST = ("NHWC", "HWIO", "NHWC")


def pooled(computation: Any, start: float) -> Any:
    def fn(x: Any) -> Any:
        return lax.reduce_window(x, start, computation, (1, 3, 2, 1), (1, 2, 1, 1), "SAME")

    return fn


def pooled_apart(computation: Any, start: float) -> Any:
    """Return the pool in which each element is in one window."""

    def fn(x: Any) -> Any:
        return lax.reduce_window(x, start, computation, (1, 2, 4, 1), (1, 2, 4, 1), "VALID")

    return fn


APART = (2, 8, 16, 2)

PRODUCTS: dict[str, list[Example]] = {
    "dot_general": [
        of(lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (2,)))), (4, 3, 8), (2, 8, 4)),
        of(lambda x, y: jnp.einsum("ab,ab->", x, y), A, A),
        of(lambda x, y: (x > 0) @ (y > 0), A, (8, 4)),
    ],
    "ragged_dot_general": [
        of(lambda x, w: lax.ragged_dot(x, w, jnp.array([1, 3])), (4, 8), (2, 8, 12)),
        of(
            lambda x, w: lax.ragged_dot_general(x, w, jnp.array([3, 1]), _RAGGED_SUM),
            (4, 8),
            (4, 12),
        ),
        of(
            jax.grad(
                lambda x, w: jnp.sum(lax.ragged_dot(x, w, jnp.array([1, 3])) ** 2), argnums=(0, 1)
            ),
            (4, 8),
            (2, 8, 12),
        ),
    ],
    "conv_general_dilated": [
        of(convolved(_IMAGES_LAST), IMAGES, (4, 2, 8, 4)),
        of(convolved(("NCHW", "OIHW", "NCHW")), (4, 8, 4, 4), (2, 8, 1, 1)),
        of(convolved(_IMAGES_LAST, feature_group_count=8), IMAGES, (3, 3, 1, 16)),
        of(convolved(_IMAGES_LAST, feature_group_count=2), IMAGES, (2, 2, 4, 4)),
        of(convolved(_IMAGES_LAST, batch_group_count=2), IMAGES, (2, 2, 8, 4)),
        of(
            convolved(_IMAGES_LAST, window_strides=(2, 1), padding=((0, 0), (1, 1))),
            (2, 8, 4, 2),
            (1, 1, 2, 4),
        ),
        of(jax.grad(lambda x, w: jnp.sum(convolved(_IMAGES_LAST)(x, w)), 1), IMAGES, (2, 4, 8, 4)),
        of(convolved(_IMAGES_LAST, window_strides=(2, 2), padding="VALID"), APART, (2, 2, 2, 4)),
    ],
    "reduce_window_sum": [
        of(pooled(lax.add, 0.0), IMAGES),
        of(pooled_apart(lax.add, 0.0), APART),
    ],
    "reduce_window_max": [
        of(pooled(lax.max, -jnp.inf), IMAGES),
        of(pooled_apart(lax.max, -jnp.inf), APART),
    ],
    "reduce_window_min": [
        of(pooled(lax.min, jnp.inf), IMAGES),
        of(pooled_apart(lax.min, jnp.inf), APART),
    ],
    "reduce_window": [of(pooled(lambda a, b: a + b + a * b, 0.0), IMAGES)],
    "select_and_scatter_add": [
        of(jax.grad(lambda x: jnp.sum(pooled(lax.max, -jnp.inf)(x))), IMAGES),
        of(jax.grad(lambda x: jnp.sum(pooled_apart(lax.max, -jnp.inf)(x))), APART),
    ],
    "select_and_gather_add": [of(lambda x: jax.jvp(pooled(lax.max, -jnp.inf), (x,), (x,)), IMAGES)],
    "fft": [
        of(lambda x: jnp.fft.fft(x, axis=-1), B),
        of(lambda x: jnp.fft.rfft2(x), (4, 6, 14)),
    ],
}


def spread(mode: str, name: str) -> list[Example]:
    """Return scatters of rows and of batches of rows; for some, of columns and of a part."""

    def rows(x: Any, updates: Any) -> Any:
        indices = rows_of(x, 4, below=6)
        return getattr(x.at[indices], name)(updates, mode=mode)

    def columns(x: Any, updates: Any) -> Any:
        return getattr(x.at[:, rows_of(x, 4, below=8)], name)(updates, mode=mode)

    def batches(x: Any, updates: Any) -> Any:
        def one(x: Any, updates: Any) -> Any:
            return getattr(x.at[rows_of(x, 4, below=3)], name)(updates, mode=mode)

        return jax.vmap(one)(x, updates)

    def part(x: Any, updates: Any) -> Any:
        return getattr(x.at[2:4, 0:8], name)(updates, mode=mode)

    examples = [of(rows, TABLE_OF_ROWS, (4, 8)), of(batches, B, (8, 4, 4))]
    if name not in ("set", "add"):
        return examples
    return [*examples, of(columns, TABLE_OF_ROWS, (8, 4)), of(part, TABLE_OF_ROWS, (2, 8))]


ACCESSES: dict[str, list[Example]] = {
    "gather": [
        of(lambda x: x[rows_of(x, 4, 2, below=9)], TABLE_OF_ROWS),
        of(lambda x: jnp.take(x, 3 * rows_of(x, 4, below=9), 0), TABLE_OF_ROWS),
        of(
            lambda x: jnp.take(integers(x), 3 * rows_of(x, 4, below=9), 0, fill_value=7),
            TABLE_OF_ROWS,
        ),
        of(lambda x: x[:, rows_of(x, 4, below=6)], B),
        of(lambda x: jnp.take_along_axis(x, rows_of(x, 8, 2, 4, below=6), 1), B),
        of(lambda x: x[rows_of(x, 4, below=4), 1], (4, 6, 8)),
        of(
            gathered(lax.GatherDimensionNumbers((1, 2), (), (0, 1)), (2, 8), "clip", (4, 2), 7),
            TABLE_OF_ROWS,
        ),
    ],
    "scatter": spread("drop", "set"),
    "scatter-add": spread("drop", "add"),
    "scatter-sub": spread("clip", "subtract"),
    "scatter-mul": spread("promise_in_bounds", "multiply"),
    "scatter-max": spread("drop", "max"),
    "scatter-min": spread("drop", "min"),
}


def first_column(x: Any) -> Any:
    return x[..., 0]


ALGEBRA: dict[str, list[Example]] = {
    "cholesky": [of(lambda x: jnp.linalg.cholesky(positive(x)), MATRICES)],
    "eig": [of(lax.linalg.eig, MATRICES)],
    "eigh": [of(lambda x: jnp.linalg.eigh(positive(x)), MATRICES)],
    "hessenberg": [of(lax.linalg.hessenberg, MATRICES)],
    "householder_product": [
        of(lambda x: lax.linalg.householder_product(x, first_column(x)), MATRICES)
    ],
    "lu": [of(lax.linalg.lu, MATRICES)],
    "lu_pivots_to_permutation": [
        of(lambda x: lax.linalg.lu_pivots_to_permutation(rows_of(x, 4, 4, below=4), 6), A)
    ],
    "ormqr": [
        of(lambda a, c: lax.linalg.ormqr(a, a[:, 0], c), (4, 4, 4), (4, 4, 8)),
        of(lambda a, c: lax.linalg.ormqr(a, a[0], c, transpose=True), (6, 4), (6, 4)),
        of(lambda a, c: lax.linalg.ormqr(a, a[:, 0], c, left=False), (4, 8, 4), (4, 2, 8)),
    ],
    "qr": [of(lambda x: jnp.linalg.qr(x), (4, 6, 4))],
    "schur": [of(lax.linalg.schur, MATRICES)],
    "svd": [of(lambda x: jnp.linalg.svd(x), MATRICES)],
    "triangular_solve": [
        of(
            lambda a, b: lax.linalg.triangular_solve(positive(a), b, left_side=True),
            (4, 4, 4),
            (4, 4, 8),
        ),
        of(lambda a, b: lax.linalg.triangular_solve(positive(a), b), (4, 4, 4), (4, 8, 4)),
    ],
    "tridiagonal": [of(lambda x: lax.linalg.tridiagonal(positive(x)), MATRICES)],
    "tridiagonal_solve": [
        of(
            lambda x, b: lax.linalg.tridiagonal_solve(x[0], 4 + x[1], x[2], b),
            (3, 4, 8),
            (4, 8, 2),
        )
    ],
}

_I32 = Type("i32", ())

OURS: dict[str, list[Example]] = {
    "barrier": [of_op(ops.BARRIER, {}, f32(*A), f32(*B))],
    "copy_to": [of_op(ops.COPY_TO, {"memory": memory}, f32(*A)) for memory in ("host", "device")],
    "concatenate": [
        of_op(ops.CONCATENATE, {"axis": 1}, f32(4, 8), f32(4, size)) for size in (3, 8)
    ],
    "join_parts": [of_op(ops.JOIN_PARTS, {"axis": 1}, f32(4, 4, 2, 8))],
    "pack": [of_op(ops.PACK, {}, f32(*A), f32(4))],
    "reshape": [
        of_op(ops.RESHAPE, {"shape": (32,)}, f32(*A)),
        of_op(ops.RESHAPE, {"shape": (4, 6, 8)}, f32(*B)),
    ],
    "scale": [of_op(ops.SCALE, {"factor": 0.25}, f32(*A))],
    "take_part": [of_op(ops.TAKE_PART, {"axis": 1, "count": 2}, f32(*A), _I32)],
    "take_step": [of_op(ops.TAKE_STEP, {}, f32(4, 4, 8), _I32)],
    "unpack": [of_op(ops.UNPACK, {"shapes": ((2, 2), (4,))}, f32(8))],
}

OF_JAX = {
    **UNARY, **OF_POSITIVE, **IN_THE_UNIT, **BINARY, **OF_TWO_POSITIVE, **OF_BITS, **SHIFTS,
    **OTHER_ELEMENTS, **MOVES, **REDUCTIONS, **PRODUCTS, **ACCESSES, **ALGEBRA,
}  # fmt: skip
NOT_IN_THIS_JAX = {
    f"jax.{name}"
    for name in (
        "log2", "mulhi", "one_minus_square", "polynomial", "stack", "unstack",
    )
    if not hasattr(lax, f"{name}_p")
}  # fmt: skip
"""Operations that an older JAX lacks."""

_ALL = {f"jax.{name}": examples for name, examples in OF_JAX.items()} | OURS
EXAMPLES = {name: examples for name, examples in _ALL.items() if name not in NOT_IN_THIS_JAX}
"""The examples of each operation, by its name."""
