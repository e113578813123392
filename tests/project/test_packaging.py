"""The wheel ships every package on disk, under one import name."""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any  # TOML

import pytest


def test_every_package_is_listed(root: Path, setuptools: dict[str, Any]) -> None:
    on_disk = {
        ".".join((name, *init.parent.relative_to(root / folder).parts))
        for name, folder in setuptools["package-dir"].items()
        for init in (root / folder).rglob("__init__.py")
    }
    assert set(setuptools["packages"]) == on_disk


def test_every_folder_with_modules_is_a_package(root: Path, setuptools: dict[str, Any]) -> None:
    # Without an __init__.py a folder imports here, as a namespace package, and is not in the wheel.
    folders = {
        path.parent
        for folder in setuptools["package-dir"].values()
        for path in (root / folder).rglob("*.py")
        if "node_modules" not in path.parts  # npm's, and not in the repository
    }
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_package_data_exists(root: Path, setuptools: dict[str, Any]) -> None:
    for package, patterns in setuptools["package-data"].items():
        folder = root / package.replace(".", "/")
        for pattern in patterns:
            assert list(folder.glob(pattern)), f"{package}: nothing matches {pattern}"


@pytest.mark.slow
def test_the_wheel_holds_what_is_no_module(root: Path, tmp_path: Path) -> None:
    # Built from a copy: setuptools leaves its own folders where it builds.
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns(".git", ".venv", "node_modules", "tests", "__pycache__")
    shutil.copytree(root, copy, symlinks=True, ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path)]
    if importlib.util.find_spec("pip") is None:
        pytest.skip("not installed: pip, which builds the wheel")
    done = subprocess.run(
        [*build, str(copy)], capture_output=True, text=True, timeout=300, check=False
    )
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("not to be had: the setuptools that pyproject.toml builds with")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    viewer = {f"graphdist/viz/static/{name}" for name in ("viewer.js", "viewer.css")}
    viewer |= {"graphdist/viz/static/LICENSES.txt", "graphdist/viz/document.schema.json"}
    assert viewer <= names
    assert "graphdist/py.typed" in names
    assert not [name for name in names if "/web/" in name or name.startswith("tests/")]


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
