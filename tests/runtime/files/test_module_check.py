"""Modules of files are read by another process first, and judged by what is in them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: MLIR's classes, JSON

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax

import graphdist as gd
from graphdist.runtime.files import module_check, module_reader
from graphdist.runtime.files.artifact import read_artifact, write_artifact
from graphdist.runtime.files.custom_call_check import TARGETS
from graphdist.runtime.files.module_check import checked_module
from tests.mutations.artifacts import with_text
from tests.mutations.modules import (
    WINDOWED,
    F,
    branches,
    call_text,
    described_calls,
    functions,
    module,
    padded,
    windowed,
)

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
    return with_text(read_artifact(saved)[1]["module.mlir"], text)


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
    assert checked_module(module, "step.gdx") == module
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
        (main_that("").replace("@main", "@other"), "no valid module: KeyError"),
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


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process read modules, which starts no other."""
    monkeypatch.setattr(
        module_check, "_read_elsewhere", lambda data, *_: module_reader.read_module(data)
    )
    monkeypatch.setattr(module_check, "_safe", set())


def untrusted(saved: Path, text: str) -> str:
    """Return the error for a module of a text."""
    with pytest.raises(gd.ArtifactError) as caught:
        checked_module(of_text(saved, text), "step.gdx")
    return str(caught.value)


def _constants(**numbers: int) -> str:
    return "\n".join(
        f"%{name} = stablehlo.constant dense<[{number}]> : tensor<1xi64>"
        for name, number in numbers.items()
    )


WIDE = f"tensor<{2**32}x{2**32}x4xf32>"
TEXTS = {
    "circle": (functions(3, 1, circle=True), "calls itself"),
    "doubled": (
        functions(60, 2),
        "242 operations, which become 4,035,225,266,123,964,415 where functions are called; "
        "the limit is 100,000",
    ),
    "a row": (functions(70, 1), "71 regions and calls inside each other; the limit is 64"),
    "a long row": (functions(5000, 1), "calls itself, or stands 201 calls deep"),
    "branches": (branches(80), "81 regions and calls inside each other; the limit is 64"),
    "composite": (
        module(
            f'%y = stablehlo.composite "a.f" %x {{decomposition = @f}} : ({F}) -> {F}\n'
            f"return %y : {F}",
            f"func.func private @f(%a: {F}) -> {F} {{\n"
            f'%y = stablehlo.composite "a.f" %a {{decomposition = @f}} : ({F}) -> {F}\n'
            f"return %y : {F} }}",
        ),
        "calls itself",
    ),
    "too large": (
        module(f"%y = stablehlo.iota dim = 0 : {WIDE}\nreturn %x : {F}"),
        f"a value {WIDE} of 295,147,905,179,352,825,856 bytes; the limit is 1,125,899,906,842,624",
    ),
    "empty and too large": (
        module(f"%y = stablehlo.iota dim = 1 : tensor<0x{2**62}xf32>\nreturn %x : {F}"),
        "bytes; the limit is 1,125,899,906,842,624",
    ),
    "too large for digits": (
        module(f"%y = stablehlo.iota dim = 0 : tensor<{f'{2**62}x' * 300}f32>\nreturn %x : {F}"),
        "of 2^200 or more bytes",
    ),
    "edges of a padding": (
        padded(2**61, -(2**61)),
        f"stablehlo.pad over tensor<{2**62 + 4}xf32> of 18,446,744,073,709,551,632 bytes; "
        f"the limit is 1,125,899,906,842,624",
    ),
    "the widest edges": (padded(-(2**63), 2**63 - 1, result=3), "stablehlo.pad over tensor<"),
    "interior of a padding": (padded(0, -3 * 2**60, 2**60), "stablehlo.pad over tensor<"),
    "a padding that is an operand": (
        module(
            f"{_constants(low=2**62, high=-(2**62), interior=0)}\n"
            f"%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
            f"%y = stablehlo.dynamic_pad %x, %z, %low, %high, %interior : "
            f"({F}, tensor<f32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> {F}\n"
            f"return %x : {F}"
        ),
        "a module with the operation stablehlo.dynamic_pad",
    ),
    **{
        f"edges of {name}": (windowed(name, 2**62, -(2**62)), f"stablehlo.{name} over tensor<")
        for name in WINDOWED
    },
    "dilation": (
        windowed("reduce_window", 0, 0, dilation=2**60, stride=2**60),
        "stablehlo.reduce_window over tensor<",
    ),
    "dilation of a window": (
        windowed("convolution", 2**48, 0, window=2, window_dilation=2**48),
        "stablehlo.convolution over tensor<1x1x",
    ),
    "unknown size": (
        module(
            f"%s = stablehlo.constant dense<4> : tensor<i32>\n"
            f"%y = stablehlo.set_dimension_size %x, %s, dim = 0 : ({F}, tensor<i32>) -> "
            f"tensor<?xf32, #stablehlo.bounds<4>>\nreturn %x : {F}"
        ),
        "a value of type tensor<?xf32, #stablehlo.bounds<4>>, which is no array of known size",
    ),
    "unknown elements": (
        module(f"%y = stablehlo.convert %x : ({F}) -> tensor<4xf6E2M3FN>\nreturn %x : {F}"),
        "a module with elements of type f6E2M3FN",
    ),
    "attribute of a module": (
        'module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "x"}} {\n'
        f"{module(f'return %x : {F}')}\n}}",
        "a module with the attribute mhlo.frontend_attributes",
    ),
}


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize("what", TEXTS)
def test_what_crashes_or_overloads_the_compiler_is_refused(saved: Path, what: str) -> None:
    text, says = TEXTS[what]
    assert says in untrusted(saved, text)


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize("text", [functions(30, 1), functions(10, 2), branches(40)])
def test_functions_and_branches_as_programs_have_them_are_read(saved: Path, text: str) -> None:
    assert checked_module(of_text(saved, text), "step.gdx")


