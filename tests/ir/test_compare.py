"""What makes two graphs different, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from graphdist.ir.builder import Builder
from graphdist.ir.compare import content_hash, first_difference, is_same_program
from graphdist.ir.graph import Graph, GraphVariable, Op, Stage, Value
from graphdist.ir.parser import parse
from graphdist.ir.source import at_line
from graphdist.ir.types import Type
from tests.ir.generators import Dimensions, graphs

TEXT = """\
graph f on 2 replicas, stage placed
  variable @w: f32[4] mirrored {synchronization="on_write", aggregation="none", trainable=true, \
assigned=true}
(%w: f32[4] mirrored = @w, %x: f32[4] per_replica) {
  %y = jax.add(%x, 1.0:f32) {axis=0} : f32[4] per_replica
  %c, %d = jax.split(%y, %w) : f32[4] per_replica, f32[] per_replica
  %e = cond(0:i32, %c, %y) : f32[4] per_replica
    branch(%a: f32[4] per_replica, %b: f32[4] per_replica) {
      %n = jax.neg(%b) : f32[4] per_replica
      return %n
    }
  return %w -> @w, per_replica %e, per_replica %d
}"""

CASES = [
    ("stage placed", "stage spmd", "stage: placed, spmd"),
    ("on 2", "on 4", "replicas: 2, 4"),
    ("on 2 replicas", "on 2 replicas in 2 groups", "groups: 1, 2"),
    (
        "trainable=true",
        "trainable=false",
        "variable 0: GraphVariable(name='w', type=Type(dtype='f32', shape=(4,), "
        "layout=Layout(kind='mirrored', dimension=None, axis='replica', reducer='', core=None, "
        "blocks=())), "
        "synchronization='on_write', "
        "aggregation='none', trainable=True, assigned=True, is_local=False, "
        "chooses_core=False, core=None, "
        "storage=StoredUnsharded(is_alone=False), role=None), "
        "GraphVariable(name='w', type=Type(dtype='f32', shape=(4,), "
        "layout=Layout(kind='mirrored', dimension=None, axis='replica', reducer='', core=None, "
        "blocks=())), "
        "synchronization='on_write', "
        "aggregation='none', trainable=False, assigned=True, is_local=False, "
        "chooses_core=False, core=None, "
        "storage=StoredUnsharded(is_alone=False), role=None)",
    ),
    ("%x: f32[4] per_replica)", "%x: f32[4] per_replica, %z: i8[])", "number of inputs: 2, 3"),
    ("jax.add", "jax.sub", "node 0: jax.add, jax.sub"),
    ("1.0:f32", "2.0:f32", "node 0, jax.add: operand 1: 1.0:f32, 2.0:f32"),
    ("1.0:f32", "-0.0:f32", "node 0, jax.add: operand 1: 1.0:f32, -0.0:f32"),
    ("1.0:f32", "1.0:f64", "node 0, jax.add: operand 1: 1.0:f32, 1.0:f64"),
    ("%x, 1.0:f32", "%x", "node 0, jax.add: number of operands: 2, 1"),
    ("axis=0", "axis=1", "node 0, jax.add: parameter 'axis': 0, 1"),
    ("axis=0", "axis=0.0", "node 0, jax.add: parameter 'axis': 0, 0.0"),
    ("axis=0", "axis=(0,)", "node 0, jax.add: parameter 'axis': 0, (0,)"),
    ("axis=0", "axis=0, b=none", "node 0, jax.add: parameter 'b': absent, None"),
    (
        "%y, %w",
        "%w, %y",
        "node 1, jax.split: operand 0: result 0 of node 0, input 0",
    ),
    (
        "f32[] per_replica\n",
        "f32[1] per_replica\n",
        "node 1, jax.split: results: f32[4] per_replica, f32[] per_replica, "
        "f32[4] per_replica, f32[1] per_replica",
    ),
    ("jax.neg(%b)", "jax.neg(%a)", "node 2, cond, graph 0, node 0, jax.neg: operand 0: "
     "input 1, input 0"),
    ("return %n", "return %a", "node 2, cond, graph 0, output 0: result 0 of node 0, input 0"),
    ("per_replica %e", "per_replica %c", "output 1: result 0 of node 2, result 0 of node 1"),
    (", per_replica %d", "", "number of outputs: 3, 2"),
    ("per_replica %d", "%d", "returned per replica: (True, True), (True, False)"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_the_first_difference_says_where_and_what(old: str, new: str, expected: str) -> None:
    a, b = parse(TEXT), parse(TEXT.replace(old, new))
    assert first_difference(a, b) == expected
    assert not is_same_program(a, b)
    assert content_hash(a) != content_hash(b)


def test_a_missing_variable_and_a_missing_node_are_told() -> None:
    a = parse(TEXT)
    fewer = a.replace(variables=())
    assert first_difference(a, fewer) == "number of variables: 1, 0"
    assert first_difference(a, a.replace(nodes=a.nodes[:2])) == "number of nodes: 3, 2"
    no_graph = TEXT.replace("cond(0:i32, %c, %y)", "jax.neg(%c)").split("    branch")[0]
    b = parse(f"{no_graph}  return %w -> @w, per_replica %e, per_replica %d\n}}")
    assert first_difference(a, b) == "node 2: cond, jax.neg"


def test_names_sources_origins_and_order_of_parameters_do_not_count() -> None:
    def graph(name: str, params: dict[str, object]) -> Graph:
        builder, x = Builder(origin=name), Value(Type("f32", ()), name)
        types = [Type("f32", ())]
        source = at_line(f"{name}.py", 3)
        (y,) = builder.add(Op("jax.f"), (x,), params, at=source, types=types, hint=name)
        return Graph(name, Stage.LOGICAL, 2, (x,), tuple(builder.nodes), (y,))

    a, b = graph("a", {"p": 1, "q": 2}), graph("b", {"q": 2, "p": 1})
    assert first_difference(a, b) is None
    assert content_hash(a) == content_hash(b)


def one_parameter(value: object) -> Graph:
    """Return a graph of one node with this parameter."""
    builder = Builder()
    builder.add(Op("jax.f"), (), {"p": value}, at=at_line("a.py", 1), types=[Type("f32", ())])
    return Graph("f", Stage.LOGICAL, 2, (), tuple(builder.nodes), ())


class Opaque:
    """An object with the `repr` of its class, address and all."""


ALIKE: list[Callable[[], object]] = [
    lambda: float("nan"),
    lambda: np.array([1, np.nan], np.float32),
    lambda: np.float32(1),
    lambda: jnp.arange(3),
    lambda: jax.random.key(3),
    lambda: jax.make_jaxpr(lambda x: x * jnp.arange(3.0))(1.0),
    lambda: Dimensions((1,)),
    lambda: {"a": [1, np.array([2], np.int8)]},
    lambda: frozenset({"a", "b"}),
    lambda: np.dtype("float32"),
    lambda: jax.eval_shape(jnp.sin, 1.0),
    lambda: GraphVariable("w", Type("f32", ())),
]


@pytest.mark.parametrize("make", ALIKE)
def test_parameters_are_compared_by_value(make: Callable[[], object]) -> None:
    a, b = one_parameter(make()), one_parameter(make())
    assert first_difference(a, b) is None
    assert content_hash(a) == content_hash(b)


UNLIKE: list[tuple[object, object]] = [
    (0.0, -0.0),
    (1, True),
    ((1,), [1]),
    ((1,), Dimensions((1,))),
    (np.array([1], np.float32), np.array([2], np.float32)),
    (np.array([1], np.float32), np.array([1], np.float64)),
    (np.array([1], np.float32), np.array([[1]], np.float32)),
    (np.zeros(2000), np.arange(2000)),
    (jax.random.key(3), jax.random.key(4)),
    (
        jax.make_jaxpr(lambda x: x * jnp.arange(3.0))(1.0),
        jax.make_jaxpr(lambda x: x * jnp.arange(1.0, 4.0))(1.0),
    ),
    ({"a": 1}, {"b": 1}),
    (GraphVariable("w", Type("f32", ())), GraphVariable("w", Type("f32", ()), trainable=False)),
]


@pytest.mark.parametrize(("a", "b"), UNLIKE)
def test_parameters_differ_by_value(a: object, b: object) -> None:
    difference = first_difference(one_parameter(a), one_parameter(b))
    assert difference is not None
    assert difference.startswith("node 0, jax.f: parameter 'p': ")
    assert content_hash(one_parameter(a)) != content_hash(one_parameter(b))


def test_whether_a_variable_is_assigned_is_a_fact_of_the_graph_not_of_a_node() -> None:
    a, b = GraphVariable("w", Type("f32", ())), GraphVariable("w", Type("f32", ()), assigned=True)
    assert is_same_program(one_parameter(a), one_parameter(b))
    assert content_hash(one_parameter(a)) == content_hash(one_parameter(b))


def test_objects_that_differ_in_their_address_alone_hash_the_same() -> None:
    a, b = one_parameter(Opaque()), one_parameter(Opaque())
    assert not is_same_program(a, b)  # nothing says that they mean the same
    assert content_hash(a) == content_hash(b)


PROGRAM = """\
import sys
from graphdist.ir.compare import content_hash
from graphdist.ir.parser import parse
class Opaque: pass
text = sys.stdin.read().replace("axis=0", "axis=(<0: frozenset>, <1: Opaque>)")
print(content_hash(parse(text, (frozenset("abcdef"), Opaque()))))
"""


@pytest.mark.long
def test_another_process_finds_the_same_hash() -> None:
    path = os.pathsep.join(sys.path)
    hashes = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            check=True,
            capture_output=True,
            text=True,
            input=TEXT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(hashes) == 1
    assert len(hashes.pop().strip()) == 64


@given(graphs())
def test_a_graph_is_the_same_as_itself_made_anew(graph: Graph) -> None:
    copy = graph.replace()
    assert is_same_program(graph, copy)
    assert content_hash(graph) == content_hash(copy)
