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
from graphdist.runtime.artifact import read_artifact, write_artifact
from tests.aot.steps import needs_tpu


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


@pytest.mark.parametrize("what", FORGERIES)
def test_contents_that_describe_no_step(saved: Path, tmp_path: Path, what: str) -> None:
    path = forged(saved, tmp_path / "step.gdx", FORGERIES[what])
    with pytest.raises(gd.ArtifactError, match="describe no step|a module that is none|has no "):
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


@needs_tpu
def test_the_manifest_has_the_shape_of_each_slice(tmp_path: Path) -> None:
    with gd.TPUStrategy(topology="v5e:2x2", num_slices=2).scope():
        step = gd.function(lambda x: x * 2)
        compiled = step.trace(jax.ShapeDtypeStruct((4,), jnp.float32)).lower().compile()
    gd.aot.save(tmp_path / "step.gdx", compiled)
    assert read_artifact(tmp_path / "step.gdx")[0]["target"]["layout"] == "2 of 2x2x1"
