"""The comparison of two graphs as programs, and a hash of the program.

1. Compared are operations by name, parameters by value, operands by where they are defined,
   literals, types, nested graphs, variables, outputs, stage and number of replicas.
2. Ignored are hints, sources, origins, the graph's name, the order of parameters, and the stage of
   a nested graph, since the outermost graph states it.
3. Arrays are the same if dtype, shape and bytes are equal. Other objects are the same if their
   type, `repr` and constants are the same: two traces of one function give unequal jaxprs.
4. The hash is the same in every process and on every machine, since memory addresses are removed
   from each `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import TypeAlias

import numpy as np

from graphdist.ir.analyses import kept_analysis
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Operand, Value
from graphdist.ir.printer import print_literal

_ADDRESS = re.compile(r"( at )?0x[0-9a-fA-F]+")
_SCALARS = (type(None), bool, int, float, complex, str)

_Part: TypeAlias = tuple[str, str, object]
"""A part of a program: where the part is, what it is, and the part itself.

A tuple has several parts of one kind. Any other part is a text, an integer, or parameters by name.
"""


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
    if a is b:
        return None
    # The parts before the first difference are of the same kinds, so the pairs fit each other.
    return next(filter(None, map(_difference, _parts(a), _parts(b))), None)


def _difference(a: _Part, b: _Part) -> str | None:
    """Describe the difference between two parts of one kind; None if they are equal."""
    (where, what, part), (_, _, other) = a, b
    if isinstance(part, tuple) and isinstance(other, tuple):
        for position, (item, of_other) in enumerate(zip(part, other, strict=False)):
            if item != of_other:
                return f"{where}{what} {position}: {item}, {of_other}"
        what, part, other = f"number of {what}s", len(part), len(other)
    if isinstance(part, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*part, *other)):
            if not (key in part and key in other and _is_same_parameter(part[key], other[key])):
                shown = [repr(each[key]) if key in each else "absent" for each in (part, other)]
                return f"{where}{what} {key!r}: {', '.join(shown)}"
        return None
    return None if part == other else f"{where}{what}: {part}, {other}"


def _parts(graph: Graph) -> Iterator[_Part]:
    """Yield the parts of a program in order."""
    yield "", "stage", graph.stage.value
    yield "", "replicas", graph.num_replicas
    yield "", "groups", graph.num_groups
    yield "", "cores", graph.num_cores
    yield "", "split over cores", graph.is_split
    yield "", "variable", tuple(map(str, graph.variables))
    yield from _parts_of_block(graph, "")
    assigned = len(graph.assigned) if graph.is_placed else 0
    not_said = (False,) * (len(graph.outputs) - assigned)
    yield "", "returned per replica", str(graph.returns_per_replica or not_said)


def _parts_of_block(graph: Graph, where: str) -> Iterator[_Part]:
    """Yield the inputs, nodes and outputs of a graph, nested or not.

    Operands are the places where they are defined, such as "result 0 of node 3".
    """
    places: dict[Operand, str] = {value: f"input {i}" for i, value in enumerate(graph.inputs)}

    def placed(operands: tuple[Operand, ...]) -> tuple[str, ...]:
        return tuple(
            print_literal(operand)
            if isinstance(operand, Literal)
            else places.get(operand, "undefined")
            for operand in operands
        )

    yield where, "input", tuple(str(value.type) for value in graph.inputs)
    yield where, "node", tuple(node.op.name for node in graph.nodes)
    for position, node in enumerate(graph.nodes):
        at_node = f"{where}node {position}, {node.op.name}"
        yield f"{at_node}: ", "operand", placed(node.operands)
        yield f"{at_node}: ", "parameter", node.params
        yield f"{at_node}: ", "number of nested graphs", len(node.graphs)
        for index, nested in enumerate(node.graphs):
            yield from _parts_of_block(nested, f"{at_node}, graph {index}, ")
        # Types come last, since they mostly differ because of a difference before.
        yield f"{at_node}: ", "results", _types_text(node.results)
        places |= {value: f"result {i} of node {position}" for i, value in enumerate(node.results)}
    yield where, "output", placed(graph.outputs)


def _types_text(values: tuple[Value, ...]) -> str:
    return ", ".join(str(value.type) for value in values) or "none"


@kept_analysis
def content_hash(graph: Graph) -> str:
    """Return the SHA-256 of the program, in hexadecimal. Graphs of one program have the same hash.

    Two parameters whose `repr` differs only in a memory address, such as two functions of one name,
    have the same hash.
    """
    lines = [_key(part, _without_addresses) for _, _, part in _parts(graph)]
    return sha256("\n".join(lines).encode()).hexdigest()


def parameter_key(node: Node) -> str:
    """Return a text that is the same for nodes with equal parameters, in whatever order."""
    return _key(node.params, _without_addresses) if node.params else ""


def _is_same_parameter(a: object, b: object) -> bool:
    """Return whether two parameters mean the same; see rule 3."""
    return a is b or _key(a, repr) == _key(b, repr)


def _without_addresses(value: object) -> str:
    return _ADDRESS.sub("", repr(value))


def _key(value: object, text_of: Callable[[object], str]) -> str:
    """Return a text that is equal for values that are the same.

    `text_of` describes a value that has no rule here.
    """
    kind = type(value).__name__
    if isinstance(value, _SCALARS):
        return f"{kind} {value!r}"  # unlike ==, it tells 0.0 from -0.0, and nan equals nan
    if isinstance(value, tuple | list):
        return f"{kind}({', '.join([_key(item, text_of) for item in value])})"
    if isinstance(value, Mapping):
        items = [f"{_key(key, text_of)}: {_key(item, text_of)}" for key, item in value.items()]
        return f"{kind}({', '.join(sorted(items))})"
    if isinstance(value, set | frozenset):  # the order in their repr differs between processes
        return f"{kind}({', '.join(sorted(_key(item, text_of) for item in value))})"
    if isinstance(value, GraphVariable):
        value = value.declared
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or not isinstance(shape, tuple) or not hasattr(value, "__array__"):
        # The repr of a closed jaxpr omits the constants.
        consts = getattr(value, "consts", None)
        hidden = consts if isinstance(consts, tuple | list) else None
        return f"{kind} {text_of(value)} {_key(hidden, text_of)}"
    if not isinstance(dtype, np.dtype) or dtype.hasobject:  # the repr of random keys has their bits
        return f"{kind} {dtype} {shape} {_without_addresses(value)}"
    return f"{kind} {dtype} {shape} {sha256(np.asarray(value).tobytes()).hexdigest()}"
