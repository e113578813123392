"""Who may import whom. The tables below are the rules; design and reasons are in ARCHITECTURE.md.

A name stands for itself and everything below it: "graphdist.ir" covers graphdist.ir.graph, and
"os.environ" covers os.environ.get. Imports count wherever they stand: at the top of a file, in a
function, under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # pytest alone imports a conftest
    from tests.project.conftest import Module

# Our layers, the lowest first. A layer imports itself and the layers of the rows before its own. A
# package that has a row of its own is no part of the package that it is in.
# The last are graphdist/__init__.py, which imports everything, and the tools.
LEVELS: list[list[str]] = [
    ["graphdist.ir", "graphdist.version", "graphdist.quoted", "graphdist.command_process"],
    [
        "graphdist.tracing",
        "graphdist.passes",
        "graphdist.runtime.targets",
        "graphdist.runtime.processes",
    ],
    ["graphdist.runtime.timing"],
    ["graphdist.runtime.module"],
    ["graphdist.runtime"],
    ["graphdist.runtime.files"],
    ["graphdist.errors", "graphdist.garbage"],
    ["graphdist.whole_numbers"],
    ["graphdist.user_warnings", "graphdist.tracebacks", "graphdist.config"],
    ["graphdist.options"],
    ["graphdist.strategy_base"],
    ["graphdist.context"],
    ["graphdist.values"],
    ["graphdist.state"],
    ["graphdist.cluster", "graphdist.data", "graphdist.report"],
    ["graphdist.program"],
    ["graphdist.strategies"],
    ["graphdist.parameter_server"],
    ["graphdist.coordinator"],
    ["graphdist.metrics", "graphdist.nn", "graphdist.random", "graphdist.experimental"],
    ["graphdist.planning"],
    ["graphdist.train", "graphdist.aot", "graphdist.viz", "graphdist.compat", "graphdist.keras"],
]
ABOVE = ["graphdist.tools"]

# A name, and the layers that must do without it.
NOT_IN: dict[str, list[str]] = {
    "jax": ["graphdist.ir", "graphdist.passes"],
    "jaxlib": ["graphdist.ir", "graphdist.passes"],
}

# A name, and the only layers that may use it.
ONLY_IN: dict[str, list[str]] = {
    "graphdist.tools": ["graphdist.tools"],
    "jax.extend": [
        "graphdist.tracing",
        "graphdist.runtime.files.module_reader",
        "graphdist.runtime.random_shard",
    ],
    "jax.interpreters": ["graphdist.tracing", "graphdist.runtime.files.module_reader"],
    "jax.experimental": ["graphdist.runtime"],
    "os.environ": ["graphdist.config"],
    "os.getenv": ["graphdist.config"],
}

# Names that nobody may use, in tests and examples neither.
NOWHERE = ["jax._src"]

# Calls that import the module named by their first argument.
IMPORTING_CALLS = {"import_module", "__import__", "importorskip"}


def covers(name: str, other: str) -> bool:
    """Whether `other` is `name` or below it."""
    return other == name or other.startswith(name + ".")


def uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of all that a module imports, or reaches through an import."""
    bound: dict[str, str] = {}  # name in the module -> what it stands for
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    top = alias.name.split(".")[0]
                    bound[alias.asname or top] = alias.name if alias.asname else top
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=aliases, level=level):
                for alias in aliases:
                    name = "." * level + ".".join(filter(None, (module, alias.name)))
                    bound[alias.asname or alias.name] = name
                    yield node.lineno, name
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[ast.Constant(value=str(name)), *_],
            ) if called in IMPORTING_CALLS:
                yield node.lineno, name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (reached := dotted(node, bound)):
            yield node.lineno, reached


def dotted(node: ast.expr, bound: dict[str, str]) -> str | None:
    """Spell out a chain of attributes that starts at an imported name."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in bound:
        return ".".join((bound[node.id], *reversed(attributes)))
    return None


def level_of(name: str) -> tuple[int | None, str]:
    """Return the place of a name's layer among the levels, and the layer; None above all."""
    found = [
        (len(layer), level, layer)
        for level, layers in enumerate(LEVELS)
        for layer in layers
        if covers(layer, name)
    ]
    return max(found)[1:] if found else (None, "")


