"""What is folded is what JAX computes on the CPU, to the bit, on dtypes of every kind."""

from __future__ import annotations

import zlib

import jax
import numpy as np
import pytest

from graphdist.ir import ops
from graphdist.ir.arrays import Array, literal_array
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Op, Stage
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import Type, numpy_dtype
from graphdist.passes.cleanup.fold_constants import fold_constants
from graphdist.runtime.bind_primitive import evaluate_jax_node
from graphdist.tracing.jax_ops import resolve

INTEGERS = ("i8", "i32", "u32", "i64")
FLOATS = ("f16", "bf16", "f32", "f64")
DTYPES = ("bool", *INTEGERS, *FLOATS)

ARITHMETIC = ("add", "sub", "mul", "max", "min")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BITWISE = ("and", "or", "xor")

OF_TWO = [
    *[(name, dtype) for name in ARITHMETIC for dtype in INTEGERS + FLOATS],
    *[(name, dtype) for name in COMPARISONS for dtype in ("u32", "bf16", "f32")],
    *[(name, dtype) for name in BITWISE for dtype in ("bool", "i32")],
    *[("div", dtype) for dtype in FLOATS],
]
OF_ONE = [
    *[("neg", dtype) for dtype in INTEGERS + FLOATS],
    *[("not", dtype) for dtype in ("bool", *INTEGERS)],
]


def numbers_of(dtype: str, seed: str) -> Array:
    """Return numbers of all sizes, the extreme ones among them."""
    random = np.random.default_rng(zlib.crc32(seed.encode()))
    wanted = numpy_dtype(dtype)
    if dtype == "bool":
        return random.integers(0, 2, 8).astype(np.bool_)
    if dtype in INTEGERS:
        limits = np.iinfo(wanted.name)
        small = np.array([0, 1, 2, 100, limits.max, limits.min, limits.max - 1], wanted)
        drawn = random.integers(limits.min, limits.max, 40, dtype=wanted.name)
        return np.concatenate([small, drawn])
    special = [0.0, -0.0, 1.0, -1.5, 0.1, 3.0, 65504.0, 1e-5, 1e30, -1e-30, 1e300, 1e-300]
    special += [float("inf"), -float("inf"), float("nan"), 2.0**31, -129.7, 255.5]
    drawn = random.standard_normal(20) * 10.0 ** random.integers(-6, 6, 20)
    with np.errstate(all="ignore"):
        return np.concatenate([special, drawn]).astype(wanted)


def literal(number: np.generic, dtype: str) -> Literal:
    value: bool | int | float
    if dtype == "bool":
        value = bool(number)
    else:
        value = int(str(number)) if dtype in INTEGERS else float(str(number))
    return Literal.of(value, Type(dtype, ()))


def check(
    name: str, columns: list[tuple[Array, str]], result: str, params: dict[str, object]
) -> int:
    """Fold the operation on each row of numbers; compare with JAX; return how many were folded."""
    builder = Builder()
    op = resolve(f"jax.{name}")
    rows = zip(*[array for array, _ in columns], strict=True)
    for row in rows:
        operands = [literal(number, dtype) for number, (_, dtype) in zip(row, columns, strict=True)]
        builder.add(op, operands, params, at=UNKNOWN, types=[Type(result, ())])
    nodes = tuple(builder.nodes)
    outputs = tuple(node.results[0] for node in nodes)
    folded = fold_constants(Graph("f", Stage.SPMD, 1, (), nodes, outputs))
    with jax.enable_x64(True):
        (wanted,) = evaluate_jax_node(nodes[0], [array for array, _ in columns])
    count = 0
    for position, output in enumerate(folded.outputs):
        if isinstance(output, Literal):
            count += 1
            given = literal_array(output)
            assert given.dtype == wanted.dtype
            row_text = ", ".join(str(array[position]) for array, _ in columns)
            assert given.tobytes() == wanted[position].tobytes(), (
                f"{name}({row_text}): JAX says {wanted[position]}, we say {given}"
            )
    return count


@pytest.mark.parametrize(("name", "dtype"), OF_TWO)
def test_operations_of_two(name: str, dtype: str) -> None:
    numbers = numbers_of(dtype, name)
    random = np.random.default_rng(len(numbers))
    left, right = random.choice(numbers, 100), random.choice(numbers, 100)
    result = "bool" if name in COMPARISONS else dtype
    assert check(name, [(left, dtype), (right, dtype)], result, {}) > 12


@pytest.mark.parametrize(("name", "dtype"), OF_ONE)
def test_operations_of_one(name: str, dtype: str) -> None:
    numbers = numbers_of(dtype, name)
    assert check(name, [(numbers, dtype)], dtype, {}) >= len(numbers) // 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wanted", DTYPES)
def test_conversions(dtype: str, wanted: str) -> None:
    params = {"new_dtype": numpy_dtype(wanted), "weak_type": False, "sharding": None}
    check("convert_element_type", [(numbers_of(dtype, wanted), dtype)], wanted, params)


@pytest.mark.parametrize("dtype", DTYPES)
def test_choices(dtype: str) -> None:
    numbers = numbers_of(dtype, "select_n")
    predicates = np.arange(len(numbers)) % 2 == 0
    columns = [(predicates, "bool"), (numbers, dtype), (numbers[::-1].copy(), dtype)]
    assert check("select_n", columns, dtype, {}) >= len(numbers) // 4


@pytest.mark.parametrize(("reducer", "wanted"), [("sum", 3.0), ("mean", 1.0), ("max", 1.0)])
@pytest.mark.parametrize("op", [ops.REDUCE, ops.ALL_REDUCE])
def test_reductions(op: Op, reducer: str, wanted: float) -> None:
    builder = Builder()
    one = Literal.of(1.0, Type("f32", ()))
    (result,) = builder.add(op, (one,), {"reducer": reducer, "group_size": 3}, at=UNKNOWN)
    graph = Graph("f", Stage.LOGICAL, 3, (), tuple(builder.nodes), (result,))
    (output,) = fold_constants(graph).outputs
    assert isinstance(output, Literal)
    assert output.value == wanted


def test_arrays_beyond_the_limit_stay() -> None:
    builder = Builder()
    (large,) = builder.add(ops.CONSTANT, (), {"value": np.ones(65, np.float32)}, at=UNKNOWN)
    (twice,) = builder.add(ops.SCALE, (large,), {"factor": 2}, at=UNKNOWN)
    graph = Graph("f", Stage.SPMD, 1, (), tuple(builder.nodes), (twice,))
    assert fold_constants(graph) is graph
