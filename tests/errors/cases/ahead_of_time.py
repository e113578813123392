"""Topologies without hardware, compilers' refusals, and the files of compiled steps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp

import graphdist as gd
from graphdist.runtime.compilation import refused as refused_by_xla
from graphdist.runtime.devices import Devices
from graphdist.tools.targets import load_factory, make_step
from tests.errors.programs import pair
from tests.errors.refusal import Refused

OUT_OF_MEMORY = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(120.18G) exceeds available HBM (15.75G)."
)


def topology_unknown(refused: Refused) -> None:
    with refused(ValueError):
        gd.TPUStrategy(topology="v5e:16by16")


def topology_of_another_platform(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(topology="v5e:2x2")


def topology_without_its_compiler(refused: Refused) -> None:
    missing = mock.patch("graphdist.runtime.topologies.has_package", return_value=False)
    with missing, refused(ImportError):
        gd.TPUStrategy(topology="v5e:16x16")


def tpus_that_are_not_here(refused: Refused) -> None:
    with refused(ValueError):
        gd.TPUStrategy()


def program_too_large(refused: Refused) -> None:
    lowered = gd.function(lambda x: x + 1).trace(jnp.ones(2)).lower()

    def too_large(_: object, devices: Devices, __: object) -> None:
        error = refused_by_xla(OUT_OF_MEMORY, devices)
        assert error is not None
        raise error

    with mock.patch("graphdist.stages.compile_lowered", too_large), refused(MemoryError):
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


def artifact_with_options_that_name_files(refused: Refused) -> None:
    strategy = gd.MirroredStrategy(["cpu:0"])
    step = gd.function(lambda x: x * 2, compiler_options={"xla_gpu_cuda_data_dir": "/nowhere"})
    with tempfile.TemporaryDirectory() as folder, strategy.scope():
        path = Path(folder) / "step.gdx"
        gd.aot.save(path, step.trace(jax.ShapeDtypeStruct((2,), jnp.float32)).lower().compile())
        with refused(ValueError):
            gd.aot.load(path, strategy=strategy)


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
