"""Random graphs for properties: every operation of ours, JAX's by name, control flow, literals.

They are well-typed and verify; what they compute means nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from graphdist.ir import ops
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, GraphVariable, Literal, Op, Operand, Stage, Value
from graphdist.ir.source import at_line
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, numpy_dtype, sharded


class Dimensions(NamedTuple):
    """A parameter that looks like a tuple and is not one."""

    offset: tuple[int, ...]


class Mode(enum.IntEnum):
    """A parameter that looks like an integer and is not one."""

    CLIP = 1


FLOATS = ["f32", "bf16", "f16", "f64"]
INTEGERS = ["i32", "i8", "u32"]
DTYPES = [*FLOATS, *INTEGERS, "bool", "c64"]
SHAPES: list[tuple[int, ...]] = [(), (4,), (2, 4), (0,), (4, 1, 2)]
JAX = {
    name: Op(f"jax.{name}")
    for name in ("add", "mul", "neg", "eigen-split", "pallas_call", "random_bits")
}
"""Those of which the table of operations knows the parameters would not take any."""

opaque = st.sampled_from(
    [Dimensions((0, 1)), Mode.CLIP, len, np.float32(2), np.int64(3), frozenset({"a"}), 1 + 2j]
)
numbers = st.one_of(st.booleans(), st.integers(), st.floats(), st.complex_numbers())


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Draw arrays on both sides of the most that is printed in line, to the last bit."""
    dtype = numpy_dtype(draw(st.sampled_from([*DTYPES, "i4", "float8_e4m3fn"])))
    shape = draw(st.sampled_from([*SHAPES, (17,), (2, 3, 3)]))
    size = int(np.prod(shape))
    if dtype == np.bool_ or dtype.kind == "V":
        return (
            np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
            .reshape(shape)
            .astype(dtype)
        )
    length = size * dtype.itemsize
    data = draw(st.binary(min_size=length, max_size=length))
    return np.frombuffer(data, dtype).reshape(shape)


parameters = st.recursive(
    st.one_of(
        st.none(),
        numbers,
        st.text(),
        opaque,
        arrays(),
        st.sampled_from([np.dtype("float32"), numpy_dtype("bf16"), np.dtype([("a", "i4")])]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(), inner, max_size=3),
        st.dictionaries(st.integers(), inner, max_size=2),
    ),
    max_leaves=6,
)
names = st.one_of(
    st.sampled_from(["x", "x_1", "layer/kernel:0", "7", "inf", "return", "graph"]), st.text()
)


@st.composite
def literals(draw: st.DrawFn) -> Literal:
    """Draw literals whose numbers need not be exact in their dtype."""
    dtype = draw(st.sampled_from(DTYPES))
    value: bool | int | float | complex
    if dtype == "bool":
        value = draw(st.booleans())
    elif dtype in INTEGERS:
        value = draw(st.integers(0, 100))
    elif dtype == "c64":
        value = draw(st.complex_numbers())
    else:
        value = draw(st.floats() | st.integers(-5, 5))
    return Literal.of(value, Type(dtype, ()))


