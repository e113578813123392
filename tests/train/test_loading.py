"""`gd.train.load`: which array goes to which object, in which form, and what is told in words."""

from __future__ import annotations

import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import graphdist as gd
from graphdist.ir.variable_storage import StoredSharded
from graphdist.runtime.buffers import BufferStore
from graphdist.runtime.files.safetensors_files import ArrayInFile
from graphdist.runtime.processes.workers import set_workers
from graphdist.runtime.spans import Span
from graphdist.train import Reshaped, Transposed
from graphdist.train.loading import ShardsOf
from graphdist.train.name_maps import view_of
from graphdist.train.writing import start_writing
from tests.train.test_slices import TwoWorkers

LAYERS = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the names of Hugging Face."""
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    layers = {f"layers.{i}.weight": LAYERS[i] for i in range(2)}
    others = {
        "step": np.int64(7),
        "half": np.array([1.5], np.float16),
        "count": np.array([3], np.int32),
    }
    gd.train.export(path, {**layers, **others, "bias": np.ones(4, np.float32)})
    return path


def sharded(value: Any, dimension: int) -> gd.Variable:
    """Return a variable that is stored in two shards."""
    with gd.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        variable = gd.Variable(value)
    with BufferStore.lock:
        variable.stored.store_as(StoredSharded(dimension))
    return variable


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(gd.GraphdistError) as caught:
        gd.train.load(*arguments, **options)
    return str(caught.value)


FORMS: dict[str, tuple[Any, Any]] = {
    "name": ("layers.1.weight", LAYERS[1]),
    "stacked": (["layers.0.weight", "layers.1.weight"], LAYERS),
    "tuple": (("layers.1.weight",), LAYERS[1:]),
    "transposed": (Transposed("layers.0.weight"), LAYERS[0].T),
    "axes": (Transposed(["layers.0.weight", "layers.1.weight"], (1, 0, 2)), LAYERS.swapaxes(0, 1)),
    "stacked transposed": ([Transposed(f"layers.{i}.weight") for i in (1, 0)], LAYERS[::-1].mT),
    "heads": (Reshaped(Transposed("layers.0.weight"), (4, 3, 1)), LAYERS[0].T[..., None]),
    "split": (Reshaped("layers.1.weight", (3, 2, 2)), LAYERS[1].reshape(3, 2, 2)),
    "joined": (Reshaped(["layers.0.weight", "layers.1.weight"], (6, 4)), LAYERS.reshape(6, 4)),
    "mixed": (Reshaped("layers.1.weight", (2, 6)), LAYERS[1].reshape(2, 6)),
    "flat": (Reshaped("layers.1.weight", (12,)), LAYERS[1].reshape(12)),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form(file: Path, form: str) -> None:
    given, expected = FORMS[form]
    w, unchanged = gd.Variable(np.zeros(expected.shape, np.float32)), gd.Variable(5.0)
    for names in ({"w": given, "other": None}, {"w": given, "other": None}.get):
        gd.train.load(file, {"w": w, "other": unchanged}, names).expect_partial()
        np.testing.assert_array_equal(w.read_value(), expected)
        w.assign(np.zeros(expected.shape))
    assert unchanged == 5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dimension", [0, 1])
def test_each_form_by_shards(file: Path, form: str, dimension: int) -> None:
    given, expected = FORMS[form]
    if dimension >= expected.ndim or expected.shape[dimension] % 2:
        dimension = next((d for d, size in enumerate(expected.shape) if size % 2 == 0), 0)
    if expected.shape[dimension] % 2:
        pytest.skip("no dimension is even")
    w = sharded(np.zeros(expected.shape, np.float32), dimension)
    gd.train.load(file, {"w": w}, {"w": given}).expect_partial()
    np.testing.assert_array_equal(w, expected)
    assert w.storage.sharded_along == dimension


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the parts that are read."""
    found: list[Any] = []
    read = ArrayInFile.read

    def noted(self: ArrayInFile, part: Any) -> Any:
        found.append([(each.start, each.stop) for each in part])
        return read(self, part)

    monkeypatch.setattr(ArrayInFile, "read", noted)
    return found


