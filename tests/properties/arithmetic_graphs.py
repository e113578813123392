"""Random SPMD graphs of arithmetic, with numbers that only bits tell apart: inf, nan, -0.0."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from graphdist.ir import ops
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Op, Operand, Stage, Value
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, numpy_dtype
from graphdist.tracing.jax_ops import resolve

NUM_REPLICAS = 2
NUMBERS: dict[str, list[bool | int | float]] = {
    "f32": [0.0, -0.0, 1.0, -1.0, 0.1, float("inf")],
    "i32": [0, 1, -1, 7, 2**31 - 1],
    "bool": [False, True],
}
SHAPES: list[tuple[int, ...]] = [(4,), (2, 2)]
OF_TWO = {
    "f32": ["add", "sub", "mul", "div", "max", "min"],
    "i32": ["add", "sub", "mul", "max", "min", "and", "or", "xor", "shift_left"],
    "bool": ["and", "or", "xor"],
}
OF_ONE = {"f32": ["neg", "abs", "floor"], "i32": ["neg", "not"], "bool": ["not"]}


class Program:
    """A graph in the making: draws operations on the values there are."""

    def __init__(self, draw: st.DrawFn, types: Sequence[Type], depth: int) -> None:
        self.draw = draw
        self.depth = depth
        self.builder = Builder()
        self.inputs = tuple(Value(type) for type in types)
        self.values = list(self.inputs)

    def finished(self, outputs: Sequence[Operand]) -> Graph:
        nodes = tuple(self.builder.nodes)
        return Graph("f", Stage.SPMD, NUM_REPLICAS, self.inputs, nodes, tuple(outputs))

    def pick(self, test: Callable[[Type], bool] = lambda type: True) -> Value | None:
        fitting = [value for value in self.values if test(value.type)]
        if not fitting:
            return None
        # Often the last one, because rules look at chains.
        return fitting[-1] if self.draw(st.booleans()) else self.draw(st.sampled_from(fitting))

    def literal(self, dtype: str) -> Literal:
        return Literal.of(self.draw(st.sampled_from(NUMBERS[dtype])), Type(dtype, ()))

    def operand_like(self, type: Type) -> Operand:
        """Return a value of the dtype and shape, or a number that stands for one."""
        same = self.pick(lambda other: other[:2] == type[:2])
        return same if same is not None and self.draw(st.booleans()) else self.literal(type.dtype)

    def add(
        self,
        op: Op,
        operands: Sequence[Operand],
        params: dict[str, object] | None = None,
        graphs: tuple[Graph, ...] = (),
    ) -> None:
        self.values += self.builder.add(op, operands, params or {}, graphs, at=UNKNOWN)

    def add_jax(self, name: str, operands: Sequence[Operand], type: Type, **params: object) -> None:
        op = resolve(f"jax.{name}")
        self.values += self.builder.add(op, operands, params, at=UNKNOWN, types=[type])

    def step(self) -> None:
        """Add a node."""
        kinds = [self.of_two, self.of_two, self.of_one, self.moving, self.number, self.of_ours]
        if self.depth:
            kinds += [self.branch, self.loop]
        self.draw(st.sampled_from(kinds))()

    def of_one(self) -> None:
        x = self.pick()
        if x is not None:
            name = self.draw(st.sampled_from(OF_ONE[x.type.dtype]))
            self.add_jax(name, [x], x.type)

    def of_two(self) -> None:
        x = self.pick()
        if x is None:
            return
        operands = [x, self.operand_like(x.type)]
        if self.draw(st.booleans()):
            operands.reverse()
        name = self.draw(st.sampled_from(OF_TWO[x.type.dtype]))
        self.add_jax(name, operands, x.type)

    def moving(self) -> None:
        """Add an operation that moves, chooses or converts."""
        x = self.pick()
        if x is None:
            return
        kind = self.draw(st.sampled_from(["transpose", "reshape", "convert", "select"]))
        if kind == "transpose":
            permutation = tuple(self.draw(st.permutations(range(len(x.type.shape)))))
            shape = tuple(x.type.shape[axis] for axis in permutation)
            self.add_jax("transpose", [x], x.type.shaped(shape), permutation=permutation)
        elif kind == "reshape" and x.type.size == 4:
            shape = self.draw(st.sampled_from([(4,), (2, 2)]))
            params = {"new_sizes": shape, "dimensions": None, "sharding": None}
            self.add_jax("reshape", [x], x.type.shaped(shape), **params)
        elif kind == "convert":
            dtype = self.draw(st.sampled_from(sorted(NUMBERS)))
            of_convert = {"new_dtype": numpy_dtype(dtype), "weak_type": False, "sharding": None}
            type = Type(dtype, x.type.shape)
            self.add_jax("convert_element_type", [x], type, **of_convert)
        elif kind == "select":
            predicate = self.operand_like(Type("bool", x.type.shape))
            same = self.pick(lambda other: other[:2] == x.type[:2])
            self.add_jax("select_n", [predicate, x, same or x], x.type)

    def number(self) -> None:
        """Add a number as a constant, or broadcast."""
        dtype = self.draw(st.sampled_from(sorted(NUMBERS)))
        shape = self.draw(st.sampled_from(SHAPES))
        literal = self.literal(dtype)
        if self.draw(st.booleans()):
            params: dict[str, object] = {"shape": shape, "broadcast_dimensions": ()}
            self.add_jax("broadcast_in_dim", [literal], Type(dtype, shape), **params, sharding=None)
        else:
            value = np.full(shape, literal.value, numpy_dtype(dtype))
            self.add(ops.CONSTANT, (), {"value": value})

    def of_ours(self) -> None:
        """Add an operation of lowered programs."""
        draw, count = self.draw, {"group_size": NUM_REPLICAS}
        x = self.pick(lambda type: type.dtype != "bool")
        if x is None:
            return
        kind = draw(st.sampled_from(["scale", "pack", "unpack", "reshape", "reduce", "replica"]))
        if kind == "scale":
            factors = [1, 2, 3] if x.type.dtype == "i32" else [1.0, 2.0, 4.0, 0.5, 0.1]
            self.add(ops.SCALE, [x], {"factor": draw(st.sampled_from(factors))})
        elif kind == "pack":
            same = self.pick(lambda type: type.dtype == x.type.dtype)
            self.add(ops.PACK, [x, same or x][: draw(st.integers(1, 2))])
        elif kind == "unpack" and len(x.type.shape) == 1 and x.type.size >= 4:
            shapes = ((2, 2), (x.type.size - 4,)) if x.type.size > 4 else ((2, 2),)
            self.add(ops.UNPACK, [x], {"shapes": shapes})
        elif kind == "reshape":
            self.add(ops.RESHAPE, [x], {"shape": (x.type.size,)})
        elif kind == "reduce" and self.depth:  # all replicas come here
            reducer = draw(st.sampled_from(["sum", "max", "min"]))
            self.add(ops.ALL_REDUCE, [x], {"reducer": reducer, **count})
        elif kind == "replica":
            self.add(ops.REPLICA_ID, [], dict(count))

    def nested(self, types: Sequence[Type], leave: Callable[[Program], Sequence[Operand]]) -> Graph:
        inner = Program(self.draw, types, 0)
        for _ in range(self.draw(st.integers(0, 3))):
            inner.step()
        return inner.finished(leave(inner))

    def branch(self) -> None:
        x = self.pick()
        if x is None:
            return
        index = self.operand_like(Type("i32", ()))

        def leave(inner: Program) -> Sequence[Operand]:
            alike = inner.pick(lambda type: type[:2] == x.type[:2])
            return [alike or inner.inputs[0], inner.inputs[0]]

        branches = tuple(self.nested([x.type], leave) for _ in range(2))
        self.add(ops.COND, [index, x], {}, branches)

    def loop(self) -> None:
        x = self.pick(lambda type: type.shape == (4,))
        carry = self.pick()
        if x is None or carry is None:
            return
        # Whatever the body makes of the carry, it may differ between the replicas.
        types = [carry.type.with_layout(PER_REPLICA), x.type.shaped(()).with_layout(PER_REPLICA)]

        def leave(inner: Program) -> Sequence[Operand]:
            alike = inner.pick(lambda type: type[:2] == carry.type[:2])
            return [alike or inner.inputs[0], inner.pick() or inner.inputs[0]]

        body = self.nested(types, leave)
        params: dict[str, object] = {"num_consts": 0, "num_carry": 1, "length": 4}
        self.add(ops.SCAN, [carry, x], params | {"reverse": self.draw(st.booleans())}, (body,))


@st.composite
def arithmetic_graphs(draw: st.DrawFn) -> Graph:
    """Draw such graphs."""
    types = [
        Type("f32", (4,), PER_REPLICA),
        Type("f32", (2, 2), MIRRORED),
        Type("i32", (), PER_REPLICA),
        Type("bool", (4,), MIRRORED),
    ]
    program = Program(draw, types, 1)
    for _ in range(draw(st.integers(1, 15))):
        program.step()
    # All that was computed, so that no mistake stays unseen; or a little, so that much is dead.
    outputs = program.values[len(types) :]
    if not outputs or draw(st.booleans()):
        outputs = draw(st.lists(st.sampled_from(program.values), min_size=1, max_size=3))
    graph = program.finished(outputs)
    per_replica = tuple(output.type.layout is not MIRRORED for output in outputs)
    return Graph(
        "f", Stage.SPMD, NUM_REPLICAS, graph.inputs, graph.nodes, graph.outputs, (), per_replica
    )