class Maker:
    """Adds random nodes to one graph; `values` are those defined so far."""

    def __init__(self, draw: st.DrawFn, graph: Graph, has_distributions: bool, depth: int) -> None:
        self.draw = draw
        self.graph = graph  # for its variables, stage and number of replicas
        self.has_distributions = has_distributions
        self.depth = depth
        self.builder = Builder()
        self.values: list[Value] = []

    def value(self, type: Type) -> Value:
        value = Value(type, self.draw(names))
        self.values.append(value)
        return value

    def type(self) -> Type:
        shape = self.draw(st.sampled_from(SHAPES))
        choices: list[Layout | None] = [None]
        if self.has_distributions:
            choices = [MIRRORED, PER_REPLICA, *map(sharded, range(len(shape)))]
        return Type(self.draw(st.sampled_from(DTYPES)), shape, self.draw(st.sampled_from(choices)))

    def operand(self, test: Callable[[Type], bool] = lambda type: True) -> Operand | None:
        fitting: list[Operand] = [value for value in self.values if test(value.type)]
        literal = self.draw(literals())
        if test(literal.type):
            fitting.append(literal)
        return self.draw(st.sampled_from(fitting)) if fitting else None

    def operands(self, most: int = 3) -> list[Operand]:
        drawn = [self.operand() for _ in range(self.draw(st.integers(0, most)))]
        return [operand for operand in drawn if operand is not None]

    def add(
        self,
        op: Op,
        operands: Sequence[Operand | None],
        params: dict[str, object],
        graphs: tuple[Graph, ...] = (),
        types: Sequence[Type] | None = None,
    ) -> None:
        """Add a node, unless there was no value for one of its operands."""
        found = [operand for operand in operands if operand is not None]
        if len(found) == len(operands):
            source = at_line("train.py", self.draw(st.integers(1, 3)))
            results = self.builder.add(
                op, found, params, graphs, at=source, types=types, hint=self.draw(names)
            )
            self.values += results

    def any_node(self) -> None:
        kinds = [self.jax, self.local, self.collective]
        if self.graph.stage is Stage.LOGICAL and self.graph.variables:
            kinds.append(self.of_variable)
        if self.depth:
            kinds.append(self.draw(st.sampled_from([self.scan, self.loop, self.branch])))
        self.draw(st.sampled_from(kinds))()

    def jax(self) -> None:
        types = [self.type() for _ in range(self.draw(st.integers(1, 3)))]
        params = self.draw(st.dictionaries(names, parameters, max_size=2))
        self.add(
            self.draw(st.sampled_from(list(JAX.values()))), self.operands(), params, types=types
        )

    def local(self) -> None:
        draw = self.draw
        count: dict[str, object] = {"group_size": self.graph.num_replicas}
        x = self.operand()
        if x is None:
            return
        kind = draw(st.integers(0, 8))
        if kind == 8:
            self.add(ops.BARRIER, (x, x), {})
        elif kind == 7 and x.type.shape and x.type.shape[0]:
            step = Literal.of(draw(st.integers(-2, 3)), Type("i32", ()))
            self.add(ops.TAKE_STEP, (x, step), {})
        elif kind == 0:
            self.add(ops.CONSTANT, (), {"value": draw(arrays())})
        elif kind == 1:
            self.add(ops.SELECT_REPLICA, (x,), {"replica": 0} | count)
        elif kind == 2:
            self.add(ops.SCALE, (x,), {"factor": draw(st.floats())})
        elif kind == 3:
            self.add(ops.PACK, (x, x), {})
            flat = self.values[-1].type.shape
            self.add(ops.UNPACK, self.values[-1:], {"shapes": ((1, *flat), (0,))})
        elif kind == 4 and x.type.shape:
            self.add(ops.CONCATENATE, (x, x), {"axis": draw(st.integers(0, len(x.type.shape) - 1))})
        elif kind == 5 and x.type.layout in (None, MIRRORED, PER_REPLICA):
            self.add(ops.RESHAPE, (x,), {"shape": (x.type.size,)})
        else:
            self.add(ops.REPLICA_ID, (), count)

    def collective(self) -> None:
        draw = self.draw
        count: dict[str, object] = {"group_size": self.graph.num_replicas}
        crosses = self.graph.stage is not Stage.SPMD
        x = self.operand(lambda type: type.dtype in FLOATS)
        y = self.operand(lambda type: bool(type.shape))
        reducer: dict[str, object] = {"reducer": draw(st.sampled_from(ops.REDUCERS))}
        kind = draw(st.integers(0, 7))
        if kind == 6:
            self.add(ops.COLLECTIVE_PERMUTE, (x,), {"pairs": ((0, 0),)} | count)
        elif kind == 7 and y is not None and y.type.shape[0] % self.graph.num_replicas == 0:
            axes: dict[str, object] = {"split_axis": 0, "concat_axis": len(y.type.shape) - 1}
            self.add(ops.ALL_TO_ALL, (y,), axes | count)
        elif kind == 0 and crosses:
            self.add(ops.TO_REPLICAS, (x,), count)
        elif kind == 1 and crosses:
            self.add(ops.REDUCE, (x,), reducer | count)
        elif kind <= 2:
            self.add(ops.ALL_REDUCE, (x,), reducer | count)
        elif kind == 3 and crosses:
            self.add(ops.GATHER, (y,), {"axis": 0} | count)
        elif kind <= 4:
            self.add(ops.ALL_GATHER, (y,), {"axis": 0} | count)
        elif x is not None and x.type.shape and x.type.shape[0] % self.graph.num_replicas == 0:
            kept = draw(st.sampled_from(["sum", "mean"]))
            self.add(ops.REDUCE_SCATTER, (x,), {"axis": 0, "reducer": kept} | count)

    def of_variable(self) -> None:
        params: dict[str, object] = {"variable": self.draw(st.sampled_from(self.graph.variables))}
        self.add(ops.READ, (), params)
        value = self.values[-1]
        if self.draw(st.booleans()):
            self.add(ops.AGGREGATE, (value,), {**params, "context": "replica"})
            value = self.values[-1]
        if self.draw(st.booleans()):
            self.add(ops.ASSIGN, (value,), params)

    def nested(self, types: Sequence[Type], leave: Callable[[Maker], Sequence[Operand]]) -> Graph:
        """Make a nested graph with inputs of these types and the outputs that `leave` picks."""
        inner = Maker(self.draw, self.graph, self.has_distributions, self.depth - 1)
        inputs = tuple(inner.value(type) for type in types)
        for _ in range(self.draw(st.integers(0, 2))):
            inner.any_node()
        outputs = tuple(leave(inner))
        name = self.draw(st.sampled_from(["body", "branch 1"]))
        nodes = tuple(inner.builder.nodes)
        stage, num_replicas = self.graph.stage, self.graph.num_replicas
        return Graph(name, stage, num_replicas, inputs, nodes, outputs)

    def scan(self) -> None:
        consts, carry, xs = self.operands(1), self.operands(2), self.operand(_is_scannable)
        if xs is None:
            return
        slice_type = Type(xs.type.dtype, xs.type.shape[1:], xs.type.layout)
        entering = [operand.type for operand in (*consts, *carry)]
        body = self.nested(
            [*entering, slice_type],
            lambda inner: [*inner.values[len(consts) : len(entering)], *inner.operands(2)],
        )
        params: dict[str, object] = {"num_consts": len(consts), "num_carry": len(carry)}
        params |= {"length": xs.type.shape[0], "reverse": False}
        self.add(ops.SCAN, (*consts, *carry, xs), params, (body,))

    def loop(self) -> None:
        const, carry = self.operands(1), self.operands(2)
        types = [operand.type for operand in carry]

        def test(inner: Maker) -> Sequence[Operand]:
            inner.add(JAX["neg"], inner.values[: len(carry)], {}, types=[Type("bool", ())])
            return inner.values[-1:]

        condition = self.nested(types, test)
        entering = [*(operand.type for operand in const), *types]
        body = self.nested(entering, lambda inner: inner.values[len(const) : len(entering)])
        params: dict[str, object] = {"num_cond_consts": 0, "num_body_consts": len(const)}
        self.add(ops.WHILE, (*const, *carry), params, (condition, body))

    def branch(self) -> None:
        index = self.operand(lambda type: type[:2] == ("i32", ()))
        rest = self.operands(2)
        types = [Type("f32", (3,)), Type("i8", ())][: self.draw(st.integers(0, 2))]

        def leave(inner: Maker) -> Sequence[Operand]:
            before = len(inner.values)
            inner.add(JAX["eigen-split"], inner.values, {}, types=types)
            return inner.values[before:]

        branches = tuple(
            self.nested([operand.type for operand in rest], leave)
            for _ in range(self.draw(st.integers(1, 3)))
        )
        self.add(ops.COND, (index, *rest), {}, branches)