def test_a_device_gets_its_shard_and_nothing_else_is_read(file: Path, reads: list[Any]) -> None:
    declared = jax.ShapeDtypeStruct((3, 4), jnp.float32)
    w = sharded(declared, 1)
    gd.train.load(file, {"w": w}, {"w": "layers.0.weight"}).expect_partial()
    assert reads == [[(0, 3), (0, 2)], [(0, 3), (2, 4)]]
    np.testing.assert_array_equal(w, LAYERS[0])
    reads.clear()
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    for leaf in (
        jax.device_put(np.zeros((4, 3), np.float32), sharding),
        jax.ShapeDtypeStruct((4, 3), jnp.float32, sharding=sharding),
    ):
        names = {"w": Transposed("layers.0.weight")}
        loaded = gd.train.load(file, {"w": leaf}, names).expect_partial().tree["w"]
        assert reads == [[(0, 3), (0, 2)], [(0, 3), (2, 4)]]
        np.testing.assert_array_equal(loaded, LAYERS[0].T)
        assert loaded.sharding == sharding
        reads.clear()


@pytest.mark.parametrize("index", [0, 1])
def test_a_worker_reads_its_span_of_each_layer(file: Path, reads: list[Any], index: int) -> None:
    view = view_of(FORMS["stacked"][0], gd.train.load(file))
    span = Span(2, 2 * index, 2 * index + 2)
    shard = ShardsOf(view, span, jnp.dtype("float32"))
    assert shard.shape == (2, 3, 2)
    np.testing.assert_array_equal(shard[:, 1:, :1], LAYERS[:, 1:, span.start : span.start + 1])
    assert reads == [[(1, 3), (span.start, span.start + 1)]] * 2


def test_arrays_numbers_and_shapes_are_replaced_in_the_tree(file: Path) -> None:
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    tree = {"step": 0, "bias": shape, "count": np.zeros(1, np.int32), "half": jnp.zeros(1, "f2")}
    status = gd.train.load(file, tree)
    assert status.tree["step"] == 7
    assert type(status.tree["step"]) is int
    assert isinstance(status.tree["bias"], jax.Array)
    assert isinstance(status.tree["count"], np.ndarray)
    assert float(status.tree["half"][0]) == 1.5
    assert tree["bias"] is shape
    status.assert_existing_objects_matched()
    with pytest.raises(gd.UnmatchedError, match=r"not restored: layers\.0\.weight"):
        status.assert_consumed()


def test_a_checkpoint_gets_its_arrays_in_place(file: Path) -> None:
    checkpoint = gd.train.Checkpoint(step=0, params={"bias": np.zeros(4, np.float32)}, new=1.0)
    status = gd.train.load(file, checkpoint, {"params/bias": "bias"})
    assert status.tree is checkpoint
    assert (checkpoint.step, checkpoint.new) == (7, 1.0)
    assert checkpoint.params["bias"].sum() == 4
    with pytest.raises(gd.UnmatchedError, match="not saved: new"):
        status.assert_existing_objects_matched()
    status.expect_partial()


def test_metrics_and_generators_are_loaded(tmp_path: Path) -> None:
    def make() -> gd.train.Checkpoint:
        return gd.train.Checkpoint(loss=gd.metrics.Mean(), table=gd.Variable(np.zeros(3, np.int8)))

    before, after = make(), make()
    before.loss.update_state(3.5)
    before.table.assign(np.arange(3, dtype=np.int8))
    gd.train.export(tmp_path / "m.safetensors", before)
    gd.train.load(tmp_path / "m.safetensors", after).assert_consumed()
    assert float(after.loss.result()) == 3.5
    assert after.table.read_value().tolist() == [0, 1, 2]


def test_one_variable_under_two_names_is_loaded_by_either(tmp_path: Path) -> None:
    w = gd.Variable(np.zeros(2))
    gd.train.export(tmp_path / "w.safetensors", {"head": np.ones(2)})
    gd.train.load(tmp_path / "w.safetensors", {"embedding": w, "head": w}, cast=True)
    assert w.read_value().tolist() == [1, 1]


