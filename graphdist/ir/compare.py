"""The comparison of two graphs as programs, and a hash of the program.

1. Compared are operations by name, parameters by value, operands by where they are defined,
   literals, types, nested graphs, variables, outputs, stage and number of replicas.
2. Ignored are hints, sources, origins, the graph's name, the order of parameters, and the stage of
   a nested graph, since the outermost graph states it.
3. Arrays are the same if dtype, shape and bytes are equal. Other objects are the same if they are
   equal, or if their type, `repr` and constants are the same. The second is for jaxprs, since two
   traces of one function give unequal jaxprs.
4. The hash is the same in every process and on every machine, since memory addresses are removed
   from each `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import zip_longest
from typing import cast

import numpy as np

from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Operand, Value
from graphdist.ir.printer import print_literal

_ADDRESS = re.compile(r"( at )?0x[0-9a-fA-F]+")
_ABSENT = object()
_SCALARS = (type(None), bool, int, float, complex, str)


def is_same_program(a: Graph, b: Graph) -> bool:
    """Return whether two graphs are the same program."""
    return first_difference(a, b) is None


def first_difference(a: Graph, b: Graph) -> str | None:
    """Describe the first difference between two graphs; None if they are the same program.

    >>> from graphdist.ir.parser import parse
    >>> text = '''graph f on 2 replicas, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.mul(%x, 2.0:f32) : f32[3] mirrored
    ...   return %y
    ... }'''
    >>> print(first_difference(parse(text), parse(text.replace("2.0", "3.0"))))
    node 0, jax.mul: operand 1: 2.0:f32, 3.0:f32
    """
    return None if a is b else next(_differences(a, b), None)


def _differences(a: Graph, b: Graph) -> Iterator[str]:
    """Yield a description of each difference between two graphs, in order."""
    yield from _unequal("stage: ", a.stage.value, b.stage.value)
    yield from _unequal("replicas: ", a.num_replicas, b.num_replicas)
    yield from _unequal("groups: ", a.num_groups, b.num_groups)
    for position, (variable_a, variable_b) in enumerate(zip_longest(a.variables, b.variables)):
        if variable_a is None or variable_b is None:
            yield f"number of variables: {len(a.variables)}, {len(b.variables)}"
        yield from _unequal(f"variable {position}: ", variable_a, variable_b)
    yield from _of_graphs(a, b, "")
    yield from _unequal("returned per replica: ", _per_replica(a), _per_replica(b))


def _unequal(where: str, a: object, b: object) -> Iterator[str]:
    if a != b:
        yield f"{where}{a}, {b}"


def _per_replica(graph: Graph) -> tuple[bool, ...]:
    """Return for each output whether it is per replica; False if the graph does not say."""
    assigned = len(graph.assigned) if graph.is_placed else 0
    return graph.returns_per_replica or (False,) * (len(graph.outputs) - assigned)


@dataclass(frozen=True, slots=True)
class _Places:
    """The places where the values of two graphs are defined, as texts such as "input 0"."""

    of_a: dict[Operand, str] = field(default_factory=dict)
    of_b: dict[Operand, str] = field(default_factory=dict)

    def define(self, where: str, values_a: Sequence[Value], values_b: Sequence[Value]) -> None:
        for position, (a, b) in enumerate(zip(values_a, values_b, strict=True)):
            self.of_a[a] = self.of_b[b] = where.format(position)

    def differences(self, where: str, a: Sequence[Operand], b: Sequence[Operand]) -> Iterator[str]:
        """Yield a description of each operand of `a` that `b` does not define in the same place."""
        for position, (of_a, of_b) in enumerate(zip(a, b, strict=True)):
            places = _place(of_a, self.of_a), _place(of_b, self.of_b)
            yield from _unequal(f"{where} {position}: ", *places)


def _of_graphs(a: Graph, b: Graph, where: str) -> Iterator[str]:
    """Yield a description of each difference between two graphs.

    Two operands are equal if they are defined in the same place of their graphs, such as "result 0
    of node 3".
    """
    places = _Places()
    yield from _unequal(f"{where}number of inputs: ", len(a.inputs), len(b.inputs))
    for position, (value_a, value_b) in enumerate(zip(a.inputs, b.inputs, strict=True)):
        yield from _unequal(f"{where}input {position}: ", value_a.type, value_b.type)
    places.define("input {}", a.inputs, b.inputs)
    for position, (node_a, node_b) in enumerate(zip(a.nodes, b.nodes, strict=False)):
        yield from _of_nodes(node_a, node_b, places, f"{where}node {position}")
        places.define(f"result {{}} of node {position}", node_a.results, node_b.results)
    yield from _unequal(f"{where}number of nodes: ", len(a.nodes), len(b.nodes))
    yield from _unequal(f"{where}number of outputs: ", len(a.outputs), len(b.outputs))
    yield from places.differences(f"{where}output", a.outputs, b.outputs)


def _of_nodes(a: Node, b: Node, places: _Places, where: str) -> Iterator[str]:
    yield from _unequal(f"{where}: ", a.op.name, b.op.name)
    where = f"{where}, {a.op.name}"
    yield from _unequal(f"{where}: number of operands: ", len(a.operands), len(b.operands))
    yield from places.differences(f"{where}: operand", a.operands, b.operands)
    for key in dict.fromkeys((*a.params, *b.params)):
        value_a, value_b = a.params.get(key, _ABSENT), b.params.get(key, _ABSENT)
        if not _same_parameter(value_a, value_b):
            yield f"{where}: parameter {key!r}: {_shown(value_a)}, {_shown(value_b)}"
    yield from _unequal(f"{where}: number of nested graphs: ", len(a.graphs), len(b.graphs))
    for position, (graph_a, graph_b) in enumerate(zip(a.graphs, b.graphs, strict=True)):
        yield from _of_graphs(graph_a, graph_b, f"{where}, graph {position}, ")
    # Types come last, since they mostly differ because of a difference checked above.
    yield from _unequal(f"{where}: results: ", _types_text(a.results), _types_text(b.results))


def _types_text(values: Sequence[Value]) -> str:
    return ", ".join(str(value.type) for value in values) or "none"


def _place(operand: Operand, places: Mapping[Operand, str]) -> str:
    if isinstance(operand, Literal):
        return print_literal(operand)
    return places.get(operand, "undefined")


def _shown(value: object) -> str:
    return "absent" if value is _ABSENT else repr(value)


def _same_parameter(a: object, b: object) -> bool:
    """Return whether two parameters mean the same; see rule 3."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, _SCALARS):
        return repr(a) == repr(b)  # unlike ==, it tells 0.0 from -0.0, and nan equals nan
    if isinstance(a, tuple | list):
        b = cast("tuple[object, ...]", b)
        return len(a) == len(b) and all(map(_same_parameter, a, b))
    if isinstance(a, Mapping):
        b = cast("Mapping[object, object]", b)
        return a.keys() == b.keys() and all(_same_parameter(a[key], b[key]) for key in a)
    if isinstance(a, GraphVariable):
        return a.is_same(cast(GraphVariable, b))
    bytes_a, bytes_b = _array_key(a), _array_key(b)
    if bytes_a is not None or bytes_b is not None:
        return bytes_a == bytes_b
    return bool(a == b) or (repr(a) == repr(b) and _same_parameter(_hidden(a), _hidden(b)))


