"""Features whose package is missing: one error, which names the extra."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import graphdist as gd
from graphdist.keras.installed import require_keras_on_jax
from graphdist.runtime.absent_devices import absent_devices
from graphdist.runtime.extras import EXTRAS, require_package
from graphdist.runtime.targets.topologies import find_topology
from graphdist.strategies import workers_of_job

ROOT = Path(__file__).parents[2]
BROUGHT_BY = {"libtpu": "jax[tpu]", "jax_cuda12_plugin": "jax[cuda12]"}
"""What brings a package that pyproject.toml does not name."""


def _saves_a_step() -> None:
    compiled = gd.function(lambda x: x + 1).trace(1.0).lower().compile()
    gd.aot.save("step.gdx", compiled)


def _joins_as_one_of_mpi() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PMI_SIZE", "2")
        patch.setattr(workers_of_job, "backends_are_started", lambda: False)
        gd.MultiWorkerMirroredStrategy()


FEATURES: dict[str, Callable[[], object]] = {
    "flatbuffers": _saves_a_step,
    "google.cloud.compute_v1": lambda: gd.cluster.GCEClusterResolver("p", "z", "g", 8470),
    "google.cloud.tpu_v2": lambda: gd.cluster.TPUClusterResolver("pod", "z", "p"),
    "jax_cuda12_plugin": lambda: absent_devices(find_topology("h100:1x8")),
    "keras": require_keras_on_jax,
    "kubernetes": gd.cluster.KubernetesClusterResolver,
    "libtpu": lambda: gd.TPUStrategy(topology="v5e:2x2"),
    "mpi4py": _joins_as_one_of_mpi,
    "ray": gd.ParameterServerStrategy,
}


@pytest.mark.parametrize("module", sorted(FEATURES))
def test_a_feature_names_its_extra(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "jax_cuda13_plugin", None)  # it serves in place of the other
    with pytest.raises(gd.MissingExtraError) as caught:
        FEATURES[module]()
    extra, package = EXTRAS[module]
    assert caught.value.what.endswith(f" needs the package {package}, which is not installed")
    assert caught.value.hint.startswith(f"pip install 'graphdist[{extra}]'")
    assert caught.value.name == package
    assert isinstance(caught.value, ImportError)
    assert not isinstance(caught.value, gd.DeviceError | gd.WorkerError)


def test_extras_bring_their_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for module, (extra, package) in EXTRAS.items():
        brought = project["optional-dependencies"][extra]
        names = {re.split(r"[<>=;]", requirement)[0].strip() for requirement in brought}
        assert BROUGHT_BY.get(module, package) in names, (module, extra)


def test_no_other_module_says_which_extra_to_install() -> None:
    folders = ("graphdist", "passes", "runtime", "tools")
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"graphdist\[|MissingExtraError\(", path.read_text(encoding="utf-8"))
    ]
    assert sorted(found) == ["runtime/extras.py"]


def test_a_package_that_is_there_is_no_error() -> None:
    require_package("flatbuffers", "this test")