def test_lost_arrays_and_those_left_are_named_in_the_log(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "graphdist"):
        gd.train.load(file, {"bias": np.zeros(4, np.float32)})
    assert "not restored, since no object has them: count, half, lay" in caplog.text
    assert "are lost: they are in `.tree` of the result" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "graphdist"):
        gd.train.load(file, {"bias": gd.Variable(np.zeros(4, np.float32))}).expect_partial()
    assert caplog.text == ""


def test_dtypes_are_converted_only_if_asked(file: Path) -> None:
    half, count = gd.Variable(np.zeros(1, np.float32)), gd.Variable(np.zeros(1, np.float32))
    text = refusal(file, {"half": half, "count": count})
    assert "does not fit: 'count' is float32[1], the file's 'count' is int32[1], and 1 more" in text
    assert "cast=True" in text
    gd.train.load(file, {"half": half, "count": count}, cast=True).expect_partial()
    assert (float(half[0]), float(count[0])) == (1.5, 3)
    whole = gd.Variable(np.zeros(1, np.int32))
    assert "make the object with the dtype" in refusal(file, {"half": whole}, cast=True)
    assert "it takes a number of its type" in refusal(file, {"step": True})
    sharded_one = sharded(np.zeros((2, 2), np.float16), 0)
    names = {"w": Reshaped("bias", (2, 2))}
    gd.train.load(file, {"w": sharded_one}, names, cast=True).expect_partial()
    assert np.asarray(sharded_one).tolist() == [[1, 1], [1, 1]]


