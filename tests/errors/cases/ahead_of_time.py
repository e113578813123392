"""Topologies without hardware, compilers' refusals, and the files of compiled steps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any  # Any: JSON
from unittest import mock

import jax
import jax.export
import jax.numpy as jnp

import graphdist as gd
from graphdist.ir.parser import parse
from graphdist.runtime.compilation import refused as refused_by_xla
from graphdist.runtime.devices import Devices
from graphdist.runtime.files import module_check
from graphdist.runtime.files.artifact import read_artifact, write_artifact
from graphdist.tools.steps import make_step
from graphdist.tools.targets import load_factory
from tests.errors.programs import pair
from tests.errors.refusal import Refused

OUT_OF_MEMORY = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(120.18G) exceeds available HBM (15.75G)."
)


def step_saved_without_a_path(refused: Refused) -> None:
    step: Any = gd.function(lambda x: x)
    with refused(TypeError):
        gd.aot.save(step, "step.gdx")  # type: ignore[arg-type]


def step_saved_before_it_is_compiled(refused: Refused) -> None:
    step: Any = gd.function(lambda x: x)
    with refused(TypeError):
        gd.aot.save("step.gdx", step)


def step_saved_with_local_steps(refused: Refused) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], sync_every=50)
    with strategy.scope():
        w = gd.Variable(jnp.ones(3))

    def replica_fn(x: jax.Array) -> None:
        w.assign(w - gd.get_replica_context().all_reduce("MEAN", w * x))

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    with strategy.scope():
        compiled = step.trace(gd.PerReplicaSpec((3,), jnp.float32)).lower().compile()
    with tempfile.TemporaryDirectory() as folder, refused(NotImplementedError):
        gd.aot.save(Path(folder) / "step.gdx", compiled)


def step_loaded_from_a_number(refused: Refused) -> None:
    with refused(TypeError):
        gd.aot.load(3)  # type: ignore[arg-type]


def topology_unknown(refused: Refused) -> None:
    with refused(ValueError):
        gd.TPUStrategy(topology="v5e:16by16")


def topology_of_another_platform(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(topology="v5e:2x2")


def topology_without_its_compiler(refused: Refused) -> None:
    missing = mock.patch("graphdist.runtime.extras.has_package", return_value=False)
    with missing, refused(ImportError):
        gd.TPUStrategy(topology="v5e:16x16")


def tpus_that_are_not_here(refused: Refused) -> None:
    with refused(ValueError):
        gd.TPUStrategy()


def program_too_large(refused: Refused) -> None:
    lowered = gd.function(lambda x: x + 1).trace(jnp.ones(2)).lower()

    def too_large(_: object, devices: Devices, *__: object, **___: object) -> None:
        error = refused_by_xla(OUT_OF_MEMORY, devices)
        assert error is not None
        raise error

    with mock.patch("graphdist.program.stages.compile_lowered", too_large), refused(MemoryError):
        lowered.compile()
    lowered.compile()


def compiler_option_unknown(refused: Refused) -> None:
    lowered = gd.function(lambda x: x + 1).trace(jnp.ones(2)).lower()
    with refused(ValueError):
        lowered.compile(compiler_options={"xla_no_such_option": True})


def variable_without_a_value(refused: Refused) -> None:
    w = gd.Variable(jax.ShapeDtypeStruct((2,), jnp.float32), name="w")
    double = gd.function(lambda: w.read_value() * 2)
    with refused(RuntimeError):
        double()
    w.assign(jnp.ones(2))
    assert double().tolist() == [2, 2]


def artifact_that_is_none(refused: Refused) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.gdx"
        path.write_text("not a zip")
        with refused(ValueError):
            gd.aot.load(path)


def artifact_for_other_devices(refused: Refused) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    step = gd.function(lambda x: strategy.reduce("SUM", x, axis=None))
    spec = gd.PerReplicaSpec((2,), jnp.float32, strategy=strategy)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.gdx"
        gd.aot.save(path, step.trace(spec).lower().compile())
        with refused(ValueError):
            gd.aot.load(path, strategy=gd.MirroredStrategy(["cpu:0"]))


def artifact_with_variables_of_one_name(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        params, momentum = gd.variables({"w": jnp.ones(2)}), gd.variables({"w": jnp.ones(2)})

    @gd.function
    def step() -> None:
        strategy.run(lambda: params["w"].assign_sub(momentum["w"]))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.gdx")
        gd.aot.save(path, step.trace().lower().compile())
        with refused(ValueError):
            gd.aot.load(path, strategy=strategy, variables=[params, momentum])


def artifact_for_another_strategy_of_the_same_devices(refused: Refused) -> None:
    strategy = pair()
    with strategy.scope():
        params = gd.variables({"w": jnp.ones(2)})

    @gd.function
    def step() -> None:
        strategy.run(lambda: params["w"].assign_add(params["w"]))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "step.gdx")
        gd.aot.save(path, step.trace().lower().compile())
        with refused(RuntimeError):
            gd.aot.load(path, variables=params)
        gd.aot.load(path, strategy=strategy, variables=params)()
    assert float(params["w"][0]) == 2


def spec_of_a_negative_size(refused: Refused) -> None:
    with refused(ValueError):
        gd.PerReplicaSpec((-1, 8), jnp.float32)


def spec_of_half_a_row(refused: Refused) -> None:
    with refused(ValueError):
        gd.PerReplicaSpec((jnp.float32(12.5), 8), jnp.float32)


def element_of_half_a_row(refused: Refused) -> None:
    with refused(ValueError):
        gd.ArraySpec((12.5, 8), jnp.float32)  # type: ignore[arg-type]


def spec_of_a_number(refused: Refused) -> None:
    shape: Any = 16
    with refused(ValueError):
        gd.PerReplicaSpec(shape, jnp.float32)


def artifact_in_no_folder(refused: Refused) -> None:
    compiled = gd.function(lambda x: x * 2).trace(jnp.ones(4)).lower().compile()
    with refused(ValueError):
        gd.aot.save("/no/folder/step.gdx", compiled)


def artifact_in_place_of_a_folder(refused: Refused) -> None:
    compiled = gd.function(lambda x: x * 2).trace(jnp.ones(4)).lower().compile()
    with refused(ValueError):
        gd.aot.save("/", compiled)


def artifact_with_options_that_name_files(refused: Refused) -> None:
    strategy = gd.MirroredStrategy(["cpu:0"])
    step = gd.function(lambda x: x * 2, compiler_options={"xla_gpu_cuda_data_dir": "/nowhere"})
    with tempfile.TemporaryDirectory() as folder, strategy.scope():
        path = Path(folder) / "step.gdx"
        gd.aot.save(path, step.trace(jax.ShapeDtypeStruct((2,), jnp.float32)).lower().compile())
        with refused(ValueError):
            gd.aot.load(path, strategy=strategy)


def _artifact(folder: str) -> Path:
    path = Path(folder) / "step.gdx"
    gd.aot.save(path, gd.function(lambda x: x * 2).trace(jnp.ones(4)).lower().compile())
    return path


def _changed(path: Path, changed: dict[str, Any], **members: bytes) -> Path:
    """Write the file anew with other contents, and hashes to match."""
    manifest, kept = read_artifact(path)
    manifest = {key: one for key, one in manifest.items() if key not in ("members", "hash")}
    write_artifact(path, {**manifest, **changed}, {**kept, **members})
    return path


def artifact_with_a_custom_call_of_its_own(refused: Refused) -> None:
    aval = jax.ShapeDtypeStruct((4,), jnp.float32)
    call = jax.ffi.ffi_call("launch", aval)
    exported = jax.export.export(
        jax.jit(lambda x: [call(x)]),
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("launch")],
    )(aval)
    with tempfile.TemporaryDirectory() as folder:
        module = {"module.mlir": bytes(exported.serialize())}
        path = _changed(_artifact(folder), {}, **module)
        with refused(ValueError):
            gd.aot.load(path)


def artifact_whose_module_crashes_its_reader(refused: Refused) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, reader = _artifact(folder), Path(folder, "reader.py")
        reader.write_text("import os; os.kill(os.getpid(), 11)")
        with mock.patch.multiple(module_check, READER=reader, _safe=set()), refused(ValueError):
            gd.aot.load(path)
        assert gd.aot.load(path)(jnp.ones(4)).tolist() == [2] * 4


def artifact_with_a_manifest_of_no_step(refused: Refused) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = _changed(_artifact(folder), {"platforms": "cpu"})
        with refused(ValueError):
            gd.aot.load(path)


def step_with_a_callback_saved(refused: Refused) -> None:
    step = gd.function(lambda x: jax.pure_callback(lambda y: y, x, x))
    with tempfile.TemporaryDirectory() as folder:
        compiled = step.trace(jnp.ones(4)).lower().compile()
        with refused(NotImplementedError):
            gd.aot.save(Path(folder) / "step.gdx", compiled)


def graph_text_that_is_too_long(refused: Refused) -> None:
    with refused(ValueError):
        parse("graph f on 1 replica, stage spmd", max_characters=10)


def artifact_loaded_natively_with_options(refused: Refused) -> None:
    with refused(ValueError):
        gd.aot.load("step.gdx", native=True, compiler_options={})


def target_without_the_factory(refused: Refused) -> None:
    with refused(ValueError):
        load_factory("tests.aot.steps:make_stepp")


def target_that_raises(refused: Refused) -> None:
    with refused(ValueError):
        make_step("tests.errors.cases.ahead_of_time:_no_shape", gd.get_strategy(), {"width": 3})


def _no_shape(strategy: gd.Strategy, width: int) -> None:
    raise ValueError(f"width {width} is odd")
