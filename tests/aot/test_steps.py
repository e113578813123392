"""A step saved and loaded is the step: the same pytrees in, the same numbers out."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import graphdist as gd
from graphdist.version import versions
from tests.aot.steps import make_step


def cpus(count: int) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(count)])


def batches(strategy: gd.Strategy, count: int = 3) -> list[Any]:
    rows = 4 * strategy.num_replicas_in_sync
    data = [np.random.default_rng(i).normal(size=(rows, 8)).astype("f") for i in range(count)]
    return list(strategy.experimental_distribute_dataset(data))


def saved(path: Path, strategy: gd.Strategy, **options: Any) -> Path:
    step, _, batch = make_step(strategy)
    with strategy.scope():
        gd.aot.save(path, step.trace(batch, 0.1).lower().compile(), **options)
    return path


@pytest.fixture(scope="module")
def path_for_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a step for two replicas, for tests that only read it."""
    return saved(tmp_path_factory.mktemp("two") / "step.gdx", cpus(2))


@pytest.mark.long
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("count", [2, 8])
def test_a_loaded_step_does_what_the_function_does(
    tmp_path: Path, count: int, native: bool
) -> None:
    strategy = cpus(count)
    path = saved(tmp_path / "step.gdx", strategy)
    step, params, _ = make_step(strategy, by_shape=False)
    _, loaded_params, _ = make_step(strategy, by_shape=False)
    loaded = gd.aot.load(path, strategy=strategy, variables=loaded_params, native=native)
    for batch in batches(strategy):
        expected, found = step(batch, 0.1), loaded(batch, 0.1)
        assert found["note"] == "done"
        np.testing.assert_array_equal(expected["loss"], found["loss"])
        for one, other in zip(expected["each"].values, found["each"].values, strict=True):
            np.testing.assert_array_equal(one, other)
    for one, other in zip(gd.read(params), gd.read(loaded_params), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("native", [False, True])
def test_a_loaded_step_has_a_state_of_each_replica(tmp_path: Path, native: bool) -> None:
    strategy = cpus(2)
    with strategy.scope():
        mean = gd.metrics.Mean()

    @gd.function
    def observe(x: Any) -> None:
        strategy.run(mean.update_state, args=(x,))

    x = gd.PerReplicaSpec((3,), jnp.float32, strategy=strategy)
    gd.aot.save(tmp_path / "step.gdx", observe.trace(x).lower().compile())
    path = tmp_path / "step.gdx"
    loaded = gd.aot.load(path, strategy=strategy, variables=mean.variables, native=native)
    values = iter(np.arange(6, dtype=np.float32).reshape(2, 3))
    loaded(strategy.experimental_distribute_values_from_function(lambda _: next(values)))
    assert float(mean.result()) == 2.5
    assert [float(value) for value in mean.total.values] == [3.0, 12.0]


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[None]:
    """Switch JAX's compilation cache on."""
    values = {
        "jax_compilation_cache_dir": str(tmp_path / "cache"),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in values}
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_a_step_from_the_compilation_cache_is_saved_in_full(tmp_path: Path, cached: None) -> None:
    strategy = cpus(1)
    step, _, _ = make_step(strategy)
    _, params, _ = make_step(strategy, by_shape=False)
    batch = batches(strategy)[0]
    for name in ("compiled", "from the cache"):
        with strategy.scope():
            gd.aot.save(tmp_path / name, step.trace(batch, 0.1).lower().compile())
        loaded = gd.aot.load(tmp_path / name, strategy=strategy, variables=params, native=True)
        assert np.isfinite(loaded(batch, 0.1)["loss"])
    assert list((tmp_path / "cache").iterdir())


def test_the_file_describes_itself(tmp_path: Path) -> None:
    path = saved(tmp_path / "step.gdx", cpus(2), platforms=["cpu", "tpu"])
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        text = archive.read("graph.txt").decode()
    assert manifest["versions"]["jax"] == jax.__version__
    assert manifest["platforms"] == ["cpu", "tpu"]
    assert manifest["mesh"] == {"axes": {"replica": 2}}
    assert [one["donated"] for one in manifest["boundary"]["variables"]] == [True] * 3
    assert [one["lies"] for one in manifest["boundary"]["inputs"]] == [
        *["mirrored"] * 3,
        "per_replica",
        "mirrored",
    ]
    assert "# logical\ngraph step on 2 replicas, stage logical" in text
    assert "# final\ngraph step on 2 replicas, stage spmd" in text
    strategy = cpus(2)
    _, params, _ = make_step(strategy)
    loaded = gd.aot.load(path, strategy=strategy, variables=params)
    assert loaded.report["collective_bytes"] == {"all_reduce": 772}
    assert "loaded step step on cpu:0, cpu:1" in repr(loaded)


def test_the_variables_of_a_file_are_listed(tmp_path: Path) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=True)
    with strategy.scope():
        w = gd.Variable(jax.ShapeDtypeStruct((1024, 64), jnp.bfloat16), name="w")
        m = gd.Variable(jax.ShapeDtypeStruct((1024, 64), jnp.float32), name="m")
        rate = gd.Variable(jax.ShapeDtypeStruct((), jnp.float32), name="rate", trainable=False)
        key = gd.Variable(jax.random.key(0), name="key", trainable=False)

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            grad = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w[...])
            grad = gd.get_replica_context().all_reduce("SUM", grad)
            m.assign(0.9 * m + grad.astype(jnp.float32))
            w.assign(w - (rate * m).astype(jnp.bfloat16))
            return jax.random.uniform(key[...])

        return strategy.run(replica_fn, args=(x,))

    spec = gd.PerReplicaSpec((4, 1024), jnp.bfloat16, strategy=strategy)
    compiled = step.trace(spec).lower().compile()
    assert compiled.report().variables.sliced > 0
    path = tmp_path / "step.gdx"
    gd.aot.save(path, compiled)
    found = {variable.name: variable for variable in gd.aot.list_variables(path)}
    assert {name: (one.shape, one.bytes, one.is_assigned) for name, one in found.items()} == {
        "w": ((1024, 64), 1024 * 64 * 2, True),
        "m": ((1024, 64), 1024 * 64 * 4, True),
        "rate": ((), 4, False),
        "key": ((), 8, False),
    }
    assert found["w"].dtype == jnp.bfloat16
    assert found["key"].dtype == jax.random.key(0).dtype
    with mock.patch("graphdist.aot.compatibility.versions", return_value={}):
        assert gd.aot.list_variables(path) == tuple(found.values())  # whatever is installed here