W = np.zeros((3, 4), np.float32)
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "shape": ({"bias": W}, None, "'bias' is float32[3, 4], the file's 'bias' is float32[4]"),
    "transposed": ({"layers.0.weight": W.T}, None, "hint: gd.train.Transposed(name) in names"),
    "nothing": (
        {"w": W},
        None,
        "has no array with the name of an object: it has 'step', ",
    ),
    "in file": ({"w": W}, {"w": "layers.2.weight"}, "has no array 'layers.2.weight', which names"),
    "near": ({"w": W}, {"w": "layers.0.weights"}, "did you mean layers.0.weight"),
    "in list": ({"w": W}, {"w": ["layers.0.weight", "x"]}, "has no array 'x'"),
    "in part": ({"w": W}, lambda _: ["layers.0.weight", "x"], "has no array 'x'"),
    "object": ({"bias": W}, {"bais": "bias"}, "did you mean bias?"),
    "no form": ({"w": W}, {"w": 3}, "names gives 'w' a value that is of type int"),
    "empty": ({"w": W}, {"w": []}, "names gives 'w' a value that is an empty list"),
    "no map": ({"w": W}, "bias", "names is of type str, not a dict or a function"),
    "axes": ({"w": W}, {"w": Transposed("bias", (0, 1))}, "and the array has 1 dimensions"),
    "size": ({"w": W}, {"w": Reshaped("bias", (3, 4))}, "cannot be reshaped to [3, 4], of 12"),
    "unlike": ({"w": W}, {"w": ["bias", "half"]}, "number 0 is float32[4], number 1 is float16[1]"),
    "key": ({"bias": jax.random.key(0)}, None, "jax.random.wrap_key_data"),
    "leaf": (W, None, "the objects are one value of type ndarray, which has no name"),
    "text": ({"bias": "text"}, None, "'bias' is of type str, the file's 'bias' is float32[4]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(file: Path, case: str) -> None:
    objects, names, what = REFUSED[case]
    assert what in refusal(file, objects, names)


def test_nothing_is_loaded_if_something_does_not_fit(file: Path) -> None:
    bias, count = gd.Variable(np.zeros(4, np.float32)), gd.Variable(np.zeros(9, np.int32))
    refusal(file, {"bias": bias, "count": count})
    assert bias.read_value().tolist() == [0] * 4


def test_files_of_other_kinds_are_told(tmp_path: Path, file: Path) -> None:
    for name in ("pytorch_model.bin", "w.pt", "w.npz", "w.txt", "folder/w.bin", "ckpt/w"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\x80\x02")
    gd.train.Checkpoint(w=1.0).write(tmp_path / "ours", gd.train.CheckpointOptions(False))
    for name, what in {
        "pytorch_model.bin": "is not read: such files are pickles, which run code",
        "w.pt": "safetensors.torch.save_file",
        "folder": "folder/w.bin is not read: such files are pickles",
        "w.npz": "numpy.load reads it",
        "w.txt": "its name ends in '.txt', not in '.safetensors'",
        "ckpt": "it has neither orbax's _METADATA nor a file *.safetensors",
        "ours": "is a checkpoint of graphdist",
        "": "has checkpoints of graphdist",
        "none.safetensors": "there is no ",
    }.items():
        assert what in refusal(tmp_path / name if name else tmp_path)
    assert "not a path" in refusal(3)


def test_an_unknown_name_is_told_with_those_that_are_like_it(file: Path) -> None:
    arrays = gd.train.load(file)
    with pytest.raises(KeyError, match=r"no array 'layers/1[.]weight': did you mean"):
        arrays["layers/1.weight"]
    with pytest.raises(KeyError, match="no array 'q': its arrays are "):
        arrays["q"]
    assert arrays.get("q") is None


def test_it_waits_for_a_checkpoint_that_is_being_written(tmp_path: Path, file: Path) -> None:
    def write() -> None:
        time.sleep(0.1)
        shutil.copy(file, tmp_path / "late.safetensors")

    start_writing(write, "late")
    assert "bias" in gd.train.load(tmp_path / "late.safetensors")


def test_a_folder_has_files_of_one_format(tmp_path: Path) -> None:
    gd.train.export(tmp_path / "both", {"w": np.ones(2)})
    with pytest.raises(gd.CheckpointError, match="has a save of orbax, and a folder of safetens"):
        gd.train.export(tmp_path / "both", {"w": np.zeros(2)}, "safetensors")
    gd.train.export(tmp_path / "both" / "w.safetensors", {"w": np.zeros(2)})
    assert "has both a save of orbax and safetensors: _METADATA" in refusal(tmp_path / "both")


def test_a_restore_names_load_for_files_of_other_programs(tmp_path: Path, file: Path) -> None:
    gd.train.export(tmp_path / "orbax", {"w": np.ones(2)})
    for path in (file, file.parent, tmp_path / "orbax", tmp_path):
        with pytest.raises(gd.UnreadableCheckpointError, match=r"hint: gd\.train\.load\(path"):
            gd.train.Checkpoint(w=1.0).restore(path)
    with pytest.raises(gd.UnreadableCheckpointError, match="there is no checkpoint") as caught:
        gd.train.Checkpoint(w=1.0).restore(tmp_path / "none")
    assert "gd.train.load" not in str(caught.value)


def test_a_function_does_not_load(file: Path) -> None:
    w = gd.Variable(np.zeros(4, np.float32))

    @gd.function
    def step() -> None:
        gd.train.load(file, {"bias": w})

    with pytest.raises(gd.ContextError, match="files are loaded inside a function"):
        step()


@pytest.mark.parametrize("failure", ["", "array 'bias' cannot be read: it is gone"])
def test_workers_load_together(file: Path, failure: str) -> None:
    bias = gd.Variable(np.zeros(4, np.float32))

    class Other(TwoWorkers):
        """A worker that loads the same, and cannot read the second array."""

        def heard(self, name: str, timeout_seconds: float) -> str | None:
            is_of_an_array = name.count("/") == 3  # load/<number of the load>/<array>/<worker>
            if is_of_an_array and name.endswith("/1"):
                return json.dumps([None, failure, bool(failure)])
            return super().heard(f"{name.removesuffix('/1')}/0" if name.endswith("/1") else name, 0)

    before = set_workers(Other("unused"))
    try:
        if failure:
            assert f"worker 1: {failure}" in refusal(file, {"bias": bias})
        else:
            gd.train.load(file, {"bias": bias}).expect_partial()
    finally:
        set_workers(before)
    assert bias.read_value().tolist() == [float(not failure)] * 4


def test_workers_that_load_other_files_are_told(file: Path) -> None:
    before = set_workers(TwoWorkers(json.dumps("another")))
    try:
        text = refusal(file, {"bias": gd.Variable(np.zeros(4, np.float32))})
    finally:
        set_workers(before)
    assert "worker 1 loads other arrays from" in text
