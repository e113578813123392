"""Modules of files are read by another process first, and judged by what is in them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: MLIR's classes, JSON

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

import graphdist as gd
from graphdist.ir.source import UNKNOWN
from graphdist.runtime.files import module_check
from graphdist.runtime.files.artifact import read_artifact, write_artifact
from graphdist.runtime.files.module_check import CUSTOM_CALLS, checked_module

AVAL = jax.ShapeDtypeStruct((4,), jnp.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "step.gdx"
    step = gd.function(lambda x: {"twice": x * 2})
    gd.aot.save(path, step.trace(jnp.ones(4)).lower().compile())
    return path


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the processes that are started, in a process that knows no module."""
    started: list[Any] = []
    run = subprocess.run

    def noted(*given: Any, **options: Any) -> Any:
        started.append(given[0])
        return run(*given, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    monkeypatch.setattr(module_check, "_safe", set())
    return started


def with_module(saved: Path, path: Path, module: bytes) -> Path:
    """Write the file with another module, with hashes to match."""
    manifest, members = read_artifact(saved)
    kept = {key: value for key, value in manifest.items() if key not in ("members", "hash")}
    write_artifact(path, kept, {**members, "module.mlir": module})
    return path


def of_text(saved: Path, text: str) -> bytes:
    """Return a module with other StableHLO in it."""
    exported = export.deserialize(bytearray(read_artifact(saved)[1]["module.mlir"]))
    with mlir.make_ir_context(), mlir.ir.Location.unknown():
        module = mlir.ir.Module.parse(text)
        version = stablehlo.get_current_version()
        written = stablehlo.serialize_portable_artifact(module, version, True)
    return bytes(replace(exported, mlir_module_serialized=written).serialize())


def main_that(does: str, type: str = "tensor<4xf32>") -> str:
    return f"func.func public @main(%x: {type}) -> {type} {{ {does} return %x : {type} }}"


def test_a_module_is_read_elsewhere_once(saved: Path, runs: list[Any]) -> None:
    for _ in range(2):
        assert gd.aot.load(saved)(jnp.ones(4))["twice"].tolist() == [2] * 4
    assert len(runs) == 1
    gd.aot.load(saved, trusted=True)
    gd.aot.load(saved, native=True)
    assert len(runs) == 1


def test_what_was_written_by_jax_comes_back(saved: Path, runs: list[Any]) -> None:
    module = read_artifact(saved)[1]["module.mlir"]
    assert checked_module(module, "step.gdx", UNKNOWN) == module
    assert len(runs) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            main_that(
                "%t = stablehlo.create_token : !stablehlo.token "
                '%u = "stablehlo.outfeed"(%x, %t) <{outfeed_config = ""}> : '
                "(tensor<4xf32>, !stablehlo.token) -> !stablehlo.token"
            ),
            "the operation stablehlo.outfeed",
        ),
        (main_that("", "tensor<9xf32>"), r"main takes \(tensor<9xf32>\)"),
        (main_that("").replace("@main", "@other"), "a module that is none: KeyError"),
    ],
)
def test_what_no_step_has_is_refused(saved: Path, tmp_path: Path, text: str, says: str) -> None:
    path = with_module(saved, tmp_path / "step.gdx", of_text(saved, text))
    with pytest.raises(gd.ArtifactError, match=says):
        gd.aot.load(path)


def test_an_unknown_custom_call_is_refused_by_name(saved: Path, tmp_path: Path) -> None:
    call = jax.ffi.ffi_call("launch", AVAL)
    allowed = [export.DisabledSafetyCheck.custom_call("launch")]
    exported = export.export(jax.jit(lambda x: [call(x)]), disabled_checks=allowed)(AVAL)
    path = with_module(saved, tmp_path / "step.gdx", bytes(exported.serialize()))
    with pytest.raises(gd.ArtifactError, match="the custom call 'launch'") as caught:
        gd.aot.load(path)
    assert "load(path, trusted=True)" in str(caught.value)
    with pytest.raises(gd.ArtifactError, match="describe no step: JaxRuntimeError"):
        gd.aot.load(path, trusted=True)  # which compiles it: there is no such call here


def decompositions(x: jax.Array) -> list[jax.Array]:
    """Return what custom calls compute on one platform or another."""
    square = x[:, None] * x[None, :] + jnp.eye(4)
    return [
        jnp.linalg.eigh(square)[0],
        jnp.linalg.qr(square)[0],
        jnp.linalg.svd(square)[1],
        jnp.linalg.solve(square, x),
        jnp.linalg.cholesky(square),
        jax.lax.approx_max_k(x, 2)[0],
        jax.random.normal(jax.random.key(0), (4,)),
    ]


@pytest.mark.long
def test_linear_algebra_of_every_platform_is_known(tmp_path: Path) -> None:
    path = tmp_path / "step.gdx"
    step = gd.function(decompositions)
    expected = step(jnp.arange(4.0))
    gd.aot.save(
        path, step.trace(jnp.arange(4.0)).lower().compile(), platforms=["cpu", "gpu", "tpu"]
    )
    text = export.deserialize(bytearray(read_artifact(path)[1]["module.mlir"])).mlir_module()
    for call in ("lapack_ssyevd_ffi", "cusolver_getrf_ffi", "LuDecomposition", "ApproxTopK"):
        assert f"@{call}(" in text
        assert call in CUSTOM_CALLS
    for one, other in zip(gd.aot.load(path)(jnp.arange(4.0)), expected, strict=True):
        assert jnp.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("reader", "says"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crashes: SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "does not end within 2 seconds of processor time"),
        ("raise ImportError('no JAX here')", "cannot be checked: .*no JAX here"),
        ("print('[' * 100)", "cannot be checked"),
    ],
)
def test_a_reader_that_fails_is_no_failure_of_ours(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, says: str
) -> None:
    (tmp_path / "reader.py").write_text(reader)
    monkeypatch.setattr(module_check, "READER", tmp_path / "reader.py")
    monkeypatch.setattr(module_check, "_limits", lambda size: (2**29, 2))
    monkeypatch.setattr(module_check, "_safe", set())
    with pytest.raises(gd.ArtifactError, match=says):
        gd.aot.load(saved)


def test_a_reader_that_does_not_end_is_ended(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reader.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(module_check, "READER", tmp_path / "reader.py")
    monkeypatch.setattr(module_check, "_limits", lambda size: (2**29, 0.05))
    monkeypatch.setattr(module_check, "_safe", set())
    with pytest.raises(gd.ArtifactError, match=r"does not end within 0[.]2 seconds"):
        gd.aot.load(saved)


def test_the_reader_keeps_to_its_memory(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_check, "_limits", lambda size: (2**16, 20))
    monkeypatch.setattr(module_check, "_safe", set())
    with pytest.raises(gd.ArtifactError, match=r"module that is none|cannot be checked"):
        gd.aot.load(saved)


def test_callbacks_do_not_go_into_a_file(tmp_path: Path) -> None:
    def step(x: jax.Array) -> jax.Array:
        return jax.pure_callback(lambda y: y, AVAL, x)

    compiled = gd.function(step).trace(jnp.ones(4)).lower().compile()
    with pytest.raises(gd.UnsupportedError, match="cannot be made a portable module for cpu"):
        gd.aot.save(tmp_path / "step.gdx", compiled)
    assert list(tmp_path.iterdir()) == []
