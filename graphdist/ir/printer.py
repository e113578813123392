"""The text of a graph; `graphdist.ir.parser` reads it back, `docs/ir.md` has the grammar.

1. Each node has a line, with types at its end, and nested graphs indented below it.
2. Names are deterministic: the name of a value is its hint, made an identifier and unique in the
   entire text; values without a hint are numbered in order of appearance. Names have no meaning.
3. A parameter without a text form is printed as a token such as `<0: GatherDimensionNumbers>`: its
   index in the side table that `opaques` returns, and its type for the reader.
4. Printing never fails, not even on broken graphs, since errors show the text of graphs. An
   undefined value is printed as `%?`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Self, cast

import numpy as np

from graphdist.ir.graph import DECLARED, Graph, GraphVariable, Literal, Node, Operand, Value
from graphdist.ir.numerals import array_text, number_text, scalar_text
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.types import PER_REPLICA, dtype_name, numpy_dtype
from graphdist.ir.variable_storage import role_attributes, storage_attributes

_SCALARS: dict[type, Callable[[object], str]] = {
    type(None): lambda value: "none",
    bool: lambda value: "true" if value else "false",
    int: str,
    float: repr,
    complex: lambda value: number_text(cast(complex, value), "c128"),
    str: json.dumps,
}
_WORD = re.compile(r"[A-Za-z_]\w*")
_OPERATION = re.compile(r"[A-Za-z_][\w.-]*")
_VARIABLE = re.compile(r"[\w./-]+")
_NOT_IN_LABELS = re.compile(r"(<\w+>)|[^\w.,\[\]() /-]")  # the group keeps <fry> of key<fry>[2]


def print_graph(
    graph: Graph, sources: bool = False, note: Callable[[Node], str] | None = None
) -> str:
    """Return the text of a graph.

    With `sources`, consecutive nodes that one line of the user made come after a comment with this
    line. What `note` returns for a node is a comment at the end of the node's line.

    >>> from graphdist.ir.builder import Builder
    >>> from graphdist.ir.graph import Stage
    >>> from graphdist.ir.op_parameters import Scaling
    >>> from graphdist.ir.ops import SCALE
    >>> from graphdist.ir.source import UNKNOWN
    >>> from graphdist.ir.types import PER_REPLICA, Type
    >>> builder, x = Builder(), Value(Type("f32", (2,), PER_REPLICA), "x")
    >>> (y,) = builder.add(SCALE, (x,), Scaling(2.0), at=UNKNOWN)
    >>> nodes = tuple(builder.nodes)
    >>> print(print_graph(Graph("double", Stage.SPMD, 4, (x,), nodes, (y,), (), (True,))))
    graph double on 4 replicas, stage spmd
    (%x: f32[2] per_replica) {
      %0 = scale(%x) {factor=2.0} : f32[2] per_replica
      return per_replica %0
    }
    """
    return "\n".join(Printer(graph, sources, note=note).print().lines)


def print_node(node: Node, graph: Graph | None = None) -> str:
    """Return the line of a node, without its nested graphs.

    If the outermost graph is given as `graph` and has the node, names are as in its text.
    """
    if graph is not None:
        printer = Printer(graph).print()
        if node in printer.line_of:
            return printer.lines[printer.line_of[node]].strip()
    printer = Printer(graph)
    for operand in node.operands:
        if isinstance(operand, Value):
            printer.define(operand)
    printer.node(node, "", nested=False)
    return printer.lines[0]


def print_literal(literal: Literal) -> str:
    """Return the text of a literal.

    >>> from graphdist.ir.types import Type
    >>> print_literal(Literal.of(0.5, Type("bf16", ())))
    '0.5:bf16'
    """
    return f"{number_text(literal.value, literal.type.dtype)}:{literal.type.dtype}"


def op_text(node: Node) -> str:
    """Return the name of a node's operation, quoted if the parser needs that."""
    return _text_of_name(node.op.name, _OPERATION)


def line_text(
    results: Sequence[str], op: str, operands: Sequence[str], parameters: str, types: Sequence[str]
) -> str:
    """Return the line of a node, joined from its parts.

    >>> line_text(["%y"], "scale", ["%x"], "factor=2.0", ["f32[2]"])
    '%y = scale(%x) {factor=2.0} : f32[2]'
    """
    line = f"{op}({', '.join(operands)})"
    if results:
        line = f"{', '.join(results)} = {line}"
    if parameters:
        line += f" {{{parameters}}}"
    return f"{line} : {', '.join(types)}" if types else line


def opaques(graph: Graph) -> tuple[object, ...]:
    """Return the side table: the parameters that the text shows as tokens, by their index."""
    return tuple(Printer(graph).print().opaques)


def node_lines(graph: Graph) -> dict[Node, str]:
    """Return the line of each node in the text, nested graphs included."""
    printer = Printer(graph).print()
    return {node: printer.lines[number].strip() for node, number in printer.line_of.items()}


