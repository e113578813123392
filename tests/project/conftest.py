"""What the checks of the project itself read: the tree, and its Python files as syntax trees."""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "graphdist": "graphdist",
    "graphdist.passes": "passes",
    "graphdist.runtime": "runtime",
    "graphdist.tools": "tools",
}
"""The shipped packages: import name and folder."""
FOLDERS = (*PACKAGES.values(), "tests", "examples")


@dataclass(frozen=True)
class Module:
    """One Python file of the tree: its path under the root, its import name, its text, parsed."""

    path: Path
    name: str
    text: str
    tree: ast.Module

    @property
    def is_ours(self) -> bool:
        """Whether the module is shipped, rather than a test or an example."""
        return self.name.split(".")[0] == "graphdist"


def files(*folders: str) -> Iterator[Path]:
    """Yield every file in the folders once: rglob does not follow the links in graphdist/."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and not {"__pycache__", "node_modules"} & set(path.parts):
                yield path


def module_name(path: Path) -> str:
    """Name the module at a path under the root as users import it, not as the folder suggests."""
    names = {folder: name for name, folder in PACKAGES.items()}
    folder, *rest = path.with_suffix("").parts
    if rest and rest[-1] == "__init__":
        rest.pop()
    return ".".join((names.get(folder, folder), *rest))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def packages() -> dict[str, str]:
    """Return the folder of each package that has one beside the others."""
    return PACKAGES


@pytest.fixture(scope="session")
def setuptools() -> dict[str, Any]:  # Any: TOML
    """Read the table that says what the wheel holds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, Any] = project["tool"]["setuptools"]
    return table


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    """Parse every Python file of the source folders, tests and examples."""
    found = []
    for path in files(*FOLDERS):
        if path.suffix == ".py":
            text = path.read_text(encoding="utf-8")
            short = path.relative_to(ROOT)
            found.append(Module(short, module_name(short), text, ast.parse(text, str(short))))
    return found


@pytest.fixture(scope="session")
def texts() -> dict[Path, str]:
    """Read every text file of the tree: the folders above, docs, and the files beside them."""
    beside = [path for path in sorted(ROOT.iterdir()) if path.is_file()]
    found = {}
    for path in [*files(*FOLDERS, "docs", ".ci"), *beside]:
        try:
            found[path.relative_to(ROOT)] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not text
    return found