def test_what_is_no_file_of_a_step_has_no_variables(tmp_path: Path) -> None:
    with pytest.raises(gd.ArtifactError, match="there is no file"):
        gd.aot.list_variables(tmp_path / "step.gdx")
    number: Any = 3
    with pytest.raises(TypeError, match=r"the path given to gd.aot.list_variables is of type int"):
        gd.aot.list_variables(number)


def test_the_same_step_makes_the_same_manifest(tmp_path: Path) -> None:
    strategy = cpus(2)
    one, other = saved(tmp_path / "a", strategy), saved(tmp_path / "b", strategy)
    hashes = []
    for path in (one, other):
        with zipfile.ZipFile(path) as archive:
            hashes.append(json.loads(archive.read("manifest.json"))["graph_hash"])
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "called with 0 leaves, it was compiled for 2"),
        ((np.ones((3, 8), "f"), 0.1), r"was f32\[4,8\] per_replica, is f32\[3, 8\]"),
        ((np.ones((4, 8), "f"), "fast"), "compiled for other arguments"),
        ((np.ones((4, 8), "f"), 0.1, 1), "too"),
        ((np.ones((4, 8), "f"), {1}), "neither an array nor hashable"),
    ],
)
def test_other_arguments_are_refused(path_for_two: Path, arguments: Any, says: str) -> None:
    strategy = cpus(2)
    loaded = gd.aot.load(path_for_two, strategy=strategy, variables=make_step(strategy)[1])
    with pytest.raises(gd.ArgumentError, match=says):
        loaded(*arguments)


def test_variables_are_found_by_name_shape_and_dtype(path_for_two: Path) -> None:
    strategy = cpus(2)
    with pytest.raises(gd.ArgumentError, match="needs a variable '0' f32"):
        gd.aot.load(path_for_two, strategy=strategy)
    with pytest.raises(gd.ArgumentError, match="needs a variable '0' f32"):
        gd.aot.load(path_for_two, strategy=strategy, variables=make_step(strategy, width=4)[1])
    with pytest.raises(gd.ContextError, match="belongs to"):
        gd.aot.load(path_for_two, strategy=strategy, variables=make_step(cpus(2))[1])


