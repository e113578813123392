"""What a graph computes and moves, against counts made by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import graphdist as gd
from graphdist.ir.cost import cost
from graphdist.ir.errors import VerifyError
from graphdist.ir.parser import parse

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
SQUARES = jax.ShapeDtypeStruct((2, 8, 8), jnp.float32)
SQUARE, COLUMNS = jax.ShapeDtypeStruct((8, 8), "f"), jax.ShapeDtypeStruct((8, 3), "f")
IMAGES = jax.ShapeDtypeStruct((2, 6, 6, 3), jnp.float32)
KERNEL = jax.ShapeDtypeStruct((3, 3, 3, 5), jnp.float32)


def convolve(x: Any, kernel: Any) -> Any:
    """Return a convolution of rows of pixels, without padding."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout)


def repeat(x: jax.Array, times: int) -> jax.Array:
    """Return x after so many sines."""
    return jax.lax.fori_loop(0, times, lambda _, x: jnp.sin(x), x)


@pytest.mark.parametrize(
    ("function", "args", "flops"),
    [
        (lambda x: x * 2, (X,), 32),
        (lambda x: x.sum(), (X,), 32),
        (lambda x: x.max(axis=0), (X,), 32),
        (lambda x: x.T.reshape(-1), (X,), 0),
        (lambda x: x @ x.T, (X,), 2 * 4 * 4 * 8),
        (convolve, (IMAGES, KERNEL), 2 * (2 * 4 * 4 * 5) * (3 * 3 * 3)),
        (partial(jax.lax.linalg.eigh, symmetrize_input=False), (SQUARES,), 9 * 2 * 8**3),
        (jax.lax.linalg.lu, (X,), round(2 / 3 * 4 * 8 * 4)),
        (partial(jax.lax.linalg.triangular_solve, left_side=True), (SQUARE, COLUMNS), 8 * 3 * 8),
        (lambda x: repeat(x, 7), (X,), 7 * 32),
        (lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, lambda x: repeat(x, 3), x), (X,), 3 * 32),
    ],
)
def test_operations_are_counted(function: Any, args: tuple[Any, ...], flops: int) -> None:
    graph = gd.function(function).trace(*args).lower().graph
    assert cost(graph).total_flops == flops


NO_PADDING = ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("strides", "padding", "lhs_dilation", "rhs_dilation"),
    [
        ((1, 1), NO_PADDING, (1, 1), (1, 1)),
        ((2, 3), NO_PADDING, (1, 1), (1, 1)),
        ((1, 1), ((2, 1), (0, 3)), (1, 1), (1, 1)),
        ((1, 1), ((-1, 0), (1, -1)), (1, 1), (1, 1)),
        ((1, 1), NO_PADDING, (2, 3), (1, 1)),
        ((1, 1), NO_PADDING, (1, 1), (1, 2)),
        ((2, 3), ((2, 1), (0, 3)), (2, 3), (1, 1)),
        ((2, 4), ((1, 1), (9, 9)), (6, 6), (2, 3)),
        ((3, 2), ((-1, 3), (2, -1)), (4, 2), (1, 2)),
    ],
)
@pytest.mark.parametrize("by_batch", [False, True])
def test_convolutions_multiply_no_zeros_of_padding_and_dilation(
    strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any, by_batch: bool
) -> None:
    def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            strides,
            padding,
            lhs_dilation,
            rhs_dilation,
            ("HWNC", "OIHW", "NHWC"),
            feature_group_count=1 if by_batch else 2,
            batch_group_count=2 if by_batch else 1,
        )

    per_group = 4 if by_batch else 2
    x, kernel = jnp.ones((5, 7, 2, 4)), jnp.ones((6, per_group, 3, 2))
    counted = cost(gd.function(convolved).trace(x, kernel).lower().graph)
    # With ones in place of elements, each element of the result is the number of its products.
    assert counted.total_flops == 2 * int(convolved(x, kernel).sum())


def test_the_gradients_of_a_strided_convolution_cost_twice_the_convolution() -> None:
    def strided(x: jax.Array, kernel: jax.Array) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=layout)

    x, kernel = jnp.ones((8, 17, 17, 16)), jnp.ones((3, 3, 16, 32))
    forward = cost(gd.function(strided).trace(x, kernel).lower().graph).total_flops
    back = gd.function(lambda x, kernel: jax.vjp(strided, x, kernel)[1](strided(x, kernel)))
    graph = back.trace(x, kernel).lower().graph
    assert cost(graph).total_flops == pytest.approx(forward * 3, rel=0.01)


