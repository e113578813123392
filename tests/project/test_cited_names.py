"""What docstrings and the tour cite is there: files by path, modules and their names with dots.

A file is cited from the root of the tree, from the folder of the file that cites it, or by its bare
name. Names with dots are cited from `graphdist`, from `gd`, or from a folder, as `passes.pipeline`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # pytest alone imports a conftest
    from tests.project.conftest import Module

DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|gd|md|toml)")
DOTTED = re.compile(r"(?:graphdist|gd|passes|runtime|tools|tests)(?:\.\w+)+")

# Files that are not in the tree: a user's, one of Keras's, and one of TensorFlow's.
ELSEWHERE = {
    "file.py",
    "name.py",
    "train.py",
    "tf_keras/distribute/distribute_strategy_test.py",
    "tpu_strategy_model_parallelism_test.py",
}


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield every string that is a statement: docstrings, of attributes too."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def cited(text: str) -> Iterator[str]:
    """Yield the words that a text sets in backticks."""
    for code in CODE.findall(text):
        yield from (word.strip(",;:()") for word in code.split())


def missing(text: str, folder: Path, root: Path, names: set[str]) -> Iterator[str]:
    """Yield the files that a text in a folder cites and that are not there."""
    for word in cited(text):
        if FILE.fullmatch(word) and word not in ELSEWHERE:
            places = (root / word, root / folder / word, root / "graphdist" / word)
            if not any(place.exists() for place in places) and word not in names:
                yield word


def unknown(text: str, modules: set[str]) -> Iterator[str]:
    """Yield the names with dots that a text cites and that nothing has."""
    for word in cited(text):
        is_name = DOTTED.fullmatch(word) and not FILE.fullmatch(word)
        if is_name and not is_known(word, modules):
            yield word


def is_known(word: str, modules: set[str]) -> bool:
    first, *rest = word.split(".")
    name = {"gd": "graphdist", "graphdist": "graphdist", "tests": "tests"}.get(first)
    path = [name or f"graphdist.{first}", *rest]
    if first == "tests":  # no test is imported for it
        return ".".join(path) in modules or ".".join(path[:-1]) in modules
    found = import_module(path[0])
    for place, part in enumerate(path[1:], 2):
        module = ".".join(path[:place])
        # A module has a name that its package gives to something else, too.
        if module in modules:
            found = import_module(module)
        elif not hasattr(found, part):
            return False
        else:
            found = getattr(found, part)
    return True


@pytest.fixture(scope="module")
def texts_by_place(modules: list[Module], root: Path) -> list[tuple[Path, str]]:
    """Return the docstrings of all modules, and the documents, with the files they are in."""
    found = [(module.path, text) for module in modules for text in docstrings(module.tree)]
    return [
        *found,
        *((Path(name), (root / name).read_text(encoding="utf-8")) for name in DOCUMENTS),
    ]


def test_cited_files_are_there(
    texts_by_place: list[tuple[Path, str]], texts: dict[Path, str], root: Path
) -> None:
    names = {path.name for path in texts}
    found = [
        f"{path}: {word}"
        for path, text in texts_by_place
        for word in missing(text, path.parent, root, names)
    ]
    assert not found, "\n".join(found)


def test_cited_names_are_there(
    texts_by_place: list[tuple[Path, str]], modules: list[Module]
) -> None:
    names = {module.name for module in modules}
    found = [f"{path}: {word}" for path, text in texts_by_place for word in unknown(text, names)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("word", ["passes/slicing.py", "slicing.py", "tests/passes/none.gd"])
def test_a_file_that_is_not_there_is_found(word: str, root: Path) -> None:
    assert list(missing(f"See `{word}`.", Path("passes"), root, {"placed_values.py"})) == [word]


@pytest.mark.parametrize("word", ["passes/layouts/placed_values.py", "graph.py", "train.py"])
def test_a_file_that_is_there_is_not_found(word: str, root: Path) -> None:
    assert not list(missing(f"See `{word}`.", Path("passes"), root, {"graph.py"}))


@pytest.mark.parametrize(
    ("word", "is_there"),
    [
        ("gd.function", True),
        ("graphdist.passes.layouts.sharded_updates.UpdateSharding", True),
        ("passes.cleanup.simplify", True),
        ("gd.MirroredStrategy.run", True),
        ("gd.functions", False),
        ("graphdist.passes.layouts.placed_values.UpdateSharding", False),
        ("passes.simplification", False),
        ("tests.passes.nothing.at_all", False),
    ],
)
def test_a_name_is_known_or_not(word: str, is_there: bool, modules: list[Module]) -> None:
    names = {module.name for module in modules}
    assert list(unknown(f"See `{word}`.", names)) == [word] * (not is_there)
