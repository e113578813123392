"""The table of operations: how each applies to shards, where it is linear, whether it is cheap.

The row of an operation has its traits, and the rule of its factors, which relate the dimensions of
its operands and results (`graphdist.ir.factors`). An operation without a row needs unsharded
operands and returns unsharded results, which is correct for every operation. The operations that
have no row:

* operations on replicas: collectives, `replica_id`, `select_replica`, `to_partial`, `own_slice`,
  `random_shard`, exchanges with parameter servers, reads and writes of variables;
* loops and branches, since the nodes in their nested graphs have rows;
* `constant`, whose parameter is the full value, `pack_slices` and `unpack_slices`, which pack the
  shards of values for collectives, and `count_step`, which computes scalars;
* random numbers, since drawing a shard does not give the shard of the numbers drawn for the full
  value: `random_bits`, `random_gamma`, `rng_bit_generator`, `rng_uniform`, `threefry2x32`, and
  their keys: `random_seed`, `random_split`, `random_fold_in`, `random_wrap`, `random_unwrap`,
  `random_clone`;
* operations that call a function: `custom_linear_solve`, `pallas_call`, `pure_callback`,
  `io_callback`, `debug_callback`, `debug_print`.

`pack` and `unpack` have rows for their traits alone: they need unsharded operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from graphdist.ir import factor_rules as rules
from graphdist.ir import linearity as linear
from graphdist.ir import product_factors as products
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.factor_rules import ParamsOfShards, Rule, sizes_of_shards
from graphdist.ir.factors import Factors, shard_shape
from graphdist.ir.graph import Node, Operand, Value, is_zero
from graphdist.ir.linearity import Alternatives, LinearIn
from graphdist.ir.mesh import MeshAxis
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, is_inexact, is_partial

if TYPE_CHECKING:
    from graphdist.ir.builder import Builder


_IN_THE_FIRST = linear.in_each(0)


@dataclass(frozen=True, slots=True)
class Row:
    """The traits of an operation.

    `params_of_shards` returns the parameters that a node has when it is applied to shards along a
    factor. `linear_in` returns alternatives, each a tuple of operands in which the results are
    linear together. `only_moves`: each element of a result is an element of an operand, and the
    operation compares no elements. `is_elementwise`: each element of a result is computed from the
    operands' elements of the same index. `is_cheap`: the operation takes about as long as reading
    its operands and writing its results.
    """

    factors: Rule
    linear_in: LinearIn = linear.nowhere
    params_of_shards: ParamsOfShards = sizes_of_shards
    only_moves: bool = False
    is_elementwise: bool = False
    is_cheap: bool = False


def _of_jax(names: str, row: Row) -> dict[str, Row]:
    return {f"jax.{name}": row for name in names.split()}


def _move(factors: Rule, linear_in: LinearIn = _IN_THE_FIRST) -> Row:
    return Row(factors, linear_in, only_moves=True, is_cheap=True)


# Rows that several operations share, so that their traits are stated once.
_ELEMENTWISE = Row(rules.elementwise, is_elementwise=True, is_cheap=True)
_ADDITION = replace(_ELEMENTWISE, linear_in=linear.together(0, 1))
_LINEAR = replace(_ELEMENTWISE, linear_in=_IN_THE_FIRST)
_IDENTITY = Row(rules.identity, linear_in=linear.together(), only_moves=True)
_RESHAPE = _move(rules.reshape)

_ELEMENTS: Mapping[str, Row] = {
    **_of_jax("add add_any complex sub", _ADDITION),
    "jax.mul": replace(_ELEMENTWISE, linear_in=linear.in_each(0, 1)),
    "jax.div": replace(_ELEMENTWISE, linear_in=linear.division),
    **_of_jax("neg real imag conj", _LINEAR),
    **_of_jax(
        """
        abs acos acosh and asin asinh atan atan2 atanh cbrt ceil clamp clz convert_element_type cos
        cosh eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le le_to log
        log1p log2 logistic lt lt_to max min mulhi ne nextafter not one_minus_square or polynomial
        population_count pow reduce_precision rem round rsqrt shift_left shift_right_arithmetic
        shift_right_logical sign sin sinh sqrt square tan tanh xor
        """,
        _ELEMENTWISE,
    ),
    "jax.bitcast_convert_type": replace(_ELEMENTWISE, factors=rules.bitcast),
    **_of_jax("copy name", replace(_LINEAR, only_moves=True)),
    "jax.select_n": replace(_ELEMENTWISE, linear_in=linear.cases, only_moves=True),
    **_of_jax(  # series and loops, for each element
        """
        bessel_i0e bessel_i1e digamma igamma igamma_grad_a igammac lgamma polygamma
        regularized_incomplete_beta zeta
        """,
        replace(_ELEMENTWISE, is_cheap=False),
    ),
    "scale": _LINEAR,
}

_MOVES: Mapping[str, Row] = {
    "jax.broadcast_in_dim": _move(rules.broadcast_in_dim),
    "jax.concatenate": _move(rules.all_but("dimension"), linear.together()),
    "jax.dynamic_slice": _move(rules.of_one_size),
    "jax.dynamic_update_slice": _move(rules.dynamic_update_slice, linear.together(0, 1)),
    "jax.pad": _move(rules.pad, linear.together(0, 1)),
    "jax.reshape": _RESHAPE,
    "jax.rev": _move(rules.all_but("dimensions")),
    "jax.slice": _move(rules.of_one_size),
    "jax.split": _move(rules.all_but("axis")),
    "jax.squeeze": _move(rules.without("dimensions")),
    "jax.stack": _move(rules.stack, linear.together()),
    "jax.tile": _move(rules.of_one_size),
    "jax.transpose": _move(rules.transpose),
    "jax.unstack": _move(rules.without("axis")),
    **_of_jax("device_put optimization_barrier", _IDENTITY),
    "barrier": _IDENTITY,
    "copy_to": _IDENTITY,
    "concatenate": _move(rules.all_but("axis"), linear.together()),
    "join_parts": _move(rules.join_parts),
    "pack": _move(rules.no_factors, linear.together()),
    "reshape": _RESHAPE,
    "take_part": _move(rules.of_one_size),
    "take_step": _move(rules.take_step),
    "unpack": _move(rules.no_factors),
}

_REDUCTIONS: Mapping[str, Row] = {
    "jax.reduce_sum": Row(rules.reduction("sum"), linear_in=_IN_THE_FIRST, is_cheap=True),
    "jax.reduce_max": Row(rules.reduction("max"), is_cheap=True),
    "jax.reduce_min": Row(rules.reduction("min"), is_cheap=True),
    "jax.reduce_and": Row(rules.reduction("min", of="bool"), is_cheap=True),  # bitwise of integers
    "jax.reduce_or": Row(rules.reduction("max", of="bool"), is_cheap=True),
    **_of_jax("argmax argmin reduce_prod reduce_xor", Row(rules.reduction(None), is_cheap=True)),
    "jax.reduce": Row(rules.reduction(None, "dimensions")),
    "jax.cumsum": Row(rules.all_but("axis"), linear_in=_IN_THE_FIRST),
    **_of_jax("cumlogsumexp cummax cummin cumprod", Row(rules.all_but("axis"))),
    "jax.sort": Row(rules.all_but("dimension")),
    "jax.top_k": Row(rules.all_but("axis")),
    "jax.approx_top_k": Row(rules.all_but("reduction_dimension")),
    "jax.iota": Row(rules.iota, is_cheap=True),
}

_PRODUCTS: Mapping[str, Row] = {
    "jax.dot_general": Row(products.dot_general, linear_in=linear.in_each(0, 1)),
    "jax.ragged_dot_general": Row(products.ragged_dot_general, linear_in=linear.in_each(0, 1)),
    "jax.conv_general_dilated": Row(
        products.convolution_factors, linear.in_each(0, 1), products.features_of_shards
    ),
    "jax.reduce_window_sum": Row(products.windows, linear_in=_IN_THE_FIRST),
    "jax.select_and_scatter_add": Row(products.windows, linear_in=_IN_THE_FIRST),
    **_of_jax(
        "reduce_window reduce_window_max reduce_window_min select_and_gather_add",
        Row(products.windows),
    ),
    "jax.gather": Row(
        products.gather_by_index, linear.gathered, products.windows_of_shards, is_cheap=True
    ),
    "jax.scatter": Row(products.scatter_by_index(), linear_in=linear.scattered, only_moves=True),
    **_of_jax(
        "scatter-add scatter-sub", Row(products.scatter_by_index(), linear_in=linear.together(0, 2))
    ),
    "jax.scatter-mul": Row(products.scatter_by_index(), linear_in=_IN_THE_FIRST),
    "jax.scatter-max": Row(products.scatter_by_index("max")),
    "jax.scatter-min": Row(products.scatter_by_index("min")),
    "jax.fft": Row(products.fft, linear_in=_IN_THE_FIRST),
    "jax.ormqr": Row(products.ormqr, linear_in=linear.in_each(2)),
    "jax.triangular_solve": Row(products.triangular_solve, linear_in=linear.in_each(1)),
    **_of_jax(
        "cholesky eig eigh hessenberg householder_product lu qr schur svd tridiagonal",
        Row(products.batched(2)),
    ),
    "jax.lu_pivots_to_permutation": Row(products.batched(1)),
    "jax.tridiagonal_solve": Row(products.tridiagonal_solve, linear_in=linear.in_each(3)),
}

TABLE: Mapping[str, Row] = {**_ELEMENTS, **_MOVES, **_REDUCTIONS, **_PRODUCTS}
"""The row of each operation, by its name."""

ELEMENTWISE = frozenset(name for name, row in TABLE.items() if row.is_elementwise)
"""The operations of JAX and of graphdist that compute each element of a result only from scalars
and from the operands' elements of the same index."""