def windows(x: jax.Array, kernel: jax.Array) -> list[jax.Array]:
    """Return what pads, dilates, and takes windows and slices as programs do."""
    pooled = jax.grad(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME").sum()
    )(x)
    strided = lax.conv_general_dilated(
        x, kernel, (2, 1), [(1, 2), (-1, 5)], (2, 1), (1, 3), ("NHWC", "HWIO", "NHWC")
    )
    padded = lax.pad(x, 0.0, [(0, 0, 0), (1, 2, 3), (0, 0, 0), (-1, 0, 0)])
    return [pooled, strided, padded, lax.cumsum(x, 1), lax.dynamic_slice_in_dim(x, x.size, 1)]


@pytest.mark.usefixtures("read_here")
def test_paddings_and_windows_of_programs_are_read() -> None:
    avals = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 8, 8, 3), (2, 2, 3, 5))]
    module = bytes(export.export(jax.jit(windows))(*avals).serialize())
    assert checked_module(module, "step.gdx") == module


def divided(dividend: str, divisor: str) -> str:
    """Return a module that divides integers, which are operations on constants or on `%x`."""
    integers = "tensor<4xi32>"
    return module(
        f"%i = stablehlo.convert %x : ({F}) -> {integers}\n"
        f"%n = {dividend} : {integers}\n%d = {divisor} : {integers}\n"
        f"%y = stablehlo.divide %n, %d : {integers}\n"
        f"%z = stablehlo.convert %y : ({integers}) -> {F}\nreturn %z : {F}"
    )


FIVE = "stablehlo.constant dense<5>"
DIVISORS = {
    "one": (FIVE, False),
    "zero": ("stablehlo.constant dense<0>", True),
    "one of many": ("stablehlo.constant dense<[1, 2, 0, 3]>", True),
    "a difference": ("stablehlo.subtract %n, %n", True),
    "an argument": ("stablehlo.add %i, %n", True),
}


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize("what", DIVISORS)
def test_mlir_learns_of_no_divisor_that_may_be_zero(saved: Path, what: str) -> None:
    divisor, is_hidden = DIVISORS[what]
    checked = checked_module(of_text(saved, divided(FIVE, divisor)), "step.gdx")
    text = export.deserialize(bytearray(checked)).mlir_module()
    assert text.count("optimization_barrier") == is_hidden


