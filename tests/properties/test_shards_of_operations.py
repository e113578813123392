"""Operations with random shapes and parameters: what their shards give is what the whole gives.

`tests/ir/test_operation_table.py` has examples of every operation; these are of those whose factors
depend on many parameters at once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from math import prod
from typing import Any  # Any: functions of JAX, and their arrays

import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from tests.ir.sharded_operations import nodes_of, on_all_shards
from tests.tracing.traces import Shape, graph_of

Drawn = tuple[str, Callable[..., Any], list[Shape]]

SIZES = st.sampled_from([1, 2, 3, 4])
LABELS = "abcdef"


@st.composite
def shapes(draw: st.DrawFn, least: int = 1, most: int = 4) -> Shape:
    return tuple(draw(st.lists(SIZES, min_size=least, max_size=most)))


@st.composite
def reshapes(draw: st.DrawFn) -> Drawn:
    """Draw two ways to multiply some numbers together."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=5))

    def grouped() -> Shape:
        groups = draw(st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes)))
        pairs = groupby(zip(sorted(groups), sizes, strict=True), key=lambda pair: pair[0])
        return tuple(prod(size for _, size in group) for _, group in pairs)

    after = grouped()
    return "reshape", lambda x: lax.reshape(x, after), [grouped()]


@st.composite
def broadcasts(draw: st.DrawFn) -> Drawn:
    result = draw(shapes())
    places = sorted(draw(st.sets(st.integers(0, len(result) - 1))))
    operand = tuple(draw(st.sampled_from([1, result[place]])) for place in places)
    return "broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, result, places), [operand]


@st.composite
def products(draw: st.DrawFn) -> Drawn:
    """Draw products, of which each dimension is of the left, of the right, or of both."""
    left, right, result = "", "", ""
    sizes: dict[str, int] = {}
    for label in LABELS[: draw(st.integers(1, len(LABELS)))]:
        kind = draw(st.sampled_from(["batch", "summed", "left", "right"]))
        sizes[label] = draw(SIZES)
        left += label if kind != "right" else ""
        right += label if kind != "left" else ""
        result += label if kind != "summed" else ""
    left, right = ("".join(draw(st.permutations(labels))) for labels in (left, right))
    both = [label for label in left if label in right]

    def places(labels: str, *, kept: bool) -> list[int]:
        return [labels.index(label) for label in both if (label in result) is kept]

    contracted, batch = (
        (places(left, kept=kept), places(right, kept=kept)) for kept in (False, True)
    )
    numbers = contracted, batch
    operands = [tuple(sizes[label] for label in labels) for labels in (left, right)]
    return "dot_general", lambda x, y: lax.dot_general(x, y, numbers), operands


@st.composite
def slices(draw: st.DrawFn) -> Drawn:
    shape = draw(shapes())
    starts = [draw(st.sampled_from([0, 0, 1])) for _ in shape]
    starts = [min(start, size - 1) for start, size in zip(starts, shape, strict=True)]
    strides = [draw(st.sampled_from([1, 1, 2])) for _ in shape]
    return "slice", lambda x: lax.slice(x, starts, shape, strides), [shape]


@st.composite
def paddings(draw: st.DrawFn) -> Drawn:
    shape = draw(shapes())
    sizes = st.sampled_from([(0, 0, 0), (0, 0, 0), (1, 1, 0), (0, -1, 1), (1, -1, 0)])
    config = [draw(sizes) for _ in shape]
    return "pad", lambda x, y: lax.pad(x, y, config), [shape, ()]


@st.composite
def windows(draw: st.DrawFn) -> Drawn:
    shape = draw(shapes(1, 3))
    rank = len(shape)
    sizes, strides, dilations = (
        tuple(draw(st.sampled_from([1, 1, 2])) for _ in shape) for _ in range(3)
    )
    padding = tuple(draw(st.sampled_from([(0, 0), (0, 0), (1, 1)])) for _ in range(rank))

    def fn(x: Any) -> Any:
        options: Any = {"base_dilation": dilations}
        return lax.reduce_window(x, 0.0, lax.add, sizes, strides, padding, **options)

    return "reduce_window_sum", fn, [shape]


@st.composite
def accesses(draw: st.DrawFn) -> Drawn:
    """Draw a gather, or a scatter, whose windows have every kind of dimension."""
    kinds = ["batch", "removed", "part", "whole", "whole"]
    dims = [(draw(st.sampled_from(kinds)), draw(SIZES)) for _ in range(draw(st.integers(1, 4)))]
    shape = tuple(size for _, size in dims)
    batch, removed = (
        [i for i, (kind, _) in enumerate(dims) if kind == which] for which in ("batch", "removed")
    )
    windowed = [i for i in range(len(dims)) if i not in (*batch, *removed)]
    indexed = sorted({*removed, *(i for i in windowed if draw(st.booleans()))})
    sizes = [
        1 if kind in ("batch", "removed") else size - size // 2 if kind == "part" else size
        for kind, size in dims
    ]
    rows = [shape[i] for i in batch] + draw(st.lists(SIZES, max_size=2))
    rank = len(rows) + len(windowed)
    places = sorted(draw(st.permutations(range(rank)))[: len(windowed)])
    name = draw(st.sampled_from(["gather", "scatter-add", "scatter-max", "scatter-mul"]))
    mode = draw(st.sampled_from(["clip", "fill"]))
    result, others = [0] * rank, iter(rows)
    for place in range(rank):
        result[place] = sizes[windowed[places.index(place)]] if place in places else next(others)

    def indices_of(x: Any) -> Any:
        given = jnp.resize(8 * x, (*rows, len(indexed))).astype(jnp.int32)
        return jnp.abs(given) % 5

    of_rows = tuple(range(len(batch)))

    def gather(x: Any) -> Any:
        numbers = lax.GatherDimensionNumbers(
            tuple(places), tuple(removed), tuple(indexed), tuple(batch), of_rows
        )
        return lax.gather(x, indices_of(x), numbers, sizes, mode=mode, fill_value=0)

    def scatter(x: Any, updates: Any) -> Any:
        numbers = lax.ScatterDimensionNumbers(
            tuple(places), tuple(removed), tuple(indexed), tuple(batch), of_rows
        )
        function = getattr(lax, name.replace("-", "_"))
        return function(x, indices_of(x), updates, numbers, mode=mode)

    if name == "gather":
        return name, gather, [shape]
    return name, scatter, [shape, tuple(result)]


@settings(max_examples=25)
@given(
    st.lists(
        st.one_of(
            reshapes(), broadcasts(), products(), slices(), paddings(), windows(), accesses(),
            accesses(),
        ),
        min_size=8,
        max_size=8,
    )
)  # fmt: skip
def test_what_shards_give_is_what_the_whole_gives_of_any_shape(drawn: list[Drawn]) -> None:
    graphs = [(graph_of(fn, *takes, num_replicas=1), f"jax.{name}") for name, fn, takes in drawn]
    for case in on_all_shards(nodes_of(graphs)):
        case.check()
