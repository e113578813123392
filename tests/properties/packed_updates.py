"""Random graphs that update variables which lie in packs, piece by piece.

An update is a random expression of the variables, of reduced gradients, which may be reduced in
any order, and of numbers; now and then a piece is computed otherwise than the others.
"""

from __future__ import annotations

from typing import Any  # Any: hypothesis draws whatever

from hypothesis import strategies as st

from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.ir.verifier import verify
from graphdist.tracing.jax_ops import resolve

DECLARED = '{synchronization="on_write", aggregation="none", trainable=true, assigned=true}'
SHAPES = [(2,), (3,), (), (2, 2), (1,)]
BINARY = {"add": "", "sub": "", "max": "", "mul": " {out_dtype=none}"}
UNARY = {"neg": "", "sign": ""}


def written(shape: tuple[int, ...]) -> str:
    return f"f32[{','.join(map(str, shape))}]"


class Program:
    """The text of a graph on its way; every value has a column: one name for each piece."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=4))
        self.packs = draw(st.integers(1, 3))
        self.lines: list[str] = []
        self.columns: list[list[str]] = []
        self.count = 0

    def add(self, text: str, shape: tuple[int, ...], layout: str = "mirrored") -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text} : {written(shape)} {layout}")
        return f"%v{self.count}"

    def apply(self, op: str, operands: list[str], piece: int) -> str:
        params = {**BINARY, **UNARY}[op]
        return self.add(f"jax.{op}({', '.join(operands)}){params}", self.shapes[piece])

    def of_packs(self) -> None:
        for pack in range(self.packs):
            names = [f"%p{pack}_{i}" for i in range(len(self.shapes))]
            types = ", ".join(f"{written(shape)} mirrored" for shape in self.shapes)
            shapes = ", ".join(map(str, self.shapes)).replace("((", "(")
            self.lines.append(
                f"  {', '.join(names)} = unpack(%p{pack}) {{shapes=({shapes})}} : {types}"
            )
            self.columns.append(names)

    def reduced(self) -> None:
        """Reduce the gradients, after something else of them or not."""
        reducer = self.draw(st.sampled_from(["sum", "mean", "max"]))
        column: list[str] = []
        for i, shape in enumerate(self.shapes):
            gradient = f"%g{i}"
            if column and self.draw(st.integers(0, 5)) == 0 and self.shapes[i - 1] == shape:
                gradient = self.add(
                    f"jax.mul({gradient}, {column[-1]}) {{out_dtype=none}}", shape, "per_replica"
                )
            text = f'all_reduce({gradient}) {{reducer="{reducer}", group_size=2}}'
            column.append(self.add(text, shape))
        self.columns.append(column)

    def computed(self) -> None:
        column = []
        op = self.draw(st.sampled_from([*BINARY, *UNARY]))
        count = 1 if op in UNARY else 2
        operands = [self.draw(st.integers(-2, len(self.columns) - 1)) for _ in range(count)]
        if all(number < 0 for number in operands):
            operands[0] = 0
        for i in range(len(self.shapes)):
            own = op
            if self.draw(st.integers(0, 15)) == 0:
                own = self.draw(st.sampled_from([*(UNARY if count == 1 else BINARY)]))
            chosen = [self.number(number, i) for number in operands]
            column.append(self.apply(own, chosen, i))
        self.columns.append(column)

    def number(self, column: int, piece: int) -> str:
        if column >= 0:
            return self.columns[column][piece]
        if column == -1:
            return self.draw(st.sampled_from(["2.0:f32", "2.0:f32", "2.0:f32", "-0.0:f32"]))
        return "%x" if not self.shapes[piece] else "0.5:f32"

    def text(self) -> str:
        variables = "".join(
            f"  variable @p{i}: f32[{self.size}] mirrored {DECLARED}\n" for i in range(self.packs)
        )
        inputs = [f"%p{i}: f32[{self.size}] mirrored = @p{i}" for i in range(self.packs)]
        inputs += [f"%g{i}: {written(shape)} per_replica" for i, shape in enumerate(self.shapes)]
        body = "\n".join(self.lines)
        outputs = [*(f"%q{i} -> @p{i}" for i in range(self.packs)), self.extra]
        return (
            f"graph f on 2 replicas, stage spmd\n{variables}"
            f"({', '.join(inputs)}, %x: f32[] mirrored) {{\n"
            f"{body}\n  return {', '.join(outputs)}\n}}"
        )

    @property
    def size(self) -> int:
        return sum(self.size_of(shape) for shape in self.shapes)

    @staticmethod
    def size_of(shape: tuple[int, ...]) -> int:
        size = 1
        for length in shape:
            size *= length
        return size

    def graph(self) -> Graph:
        self.of_packs()
        for _ in range(self.draw(st.integers(1, 2))):
            self.reduced()
        for _ in range(self.draw(st.integers(1, 6))):
            self.computed()
        for pack in range(self.packs):
            column = self.columns[self.draw(st.integers(0, len(self.columns) - 1))]
            self.lines.append(f"  %q{pack} = pack({', '.join(column)}) : f32[{self.size}] mirrored")
        column = self.columns[self.draw(st.integers(0, len(self.columns) - 1))]
        self.extra = column[0]
        graph = parse(self.text(), ops=resolve)
        verify(graph, full=True)
        return graph


@st.composite
def packed_updates(draw: st.DrawFn) -> Graph:
    """Draw SPMD graphs that update variables in packs."""
    return Program(draw).graph()
