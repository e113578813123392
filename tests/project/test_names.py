"""A name stands for one thing: classes, public functions and modules of the package.

A reader who finds a name in one file may look for it in all others. Private names are left out:
they are for one file. Names that users have from `tf.distribute` stand where it has them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import pytest

if TYPE_CHECKING:  # pytest alone imports a conftest
    from tests.project.conftest import Module

Names: TypeAlias = dict[str, set[str]]  # a name, and the modules that define it

# These give names of tf.distribute's to what stands elsewhere under the same names.
OF_TENSORFLOW = {"graphdist.compat.v1", "graphdist.experimental"}

# Classes that share a name, and why.
SHARED_CLASSES = {
    "DatasetIterator": "the iterator of `gd.data.Dataset`; in strategies.legacy "
    "TensorFlow's name for the result of `make_dataset_iterator`, which conformance tests compare",
}

# Functions that share a name because they are the same thing of several things, and what it is.
SHARED_FUNCTIONS = {
    "command_line": "the parser of a command's arguments",
    "list_variables": "the variables in a file, of a checkpoint or of a compiled step",
    "load": "what a file has, of other programs' arrays or of a compiled step",
    "main": "the entry of a command",
    "render": "a program in one format; `graphdist.viz.formats` has the table of them",
}

# Modules that are called like a public function, and why.
SHARED_MODULES = {
    "graphdist.ir.export": "graphs as JSON; `gd.train.export` is about arrays",
    "graphdist.program.function": "it is the module of `gd.function`, which `gd` takes from it",
}

# Commands are called what users type.
COMMANDS = {"graphdist.tools.run", "graphdist.tools.viz"}


def shared(names: Names) -> Names:
    """Return the names that several modules define."""
    return {name: modules for name, modules in names.items() if len(modules) > 1}


def defined(modules: Iterable[tuple[str, ast.Module]], *kinds: type[ast.stmt]) -> Names:
    """Return the public names that modules define at their top level by statements of a kind."""
    found: Names = defaultdict(set)
    for module, tree in modules:
        for node in tree.body:
            if isinstance(node, kinds) and not (name := name_of(node)).startswith("_"):
                found[name].add(module)
    return found


def name_of(node: ast.stmt) -> str:
    """Return the name that a class or function has."""
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return node.name


def functions(modules: Iterable[tuple[str, ast.Module]]) -> Names:
    """Return the public functions of modules."""
    return defined(modules, ast.FunctionDef, ast.AsyncFunctionDef)


def exported(modules: Iterable[tuple[str, ast.Module]]) -> Names:
    """Return the names in `__all__` of packages, with the packages that list them."""
    found: Names = defaultdict(set)
    for module, tree in modules:
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                for name in ast.walk(node.value):
                    if isinstance(name, ast.Constant):
                        found[str(name.value)].add(module)
    return found


def confusing(names: Iterable[str], used: Names, public: Names) -> Iterator[str]:
    """Yield the modules that are called like a function or a public name that is something else.

    A module may be called like the function it is about, as the passes are, unless users have that
    name from elsewhere; and `graphdist.data` is `graphdist.data`.
    """
    for module in names:
        package, _, last = module.rpartition(".")
        listed_by = public.get(last, set())
        is_public_elsewhere = bool(listed_by) and listed_by != {package}
        is_shadowed = package in listed_by and module in used.get(last, set())
        is_a_function_elsewhere = bool(used.get(last, set()) - {module})
        if is_public_elsewhere or is_shadowed or is_a_function_elsewhere:
            yield module


@pytest.fixture(scope="module")
def ours(modules: list[Module]) -> list[tuple[str, ast.Module]]:
    """Return name and syntax tree of the shipped modules."""
    return [(module.name, module.tree) for module in modules if module.is_ours]


@pytest.fixture(scope="module")
def packages_of(modules: list[Module]) -> list[tuple[str, ast.Module]]:
    """Return name and syntax tree of the packages that users import from."""
    return [
        (module.name, module.tree)
        for module in modules
        if module.is_ours and module.path.stem == "__init__"
    ]


def report(found: Names, known: Iterable[str]) -> str:
    return "\n".join(
        f"{name}: {', '.join(sorted(found[name]))}" for name in sorted(found.keys() - set(known))
    )


def test_a_class_has_its_name_alone(ours: list[tuple[str, ast.Module]]) -> None:
    classes = defined([pair for pair in ours if pair[0] not in OF_TENSORFLOW], ast.ClassDef)
    found = shared(classes)
    known = set(SHARED_CLASSES)
    assert not report(found, known), report(found, known)
    assert not known - found.keys(), "these have names of their own by now"


def test_a_function_has_its_name_alone(ours: list[tuple[str, ast.Module]]) -> None:
    found = shared(functions(ours))
    known = set(SHARED_FUNCTIONS)
    assert not report(found, known), report(found, known)
    assert not known - found.keys(), "these have names of their own by now"


def test_no_module_is_called_like_something_else(
    ours: list[tuple[str, ast.Module]], packages_of: list[tuple[str, ast.Module]]
) -> None:
    names = [module for module, _ in ours if "." in module and module not in COMMANDS]
    found = set(confusing(names, functions(ours), exported(packages_of)))
    known = set(SHARED_MODULES)
    assert not found - known, sorted(found - known)
    assert not known - found, "these are called like nothing else by now"


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["class A: pass", "class A: pass"], {"A"}),
        (["class A: pass", "class B: pass"], set()),
        (["class _A: pass", "class _A: pass"], set()),
        (["class A: pass\nclass A: pass", ""], set()),
        (["class A:\n    class B: pass", "class B: pass"], set()),
    ],
)
def test_a_shared_name_is_seen(sources: list[str], expected: set[str]) -> None:
    modules = [(f"graphdist.{i}", ast.parse(source)) for i, source in enumerate(sources)]
    assert shared(defined(modules, ast.ClassDef)).keys() == expected


@pytest.mark.parametrize(
    ("module", "is_confusing"),
    [
        ("graphdist.passes.cleanup.simplify", False),  # has the function simplify
        ("graphdist.data", False),  # is the name
        ("graphdist.program.function", True),  # gd.function is a function
        ("graphdist.tracing.versions", True),  # a function of another module
        ("graphdist.aot.variables", True),  # gd.variables is a function of another module
        ("graphdist.viz.diff", True),  # hidden by the function of its package
        ("graphdist.ir.graph", False),
    ],
)
def test_a_confusing_module_is_seen(module: str, is_confusing: bool) -> None:
    used = {
        "simplify": {"graphdist.passes.cleanup.simplify"},
        "versions": {"graphdist.version"},
        "variables": {"graphdist.state.trees"},
        "function": {"graphdist.program.function"},
        "diff": {"graphdist.viz.diff"},
    }
    public = {
        "data": {"graphdist"},
        "function": {"graphdist"},
        "variables": {"graphdist"},
        "diff": {"graphdist.viz"},
    }
    assert list(confusing([module], used, public)) == [module] * is_confusing