def broken_rule(module: str, name: str) -> str | None:
    """Say which rule the use of a name in a module breaks."""
    if name.startswith("."):
        return "imports are absolute"
    if any(covers(nowhere, name) for nowhere in NOWHERE):
        return "nobody may use it"
    if not covers("graphdist", module):
        return None  # tests and examples are users: the rules below bind the shipped code
    level, layer = level_of(module)
    if level is not None and covers("graphdist", name):
        other, found = level_of(name)
        if found != layer and (other is None or other >= level) and name != "graphdist":
            return f"{layer} imports what stands below it, and {found or name} does not"
    for banned, layers in NOT_IN.items():
        for layer in layers:
            if covers(layer, module) and covers(banned, name):
                return f"{layer} does without {banned}"
    for kept, layers in ONLY_IN.items():
        if covers(kept, name) and not any(covers(layer, module) for layer in layers):
            return f"{kept} is for {', '.join(layers)} alone"
    if name == "graphdist" and not covers("graphdist.tools", module):
        return "import from the module that defines it: graphdist/__init__.py imports everything"
    return None


def breaches(module: str, tree: ast.Module) -> list[str]:
    """List the lines of a module that break a rule, each line and rule once."""
    found: dict[tuple[int, str], str] = {}
    for line, name in uses(tree):
        rule = broken_rule(module, name)
        if rule:
            found.setdefault((line, rule), f"{line}: {module} uses {name}: {rule}")
    return list(found.values())


def test_imports_follow_the_layers(modules: list[Module]) -> None:
    found = [f"{m.path}:{breach}" for m in modules for breach in breaches(m.name, m.tree)]
    assert not found, "\n".join(found)


def test_every_layer_exists(modules: list[Module]) -> None:
    # A rule about a layer that was renamed would hold for ever.
    assert {layer for layers in LEVELS for layer in layers} <= {module.name for module in modules}


def test_every_module_has_a_layer(modules: list[Module]) -> None:
    ours = [m.name for m in modules if covers("graphdist", m.name) and m.name != "graphdist"]
    above = [name for name in ours if any(covers(layer, name) for layer in ABOVE)]
    assert [name for name in ours if level_of(name)[0] is None] == above


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("graphdist.ir.graph", "from graphdist import errors"),
        ("graphdist.ir.graph", "def f():\n    import jax.numpy as jnp"),
        ("graphdist.tracing.importer", "import graphdist.passes.infer"),
        ("graphdist.tracing.importer", "from graphdist.strategies.base import Strategy"),
        ("graphdist.values.distributed", "from graphdist.state.variable import Variable"),
        ("graphdist.data.dataset", "def f():\n    from graphdist.program import stages"),
        ("graphdist.tracing.importer", "import graphdist.runtime.emit"),
        ("graphdist.runtime.targets.chips", "from graphdist.runtime.devices import Devices"),
        ("graphdist.runtime.emit", "def f():\n    import graphdist.runtime.files.artifact"),
        ("graphdist.passes", "from graphdist.runtime.emit import emit"),
        ("graphdist.passes.lower", "from jaxlib import xla_client"),
        ("graphdist.runtime.emit", "from graphdist.program.function import function"),
        ("graphdist.runtime.emit", "import jax\njax.extend.core.Primitive('p')"),
        ("graphdist.runtime.emit", "from jax.interpreters import mlir"),
        ("graphdist.runtime.emit", "import importlib\nimportlib.import_module('jax._src.core')"),
        ("graphdist.tracing.refs", "from jax import experimental"),
        ("graphdist.program.function", "from graphdist import tools"),
        ("graphdist.program.function", "import graphdist as gd"),
        ("graphdist.program.function", "from .options import Options"),
        ("graphdist.program.function", "from . import options"),
        (
            "graphdist.values.distributed",
            "import os as system\nsystem.environ.get('GRAPHDIST_VERIFY')",
        ),
        ("graphdist.values.distributed", "from os import getenv"),
        ("tests.tracing.test_refs", "import jax._src.core"),
        ("examples.digits", "import jax\njax._src.core.Tracer"),
    ],
)
def test_each_rule_sees_its_breach(module: str, source: str) -> None:
    assert len(breaches(module, ast.parse(source))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("graphdist.ir.analysis", "import networkx\nfrom graphdist.ir.graph import Graph"),
        ("graphdist.tracing.importer", "import jax\njax.extend.core.jaxpr_as_fun"),
        ("graphdist.passes.infer", "from graphdist.ir import types"),
        ("graphdist.runtime.aot", "from jax.experimental import topologies"),
        ("graphdist.runtime.files.artifact", "from graphdist.runtime.emit import emit"),
        ("graphdist.config", "import os\nos.environ.get('GRAPHDIST_VERIFY')"),
        ("graphdist.program.function", "from graphdist.runtime.emit import emit\nimport jax"),
        ("graphdist.tools.viewer", "import graphdist as gd\ngd.function"),
        ("tests.conftest", "import os\nos.environ['XLA_FLAGS'] = ''\nimport graphdist.tools"),
    ],
)
def test_what_the_rules_allow(module: str, source: str) -> None:
    assert breaches(module, ast.parse(source)) == []