ADDITIONS = frozenset({"jax.add", "jax.add_any", "jax.sub"})
"""The operations that add or subtract their two operands."""

_SHARDINGS = ("sharding", "out_sharding")


def row_of(node: Node) -> Row | None:
    """Return the row of a node's operation; None if it has none."""
    return TABLE.get(node.op.name)


def factors_of(node: Node) -> Factors | None:
    """Return the factors of a node; None if no dimension has a factor.

    Also None if a parameter is only a placeholder, or states a sharding.
    """
    row, params = row_of(node), node.params
    states_sharding = any(params.get(name) is not None for name in _SHARDINGS)
    if row is None or states_sharding or any(isinstance(p, Placeholder) for p in params.values()):
        return None
    factors = row.factors(node)
    return factors if factors.numbers else None


def divides(node: Node, factors: Factors, factor: int, count: int) -> bool:
    """Return whether `count` divides all dimensions of a node that have the factor `factor`."""
    dimensions = (
        (of, size)
        for dims, value in zip(
            (*factors.operands, *factors.results), (*node.operands, *node.results), strict=True
        )
        for of, size in zip(dims, value.type.shape, strict=True)
    )
    return all(size > 0 and size % count == 0 for of, size in dimensions if of == factor)


def on_shards(
    node: Node, operands: Sequence[Operand], factor: int, count: int, builder: Builder
) -> tuple[Value, ...]:
    """Add a node's operation, applied to one of `count` shards, and return its results.

    An operand that has the factor is a shard, and any other operand a full value. The layouts of
    the results follow from the operands. A result is sharded if an operand is sharded. A result is
    mirrored if all operands are mirrored, as in a broadcast to the shape of a shard. If the factor
    is summed, the result on each replica is one term. `count` must divide the factor.
    """
    row, factors = TABLE[node.op.name], factors_of(node)
    assert factors is not None, f"{node.op.name} has no factors"
    assert divides(node, factors, factor, count), f"{factor} of {node} has no {count} shards"
    params = row.params_of_shards(node, factors, factor, count)
    shards = [operand.type.layout for operand in operands]
    sharding = next((found for found in shards if found and found.dimension is not None), None)
    types = [
        Type(
            value.type.dtype,
            shard_shape(dims, value.type.shape, factor, count),
            _along(sharding, Factors.dimension(dims, factor)),
        )
        for dims, value in zip(factors.results, node.results, strict=True)
    ]
    at, hint = node.source, node.results[0].hint
    return builder.add(node.op, operands, params, at=at, types=types, hint=hint)