def _array_key(value: object) -> str | None:
    """Return dtype, shape and content of an array or scalar as text; None for any other value."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or not isinstance(shape, tuple) or not hasattr(value, "__array__"):
        return None
    if not isinstance(dtype, np.dtype) or dtype.hasobject:  # the repr of random keys has their bits
        return f"{dtype} {shape} {_ADDRESS.sub('', repr(value))}"
    return f"{dtype} {shape} {sha256(np.asarray(value).tobytes()).hexdigest()}"


def _hidden(value: object) -> object:
    """Return the constants of a closed jaxpr, which its `repr` omits; None for other values."""
    consts = getattr(value, "consts", None)
    return consts if isinstance(consts, tuple | list) else None


def content_hash(graph: Graph) -> str:
    """Return the SHA-256 of the program, in hexadecimal. Graphs of one program have the same hash.

    Two parameters whose `repr` differs only in a memory address, such as two functions of one name,
    have the same hash.
    """
    found = graph._cache.get(content_hash)
    if found is None:
        lines = [
            f"{graph.stage.value} {graph.num_replicas} {graph.num_groups} {_per_replica(graph)}"
        ]
        lines += map(_key, graph.variables)
        lines += [f"{variable.assigned} {variable.storage}" for variable in graph.variables]
        _describe(graph, lines)
        found = sha256("\n".join(lines).encode()).hexdigest()
        graph._cache[content_hash] = found
    return cast(str, found)


def parameter_key(node: Node) -> str:
    """Return a text that is the same for nodes with equal parameters, in whatever order."""
    return _key(dict(node.params)) if node.params else ""


def _describe(graph: Graph, lines: list[str]) -> None:
    """Append to `lines` a description of the graph that names values by where they are defined."""
    places: dict[Operand, str] = {
        value: f"i{position}" for position, value in enumerate(graph.inputs)
    }
    lines.append(f"inputs {_types_text(graph.inputs)}")
    for position, node in enumerate(graph.nodes):
        operands = " ".join([_place(operand, places) for operand in node.operands])
        params = parameter_key(node)
        lines.append(f"{node.op.name!r} {operands} {params} {_types_text(node.results)}")
        for nested in node.graphs:
            _describe(nested, lines)
        for number, value in enumerate(node.results):
            places[value] = f"{position}.{number}"
    lines.append(f"outputs {' '.join([_place(output, places) for output in graph.outputs])}")


def _key(value: object) -> str:
    """Return a text that is equal for parameters that are the same."""
    if isinstance(value, _SCALARS):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(_key, value))})"
    if isinstance(value, Mapping):
        items = sorted(f"{_key(key)}: {_key(item)}" for key, item in value.items())
        return f"{type(value).__name__}({', '.join(items)})"
    if isinstance(value, set | frozenset):  # the order in their repr differs between processes
        return f"{type(value).__name__}({', '.join(sorted(map(_key, value)))})"
    if isinstance(value, GraphVariable):
        value = value.declared
    key = _array_key(value)
    if key is None:
        key = f"{_ADDRESS.sub('', repr(value))} {_key(_hidden(value))}"
    return f"{type(value).__name__} {key}"
