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
from graphdist.runtime.files.artifact import read_artifact, write_artifact


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


F32 = {"dtype": "f32", "shape": [4], "distribution": ["mirrored", None, 1]}
DEEP: dict[str, Any] = {"leaf": "output"}
for _ in range(300):
    DEEP = {"node": "list", "children": [DEEP]}

MANIFESTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no versions": (lambda manifest, _: manifest.pop("versions"), "the manifest has no versions"),
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
    with pytest.raises(gd.ArtifactError, match=r"describe no step|a module that is none"):
        gd.aot.load(path)


def test_a_file_does_not_choose_what_the_compiler_writes(saved: Path, tmp_path: Path) -> None:
    dumped = tmp_path / "dumped"
    options = {"xla_dump_to": str(dumped)}
    path = forged(
        saved,
        tmp_path / "step.gdx",
        lambda manifest, _: manifest.update(compiler_options=options),
    )
    with pytest.raises(gd.ArtifactError, match="compiler option xla_dump_to=") as caught:
        gd.aot.load(path)
    assert "compiler_options=" in str(caught.value)
    assert not dumped.exists()
    assert gd.aot.load(path, compiler_options={})(jnp.ones(4))["twice"].tolist() == [2] * 4
    assert not dumped.exists()
    gd.aot.load(path, compiler_options=options)
    assert dumped.exists()


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