def test_a_variable_that_has_the_name_as_it_is_goes_first(tmp_path: Path) -> None:
    strategy = gd.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        params = gd.variables({"dense": np.float32(1), "dense_1": np.float32(100)})
    step = gd.function(lambda: strategy.run(lambda: params["dense_1"].assign_add(1.0)))
    path = tmp_path / "step.gdx"
    gd.aot.save(path, step.trace().lower().compile())
    gd.aot.load(path, strategy=strategy, variables=params)()
    assert [float(params[name]) for name in ("dense", "dense_1")] == [1, 101]


def test_other_devices_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "step.gdx", cpus(2))
    with pytest.raises(gd.ArtifactError, match=r"compiled for 2 replicas, .* has 4"):
        gd.aot.load(path, strategy=cpus(4))
    for_tpu = saved(tmp_path / "tpu.gdx", cpus(2), platforms=["tpu"])
    with pytest.raises(gd.ArtifactError, match="compiled for tpu, the devices are of cpu"):
        gd.aot.load(for_tpu, strategy=cpus(2))


@pytest.mark.parametrize("package", ["graphdist", "jax", "jaxlib"])
def test_other_versions_are_refused_with_both(path_for_two: Path, package: str) -> None:
    strategy = cpus(2)
    here = versions()
    with (
        mock.patch("graphdist.aot.compatibility.versions", return_value={**here, package: "9.9"}),
        pytest.raises(gd.ArtifactError, match=f"{package} {here[package]}, here is {package} 9.9"),
    ):
        gd.aot.load(path_for_two, strategy=strategy, variables=make_step(strategy)[1])


def test_a_native_executable_needs_the_flags_it_was_made_with(path_for_two: Path) -> None:
    strategy = cpus(2)
    params = make_step(strategy)[1]
    with (
        mock.patch(
            "graphdist.aot.compatibility.compiler_flags", return_value={"XLA_FLAGS": "--xla_some=1"}
        ),
        pytest.raises(gd.ArtifactError, match=r"for compiler flags .*, here are .*xla_some"),
    ):
        gd.aot.load(path_for_two, strategy=strategy, variables=params, native=True)


def test_what_a_file_cannot_describe_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    for step in (
        gd.function(lambda x: {1: x}),
        gd.function(lambda x: (x, len)),
    ):
        compiled = step.trace(jnp.ones(2)).lower().compile()
        with pytest.raises(gd.UnsupportedError, match="cannot describe"):
            gd.aot.save(tmp_path / "step.gdx", compiled)
    static = gd.function(lambda x, kind: x).trace(jnp.ones(2), max).lower().compile()
    with pytest.raises(gd.UnsupportedError, match="argument 'kind'"):
        gd.aot.save(tmp_path / "step.gdx", static)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("tpu")
def test_a_step_for_tpus_is_saved_and_refused_here(tmp_path: Path) -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2")
    path = saved(tmp_path / "step.gdx", strategy, platforms=["tpu", "cpu"])
    with pytest.raises(gd.DeviceError, match="of which only the topology is here"):
        gd.aot.load(path, strategy=strategy)
    # Its portable module is for both: here four logical CPU devices stand in for the chips.
    here = cpus(4)
    step, params, _ = make_step(here, by_shape=False)
    _, loaded_params, _ = make_step(here, by_shape=False)
    loaded = gd.aot.load(path, strategy=here, variables=loaded_params)
    (batch,) = batches(here, 1)
    np.testing.assert_allclose(step(batch, 0.1)["loss"], loaded(batch, 0.1)["loss"], rtol=1e-6)
    with pytest.raises(gd.ArtifactError, match="4 TPU v5 lite, here are 4 cpu"):
        gd.aot.load(path, strategy=here, variables=params, native=True)


@pytest.mark.needs("cuda")
def test_a_step_for_gpus_is_saved(tmp_path: Path) -> None:
    path = saved(tmp_path / "step.gdx", gd.MirroredStrategy(topology="a100:1x2"))
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert archive.getinfo("executable.bin").file_size > 0
    assert manifest["target"]["topology"] == "a100:1x2"


def test_a_step_takes_the_place_of_no_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(gd.ArgumentError, match="it is a pipe, a socket or a device"):
        saved(pipe, cpus(1))
    assert pipe.is_fifo()
