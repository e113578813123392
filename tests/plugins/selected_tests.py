"""Which tests are run: the quick ones, all, or a part; and without the packages that are missing.

`pytest` leaves out the tests marked `long`. They are run where they are named, as in
`pytest tests/properties`, and by `pytest --long`. A test that needs more than the extra `test`
is marked with what it needs, a name in `NEEDS`: `@pytest.mark.needs("tpu")`. It is skipped where
that is missing, with what to install as the reason.

`--part 2/3` runs the second of three parts of what would be run. Parts are made of whole files, as
their tests share what is dear to make, and the same in every run.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any  # Any: xdist's nodes, which are not typed
from zlib import crc32

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "graphdist" / "viz" / "web" / "node_modules"


@dataclass(frozen=True, slots=True)
class Need:
    """What tests may need: Python packages, programs, files, and how one gets them."""

    install: str
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def is_met(self) -> bool:
        """Return whether all of it is there."""
        return (
            all(map(_is_installed, self.packages))
            and all(shutil.which(program) for program in self.programs)
            and all(file.exists() for file in self.files)
        )


def _is_installed(package: str) -> bool:
    with suppress(ModuleNotFoundError):  # of the package that it is in
        return find_spec(package) is not None
    return False


def _extra(name: str, *packages: str) -> Need:
    return Need(f"pip install 'graphdist[{name}]'", packages)


_CUDA = ("jax_cuda12_plugin", "jax_cuda13_plugin")

NEEDS = {
    "browser": Need(
        "Node.js, Debian's package chromium, and npm ci in graphdist/viz/web",
        programs=("node", "chromium"),
        files=tuple(WEB / name for name in ("playwright-core", "axe-core", "mermaid")),
    ),
    "cuda": _extra("cuda", next(filter(_is_installed, _CUDA), _CUDA[0])),
    "dot": Need("Debian's package graphviz", programs=("dot",)),
    "gce": _extra("gce", "google.cloud.compute_v1", "google.cloud.tpu_v2"),
    "griffe": _extra("docs", "griffe"),
    "inductor": Need("pip install torch, and a C++ compiler", ("torch",), programs=("c++",)),
    "keras-hub": Need("pip install keras-hub", ("keras_hub",)),
    "kubernetes": _extra("kubernetes", "kubernetes"),
    "mlflow": Need("pip install mlflow", ("mlflow",)),
    "mypy": _extra("dev", "mypy"),
    "pip": Need("python -m ensurepip", ("pip",)),
    "ray_train": _extra("ray-train", "pyarrow", "pydantic"),
    "tensorboard": Need("pip install tensorboard tensorflow", ("tensorboard", "tensorflow")),
    "tensorflow": _extra("bench", "tensorflow"),
    "torch": _extra("bench", "torch"),
    "torchdata": Need("pip install torch torchdata", ("torch", "torchdata")),
    "tpu": _extra("tpu", "libtpu"),
    "wandb": Need("pip install wandb", ("wandb",)),
}
"""What a test can name that the extra `test` does not bring."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long` and `--part`."""
    parser.addoption("--long", action="store_true", help="run the tests that take long, too")
    parser.addoption("--part", metavar="K/N", help="run one of N parts of the tests, from 1/N on")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a part that is none."""
    if config.getoption("--part"):
        part_of(config.getoption("--part"))


def leaves_long_out(config: pytest.Config) -> bool:
    """Return whether the tests that take long are left out: none is named, nor are they all."""
    told: dict[str, bool] = getattr(config, "workerinput", {})
    names_tests = config.args_source is pytest.Config.ArgsSource.ARGS
    return told.get(_LEFT_OUT, not (names_tests or config.option.long))


_LEFT_OUT = "graphdist_leaves_long_out"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process that runs tests: its own command line names all of them."""
    node.workerinput[_LEFT_OUT] = leaves_long_out(node.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long unless it is asked for, and what is of another part."""
    left = items
    if leaves_long_out(config):
        left = [item for item in left if not item.get_closest_marker("long")]
    if config.getoption("--part"):
        part, parts = part_of(config.getoption("--part"))
        left = [item for item in left if crc32(_file(item).encode()) % parts == part - 1]
    kept = set(left)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = left


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def part_of(text: str) -> tuple[int, int]:
    """Return K and N of "K/N"; raises `UsageError` for anything else."""
    part, slash, parts = text.partition("/")
    if not (slash and part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"--part is {text!r}, not one of N parts such as 1/3")
    return int(part), int(parts)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs what is not installed."""
    names = [name for mark in item.iter_markers("needs") for name in mark.args]
    if missing := [NEEDS[name].install for name in names if not NEEDS[name].is_met()]:
        pytest.skip(f"not installed: {', '.join(missing)}")
