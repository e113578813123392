"""What XLA is told beside the program: what the devices ask for, and what the user does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast  # Any: JAX's settings
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.runtime.compilation import CompilerOptionError, device_options, refused
from graphdist.runtime.devices import Devices

OPTION = "xla_cpu_multi_thread_eigen"


@pytest.mark.parametrize("is_absent", [True, False])
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_the_compiler_for_absent_gpus_calls_cublas_and_knows_where_cuda_is(
    platform: str, is_absent: bool
) -> None:
    devices = cast(Devices, SimpleNamespace(platform=platform, is_absent=is_absent))
    with mock.patch("graphdist.runtime.compilation.cuda_folder", return_value=Path("/cuda")):
        told = device_options(devices)
    expects_it = platform == "gpu" and is_absent
    expected = {"xla_gpu_cuda_data_dir": str(Path("/cuda")), "xla_gpu_enable_triton_gemm": False}
    assert told == (expected if expects_it else {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("INVALID_ARGUMENT: No such compile option: 'xla_x'", "No such compile option: 'xla_x'"),
        ("INVALID_ARGUMENT: Failed to parse 'lots' into flag xla_x: ", "'lots' into flag xla_x"),
        ("INVALID_ARGUMENT: While setting option xla_x, 'lots' is no", "'lots' is no"),
    ],
)
def test_an_option_that_the_compiler_refuses_is_named(text: str, said: str) -> None:
    devices = cast(Devices, SimpleNamespace(platform="tpu"))
    error = refused(text, devices)
    assert isinstance(error, CompilerOptionError)
    assert str(error).splitlines()[0].endswith(said)


@pytest.mark.parametrize("given", [{}, {OPTION: True}])
def test_the_user_has_the_last_word(given: dict[str, Any]) -> None:
    jit, asked = jax.jit, []

    def noting(fun: Any, **settings: Any) -> Any:
        asked.append(settings.get("compiler_options"))
        return jit(fun, **settings)

    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    step = gd.function(lambda x: strategy.run(lambda: x * 3), compiler_options=given)
    devices_ask = mock.patch(
        "graphdist.runtime.executable.device_options", return_value={OPTION: False}
    )
    with mock.patch("jax.jit", noting), devices_ask:
        assert strategy.experimental_local_results(step(jnp.float32(2)))[1] == 6
    assert {OPTION: False} | given in asked
