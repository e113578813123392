"""Random programs on random variables, some of them in packs already: which are packed.

A program updates some variables, each by an operation of its own or by one that others share, and
may read any of them. Packs of other programs have pieces in any order, with gaps between them.
"""

from __future__ import annotations

from typing import Any  # Any: hypothesis draws whatever

from hypothesis import given
from hypothesis import strategies as st

from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.ir.printer import print_graph
from graphdist.ir.variable_storage import StoredUnsharded
from graphdist.ir.verifier import verify
from graphdist.passes.packs.pack_limits import PACK_LIMITS
from graphdist.passes.packs.pack_variables import PackVariables
from graphdist.tracing.jax_ops import resolve
from tests.properties.effort import programs

SHAPES = [(2,), (3,), (), (2, 2), (1,), (0,)]
SIZES = {(2,): 2, (3,): 3, (): 1, (2, 2): 4, (1,): 1, (0,): 0}
UPDATES = [
    "jax.neg({v})",
    "jax.sign({v})",
    "jax.add({v}, {v})",
    "jax.mul({v}, {v}) {{out_dtype=none}}",
]


def type_of(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}] mirrored"


def packs(draw: Any, variables: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, str]:
    """Return the attributes of those variables that other programs have packed, by dtype."""
    attributes: dict[str, str] = {}
    for dtype in ("f32", "i32"):
        of_dtype = [
            name for name, (other, shape) in variables.items() if other == dtype and SIZES[shape]
        ]
        chosen = draw(st.lists(st.sampled_from(of_dtype), unique=True)) if of_dtype else []
        starts, end = {}, 0
        for name in chosen:
            starts[name] = end + draw(st.integers(0, 3))
            end = starts[name] + SIZES[variables[name][1]]
        end += draw(st.integers(0, 3))
        for name, start in starts.items():
            attributes[name] = f', piece=("pack_{dtype}", {start}, {end})'
    return attributes


@st.composite
def variable_graphs(draw: st.DrawFn) -> Graph:
    """Draw SPMD graphs of variables and updates of them."""
    names = [f"v{i}" for i in range(draw(st.integers(1, 9)))]
    variables = {
        name: (draw(st.sampled_from(["f32", "f32", "i32"])), draw(st.sampled_from(SHAPES)))
        for name in names
    }
    stored = packs(draw, variables)
    updates = {name: draw(st.sampled_from(UPDATES)) for name in names if draw(st.integers(0, 3))}
    read = draw(st.lists(st.sampled_from(names), max_size=2))
    declared = []
    for name, (dtype, shape) in variables.items():
        alone = ", alone=true" if name not in stored and draw(st.integers(0, 5)) == 0 else ""
        assigned = ", assigned=true" if name in updates else ""
        declared.append(
            f"  variable @{name}: {type_of(dtype, shape)} "
            f'{{synchronization="on_write", aggregation="none", trainable=true'
            f"{assigned}{stored.get(name, '')}{alone}}}"
        )
    inputs = [f"%{name}: {type_of(*variables[name])} = @{name}" for name in names]
    nodes = [
        f"  %{name}_2 = {update.format(v=f'%{name}')} : {type_of(*variables[name])}"
        for name, update in updates.items()
    ]
    outputs = [f"%{name}_2 -> @{name}" for name in updates] + [f"%{name}" for name in read]
    text = "\n".join(
        [
            "graph f on 2 replicas, stage spmd",
            *declared,
            f"({', '.join(inputs)}) {{",
            *nodes,
            f"  return {', '.join(outputs)}".rstrip(),
            "}",
        ]
    )
    graph = parse(text, ops=resolve)
    verify(graph, full=True)
    return graph


ALONE = StoredUnsharded(is_alone=True)


@programs(100)
@given(variable_graphs())
def test_what_is_packed(graph: Graph) -> None:
    packed = PackVariables(PACK_LIMITS["cpu"])(graph)
    assert parse(print_graph(packed), ops=resolve).variables == packed.variables
    inside = {name for variable in packed.variables for name in variable.pieces if name}
    alone = {variable.name for variable in packed.variables if not variable.pieces}
    assert inside | alone == {variable.name for variable in graph.variables}
    assert inside >= {variable.name for variable in graph.variables if variable.piece}
    assert not inside & {variable.name for variable in graph.variables if variable.storage == ALONE}
