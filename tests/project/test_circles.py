"""Modules that import each other in a circle, inside a package: at most `LARGEST` of them.

Modules of a circle are read, changed and tested together. Imports count wherever they stand: at the
top of a file, in a function, under TYPE_CHECKING. Between packages there are no circles
(`test_layers.py`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pytest

from tests.project.test_layers import uses

if TYPE_CHECKING:  # pytest alone imports a conftest
    from tests.project.conftest import Module

LARGEST = 3


def package_of(module: str) -> str:
    """Return the package of a shipped module: "ir" of graphdist.ir.graph; "" beside the packages.

    >>> package_of("graphdist.ir.graph"), package_of("graphdist.viz"), package_of("graphdist")
    ('ir', 'viz', '')
    """
    return ".".join(module.split(".")[1:2])


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return for each module the modules of its own package that it imports."""
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        used = {longest_prefix(name, trees) for _, name in uses(tree)} - {None, module}
        found[module] = {name for name in used if name and package_of(name) == package_of(module)}
    return found


def longest_prefix(name: str, modules: Iterable[str]) -> str | None:
    """Return the module that a dotted name is in: the longest of them that begins it."""
    prefixes = [module for module in modules if f"{name}.".startswith(f"{module}.")]
    return max(prefixes, key=len, default=None)


def circles(imported: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules of which each reaches each."""
    reached = {module: reachable(module, imported) for module in imported}
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imported
        if module in reached[module]
    }


def reachable(module: str, imported: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that a module imports, at whatever remove."""
    found: set[str] = set()
    pending = [module]
    while pending:
        new = imported[pending.pop()] - found
        found |= new
        pending += new
    return found


@pytest.fixture(scope="module")
def found(modules: list[Module]) -> list[frozenset[str]]:
    """Return the circles among the shipped modules that are larger than they may be."""
    ours = {module.name: module.tree for module in modules if module.is_ours}
    return [circle for circle in circles(imports(ours)) if len(circle) > LARGEST]


@pytest.mark.long
def test_circles_are_small(found: list[frozenset[str]]) -> None:
    large = [", ".join(sorted(circle)) for circle in found]
    assert not large, "\n".join(large)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["import graphdist.ir.b", "import graphdist.ir.a"], {"ab"}),
        (["from graphdist.ir.b import B", "from graphdist.ir import a"], {"ab"}),
        (["def f():\n    import graphdist.ir.b", "import graphdist.ir.a as one"], {"ab"}),
        (["if TYPE_CHECKING:\n    import graphdist.ir.b", "import graphdist.ir.a"], {"ab"}),
        (["import graphdist.ir.b", "import graphdist.ir.c", "import graphdist.ir.a"], {"abc"}),
        (["import graphdist.ir.b", "import graphdist.ir.c", ""], set()),
        (["import graphdist.ir.b", "import graphdist.ir.a", "import graphdist.ir.a"], {"ab"}),
    ],
)
def test_a_circle_is_seen(sources: list[str], expected: set[str]) -> None:
    trees = {
        f"graphdist.ir.{name}": ast.parse(source)
        for name, source in zip("abc", sources, strict=False)
    }
    circle = {"".join(sorted(name[-1] for name in circle)) for circle in circles(imports(trees))}
    assert circle == expected
