"""Runs the README's lines as they stand, in fresh clones, with nothing that they do not install.

    python tests/readme_lines.py                           # this Python, and what pip brings
    python tests/readme_lines.py --python newest           # the newest Python of this machine
    python tests/readme_lines.py --jax oldest              # the oldest JAX that is supported
    python tests/readme_lines.py --pytest="--part 1/8"     # of the tests a part

The lines are those of the README's first block without a language. A line that makes an environment
begins a clone; the ones behind it go on there. The clone has what is committed. The oldest JAX is
the bound in `pyproject.toml`, the only place that names it. Needs git, pip and a package index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAKES_ENVIRONMENT = "python3 -m venv "
BLOCK = re.compile(r"^```\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)


def lines_of(readme: str) -> list[str]:
    """Return the commands of the README's first block without a language."""
    block = BLOCK.search(readme)
    assert block is not None, "the README has no block of commands"
    return block["lines"].splitlines()


def oldest_jax(root: Path = ROOT) -> str:
    """Return the oldest version that the project's dependencies allow."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = (
        re.fullmatch(r"jax>=([\d.]+)", requirement) for requirement in project["dependencies"]
    )
    (version,) = (bound.group(1) for bound in bounds if bound)
    return version


def pythons() -> Iterator[str]:
    """Yield the interpreters of this machine that start: on the path, and pyenv's."""
    on_path = (shutil.which(f"python3.{minor}") for minor in range(11, 20))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    of_pyenv = map(str, pyenv.glob("versions/3.*/bin/python3"))
    for name in (sys.executable, *filter(None, on_path), *of_pyenv):
        # A name on the path may be pyenv's for a version that is not chosen.
        if not subprocess.run([name, "-V"], capture_output=True, check=False).returncode:
            yield name


def version_of(python: str) -> tuple[int, ...]:
    """Return the version of an interpreter."""
    done = subprocess.run([python, "-V"], capture_output=True, text=True, check=True)
    numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", done.stdout)
    assert numbers is not None, done.stdout
    return tuple(map(int, numbers.groups()))


def environment(folder: Path, python: str, oldest: str | None, pytest: str) -> Mapping[str, str]:
    """Return the variables of a shell with this Python as `python3`; pip takes that JAX."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "python3").symlink_to(shutil.which(python) or python)
    variables = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTEST_ADDOPTS": pytest}
    if oldest is not None:
        constraints = folder / "constraints.txt"
        constraints.write_text(f"jax=={oldest}\njaxlib=={oldest}\n", encoding="utf-8")
        variables["PIP_CONSTRAINT"] = str(constraints)
    inherited = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}
    return {name: text for name, text in os.environ.items() if name not in inherited} | variables


def run(lines: Sequence[str], folder: Path, variables: Mapping[str, str]) -> bool:
    """Run the lines one after the other; return whether all succeeded."""
    clones = 0
    for line in lines:
        if line.startswith(MAKES_ENVIRONMENT):
            clones += 1
            subprocess.run(["git", "clone", "-q", ROOT, folder / f"clone{clones}"], check=True)
        print(f"$ {line}", flush=True)
        start = time.monotonic()
        done = subprocess.run(line, shell=True, cwd=folder / f"clone{clones}", env=variables)
        print(f"exit status {done.returncode}, {time.monotonic() - start:.0f} s", flush=True)
        if done.returncode:
            return False
    return True


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; exits with 2 for what it does not take."""
    parser = argparse.ArgumentParser(description="The README's lines in fresh clones.")
    parser.add_argument("--python", default=sys.executable, help="an interpreter, or newest")
    parser.add_argument("--jax", choices=("newest", "oldest"), default="newest")
    parser.add_argument("--pytest", default="", metavar="OPTIONS", help="more options of pytest")
    parser.add_argument("--folder", type=Path, help="where the clones are made, and stay")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the README's lines; return 1 if one fails."""
    options = options_of(sys.argv[1:])
    python = options.python
    if python == "newest":
        python = max(pythons(), key=version_of)
        if version_of(python)[:2] == sys.version_info[:2]:
            print(f"this machine has no newer Python than {sys.version.split()[0]}")
            return 0
    lines = lines_of((ROOT / "README.md").read_text(encoding="utf-8"))
    oldest = oldest_jax() if options.jax == "oldest" else None
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        print(f"Python {'.'.join(map(str, version_of(python)))}, {options.jax} JAX", flush=True)
        succeeded = run(lines, folder, environment(folder, python, oldest, options.pytest))
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