def _along(sharding: Layout | None, dimension: int | None) -> Layout:
    """Return the layout `sharding` along `dimension`; per replica if either is None."""
    return PER_REPLICA if sharding is None or dimension is None else sharding.along(dimension)


def linear_operands(node: Node) -> Alternatives:
    """Return alternatives: tuples of indices of operands that may be partial values together.

    A conversion to another inexact dtype is linear, too, up to rounding.
    """
    if node.op.name == "jax.convert_element_type":
        dtypes = node.operands[0].type.dtype, node.results[0].type.dtype
        return ((0,),) if all(map(is_inexact, dtypes)) else ()
    row = row_of(node)
    return () if row is None else row.linear_in(node)


def partial_of(node: Node) -> Layout:
    """Return the layout of the results of a JAX operation on partial operands.

    Raises `TypeRuleError` if the operation is not linear in the partial operands together, if the
    reducers of these operands differ, or if another operand is not mirrored.
    """
    operands = node.operands
    partial = {i for i, each in enumerate(operands) if is_partial(each.type.layout)}
    zeros = {i for i, each in enumerate(operands) if is_zero(each)}
    found = {operands[i].type.layout for i in partial}
    others = {each.type.layout for i, each in enumerate(operands) if i not in partial}
    is_linear = any(set(together) - zeros == partial for together in linear_operands(node))
    if not is_linear or len(found) != 1 or not others <= {MIRRORED}:
        types = ", ".join(str(each.type) for each in operands)
        raise TypeRuleError(
            f"{node.op.name} of {types} is not linear in partial operands: reduce them"
        )
    (layout,) = found
    assert layout is not None
    return layout