def _is_scannable(type: Type) -> bool:
    return bool(type.shape) and type.layout in (None, MIRRORED, PER_REPLICA)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw graphs of any stage that verify."""
    stage = draw(st.sampled_from(Stage))
    placed = stage is not Stage.LOGICAL
    num_replicas = draw(st.integers(1, 4))
    num_groups = draw(st.sampled_from([n for n in (1, 2, 3) if num_replicas % n == 0]))
    maker = Maker(
        draw, Graph("", stage, num_replicas, (), (), ()), placed or draw(st.booleans()), 2
    )
    variables = tuple(
        GraphVariable(
            name,
            maker.type(),
            draw(st.sampled_from(["on_write", "on_read"])),
            draw(st.sampled_from(["none", "mean"])),
            trainable=draw(st.booleans()),
            assigned=draw(st.booleans()),
            is_local=draw(st.booleans()),
        )
        for name in draw(st.lists(names, unique=True, max_size=3))
    )
    empty = Graph(draw(names), stage, num_replicas, (), (), (), variables)
    maker.graph = empty
    bound = [maker.value(variable.type) for variable in variables if placed]
    inputs = (*bound, *(maker.value(maker.type()) for _ in range(draw(st.integers(0, 3)))))
    for _ in range(draw(st.integers(0, 6))):
        maker.any_node()
    written = [v for v, variable in zip(bound, variables, strict=False) if variable.assigned]
    returned = maker.operands()
    return Graph(
        empty.name, stage, num_replicas, inputs, tuple(maker.builder.nodes),
        (*written, *returned), variables, tuple(draw(st.booleans()) for _ in returned),
        num_groups,
    )  # fmt: skip
