"""What workers import of the user's modules, and where their prints are seen."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any  # Any: users' functions

import pytest

import graphdist as gd
from graphdist.coordinator import ClusterCoordinator

HINT = 'ray.init(runtime_env={"working_dir": "."}) before the strategy is made'


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module that is in no folder, as one that only the coordinator's machine has."""
    module = ModuleType("beside_the_function")
    exec("def double(x):\n    return 2 * x", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.long
def test_a_module_that_workers_lack_is_named(coordinator: ClusterCoordinator, beside: Any) -> None:
    double = beside.double

    @gd.function
    def refers(x: Any) -> Any:
        return double(x)

    @gd.function
    def imports(x: Any) -> Any:
        return import_module("beside_the_function").double(x)

    @gd.function
    def takes(x: Any, double: Any) -> Any:
        return double(x)

    @gd.function
    def uses(values: Any) -> Any:
        return next(values)

    def make() -> Any:
        return gd.data.Dataset.range(3).map(double)

    values = iter(coordinator.create_per_worker_dataset(make))
    for fn, args in (
        (refers, (3.0,)),
        (imports, (3.0,)),
        (takes, (3.0, double)),
        (uses, (values,)),
    ):
        with pytest.raises(ModuleNotFoundError, match="'beside_the_function': worker ") as raised:
            coordinator.schedule(fn, args=args).fetch()
        assert raised.value.name == "beside_the_function"
        assert HINT in str(raised.value)
        with pytest.raises(ModuleNotFoundError):
            coordinator.join()


PROGRAM = """
import sys
import jax, ray
import graphdist as gd

folder = sys.argv[1]
sys.path.append(folder)
import beside

sys.path.remove(folder)  # workers find modules in the folders of the path
if folder:
    ray.init(runtime_env={"working_dir": folder}, num_cpus=2)
strategy = gd.ParameterServerStrategy(num_workers=1)
coordinator = gd.coordinator.ClusterCoordinator(strategy)


@gd.function
def step(x):
    print("traced by a worker")
    jax.debug.print("computed {x}", x=x)
    return beside.double(x)


print("RESULT", coordinator.schedule(step, (3.0,)).fetch())
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["shown", "hidden"])
def test_modules_that_ray_sends_are_found_and_prints_are_seen(how: str, tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "beside.py").write_text("def double(x):\n    return 2 * x\n")
    output = printed_by(PROGRAM, tmp_path, str(modules), RAY_LOG_TO_DRIVER=str(int(how == "shown")))
    assert "RESULT 6.0" in output
    for line in LINES:
        assert (line in output) is (how == "shown")


LINES = ("traced by a worker", "computed 3.0")


@pytest.mark.long
def test_the_last_prints_are_seen_in_a_cluster_that_is_started_here(tmp_path: Path) -> None:
    plain = PROGRAM.replace("import beside", "").replace("beside.double(x)", "x")
    output = printed_by(plain, tmp_path, "")
    assert "RESULT 3.0" in output
    assert all(line in output for line in LINES)


def printed_by(program: str, folder: Path, *arguments: str, **variables: str) -> str:
    """Return the output of a program."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), *arguments],
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
