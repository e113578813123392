"""`./check jax-versions`: some tests on the oldest and the newest JAX that graphdist supports.

    python tests/jax_versions.py                        # pip's newest, for the newest Python found
    python tests/jax_versions.py --python python3.12    # the newest for this Python

The oldest is the bound in `pyproject.toml`, the only place that names it. Each version gets an
environment of its own in a temporary folder, so this needs pip and a package index. The tests are
those that touch JAX most, of a minute or two.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    *("tests/test_tiny.py", "tests/program/test_stages.py", "tests/ir", "tests/passes"),
    *("tests/strategies", "tests/errors/test_jax_errors.py", "tests/train/test_checkpoint.py"),
    *("tests/numerics/test_variables.py", "tests/tracing"),
    *("tests/numerics/test_values.py", "tests/numerics/test_accumulation.py"),
)
NEWEST_PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11")


def oldest_jax(root: Path = ROOT) -> str:
    """Return the oldest version that the project's dependencies allow."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = (
        re.fullmatch(r"jax>=([\d.]+)", requirement) for requirement in project["dependencies"]
    )
    (version,) = (bound.group(1) for bound in bounds if bound)
    return version


def newest_python() -> str:
    """Return the newest Python that starts; a name on the path may stand for none."""
    for name in NEWEST_PYTHONS:
        if shutil.which(name) and not subprocess.run([name, "-V"], capture_output=True).returncode:
            return name
    return sys.executable


def passes(python: str, requirements: Sequence[str], folder: Path) -> bool:
    """Return whether the tests pass in a new environment of a Python, and print what they say."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    inside = str(folder / "bin" / "python")
    install = [inside, "-m", "pip", "install", "-q", "-e", f"{ROOT}[test]", *requirements]
    subprocess.run(install, check=True)
    version = "import jax, sys; print('JAX', jax.__version__, 'on Python', sys.version.split()[0])"
    subprocess.run([inside, "-c", version], check=True)
    return subprocess.run([inside, "-m", "pytest", "-q", *TESTS], cwd=ROOT).returncode == 0


def main() -> int:
    """Run the tests on both versions; returns 1 if one fails."""
    parser = argparse.ArgumentParser(description="Some tests on the oldest and the newest JAX.")
    parser.add_argument("--python", help="the interpreter for the newest JAX")
    newest = parser.parse_args().python or newest_python()
    oldest = oldest_jax()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, python, requirements in (
            ("oldest", sys.executable, [f"jax=={oldest}", f"jaxlib=={oldest}"]),
            ("newest", newest, ["--upgrade", "jax", "jaxlib"]),
        ):
            if not passes(python, requirements, Path(folder, name)):
                failed.append(name)
    print(f"failed on the {' and the '.join(failed)} JAX" if failed else "both pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
