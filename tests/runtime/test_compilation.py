"""What XLA is told beside the program: what the devices ask for, and what the user does."""

from __future__ import annotations

from typing import Any  # Any: JAX's settings
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.runtime.compilation import device_options
from graphdist.runtime.devices import find_devices

OPTION = "xla_cpu_multi_thread_eigen"
CORES = "graphdist.runtime.compilation.available_cores"


@pytest.mark.parametrize(
    ("devices", "cores", "options"),
    [(1, 2, {}), (2, 2, {OPTION: False}), (4, 2, {OPTION: False}), (2, 8, {})],
)
def test_host_devices_that_take_all_cores_have_one_thread_each(
    devices: int, cores: int, options: dict[str, Any]
) -> None:
    found = find_devices([f"cpu:{number}" for number in range(devices)])
    with mock.patch(CORES, return_value=cores):
        assert device_options(found) == options


@pytest.mark.parametrize("given", [{}, {OPTION: True}])
def test_the_user_has_the_last_word(given: dict[str, Any]) -> None:
    jit, asked = jax.jit, []

    def noting(fun: Any, **settings: Any) -> Any:
        asked.append(settings.get("compiler_options"))
        return jit(fun, **settings)

    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    step = gd.function(lambda x: strategy.run(lambda: x * 3), compiler_options=given)
    with mock.patch("jax.jit", noting), mock.patch(CORES, return_value=2):
        assert strategy.experimental_local_results(step(jnp.float32(2)))[1] == 6
    assert {OPTION: False} | given in asked
