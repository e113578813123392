"""Sizes, names and habits that hold in the entire tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # pytest alone imports a conftest
    from tests.project.conftest import Module

FILE_LINES = 500
FUNCTION_LINES = 60  # without the docstring
VAGUE_NAMES = {"utils", "helpers", "common", "misc"}
FIELDS_OF_THE_GRAPH = {"operands", "params", "results", "nodes"}
OPEN_POINT = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b")  # in two parts: this file is in the tree

Function = ast.FunctionDef | ast.AsyncFunctionDef


def length(function: Function) -> int:
    """Count the lines of a function from `def` to its end, the docstring left out."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return lines


def changed_attributes(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Yield every attribute that is assigned, deleted, or whose item is, unless it is self's."""
    for node in ast.walk(tree):
        # Store and Del mark targets of every kind: =, +=, annotations, for, with, del, unpacking.
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target: ast.expr = node
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, ast.Attribute):
                of_self = isinstance(target.value, ast.Name) and target.value.id == "self"
                if not of_self:
                    yield target


def test_files_are_short(modules: list[Module]) -> None:
    found = [
        f"{module.path}: {lines} lines"
        for module in modules
        if (lines := len(module.text.splitlines())) > FILE_LINES
    ]
    assert not found, "\n".join(found)


def test_functions_are_short(modules: list[Module]) -> None:
    found = [
        f"{module.path}:{node.lineno}: {node.name}: {length(node)} lines"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, Function) and length(node) > FUNCTION_LINES
    ]
    assert not found, "\n".join(found)


def test_names_say_what_is_inside(modules: list[Module]) -> None:
    found = [
        str(module.path)
        for module in modules
        if VAGUE_NAMES & set(module.name.split(".")) or re.search(r"_v\d+$", module.path.stem)
    ]
    assert not found, "\n".join(found)


def test_open_points_are_issues_not_comments(texts: dict[Path, str]) -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts.items()
        if OPEN_POINT.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if OPEN_POINT.search(line)
    ]
    assert not found, "\n".join(found)


def test_graphs_are_not_changed_from_outside(modules: list[Module]) -> None:
    # Tests are free to try: that a change is refused is tested too.
    found = [
        f"{module.path}:{attribute.lineno}: {ast.unparse(attribute)}"
        for module in modules
        if module.is_ours and not module.name.startswith("graphdist.ir.")
        for attribute in changed_attributes(module.tree)
        if attribute.attr in FIELDS_OF_THE_GRAPH
    ]
    assert not found, "make a new node with the builder:\n" + "\n".join(found)


def test_length_leaves_the_docstring_out() -> None:
    function = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n').body[0]
    assert isinstance(function, ast.FunctionDef)
    assert length(function) == 2


@pytest.mark.parametrize(
    "source",
    ["n.nodes = ()", "g.nodes += ()", "n.params['x'] = 1", "a, n.results = 1, 2", "del n.operands"],
)
def test_a_change_is_seen(source: str) -> None:
    assert len(list(changed_attributes(ast.parse(source)))) == 1


@pytest.mark.parametrize("source", ["self.nodes = ()", "x = n.nodes", "x[n.params] = 1"])
def test_a_look_is_no_change(source: str) -> None:
    assert list(changed_attributes(ast.parse(source))) == []
