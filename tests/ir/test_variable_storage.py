"""How variables are stored, and what they are kept for, as data and as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphdist.ir.errors import ParseError
from graphdist.ir.graph import Graph, GraphVariable, Stage
from graphdist.ir.parser import parse
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type
from graphdist.ir.variable_storage import (
    UNSHARDED,
    Anchor,
    OuterSlot,
    PackOf,
    StepCount,
    StoredElsewhere,
    StoredInCopies,
    StoredInPack,
    StoredOnServer,
    StoredSharded,
    StoredUnsharded,
)

DECLARED = 'synchronization="on_write", aggregation="none", trainable=true'
ALONE = StoredUnsharded(is_alone=True)
W = GraphVariable("w", Type("f32", (4,), MIRRORED))
COPIES = replace(W, type=W.type.with_layout(PER_REPLICA), storage=StoredInCopies())


def with_attributes(attributes: str, layout: str = "mirrored") -> str:
    """Return the text of a graph with one variable."""
    return (
        f"graph f on 2 replicas, stage logical\n"
        f"  variable @w: f32[4] {layout} {{{', '.join([DECLARED, attributes])}}}\n"
        f"() {{\n  return\n}}"
    )


@pytest.mark.parametrize(
    ("variable", "attributes"),
    [
        (W, ""),
        (replace(W, storage=ALONE), "alone=true"),
        (W.stored_along(0), "sharded_along=0"),
        (replace(W, storage=StoredInPack("p", 2, 8)), 'piece=("p", 2, 8)'),
        (replace(W, storage=StoredInCopies()), 'role="copies"'),
        (COPIES, 'role="local"'),
        (replace(W, storage=StoredOnServer(0)), "server=0"),
        (replace(W, storage=StoredElsewhere()), "elsewhere=true"),
        (replace(W, role=PackOf(("a", ""))), 'pieces=("a", "")'),
        (replace(W, role=StepCount(("a", "b"))), 'role="steps", serves=("a", "b")'),
        (
            replace(W, storage=ALONE, role=Anchor(("a",))),
            'alone=true, role="anchor", serves=("a",)',
        ),
        (replace(W, role=OuterSlot(("a",), 12)), 'role="slot 12", serves=("a",)'),
    ],
)
def test_text(variable: GraphVariable, attributes: str) -> None:
    graph = Graph("f", Stage.LOGICAL, 2, (), (), (), (variable,))
    text = str(graph)
    assert f"{{{', '.join(filter(None, [DECLARED, attributes]))}}}" in text
    assert parse(text).variables == (variable,)
    assert variable.declared == replace(variable, storage=UNSHARDED)


@pytest.mark.parametrize(
    ("attributes", "storage"),
    [
        ('sharded_along=0, piece=("p", 2, 8)', StoredSharded(0)),
        ("sharded_along=0, alone=true", StoredSharded(0)),
        ('alone=true, role="copies"', StoredInCopies()),
        ('alone=false, serves=(), role="local"', StoredInCopies()),
    ],
)
def test_texts_of_earlier_versions(attributes: str, storage: object) -> None:
    assert parse(with_attributes(attributes)).variables[0].storage == storage


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ('piece=("p", 2)', r"piece=\('p', 2\) is no pack, start and size"),
        ('role="steps"', r"no role='steps' that serves \[\]"),
        ('role="anchor", serves=("a", "b")', r"no role='anchor' that serves \['a', 'b'\]"),
        ('role="slot x", serves=("a",)', r"no role='slot x' that serves \['a'\]"),
        ('role="copies", serves=("a",)', r"no role='copies' that serves \['a'\]"),
        ('serves=("a",)', r"a variable that serves \['a'\] has no role"),
        ("sharded_along=none", "a variable has no sharded_along=None"),
    ],
)
def test_what_is_no_storage_and_no_role(attributes: str, problem: str) -> None:
    with pytest.raises(ParseError, match=problem):
        parse(with_attributes(attributes))
