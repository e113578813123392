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
from typing import Any  # Any: the attributes of a variable, whose types are checked

from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import DECLARED, Graph, GraphVariable, Op, Operand, Stage, Value
from graphdist.ir.mesh import MEMBER
from graphdist.ir.opaque_placeholders import OpaquePlaceholders
from graphdist.ir.ops import OPS
from graphdist.ir.parameter_reader import ParameterReader
from graphdist.ir.source import UNKNOWN
from graphdist.ir.tokens import MOST_CHARACTERS
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, partial, sharded
from graphdist.ir.variable_storage import role_of, storage_of

_ATTRIBUTES: dict[str, type] = {each.name: type(each.default) for each in DECLARED}
_ATTRIBUTES |= {  # the other attributes: how a variable is sharded and stored, and its role
    "core": int,
    "sharded_along": int,
    "piece": tuple,
    "alone": bool,
    "elsewhere": bool,
    "pieces": tuple,
    "role": str,
    "serves": tuple,
    "server": int,
}
_MOST_DEVICES = 2**20
_COUNTS = ("group_size", "num_groups", "num_cores")
"""The parameters of operations that count devices, or groups of them."""
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
    return _Parser(text, opaques, ops, first_line, max_characters).graph()


class _Parser(ParameterReader):
    """The cursor that reads a graph, with the variables and operations read so far."""

    def __init__(
        self,
        text: str,
        opaques: Sequence[object] | OpaquePlaceholders,
        ops: Callable[[str], Op] | None,
        *limits: int,
    ) -> None:
        super().__init__(text, opaques, *limits)
        self.ops = ops
        self.stage, self.num_replicas = Stage.LOGICAL, 1
        self._ops: dict[str, Op] = {}

    def graph(self) -> Graph:
        """Read the outermost graph, which is the entire text."""
        self.expect("graph")
        name = self.name()
        self.expect("on")
        if not self.text.isdigit() or self.text == "0":
            self.fail("expected a number of replicas")
        self.num_replicas = self._count("replicas")
        self.expect("replica" if self.num_replicas == 1 else "replicas")
        num_groups = 1
        if self.accept("in"):
            num_groups = self._count("groups")
            self.expect("groups")
        num_cores, is_split = 1, self.accept("split")
        if is_split or self.text == "of":
            self.expect("over" if is_split else "of")
            num_cores = self._count("cores")
            self.expect("cores")
        self.expect(",")
        self.expect("stage")
        stages = {stage.value: stage for stage in Stage}
        if self.text not in stages:
            self.fail(f"no stage {self.text!r}: it is one of {', '.join(stages)}")
        self.stage = stages[self.take("word")]
        self.next_line()
        while self.accept("variable"):
            self._declaration()
            self.next_line()
        start = self.place
        graph, bound, assigned = self._block(name)
        self.finish()
        variables = tuple(self.variables.values())
        graph = graph.replace(
            variables=variables, num_groups=num_groups, num_cores=num_cores, is_split=is_split
        )
        inputs = [variable.name for variable in variables if graph.is_placed]
        outputs = [variable.name for variable in graph.assigned if graph.is_placed]
        for what, there, wanted in (("inputs", bound, inputs), ("outputs", assigned, outputs)):
            if there != wanted:
                self.fail(
                    f"at stage {self.stage.value} the first {what} belong to "
                    f"{_listed(wanted)}, here to {_listed(there)}",
                    start,
                )
        return graph

    def _declaration(self) -> None:
        start = self.place
        name = self.variable_name()
        if name in self.variables:
            self.fail(f"variable {name!r} is declared twice", start)
        self.expect(":")
        type = self._type()
        self.expect("{")
        attributes = self.parameters()
        for key, value in attributes.items():
            if not isinstance(value, _ATTRIBUTES.get(key, ())):
                self.fail(f"a variable has no {key}={value!r}", start)
        with self.refusing(start):
            storage, role = storage_of(attributes), role_of(attributes)
        declared: Any = {each.name: attributes.get(each.name, each.default) for each in DECLARED}
        declared["core"] = attributes.get("core")
        self.variables[name] = GraphVariable(name, type, storage=storage, role=role, **declared)

    def _block(self, name: str) -> tuple[Graph, list[str], list[str]]:
        """Read inputs, nodes and outputs, up to the closing brace, as a graph with this name.

        Also return the names of the variables of the first inputs and of the first outputs.
        """
        scope: dict[str, Value] = {}
        inputs, bound = self._inputs(scope)
        self.expect("{")
        self.next_line()
        builder = Builder()
        while not self.accept("return"):
            self._node(builder, scope)
            self.next_line()
        outputs: list[Operand] = []
        assigned: list[str] = []
        per_replica: list[bool] = []
        for _ in self.items(""):  # up to the end of the line
            is_per_replica = self.accept("per_replica")
            outputs.append(self._operand(scope))
            if not is_per_replica and not per_replica and self.accept("->"):
                assigned.append(self.variable_name())
            else:
                per_replica.append(is_per_replica)
        self.next_line()
        self.expect("}")
        graph = Graph(
            name, self.stage, self.num_replicas, inputs, tuple(builder.nodes), tuple(outputs),
            returns_per_replica=tuple(per_replica),
        )  # fmt: skip
        return graph, bound, assigned

    def _inputs(self, scope: dict[str, Value]) -> tuple[tuple[Value, ...], list[str]]:
        inputs: list[Value] = []
        bound: list[str] = []
        self.expect("(")
        for _ in self.items(")"):
            place = self.place
            name = self.take("value")
            self.expect(":")
            inputs.append(self._define(scope, name, Value(self._type()), place))
            if len(bound) == len(inputs) - 1 and self.accept("="):
                bound.append(self.variable_name())
        return tuple(inputs), bound

    def _define(
        self, scope: dict[str, Value], name: str, value: Value, place: tuple[int, int]
    ) -> Value:
        if name in scope:
            self.fail(f"{name} is defined twice", place)
        scope[name] = value
        if not name[1:].isdigit():
            value.hint = name[1:]  # safe: nothing else refers to the value yet
        return value

    def _node(self, builder: Builder, scope: dict[str, Value]) -> None:
        """Read a node and its nested graphs; stop on the last line of the node."""
        start = self.place
        results: list[tuple[str, tuple[int, int]]] = []  # names, and their positions in the text
        while self.kind == "value":
            results.append((self.text, self.place))
            self.advance()
            self.expect("=" if self.text == "=" else ",")
        op = self._op()
        self.expect("(")
        operands = [self._operand(scope) for _ in self.items(")")]
        params = self.parameters() if self.accept("{") else {}
        for name in _COUNTS:
            self._require_count(params.get(name, 1), name, start)
        types: list[Type] = []
        while self.accept("," if types else ":"):
            types.append(self._type())
        if len(types) != len(results):
            self.fail(f"results: {len(results)}, types: {len(types)}", start)
        graphs: list[Graph] = []
        while self.opens_block():
            self.next_line()
            with self.inside():
                graphs.append(self._nested())
        try:
            values = builder.add(op, operands, params, tuple(graphs), at=UNKNOWN, types=types)
        except TypeRuleError as error:
            self.fail(error.what, start, because=error)
        # Type rules trust sizes and the number of graphs, but a text may be wrong.
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            problem = f"{op.name} does not take these parameters or graphs: {error!r}"
            self.fail(problem, start, because=error)
        if len(values) != len(results):
            self.fail(f"results of {op.name}: {len(values)}, named: {len(results)}", start)
        for value, (name, place), type in zip(values, results, types, strict=True):
            if value.type != type:
                if op.rule or self.ops:
                    rule = f"the rule of {op.name}"
                    self.fail(f"{name} is {value.type} by {rule}, the text says {type}", place)
                value.type = type  # safe: nothing else refers to the value yet
            self._define(scope, name, value, place)

    def _count(self, what: str) -> int:
        """Read a number of devices, or of groups of them."""
        start, count = self.place, self.integer()
        self._require_count(count, what, start)
        return count

    def _require_count(self, count: object, what: str, start: tuple[int, int]) -> None:
        if type(count) is int and not 1 <= count <= _MOST_DEVICES:
            self.fail(f"{what}: {count}; from 1 to {_MOST_DEVICES} are allowed", start)

    def _nested(self) -> Graph:
        start = self.place
        graph, bound, assigned = self._block(self.name())
        if bound or assigned or any(graph.returns_per_replica):
            self.fail("a nested graph has no variables and no per-replica outputs", start)
        return replace(graph, returns_per_replica=())

    def _op(self) -> Op:
        start = self.place
        name = self.name()
        op = OPS.get(name) or self._ops.get(name)
        if op is None:
            if not name.startswith("jax."):
                close = difflib.get_close_matches(name, OPS, 1)
                meant = f"; did you mean {close[0]}?" if close else ""
                self.fail(f"no operation {name!r}{meant}", start)
            try:
                op = self.ops(name) if self.ops else Op(name)
            except LookupError as error:
                self.fail(f"no operation {name!r}", start, because=error)
            self._ops[name] = op
        return op

    def _operand(self, scope: Mapping[str, Value]) -> Operand:
        if self.kind == "value":
            value = scope.get(self.text)
            if value is None:
                self.fail(f"{self.text} is not defined before this, or not in this graph")
            self.advance()
            return value
        return self.literal()

    def _type(self) -> Type:
        type = self.type()
        layout = self._layout()
        return type.with_layout(layout) if layout else type

    def _layout(self) -> Layout | None:
        if self.accept("partial"):
            self.expect("(")
            reducer = self.name()
            if reducer not in ("sum", "mean"):
                self.fail(f"a value is partial for a sum or a mean, not for {reducer!r}")
            self.expect(")")
            return partial(reducer)
        if self.accept("sharded"):
            self.expect("(")
            dimension = self.integer()
            self.expect(")")
            if self.accept("over"):
                self.expect(MEMBER)
                return sharded(dimension, MEMBER)
            return sharded(dimension)
        layout = _LAYOUTS.get(self.text)
        if layout:
            self.advance()
        return layout


def _listed(variables: Sequence[str]) -> str:
    return ", ".join(f"@{name}" for name in variables) or "no variable"