def test_traffic_is_what_fusion_cannot_keep_on_the_chip() -> None:
    graph = gd.function(lambda x: jnp.sin(x @ x.T) + 1).trace(X).lower().graph
    boundary, matmul = 4 * (32 + 16), 4 * (32 + 32 + 16)
    assert cost(graph).bytes == boundary + matmul


def by_blocks(x: jax.Array, cost_estimate: pl.CostEstimate | None = None) -> jax.Array:
    """Return the product of x and its transpose by a kernel that makes two rows at a time."""

    def kernel(rows_ref: Any, all_ref: Any, out_ref: Any) -> None:
        @pl.when(pl.program_id(0) >= 0)
        def _() -> None:
            out_ref[...] = 2 * (rows_ref[...] @ all_ref[...].T)

    return pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[pl.BlockSpec((2, 8), lambda i: (i, 0)), pl.BlockSpec((4, 8), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((2, 4), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((4, 4), jnp.float32),
        cost_estimate=cost_estimate,
        interpret=True,
    )(x, x)


def test_a_kernel_counts_as_its_body_at_each_point_of_its_grid() -> None:
    counted = cost(gd.function(by_blocks).trace(X).lower().graph)
    assert counted.flops == {"f32": 2 * 4 * 4 * 8 + 4 * 4}
    assert counted.bytes == 4 * (32 + 16) + 4 * (32 + 32 + 16)


def triangle(rows_ref: Any, out_ref: Any) -> None:
    """Sum the products of a block with the blocks of columns up to its own number."""
    last = pl.cdiv(pl.program_id(1) * 2 + 1, 2)
    out_ref[...] = jax.lax.fori_loop(
        0, last + 1, lambda _, total: total + rows_ref[...] @ rows_ref[...].T, jnp.zeros((2, 2))
    )


def by_triangle(x: jax.Array, rows: int = 5) -> jax.Array:
    """Return what a kernel computes whose loop ends at a number of its position in the grid."""
    return pl.pallas_call(
        triangle,
        grid=(3, rows),
        in_specs=[pl.BlockSpec((2, 8), lambda i, j: (0, 0))],
        out_specs=pl.BlockSpec((2, 2), lambda i, j: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((2, 2), jnp.float32),
        interpret=True,
    )(x)


def test_the_loop_of_a_kernel_turns_as_often_as_its_position_says() -> None:
    flops = cost(gd.function(by_triangle).trace(X).lower().graph).flops["f32"]
    turn = 2 * 2 * 2 * 8 + 4  # a product of blocks, and its addition
    turns = 3 * sum(range(2, 7))  # at position (i, j) j + 2
    assert flops == turns * turn


def test_the_loops_of_a_large_grid_are_counted_at_some_of_its_positions() -> None:
    flops = cost(gd.function(partial(by_triangle, rows=10_000)).trace(X).lower().graph).flops["f32"]
    assert flops == pytest.approx(3 * 5_000 * 10_000 * (2 * 2 * 2 * 8 + 4), rel=2e-3)


def test_causal_attention_of_the_kernel_for_gpus_counts_what_it_reads() -> None:
    from jax.experimental.pallas.ops.gpu import attention

    shape = jax.ShapeDtypeStruct((2, 1024, 4, 64), jnp.float32)

    def attend(query: Any, key: Any, value: Any) -> Any:
        return attention.mha(query, key, value, None, sm_scale=0.125, causal=True, interpret=True)

    flops = cost(gd.function(attend).trace(shape, shape, shape).lower().graph).flops["f32"]
    products = 2 * (2 * 2 * 4 * 64) * (1024 * 1024 / 2)
    # The block on the diagonal is computed in full, and each score costs an exponential and sums.
    assert products < flops < 1.3 * products


def test_a_kernel_that_states_its_cost_is_taken_at_its_word() -> None:
    stated = pl.CostEstimate(flops=77, bytes_accessed=0, transcendentals=0)
    graph = gd.function(lambda x: by_blocks(x, stated)).trace(X).lower().graph
    assert cost(graph).flops == {"f32": 77}


def test_a_text_with_parameters_that_no_product_takes_is_refused() -> None:
    graph = parse(
        "graph f on 1 replica, stage spmd\n(%x: f32[8,8] mirrored) {\n"
        "  %y = jax.dot_general(%x, %x) {dimension_numbers=(((7,), (0,)), ((), ()))} : f32[8,8] "
        "mirrored\n  return %y\n}"
    )
    with pytest.raises(VerifyError, match="dot_general does not take these parameters"):
        cost(graph)
