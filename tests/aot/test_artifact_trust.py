"""Files whose hashes are right and whose contents are not: hashes are no signature."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: JSON

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.aot.compatibility import host_bytes
from graphdist.aot.file_options import FILE_OPTIONS
from graphdist.passes import Target
from graphdist.runtime.compilation import step_options
from graphdist.runtime.files.artifact import read_artifact, write_artifact
from tests.mutations.artifacts import with_text
from tests.mutations.modules import F, module


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "step.gdx"
    step = gd.function(lambda x: {"twice": x * 2})
    gd.aot.save(path, step.trace(jnp.ones(4)).lower().compile())
    return path


def forged(
    saved: Path, path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], Any]
) -> Path:
    """Write a changed copy, with hashes to match."""
    manifest, members = read_artifact(saved)
    change(manifest, members)
    kept = {key: value for key, value in manifest.items() if key not in ("members", "hash")}
    write_artifact(path, kept, members)
    return path


FORGERIES: dict[str, Callable[[Any, Any], Any]] = {
    "shape": lambda manifest, _: manifest["boundary"]["inputs"][0].update(shape=["x"]),
    "other shape": lambda manifest, _: manifest["boundary"]["inputs"][0].update(shape=[9]),
    "dtype": lambda manifest, _: manifest["boundary"]["inputs"][0].update(dtype="f99"),
    "report": lambda _, members: members.update({"report.json": b"{"}),
    "graph": lambda _, members: members.update({"graph.txt": b"\xff\xfe"}),
    "no module": lambda _, members: members.pop("module.mlir"),
    "empty module": lambda _, members: members.update({"module.mlir": b""}),
    "other module": lambda _, members: members.update({"module.mlir": b"garbage" * 20}),
    "module cut": lambda _, members: members.update({"module.mlir": members["module.mlir"][:999]}),
}


def boundary(**changed: Any) -> Callable[[Any, Any], Any]:
    return lambda manifest, _: manifest["boundary"].update(changed)


def interface(**changed: Any) -> Callable[[Any, Any], Any]:
    return lambda manifest, _: manifest["interface"].update(changed)


F32 = {"dtype": "f32", "shape": [4], "distribution": ["mirrored", None, "replica"]}
DEEP: dict[str, Any] = {"leaf": "output"}
for _ in range(300):
    DEEP = {"node": "list", "children": [DEEP]}

MANIFESTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no versions": (lambda manifest, _: manifest.pop("versions"), "the manifest has no versions"),
    "a version": (
        lambda manifest, _: manifest["versions"].update(jax="\x1b[31m\ud800"),
        r"versions.jax is '\\x1b\[31m\\ud800', not a short text that can be printed",
    ),
    "an option": (
        lambda manifest, _: manifest.update(compiler_options={"\ud800": 1}),
        r"compiler_options is '\\ud800', not a short text",
    ),
    "no replicas": (boundary(num_replicas=0), "boundary.num_replicas is 0, not an integer from 1"),
    "replicas": (boundary(num_replicas=2**60), "boundary.num_replicas is 1152921504606846976"),
    "half a replica": (boundary(num_replicas=0.5), "boundary.num_replicas is 0.5"),
    "negative": (boundary(inputs=[{**F32, "shape": [-4]}]), r"inputs\[0\].shape\[0\] is -4"),
    "huge": (boundary(inputs=[{**F32, "shape": [2**40] * 2}]), "or 281474976710656 elements"),
    "true": (boundary(inputs=[{**F32, "shape": [True]}]), r"shape\[0\] is True"),
    "dtype": (boundary(outputs=[{**F32, "dtype": "f92"}]), "dtype is 'f92', no dtype"),
    "distribution": (boundary(outputs=[{**F32, "distribution": ["sharded", "0"]}]), "no distrib"),
    "inputs": (boundary(inputs="many"), "boundary.inputs is 'many', not a list"),
    "name": (boundary(name=["f"]), r"boundary.name is \['f'\], not a str"),
    "too few inputs": (boundary(inputs=[]), "describe no step"),
    "other outputs": (boundary(outputs=[{**F32, "shape": [5]}]), "returns is float32"),
    "argument": (interface(arguments=[{"kind": "code"}]), "kind is 'code', not one of 'array'"),
    "other argument": (
        lambda manifest, _: manifest["interface"]["arguments"][0].update(shape=[5]),
        r"argument 'x' is f32\[5\] mirrored, the step takes f32\[4\]",
    ),
    "leaf": (interface(result={"leaf": ["output"]}), "interface.result.leaf"),
    "node": (interface(result={"node": "set", "children": []}), "interface.result.node"),
    "keys": (interface(result={"node": "dict", "keys": [], "children": [{"leaf": "output"}]}),
             "interface.result has 1 children"),
    "no result": (interface(result={"node": "none"}), "the result has 0 arrays"),
    "deep": (interface(result=DEEP), "more than 100 containers"),
    "of two replicas": (interface(result={"leaf": "mirrored", "num_replicas": 2}), "2 replicas"),
    "platforms": (lambda manifest, _: manifest.update(platforms=["abacus"]), "platforms.0. is"),
}  # fmt: skip


@pytest.mark.parametrize("what", MANIFESTS)
def test_manifests_that_describe_no_step(saved: Path, tmp_path: Path, what: str) -> None:
    change, says = MANIFESTS[what]
    path = forged(saved, tmp_path / "step.gdx", change)
    with pytest.raises(gd.ArtifactError, match=says):
        gd.aot.load(path)


def test_a_step_that_fails_is_an_error_of_ours(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = gd.aot.load(saved)

    def fail(leaves: Any) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 4 TB")

    monkeypatch.setattr(loaded._program, "call", fail)
    with pytest.raises(gd.RuntimeFailure, match=r"failed: RESOURCE_EXHAUSTED: 4 TB"):
        loaded(jnp.ones(4))


@pytest.mark.parametrize("what", FORGERIES)
def test_contents_that_describe_no_step(saved: Path, tmp_path: Path, what: str) -> None:
    path = forged(saved, tmp_path / "step.gdx", FORGERIES[what])
    with pytest.raises(gd.ArtifactError, match=r"describe no step|no valid module"):
        gd.aot.load(path)


def asking_for(options: dict[str, Any], saved: Path, path: Path) -> Path:
    """Write a copy that asks for options of XLA."""
    return forged(saved, path, lambda manifest, _: manifest.update(compiler_options=options))


def test_a_file_does_not_choose_what_the_compiler_writes(saved: Path, tmp_path: Path) -> None:
    dumped = tmp_path / "dumped"
    options = {"xla_dump_to": str(dumped)}
    path = asking_for(options, saved, tmp_path / "step.gdx")
    with pytest.raises(gd.ArtifactError, match="compiler option xla_dump_to=") as caught:
        gd.aot.load(path)
    assert "compiler_options=" in str(caught.value)
    assert not dumped.exists()
    assert gd.aot.load(path, compiler_options={})(jnp.ones(4))["twice"].tolist() == [2] * 4
    assert not dumped.exists()
    gd.aot.load(path, compiler_options=options)
    assert dumped.exists()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("xla_cpu_parallel_codegen_split_count", 10**7, "=10000000: no file may choose it"),
        ("xla_cpu_parallel_codegen_split_count", -1, "=-1: no file may choose it"),
        ("xla_backend_optimization_level", True, "=True: no file may choose it"),
        ("xla_tpu_scoped_vmem_limit_kib", -1, "=-1: a file may choose integers from 0 to 131072"),
        ("xla_tpu_scoped_vmem_limit_kib", True, "=True: a file may choose integers from 0 to"),
        ("xla_tpu_scoped_vmem_limit_kib", 2.0, "=2.0: a file may choose integers from 0 to"),
        ("xla_cpu_enable_fast_math", 1, "=1: a file may choose true or false"),
        ("xla_cpu_enable_fast_math", 1.0, "=1.0: a file may choose true or false"),
        ("xla_cpu_enable_fast_math", "true", "='true': a file may choose true or false"),
        ("xla_cpu_enable_fast_math", None, "=None: a file may choose true or false"),
    ],
)
def test_a_file_chooses_options_of_a_list_alone(
    saved: Path, tmp_path: Path, option: str, value: Any, says: str
) -> None:
    path = asking_for({option: value}, saved, tmp_path / "step.gdx")
    with pytest.raises(gd.ArtifactError, match=f"{option}{says}") as caught:
        gd.aot.load(path)
    assert "trusted=True" in str(caught.value)


def test_options_of_a_list_are_taken_and_a_trusted_file_takes_all(
    saved: Path, tmp_path: Path
) -> None:
    listed = {
        "xla_cpu_enable_fast_math": True,
        "xla_cpu_multi_thread_eigen": False,
    }
    path = asking_for(listed, saved, tmp_path / "step.gdx")
    assert gd.aot.load(path)(jnp.ones(4))["twice"].tolist() == [2] * 4
    path = asking_for({"xla_cpu_parallel_codegen_split_count": 2}, saved, tmp_path / "step.gdx")
    assert gd.aot.load(path, trusted=True)(jnp.ones(4))["twice"].tolist() == [2] * 4
    path = asking_for({"xla_no_such_option": 2}, saved, tmp_path / "step.gdx")
    with pytest.raises(gd.CompilerOptionError, match="xla_no_such_option"):
        gd.aot.load(path, trusted=True)


def test_options_that_strategies_give_are_on_the_list() -> None:
    for platform in ("cpu", "gpu", "tpu"):
        target = Target(platform, bytes_per_pack=2**22, shard_parameters=True)
        for option, value in step_options(target, "TPU v5 lite").items():
            allowed = FILE_OPTIONS[option]
            assert isinstance(allowed, range)
            assert value in allowed


def sized(size: int) -> str:
    """Return a module that sorts so many numbers, for which it needs them all at once."""
    wide = f"tensor<{size}xf32>"
    return module(
        f"%w = stablehlo.iota dim = 0 : {wide}\n%n = stablehlo.sine %w : {wide}\n"
        f'%v = "stablehlo.sort"(%n) <{{dimension = 0 : i64}}> ({{\n^bb0(%a: tensor<f32>, '
        f"%c: tensor<f32>):\n%l = stablehlo.compare LT, %a, %c : (tensor<f32>, tensor<f32>) -> "
        f"tensor<i1>\nstablehlo.return %l : tensor<i1>\n}}) : ({wide}) -> {wide}\n"
        f"%y = stablehlo.slice %v [0:4] : ({wide}) -> {F}\nreturn %y : {F}"
    )


def test_a_step_that_needs_more_memory_than_there_is_is_refused_before_it_runs(
    saved: Path, tmp_path: Path
) -> None:
    # Not more: compilers since JAX 0.12 divide by zero for a sort of 2**36 numbers.
    numbers = 2 ** (host_bytes().bit_length() - 1)

    def change(_: Any, members: dict[str, bytes]) -> None:
        members["module.mlir"] = with_text(members["module.mlir"], sized(numbers))

    path = forged(saved, tmp_path / "step.gdx", change)
    says = r"step.gdx needs [\d,]+ bytes on this host, there are [\d,]+"
    with pytest.raises(gd.DeviceMemoryError, match=says) as caught:
        gd.aot.load(path)
    assert caught.value.needed_bytes >= 4 * numbers
    assert caught.value.available_bytes == host_bytes() > 2**28


def test_an_operation_on_constants_is_not_computed_by_the_compiler(
    saved: Path, tmp_path: Path
) -> None:
    # XLA evaluates this for hours: 10 million windows of a million numbers each.
    wide = "tensor<10000000xf32>"
    text = module(
        "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
        f"%c = stablehlo.constant dense<2.0> : {wide}\n"
        f'%v = "stablehlo.reduce_window"(%c, %z) <{{window_dimensions = array<i64: 1000000>, '
        f"padding = dense<[[999999, 0]]> : tensor<1x2xi64>}}> ({{\n"
        f"^bb0(%a: tensor<f32>, %b: tensor<f32>):\n%s = stablehlo.sine %a : tensor<f32>\n"
        f"%t = stablehlo.add %s, %b : tensor<f32>\nstablehlo.return %t : tensor<f32>\n}}) : "
        f"({wide}, tensor<f32>) -> {wide}\n"
        f"%y = stablehlo.slice %v [0:4] : ({wide}) -> {F}\nreturn %y : {F}"
    )

    def change(_: Any, members: dict[str, bytes]) -> None:
        members["module.mlir"] = with_text(members["module.mlir"], text)

    assert gd.aot.load(forged(saved, tmp_path / "step.gdx", change)).name


def test_a_bomb_is_refused_by_the_limits_as_they_are(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bomb.gdx"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("executable.bin", "w") as member,
    ):
        for _ in range(32):
            member.write(bytes(2**20))
    with pytest.raises(gd.ArtifactError, match=r"'executable[.]bin' of 33,554,432 bytes"):
        gd.aot.load(path)


def test_a_bomb_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gdx"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("executable.bin", "w") as member,
    ):
        for _ in range(32):
            member.write(bytes(2**20))
    data = path.read_bytes()
    place = data.rindex(b"executable.bin") - 46 + 20  # packed, in the directory at the end
    path.write_bytes(data[:place] + (2**31).to_bytes(4, "little") + data[place + 4 :])
    with pytest.raises(gd.ArtifactError, match=r"'executable[.]bin' of 33,554,432 bytes"):
        read_artifact(path)


def test_members_that_are_packed_in_another_way_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "step.gdx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("graph.txt", b"graph " * 1000)
    with pytest.raises(gd.ArtifactError, match="packed in another way"):
        read_artifact(path)


def test_members_that_pack_tightly_are_read_all_the_same(tmp_path: Path) -> None:
    members = {"executable.bin": bytes(2**22), "graph.txt": b"line\n" * 100}
    write_artifact(tmp_path / "step.gdx", {}, members)
    assert read_artifact(tmp_path / "step.gdx")[1] == members


def test_a_native_executable_needs_slices_of_the_same_shape(saved: Path, tmp_path: Path) -> None:
    path = forged(
        saved,
        tmp_path / "step.gdx",
        lambda manifest, _: manifest["target"].update(layout="1 of 4x4x1"),
    )
    with pytest.raises(gd.ArtifactError, match="made for slices 1 of 4x4x1, here are"):
        gd.aot.load(path, native=True)


@pytest.mark.needs("tpu")
def test_the_manifest_has_the_shape_of_each_slice(tmp_path: Path) -> None:
    with gd.TPUStrategy(topology="v5e:2x2", num_slices=2).scope():
        step = gd.function(lambda x: x * 2)
        compiled = step.trace(jax.ShapeDtypeStruct((4,), jnp.float32)).lower().compile()
    gd.aot.save(tmp_path / "step.gdx", compiled)
    assert read_artifact(tmp_path / "step.gdx")[0]["target"]["layout"] == "2 of 2x2x1"