def names(graph: Graph) -> dict[Value, str]:
    """Return the name of each value in the text, with its `%`, nested graphs included."""
    return Printer(graph).print().names


class Printer:
    """The lines printed so far, and the names and token indices assigned in them.

    A caller that needs only parts of the lines makes these calls in the order of the text: `begin`
    for a graph, `define` for its inputs, then for each node `operand`, `define` and `parameters`,
    followed by the calls for its nested graphs.

    `kept` is a cache. It has the text of a node's parameters if this text is the same in every
    graph. Pass the same `kept` for graphs that share nodes.
    """

    def __init__(
        self,
        graph: Graph | None,
        sources: bool = False,
        kept: dict[Node, str] | None = None,
        note: Callable[[Node], str] | None = None,
    ) -> None:
        self.graph = graph
        self.kept: dict[Node, str] = {} if kept is None else kept
        # Whether the text of the last node's parameters has names or indices of this graph.
        self._is_of_this_graph = False
        self.sources, self.note = sources, note
        self.lines: list[str] = []
        self.line_of: dict[Node, int] = {}
        self.names: dict[Value, str] = {}
        self.opaques: list[object] = []
        self._number_of: dict[int, int] = {}  # by `id`, since some parameters have no hash
        self._taken: dict[str, int] = {}  # a name, and the last suffix tried for it
        self._unnamed = 0
        self._seen: set[Graph] = set()
        self._last_source = ""
        variables = graph.variables if graph is not None else ()
        self._variables = {variable.name: variable for variable in reversed(variables)}

    def print(self) -> Self:
        """Print the graph; return the printer."""
        graph = self.graph
        assert graph is not None
        s = "" if graph.num_replicas == 1 else "s"
        name, stage = _text_of_name(graph.name, _WORD), graph.stage.value
        groups = f" in {graph.num_groups} groups" if graph.num_groups > 1 else ""
        of = " split over" if graph.is_split else " of"
        cores = f"{of} {graph.num_cores} cores" if graph.num_cores > 1 else ""
        replicas = f"{graph.num_replicas} replica{s}{groups}{cores}"
        self.lines.append(f"graph {name} on {replicas}, stage {stage}")
        self.lines += [self._declaration(variable) for variable in graph.variables]
        self.block("", graph, "")
        return self

    def block(self, head: str, graph: Graph, indent: str) -> None:
        """Print a graph from its inputs on."""
        again = self.begin(graph)
        placed = graph.is_placed and graph is self.graph
        bound = [f" = {_variable_name(v)}" for v in graph.variables] if placed else []
        bound += [""] * (len(graph.inputs) - len(bound))
        inputs = [
            f"{self.define(value, again)}: {value.type}{variable}"
            for value, variable in zip(graph.inputs, bound, strict=False)
        ]
        self.lines.append(f"{indent}{head}({', '.join(inputs)}) {{")
        for node in graph.nodes:
            self.node(node, indent + "  ", again)
        self.lines += [f"{indent}  {self._return(graph, placed)}", f"{indent}}}"]

    def begin(self, graph: Graph) -> bool:
        """Begin a graph; return whether the graph was printed before because two nodes share it.

        The values of a shared graph get new names. If a broken graph defines a value twice, the
        value keeps its name, so that the error shows one name.
        """
        again = graph in self._seen
        self._seen.add(graph)
        return again

    def _return(self, graph: Graph, placed: bool) -> str:
        assigned = graph.assigned if placed else ()
        outputs = [self.operand(output) for output in graph.outputs]
        for position, variable in enumerate(assigned[: len(outputs)]):
            outputs[position] += f" -> {_variable_name(variable)}"
        for position, per_replica in enumerate(graph.returns_per_replica, len(assigned)):
            if per_replica and position < len(outputs):
                outputs[position] = f"per_replica {outputs[position]}"
        return f"return {', '.join(outputs)}".rstrip()

    def node(self, node: Node, indent: str, again: bool = False, nested: bool = True) -> None:
        """Print a node and, if `nested`, the graphs in it."""
        if self.sources:
            self._source(node, indent)
        # Operands come first, so that a broken node's use of its own result prints as undefined.
        operands = [self.operand(operand) for operand in node.operands]
        results = [self.define(value, again) for value in node.results]
        parameters = self.parameters(node) if node.params else ""
        types = [str(value.type) for value in node.results]
        line = line_text(results, op_text(node), operands, parameters, types)
        if self.note and (note := self.note(node)):
            line += f"  # {note}"
        self.line_of.setdefault(node, len(self.lines))
        self.lines.append(indent + line)
        if nested:
            for graph in node.graphs:
                self.block(_text_of_name(graph.name, _WORD), graph, indent + "  ")

    def parameters(self, node: Node) -> str:
        """Return the text of a node's parameters; cache it if it is the same in every graph."""
        text = self.kept.get(node)
        if text is None:
            self._is_of_this_graph = False
            text = self._items(node.params)
            if not self._is_of_this_graph:
                self.kept[node] = text
        return text

    def _source(self, node: Node, indent: str) -> None:
        frame = node.source.frame
        if frame is not None and (text := f"# {node.source}: {frame.text}") != self._last_source:
            self._last_source = text
            self.lines.append(indent + text)

    def define(self, value: Value, again: bool = False) -> str:
        """Return the name of a value; make a new name if it has none, or if `again` is set."""
        name = self.names.get(value)
        if name is None or again:
            name = self.names[value] = f"%{self._unused(value.hint)}"
        return name

    def _unused(self, hint: str) -> str:
        if not hint:
            self._unnamed += 1
            return str(self._unnamed - 1)
        base = name = _identifier(hint)
        while name in self._taken:
            self._taken[base] += 1
            name = f"{base}_{self._taken[base]}"
        self._taken[name] = 0
        return name

    def operand(self, operand: Operand) -> str:
        """Return the name of a value, or the text of a literal."""
        if isinstance(operand, Literal):
            return print_literal(operand)
        return self.names.get(operand) or f"%?{operand.hint}"

    def _declaration(self, variable: GraphVariable) -> str:
        declared = ((each, getattr(variable, each.name)) for each in DECLARED)
        # False is left out where it is the default.
        attributes = {each.name: value for each, value in declared if value or each.default}
        is_per_replica = variable.type.layout is PER_REPLICA
        if variable.core is not None:
            attributes["core"] = variable.core
        attributes |= storage_attributes(variable.storage, is_per_replica=is_per_replica)
        text = self._items(attributes | role_attributes(variable.role))
        return f"  variable {_variable_name(variable)}: {variable.type} {{{text}}}"

    def _items(self, items: Mapping[str, object]) -> str:
        return ", ".join(
            [f"{_text_of_name(key, _WORD)}={self._parameter(item)}" for key, item in items.items()]
        )

    def _parameter(self, value: object) -> str:
        # By exact type, since named tuples and integer enums would be read back as other types.
        kind = type(value)
        if kind in _SCALARS:
            return _SCALARS[kind](value)
        if isinstance(value, tuple) and kind is tuple:
            items = ", ".join([self._parameter(item) for item in value])
            return f"({items},)" if len(value) == 1 else f"({items})"
        if isinstance(value, list) and kind is list:
            return f"[{', '.join([self._parameter(item) for item in value])}]"
        if isinstance(value, dict) and kind is dict and all(type(key) is str for key in value):
            return f"{{{self._items(value)}}}"
        if isinstance(value, GraphVariable) and self._is_declared(value):
            return _variable_name(value)
        if isinstance(value, np.dtype) and (name := _dtype_text(value)):
            return f"dtype<{name}>"
        if isinstance(value, np.ndarray) and kind is np.ndarray and (text := array_text(value)):
            return text
        if isinstance(value, np.generic) and (text := scalar_text(value)):
            return text
        return self._opaque(value)

    def _is_declared(self, variable: GraphVariable) -> bool:
        """Return whether the graph declares this variable under its name.

        The declaration may differ in use and storage, since a node may have an older copy of it.
        """
        self._is_of_this_graph = True
        declared = self._variables.get(variable.name)
        return declared is not None and (declared is variable or variable.is_same(declared))

    def _opaque(self, value: object) -> str:
        self._is_of_this_graph = True
        number = self._number_of.get(id(value))
        if number is None:
            number = self._number_of[id(value)] = len(self.opaques)
            self.opaques.append(value)
        return f"<{number}: {_label(value)}>"


