"""Operations that compute each element of their result from the elements in its place alone.

Applied to slices, such an operation gives the slice of the full result. Operands without dimensions
take part in every element.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdist.ir.types import MIRRORED, PER_REPLICA, Distribution, Type

ELEMENTWISE = frozenset(
    f"jax.{name}"
    for name in (
        "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
        "bitcast_convert_type", "cbrt", "ceil", "clamp", "complex", "conj", "convert_element_type",
        "copy", "copy_p", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp",
        "exp2", "expm1", "floor", "ge", "gt", "imag", "integer_pow", "is_finite", "le", "lgamma",
        "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not",
        "or", "pow", "real", "reduce_precision", "rem", "round", "rsqrt", "select_n", "shift_left",
        "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square",
        "sub", "tan", "tanh", "xor",
    )
) | {"scale"}  # fmt: skip
"""Names of operations, JAX's and ours."""


def distribution_of_slices(operands: Sequence[Type]) -> Distribution:
    """Return the distribution of an elementwise result that differs between replicas.

    Of slices along one dimension it is the slice along that dimension.

    >>> from graphdist.ir.types import sharded
    >>> slices, factor = Type("f32", (2, 3), sharded(1)), Type("f32", (), MIRRORED)
    >>> str(distribution_of_slices([slices, factor]))
    'sharded(1)'
    """
    found = {operand.distribution for operand in operands}
    found.discard(MIRRORED)
    return found.pop() or PER_REPLICA if len(found) == 1 else PER_REPLICA