@pytest.mark.long
@pytest.mark.parametrize("divisor", ["stablehlo.constant dense<0>", "stablehlo.subtract %i, %i"])
def test_a_division_by_a_zero_that_the_compiler_knows_is_computed(
    saved: Path, tmp_path: Path, divisor: str
) -> None:
    # MLIR's own division of constants would end the process.
    path = with_module(saved, tmp_path / "step.gdx", of_text(saved, divided(FIVE, divisor)))
    assert gd.aot.load(path)(jnp.ones(4))["twice"].tolist() == [-1] * 4


def potrf(result: str) -> str:
    """Return a body with a Cholesky decomposition whose result has another type."""
    aval = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    (call,) = described_calls(jax.lax.linalg.cholesky, aval)
    call["results"][0] = result
    del call["attributes"]["output_operand_aliases"]  # which MLIR itself compares
    return call_text(call)


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize("place", ["main", "function", "branch"])
def test_a_custom_call_of_another_form_is_refused_wherever_it_is(saved: Path, place: str) -> None:
    body = potrf("tensor<2x2xf32>")
    inside = body.replace("%x", "%a")
    text = {
        "main": module(body),
        "function": module(
            f"%y = call @f(%x) : ({F}) -> {F}\nreturn %y : {F}",
            f"func.func private @f(%a: {F}) -> {F} {{\n{inside}\n}}",
        ),
        "branch": module(
            "%p = stablehlo.constant dense<true> : tensor<i1>\n"
            f'%y = "stablehlo.if"(%p) ({{\n{body.replace("return", "stablehlo.return")}\n}}, {{ '
            f"stablehlo.return %x : {F} }}) : (tensor<i1>) -> {F}\nreturn %y : {F}"
        ),
    }[place]
    said = untrusted(saved, text)
    assert "custom call 'lapack_spotrf_ffi' JAX has not made: it has the result 0 f32[2,2]" in said
    assert "load(path, trusted=True)" in said


@pytest.mark.long
def test_a_file_with_linear_algebra_of_its_own_shapes_is_refused_or_runs(
    saved: Path, tmp_path: Path
) -> None:
    path = with_module(
        saved, tmp_path / "step.gdx", of_text(saved, module(potrf("tensor<2x2xf32>")))
    )
    with pytest.raises(gd.ArtifactError, match="it has the result 0 f32"):
        gd.aot.load(path)


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
        assert call in TARGETS
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
    with pytest.raises(gd.ArtifactError, match=r"no valid module|cannot be checked"):
        gd.aot.load(saved)


@pytest.mark.parametrize(
    ("function", "target"),
    [
        (lambda x: jax.scipy.linalg.qr(x, pivoting=True)[0], "lapack_sgeqp3_ffi"),
        (lambda x: lax.linalg.ormqr(x, x[0], x, left=True), "lapack_sormqr_ffi"),
    ],
    ids=["pivoting", "ormqr"],
)
def test_calls_that_jax_does_not_guarantee_are_named(
    tmp_path: Path, function: Callable[[jax.Array], jax.Array], target: str
) -> None:
    compiled = gd.function(function).trace(jnp.eye(4)).lower().compile()
    with pytest.raises(gd.UnsupportedError, match=rf"have the custom calls {target}\n") as caught:
        gd.aot.save(tmp_path / "step.gdx", compiled)
    assert "custom calls of your own" not in str(caught.value)
    assert "compute it by other operations" in str(caught.value)


def test_callbacks_do_not_go_into_a_file(tmp_path: Path) -> None:
    def step(x: jax.Array) -> jax.Array:
        return jax.pure_callback(lambda y: y, AVAL, x)

    compiled = gd.function(step).trace(jnp.ones(4)).lower().compile()
    with pytest.raises(gd.UnsupportedError, match="cannot be made a portable module for cpu"):
        gd.aot.save(tmp_path / "step.gdx", compiled)
    assert list(tmp_path.iterdir()) == []