def layouts_on_shards(node: Node) -> list[Layout]:
    """Return the layouts of the results of a JAX operation on shards.

    A result is sharded if all sharded operands are sharded along one factor, the result has this
    factor, and all other operands are mirrored. Otherwise the result is per replica. The layouts of
    the node's results are used only where several dimensions are possible (`reshape`).
    """
    factors = factors_of(node)
    layouts = [operand.type.layout for operand in node.operands]
    shared = None if factors is None else _shared(factors, layouts)
    if factors is None or shared is None:
        return [PER_REPLICA for _ in node.results]
    factor, sharding = shared
    return [_along(sharding, Factors.dimension(dims, factor)) for dims in factors.results]


def _shared(factors: Factors, layouts: Sequence[Layout | None]) -> tuple[int, Layout] | None:
    """Return the factor along which all sharded operands are sharded, and a layout of them.

    None if there is no such factor, or if another operand is not mirrored.
    """
    found: dict[tuple[int | None, MeshAxis], Layout] = {}
    for dims, layout in zip(factors.operands, layouts, strict=True):
        if layout is None or layout.dimension is None:
            if layout is not MIRRORED:
                return None
            continue
        found[dims[layout.dimension], layout.axis] = layout
    if len(found) != 1:
        return None
    (((factor, _), sharding),) = found.items()
    return None if factor is None else (factor, sharding)
