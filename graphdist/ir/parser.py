"""Text to graph: the inverse of `graphdist.ir.printer`. The grammar is in `docs/ir.md`.

1. Recursive descent over nested graphs and nested parameters; a loop over lines.
2. The builder makes the nodes, so type rules run. The types in the text must equal the types that
   the rule returns, layouts included. The layouts of results of JAX's operations are compared only
   if the caller gives these operations (`ops`). Otherwise, as in the viewer, results have the
   layouts of the text.
3. Bad text of any kind is a `ParseError` that shows the line.
4. Names become hints, unless they are numbers.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple  # Any: the attributes of a variable, whose types are checked

from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Graph, GraphVariable, Op, Operand, Stage, Value
from graphdist.ir.mesh import MEMBER
from graphdist.ir.opaque_placeholders import OpaquePlaceholders
from graphdist.ir.ops import OPS
from graphdist.ir.parameter_reader import ParameterReader
from graphdist.ir.source import UNKNOWN
from graphdist.ir.tokens import MOST_CHARACTERS, Cursor
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, partial, sharded
from graphdist.ir.variable_storage import role_of, storage_of

_DECLARED: dict[str, type] = {
    "synchronization": str,
    "aggregation": str,
    "trainable": bool,
    "assigned": bool,
    "is_local": bool,
}
_ATTRIBUTES = _DECLARED | {  # the other attributes: how a variable is stored, and its role
    "sharded_along": int,
    "piece": tuple,
    "alone": bool,
    "elsewhere": bool,
    "pieces": tuple,
    "role": str,
    "serves": tuple,
    "server": int,
}
_MOST_REPLICAS = 2**20
_LAYOUTS = {"mirrored": MIRRORED, "per_replica": PER_REPLICA}


def parse(
    text: str,
    opaques: Sequence[object] | OpaquePlaceholders = (),
    ops: Callable[[str], Op] | None = None,
    *,
    first_line: int = 1,
    max_characters: int = MOST_CHARACTERS,
) -> Graph:
    """Return the graph that a text describes.

    Args:
        text: a text that `print_graph` returned, perhaps edited.
        opaques: the side table of parameters without a text form, as `printer.opaques` returns it,
            or `PLACEHOLDERS`, for a graph that is not to be run.
        ops: returns the operation of a name such as `jax.add`. Without it, each such name becomes
            an operation without primitive and effect, whose results have the layouts of the text.
        first_line: the number of the first line in errors, for a text that is a part of another.
        max_characters: the largest length of a text that is read.

    >>> graph = parse('''
    ... graph double on 2 replicas, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.mul(%x, 2.0:f32) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> graph.nodes[0].op.name, graph.nodes[0].operands[1].value
    ('jax.mul', 2.0)
    """
    return _Parser(Cursor(text, first_line, max_characters), opaques, ops).graph()


class _Block(NamedTuple):
    """A graph, and the names of the variables of its first inputs and of its first outputs."""

    graph: Graph
    bound: list[str]
    assigned: list[str]


class _Parser:
    """The state of the parser: the cursor, and the variables and operations read so far."""

    def __init__(
        self,
        cursor: Cursor,
        opaques: Sequence[object] | OpaquePlaceholders,
        ops: Callable[[str], Op] | None,
    ) -> None:
        self.cursor = cursor
        self.reader = ParameterReader(cursor, opaques)
        self.variables = self.reader.variables
        self.ops = ops
        self.stage, self.num_replicas = Stage.LOGICAL, 1
        self._ops: dict[str, Op] = {}

    def graph(self) -> Graph:
        """Read the outermost graph, which is the entire text."""
        cursor = self.cursor
        cursor.expect("graph")
        name = cursor.name()
        cursor.expect("on")
        if not cursor.text.isdigit() or cursor.text == "0":
            cursor.fail("expected a number of replicas")
        self.num_replicas = cursor.integer()
        if self.num_replicas > _MOST_REPLICAS:
            cursor.fail(f"{self.num_replicas} replicas; the limit is {_MOST_REPLICAS}")
        cursor.expect("replica" if self.num_replicas == 1 else "replicas")
        num_groups = 1
        if cursor.accept("in"):
            num_groups = cursor.integer()
            cursor.expect("groups")
        cursor.expect(",")
        cursor.expect("stage")
        stages = {stage.value: stage for stage in Stage}
        if cursor.text not in stages:
            cursor.fail(f"no stage {cursor.text!r}: it is one of {', '.join(stages)}")
        self.stage = stages[cursor.take("word")]
        cursor.next_line()
        while cursor.accept("variable"):
            self._declaration()
            cursor.next_line()
        start = cursor.place
        graph, bound, assigned = self._block(name)
        cursor.finish()
        variables = tuple(self.variables.values())
        graph = graph.replace(variables=variables, num_groups=num_groups)
        inputs = [variable.name for variable in variables if graph.is_placed]
        outputs = [variable.name for variable in graph.assigned if graph.is_placed]
        for what, there, wanted in (("inputs", bound, inputs), ("outputs", assigned, outputs)):
            if there != wanted:
                cursor.fail(
                    f"at stage {self.stage.value} the first {what} belong to "
                    f"{_listed(wanted)}, here to {_listed(there)}",
                    start,
                )
        return graph

    def _declaration(self) -> None:
        cursor, start = self.cursor, self.cursor.place
        name = self.reader.variable_name()
        if name in self.variables:
            cursor.fail(f"variable {name!r} is declared twice", start)
        cursor.expect(":")
        type = self._type()
        cursor.expect("{")
        attributes = self.reader.items()
        for key, value in attributes.items():
            if not isinstance(value, _ATTRIBUTES.get(key, ())):
                cursor.fail(f"a variable has no {key}={value!r}", start)
        with cursor.refusing(start):
            storage, role = storage_of(attributes), role_of(attributes)
        declared: Any = {key: attributes[key] for key in _DECLARED if key in attributes}
        self.variables[name] = GraphVariable(name, type, storage=storage, role=role, **declared)

    def _block(self, name: str) -> _Block:
        """Read inputs, nodes and outputs, up to the closing brace, as a graph with this name."""
        cursor = self.cursor
        scope: dict[str, Value] = {}
        inputs, bound = self._inputs(scope)
        cursor.expect("{")
        cursor.next_line()
        builder = Builder()
        while not cursor.accept("return"):
            self._node(builder, scope)
            cursor.next_line()
        outputs: list[Operand] = []
        assigned: list[str] = []
        per_replica: list[bool] = []
        for _ in cursor.items(""):  # up to the end of the line
            is_per_replica = cursor.accept("per_replica")
            outputs.append(self._operand(scope))
            if not is_per_replica and not per_replica and cursor.accept("->"):
                assigned.append(self.reader.variable_name())
            else:
                per_replica.append(is_per_replica)
        cursor.next_line()
        cursor.expect("}")
        graph = Graph(
            name, self.stage, self.num_replicas, inputs, tuple(builder.nodes), tuple(outputs),
            returns_per_replica=tuple(per_replica),
        )  # fmt: skip
        return _Block(graph, bound, assigned)

    def _inputs(self, scope: dict[str, Value]) -> tuple[tuple[Value, ...], list[str]]:
        cursor = self.cursor
        inputs: list[Value] = []
        bound: list[str] = []
        cursor.expect("(")
        for _ in cursor.items(")"):
            place = cursor.place
            name = cursor.take("value")
            cursor.expect(":")
            inputs.append(self._define(scope, name, Value(self._type()), place))
            if len(bound) == len(inputs) - 1 and cursor.accept("="):
                bound.append(self.reader.variable_name())
        return tuple(inputs), bound

    def _define(
        self, scope: dict[str, Value], name: str, value: Value, place: tuple[int, int]
    ) -> Value:
        if name in scope:
            self.cursor.fail(f"{name} is defined twice", place)
        scope[name] = value
        if not name[1:].isdigit():
            value.hint = name[1:]  # safe: nothing else refers to the value yet
        return value

    def _node(self, builder: Builder, scope: dict[str, Value]) -> None:
        """Read a node and its nested graphs; stop on the last line of the node."""
        cursor, start = self.cursor, self.cursor.place
        results: list[tuple[str, tuple[int, int]]] = []  # names, and their positions in the text
        while cursor.kind == "value":
            results.append((cursor.text, cursor.place))
            cursor.advance()
            cursor.expect("=" if cursor.text == "=" else ",")
        op = self._op()
        cursor.expect("(")
        operands = [self._operand(scope) for _ in cursor.items(")")]
        params = self.reader.items() if cursor.accept("{") else {}
        types: list[Type] = []
        while cursor.accept("," if types else ":"):
            types.append(self._type())
        if len(types) != len(results):
            cursor.fail(f"results: {len(results)}, types: {len(types)}", start)
        graphs: list[Graph] = []
        while cursor.opens_block():
            cursor.next_line()
            with cursor.inside():
                graphs.append(self._nested())
        try:
            values = builder.add(op, operands, params, tuple(graphs), at=UNKNOWN, types=types)
        except TypeRuleError as error:
            cursor.fail(error.what, start, because=error)
        # Type rules trust sizes and the number of graphs, but a text may be wrong.
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            problem = f"{op.name} does not take these parameters or graphs: {error!r}"
            cursor.fail(problem, start, because=error)
        if len(values) != len(results):
            cursor.fail(f"results of {op.name}: {len(values)}, named: {len(results)}", start)
        for value, (name, place), type in zip(values, results, types, strict=True):
            if value.type != type:
                if op.rule or self.ops:
                    rule = f"the rule of {op.name}"
                    cursor.fail(f"{name} is {value.type} by {rule}, the text says {type}", place)
                value.type = type  # safe: nothing else refers to the value yet
            self._define(scope, name, value, place)

    def _nested(self) -> Graph:
        start = self.cursor.place
        graph, bound, assigned = self._block(self.cursor.name())
        if bound or assigned or any(graph.returns_per_replica):
            self.cursor.fail("a nested graph has no variables and no per-replica outputs", start)
        return replace(graph, returns_per_replica=())

    def _op(self) -> Op:
        cursor, start = self.cursor, self.cursor.place
        name = cursor.name()
        op = OPS.get(name) or self._ops.get(name)
        if op is None:
            if not name.startswith("jax."):
                close = difflib.get_close_matches(name, OPS, 1)
                meant = f"; did you mean {close[0]}?" if close else ""
                cursor.fail(f"no operation {name!r}{meant}", start)
            try:
                op = self.ops(name) if self.ops else Op(name)
            except LookupError as error:
                cursor.fail(f"no operation {name!r}", start, because=error)
            self._ops[name] = op
        return op

    def _operand(self, scope: Mapping[str, Value]) -> Operand:
        cursor = self.cursor
        if cursor.kind == "value":
            value = scope.get(cursor.text)
            if value is None:
                cursor.fail(f"{cursor.text} is not defined before this, or not in this graph")
            cursor.advance()
            return value
        return self.reader.literal()

    def _type(self) -> Type:
        type = self.reader.type()
        layout = self._layout()
        return type.with_layout(layout) if layout else type

    def _layout(self) -> Layout | None:
        cursor = self.cursor
        if cursor.accept("partial"):
            cursor.expect("(")
            reducer = cursor.name()
            if reducer not in ("sum", "mean"):
                cursor.fail(f"a value is partial for a sum or a mean, not for {reducer!r}")
            cursor.expect(")")
            return partial(reducer)
        if cursor.accept("sharded"):
            cursor.expect("(")
            dimension = cursor.integer()
            cursor.expect(")")
            if cursor.accept("over"):
                cursor.expect(MEMBER)
                return sharded(dimension, MEMBER)
            return sharded(dimension)
        layout = _LAYOUTS.get(cursor.text)
        if layout:
            cursor.advance()
        return layout


def _listed(variables: Sequence[str]) -> str:
    return ", ".join(f"@{name}" for name in variables) or "no variable"
