"""The wheel has every package that users need, under one import name, and no other."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: TOML

import pytest

from tests.project.test_layers import covers, uses

if TYPE_CHECKING:  # pytest alone imports a conftest
    from tests.project.conftest import Module

# Packages that stay out of the wheel: they need the repository, and run from a clone.
FROM_A_CLONE = {f"graphdist.tools.{name}" for name in ("bench", "documents", "pictures", "truth")}


def test_every_package_is_listed(
    root: Path, packages: dict[str, str], setuptools: dict[str, Any]
) -> None:
    on_disk = {
        ".".join((name, *init.parent.relative_to(root / folder).parts))
        for name, folder in packages.items()
        for init in (root / folder).rglob("__init__.py")
    }
    assert set(setuptools["packages"]) == on_disk - FROM_A_CLONE
    assert on_disk >= FROM_A_CLONE


def test_the_wheel_imports_nothing_that_it_lacks(modules: list[Module]) -> None:
    found = [
        f"{module.path}:{line}: {name}"
        for module in modules
        if module.is_ours and not is_from_a_clone(module.name)
        for line, name in uses(module.tree)
        if is_from_a_clone(name)
    ]
    assert not found, "\n".join(found)


def is_from_a_clone(name: str) -> bool:
    return any(covers(package, name) for package in FROM_A_CLONE)


def test_every_folder_with_modules_is_a_package(root: Path, packages: dict[str, str]) -> None:
    # Without an __init__.py a folder imports here, as a namespace package, and is not in the wheel.
    folders = {
        path.parent
        for folder in packages.values()
        for path in (root / folder).rglob("*.py")
        if "node_modules" not in path.parts  # npm's, and not in the repository
    }
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_package_data_exists(root: Path, setuptools: dict[str, Any]) -> None:
    for package, patterns in setuptools["package-data"].items():
        folder = root / package.replace(".", "/")
        for pattern in patterns:
            assert list(folder.glob(pattern)), f"{package}: nothing matches {pattern}"


def pip(*arguments: object) -> None:
    """Run pip; skip the test if it cannot have the setuptools that it builds with."""
    command = [sys.executable, "-m", "pip", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("not to be had: the setuptools that pyproject.toml builds with")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def copied(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree: setuptools leaves its own folders where it builds."""
    copy = tmp_path_factory.mktemp("tree") / "copy"
    ignored = shutil.ignore_patterns(".git", ".venv", "node_modules", "tests", "__pycache__")
    shutil.copytree(root, copy, symlinks=True, ignore=ignored)
    return copy


@pytest.mark.long
@pytest.mark.needs("pip")
def test_the_wheel_has_its_data_and_no_tool_of_a_clone(copied: Path, tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "-q", "-w", tmp_path, copied)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    viewer = {f"graphdist/viz/static/{name}" for name in ("viewer.js", "viewer.css", "index.css")}
    viewer |= {"graphdist/viz/static/LICENSES.txt", "graphdist/viz/document.schema.json"}
    assert viewer <= names
    assert {"graphdist/py.typed", "graphdist/passes/manager.py", "graphdist/ir/graph.py"} <= names
    assert {"graphdist/tools/viz.py", "graphdist/tools/compile.py"} <= names
    for folder in ("tests/", "src/", *(f"{name.replace('.', '/')}/" for name in FROM_A_CLONE)):
        assert not [name for name in names if name.startswith(folder)]
    assert not [name for name in names if "/web/" in name]


@pytest.mark.long
@pytest.mark.needs("mypy", "pip")
def test_type_checkers_find_what_is_installed_editable(copied: Path, tmp_path: Path) -> None:
    # They read a path in a `.pth` file, and never run the finder that setuptools makes instead.
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip("--python", python, "install", "--no-deps", "-q", "-e", copied)
    program = tmp_path / "program.py"
    lines = ["import graphdist as gd", "import graphdist.passes", "import passes"]
    program.write_text("\n".join(lines), encoding="utf-8")
    # Modules are looked for and not read: that takes a second, and reading them thirty.
    options = ["--strict", "--follow-imports=skip", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "--python-executable", str(python)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*command, str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in done.stdout.splitlines() if ": error:" in line] == [
        'program.py:3: error: Cannot find implementation or library stub for module named "passes"'
        "  [import-not-found]"
    ]


def test_one_folder_looks_like_the_package(
    root: Path, packages: dict[str, str], setuptools: dict[str, Any]
) -> None:
    assert setuptools["package-dir"] == {"": "src"}
    assert [path.name for path in (root / "src").iterdir() if path.is_symlink()] == ["graphdist"]
    for package, folder in packages.items():
        shown = root / "src" / package.replace(".", "/") / "__init__.py"
        assert shown.samefile(root / folder / "__init__.py")


@pytest.mark.parametrize("folder", ["passes", "runtime", "tools"])
def test_link_shows_the_folder_to_type_checkers(root: Path, folder: str) -> None:
    assert os.readlink(root / "graphdist" / folder) == f"../{folder}"


@pytest.mark.parametrize("folder", ["passes", "runtime", "tools"])
def test_folder_is_refused_under_its_own_name(root: Path, folder: str) -> None:
    # From the root `import passes` finds the folder; it would make a second copy of every class.
    spec = importlib.util.spec_from_file_location(folder, root / folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.raises(ImportError, match=f"^import graphdist.{folder}, not {folder}:"):
        spec.loader.exec_module(module)