def _label(value: object) -> str:
    """Describe an opaque parameter in a few words, where `<` and `>` enclose only a name."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    label = type(value).__name__
    if isinstance(value, Placeholder):
        label = value.label
    elif isinstance(value, GraphVariable):
        label += f" {value.name}"
    elif isinstance(value, tuple) and hasattr(value, "lhs_spec"):
        label = " ".join([label, *map(str, value)])  # dimensions of a convolution, to count memory
    elif dtype is not None and isinstance(shape, tuple):
        label += f" {dtype_name(dtype)}[{','.join(map(str, shape))}]"
    return _NOT_IN_LABELS.sub(lambda match: match[1] or "_", label)


@lru_cache(maxsize=4096)
def _dtype_text(dtype: np.dtype[np.generic]) -> str | None:
    """Return the name of a dtype; None if the name does not identify it."""
    name = dtype_name(dtype)
    try:
        return name if _WORD.fullmatch(name) and numpy_dtype(name) == dtype else None
    except TypeError:
        return None


@lru_cache(maxsize=4096)
def _identifier(hint: str) -> str:
    name = re.sub(r"\W", "_", hint)
    # A name of digits alone could clash with the name of a value without a hint.
    return f"_{name}" if name[0].isdigit() else name


@lru_cache(maxsize=4096)
def _text_of_name(name: str, plain: re.Pattern[str]) -> str:
    return name if plain.fullmatch(name) else json.dumps(name)


def _variable_name(variable: GraphVariable) -> str:
    return f"@{_text_of_name(variable.name, _VARIABLE)}"
