"""Orbax's format: orbax reads what `export` writes, and `load` reads what orbax writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import graphdist as gd
from graphdist.runtime import extras
from graphdist.runtime.files import orbax_folders
from graphdist.runtime.files.orbax_export import chunk_shape
from tests.train.test_loading import sharded

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:orbax", "ignore::DeprecationWarning")
W = np.arange(24, dtype=np.float32).reshape(4, 6)


def tree() -> dict[str, Any]:
    return {
        "dense": {"kernel": jnp.asarray(W), "bias": jnp.arange(6, dtype=jnp.bfloat16)},
        "mlp/linear": {"w": np.arange(3)},
        "layers": [np.ones(2, np.int8), {"scale": jnp.zeros((), jnp.float16)}],
        "step": 3,
        "rate": 0.5,
        "is_on": True,
        "nothing": None,
        "none": {},
    }


def plain(found: Any) -> Any:
    """Return a tree with lists, types and dtypes, to be compared."""

    def of_leaf(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray | jax.Array):
            return [str(leaf.dtype), np.asarray(leaf).tolist()]
        return [type(leaf).__name__, leaf]

    return jax.tree.map(of_leaf, found)


def standard(path: Path, objects: Any) -> Path:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, objects)
    return path


def by_manager(path: Path, objects: Any) -> Path:
    with ocp.CheckpointManager(path) as manager:
        manager.save(7, args=ocp.args.StandardSave(objects))
    return path / "7"


def with_items(path: Path, objects: Any) -> Path:
    items = {"state": ocp.args.StandardSave(objects), "text": ocp.args.JsonSave({"a": 1})}
    with ocp.CheckpointManager(path) as manager:
        manager.save(7, args=ocp.args.Composite(**items))
    return path / "7"


def by_handler(**options: Any) -> Callable[[Path, Any], Path]:
    def save(path: Path, objects: Any) -> Path:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
            checkpointer.save(path, objects)
        return path

    return save


WAYS: dict[str, Callable[[Path, Any], Path]] = {
    "standard": standard,
    "manager": by_manager,
    "items": with_items,
    "pytree": by_handler(),
    "folders": by_handler(use_ocdbt=False),
    "zarr3": by_handler(use_zarr3=True),
    "zarr3 folders": by_handler(use_zarr3=True, use_ocdbt=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_orbax_saves_is_loaded(tmp_path: Path, way: str) -> None:
    path = WAYS[way](tmp_path / "saved", tree())
    zeros = jax.tree.map(lambda leaf: leaf * 0 if hasattr(leaf, "dtype") else type(leaf)(), tree())
    loaded = gd.train.load(path, zeros).assert_consumed().tree
    assert plain(loaded) == plain(tree())
    variables = {
        "kernel": gd.Variable(np.zeros_like(W)),
        "bias": sharded(np.zeros(6, jnp.bfloat16), 0),
    }
    gd.train.load(path, {"dense": variables}).expect_partial()
    np.testing.assert_array_equal(variables["kernel"].read_value(), W)
    np.testing.assert_array_equal(variables["bias"], tree()["dense"]["bias"])


def test_what_is_exported_is_restored_by_orbax(tmp_path: Path) -> None:
    path = tmp_path / "exported"
    gd.train.export(path, tree())
    standard = ocp.StandardCheckpointer()
    for found in (
        standard.restore(path),
        standard.restore(path, jax.tree.map(ocp.utils.to_shape_dtype_struct, tree())),
        ocp.PyTreeCheckpointer().restore(path),
    ):
        assert plain(found) == plain(tree())
    assert standard.metadata(path).item_metadata["dense"]["kernel"].shape == (4, 6)
    assert not [file for file in tmp_path.iterdir() if file != path]


def test_orbax_restores_shards_from_shards(tmp_path: Path) -> None:
    variables = {"rows": sharded(W, 0), "columns": sharded(W, 1), "full": gd.Variable(W)}
    gd.train.export(tmp_path / "exported", gd.train.Checkpoint(params=variables, step=1))
    assert (tmp_path / "exported" / "params.rows" / "1.0").exists()
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    sharding = NamedSharding(mesh, PartitionSpec(None, "x"))
    shape = jax.ShapeDtypeStruct((4, 6), jnp.float32, sharding=sharding)
    target = {"params": dict.fromkeys(variables, shape), "step": 0}
    restored = ocp.StandardCheckpointer().restore(tmp_path / "exported", target)
    assert restored["step"] == 1
    for array in restored["params"].values():
        np.testing.assert_array_equal(array, W)
        assert array.sharding == sharding


def test_a_manager_of_orbax_restores_an_exported_step(tmp_path: Path) -> None:
    gd.train.export(tmp_path / "5" / "default", tree())
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.latest_step() == 5
        assert plain(manager.restore(5, args=ocp.args.StandardRestore())) == plain(tree())


def test_the_state_of_an_optimizer_goes_there_and_back(tmp_path: Path) -> None:
    params = {"w": jnp.asarray(W)}
    optimizer = optax.chain(optax.clip(1.0), optax.adam(1e-3))
    state = optimizer.init(params)
    variables = gd.variables(state)
    gd.train.export(tmp_path / "ours", variables)
    restored = ocp.StandardCheckpointer().restore(tmp_path / "ours", state)
    assert plain(restored) == plain(state)
    standard(tmp_path / "theirs", optimizer.update(params, state, params)[1])
    gd.train.load(tmp_path / "theirs", variables).assert_consumed()
    assert int(variables[1][0].count) == 1


def test_a_number_of_python_gets_the_dtype_of_the_object(tmp_path: Path) -> None:
    step, rate = gd.Variable(np.int32(0)), gd.Variable(np.float32(0))
    standard(tmp_path / "saved", {"step": 3, "rate": 0.5, "large": 2**40})
    gd.train.load(tmp_path / "saved", {"step": step, "rate": rate}).expect_partial()
    assert (int(step), float(rate)) == (3, 0.5)
    with pytest.raises(gd.CheckpointError, match="has the number 1,099,511,627,776, which int32"):
        gd.train.load(tmp_path / "saved", {"large": step})
    with pytest.raises(gd.CheckpointError, match="the file's 'rate' is float64"):
        gd.train.load(tmp_path / "saved", {"rate": step})
    gd.train.export(tmp_path / "again/", {"step": 4})
    gd.train.load(tmp_path / "again", {"step": step}).assert_consumed()
    assert int(step) == 4


def test_names_of_an_export(tmp_path: Path) -> None:
    names = {"w": "params/dense/kernel", "b": None}
    gd.train.export(tmp_path / "exported", {"w": W, "b": "text"}, names=names)
    restored = ocp.StandardCheckpointer().restore(tmp_path / "exported")
    np.testing.assert_array_equal(restored["params"]["dense"]["kernel"], W)


parts = st.tuples(
    *(
        st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda ends: slice(*sorted(ends)))
        for size in W.shape
    )
)


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of orbax with an array in chunks of 2 by 3 elements."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        save_args = {"w": ocp.SaveArgs(chunk_byte_size=24)}
        path = tmp_path_factory.mktemp("chunked") / "w"
        checkpointer.save(path, {"w": W}, save_args=save_args)
    return path


@given(parts, st.sampled_from([1, 50, 2**20]))
def test_any_part_is_read(chunked: Path, part: tuple[slice, ...], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orbax_folders, "_BYTES_AT_ONCE", at_once)
        np.testing.assert_array_equal(gd.train.load(chunked)["w"][part], W[part])


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from([(1, 1), (1, 3), (2, 1)]),
    st.integers(1, 40),
)
def test_chunks_are_equal_parts_of_shards(
    shard: tuple[int, int], counts: tuple[int, int], most: int
) -> None:
    shape = shard[0] * counts[0], shard[1] * counts[1]
    chunk = chunk_shape(shape, shard, 1, most)
    for size, of_shard, count in zip(chunk, shard, counts, strict=True):
        assert 1 <= size <= of_shard
        assert count == 1 or of_shard % size == 0


def refusal(path: Path) -> str:
    with pytest.raises(gd.GraphdistError) as caught:
        gd.train.load(path)["w"][...]
    return str(caught.value).replace(str(path.parent), "folder")


def test_damage_is_told(tmp_path: Path) -> None:
    gd.train.export(tmp_path / "ours", {"w": W})
    (tmp_path / "ours" / "w" / "0.0").unlink()
    assert "array 'w' of folder/ours cannot be read" in refusal(tmp_path / "ours")
    (tmp_path / "ours" / "w" / ".zarray").write_text("{}")
    assert "array 'w' of folder/ours cannot be read" in refusal(tmp_path / "ours")
    path = standard(tmp_path / "theirs", {"w": jnp.asarray(W)})
    (data,) = (file for file in (path / "d").iterdir() if file.stat().st_size > 150)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    assert "cannot be read" in refusal(path)


def test_a_tree_that_lies_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    gd.train.export(path, {"w": W})
    metadata = json.loads((path / "_METADATA").read_text())
    ((keys, leaf),) = metadata["tree_metadata"].items()
    for tree, what in (
        (None, "its _METADATA has no tree"),
        ({keys: 3}, "its _METADATA does not describe"),
        ({keys: leaf, "again": leaf}, "two arrays have the name 'w'"),
        ({keys: {**leaf, "key_metadata": [{"key": "/etc"}]}}, "no name of a folder in it"),
        ({keys: {**leaf, "key_metadata": [{"key": "a/../.."}]}}, "no name of a folder in it"),
    ):
        (path / "_METADATA").write_text(json.dumps({**metadata, "tree_metadata": tree}))
        assert what in refusal(path)
    (path / "_METADATA").write_text("{")
    assert "folder/ours cannot be read: its _METADATA is no JSON: Expecting" in refusal(path)


def test_steps_and_items_are_told(tmp_path: Path) -> None:
    by_manager(tmp_path / "steps", {"w": W})
    assert "has checkpoints of orbax, of the steps [7]" in refusal(tmp_path / "steps")
    items = {name: ocp.args.StandardSave({"w": W}) for name in ("ema", "state")}
    with ocp.CheckpointManager(tmp_path / "items") as manager:
        manager.save(3, args=ocp.args.Composite(**items))
    assert "has several items of orbax: ema, state" in refusal(tmp_path / "items" / "3")


def test_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gd.train.export(tmp_path / "ours", {"w": W})
    monkeypatch.setattr(extras, "has_package", lambda name: False)
    with pytest.raises(gd.MissingExtraError, match="needs the package tensorstore") as caught:
        gd.train.load(tmp_path / "ours")
    assert "pip install 'graphdist[checkpoint]'" in str(caught.value)


def test_a_forked_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gd.train.export(tmp_path / "ours", {"w": W})
    read = gd.train.load(tmp_path / "ours")
    monkeypatch.setattr(orbax_folders, "_processes", {os.getpid() + 1})  # the parent's number
    for act in (lambda: gd.train.load(tmp_path / "ours"), lambda: read["w"][...]):
        with pytest.raises(gd.CheckpointError, match="a forked process cannot read orbax's format"):
            act()


EXPORTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "text": ({"w": W, "s": "text"}, {}, "'s' is text, and arrays and numbers are exported"),
    "key": ({"k": jax.random.key(0)}, {}, "jax.random.key_data(key)"),
    "iterator": ({"i": iter(gd.data.Dataset.range(3))}, {}, "'i' is an iterator"),
    "large": ({"n": 2**70}, {}, "'n' is a number of more than 64 bits"),
    "format": ({"w": W}, {"format": "npz"}, "format is 'npz', not 'orbax' or 'safetensors'"),
    "dtype": (
        {"w": W.astype(complex)},
        {"format": "safetensors"},
        "which safetensors does not have",
    ),
    "list": ({"w": W}, {"names": {"w": ["a"] * 4}}, "and orbax gets an array as it is"),
    "rows": (
        {"w": W},
        {"names": {"w": ["a", "b"]}, "format": "safetensors"},
        "names has a list of 2 arrays for an array of shape [4, 6]",
    ),
    "reshaped": (
        {"w": W},
        {"names": {"w": gd.train.Reshaped("w", (24,))}, "format": "safetensors"},
        "it does not say the shape in the file",
    ),
    "one name": (
        {"a": W, "b": W},
        {"names": lambda name: "w"},
        "two arrays of an export have the name 'w'",
    ),
    "no object": ({"w": W}, {"names": {"v": "w"}}, "names has 'v', and no object has that name"),
    "size": ({"w": W}, {"max_shard_bytes": 10}, "is not split into files of a size"),
    "size 0": (
        {"w": W},
        {"format": "safetensors", "max_shard_bytes": 0},
        "max_shard_bytes is 0, not a whole number from 1 to",
    ),
    "size in words": (
        {"w": W},
        {"format": "safetensors", "max_shard_bytes": "1 GB"},
        "max_shard_bytes is '1 GB', not a whole number from 1 to",
    ),
    "dots": ({"a.b": W, "a": {"b": W}}, {}, "'a/b' and 'a.b' have one name in orbax's format"),
    "nothing": ({"w": None}, {}, "the objects have no arrays"),
    "place": ({"..": W}, {}, "no folder can have the name of the array '..'"),
}


@pytest.mark.parametrize("case", EXPORTS)
def test_what_is_not_exported_is_told(tmp_path: Path, case: str) -> None:
    objects, options, what = EXPORTS[case]
    with pytest.raises(gd.GraphdistError) as caught:
        gd.train.export(tmp_path / "exported", objects, **options)
    assert what in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_nothing_is_replaced(tmp_path: Path) -> None:
    for name in ("w", "w.safetensors"):
        gd.train.export(tmp_path / name, {"w": W})
        with pytest.raises(gd.CheckpointError, match="exists already, and is not replaced"):
            gd.train.export(tmp_path / name, {"w": W + 1})
        np.testing.assert_array_equal(gd.train.load(tmp_path / name)["w"], W)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_export_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = gd.Variable(W)

    def read() -> Any:
        variable.assign(W + 1)
        return W

    monkeypatch.setattr(variable, "host_value", read)
    for name in ("w", "w.safetensors"):
        with pytest.raises(gd.CheckpointError, match="was assigned while objects were exported"):
            gd.train.export(tmp_path / name, {"w": variable})
    in_shards = sharded(W, 0)
    shards = in_shards.stored.own_shards()
    next(shards)
    in_shards.assign(W + 1)
    with pytest.raises(gd.RuntimeFailure, match="was assigned while its shards were read"):
        next(shards)
    assert not list(tmp_path.iterdir())


def test_names_of_hugging_face_go_there_and_back(tmp_path: Path) -> None:
    names = {"layers/w": [gd.train.Transposed(f"layers.{i}.weight") for i in range(4)]}
    for number, dimension in enumerate((0, 1)):
        values = sharded(np.arange(48, dtype=np.float32).reshape(4, 2, 6), dimension)
        path = tmp_path / f"{number}.safetensors"
        gd.train.export(path, {"layers": {"w": values}}, names=names)
        assert [array.shape for array in gd.train.load(path).values()] == [(6, 2)] * 4
        again = sharded(np.zeros((4, 2, 6), np.float32), dimension)
        gd.train.load(path, {"layers": {"w": again}}, names).assert_consumed()
        np.testing.assert_array_equal(again, values)
