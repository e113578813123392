"""Collectives along a dimension on CPUs: the bits of JAX's own, of all replicas and of groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any  # Any: collectives of JAX and of ours, with their parameters

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from graphdist.runtime import cpu_collectives
from graphdist.runtime.cpu_operations import operations_for

COUNT = 4
GROUPS = [[0, 2], [1, 3]]
X = np.random.default_rng(0).normal(size=(COUNT, 8, 4, 12)).astype(np.float32)
"""An array of each device."""


def on_devices(collective: Callable[..., Any]) -> tuple[np.ndarray, str]:
    """Return the results of all devices, and the module that computes them."""
    mesh = jax.make_mesh((COUNT,), ("replica",), axis_types=(AxisType.Auto,))
    along = PartitionSpec("replica")

    def of_device(x: jax.Array) -> jax.Array:
        return collective(x[0], "replica")[None]

    step = jax.shard_map(of_device, mesh=mesh, in_specs=along, out_specs=along, check_vma=False)
    with operations_for("cpu", {}):
        lowered = jax.jit(step).lower(X)
    return np.asarray(lowered.compile()(X)), lowered.as_text()


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["all", "groups"])
@pytest.mark.parametrize("axis", range(3))
def test_gathers_and_reductions_have_the_bits_of_jax(axis: int, groups: Any) -> None:
    gather = partial(lax.all_gather, axis=axis, axis_index_groups=groups, tiled=True)
    found, module = on_devices(partial(cpu_collectives.all_gather, axis=axis, groups=groups))
    np.testing.assert_array_equal(found, on_devices(gather)[0])
    assert module.count("stablehlo.all_gather") == 1

    parameters = {"scatter_dimension": axis, "axis_index_groups": groups}
    scatter = partial(lax.psum_scatter, **parameters, tiled=True)
    found, module = on_devices(partial(cpu_collectives.reduce_scatter, axis=axis, groups=groups))
    np.testing.assert_array_equal(found, on_devices(scatter)[0])
    assert module.count("stablehlo.reduce_scatter") == 1


@pytest.mark.parametrize("concat", range(3))
@pytest.mark.parametrize("split", range(3))
def test_exchanges_have_the_bits_of_jax(split: int, concat: int) -> None:
    own = partial(cpu_collectives.all_to_all, split_axis=split, concat_axis=concat)
    of_jax = partial(lax.all_to_all, split_axis=split, concat_axis=concat, tiled=True)
    found, module = on_devices(own)
    np.testing.assert_array_equal(found, on_devices(of_jax)[0])
    assert module.count("stablehlo.all_to_all") == 1


def test_arrays_without_elements_are_gathered() -> None:
    empty = X[:, :, :0]
    mesh = jax.make_mesh((COUNT,), ("replica",), axis_types=(AxisType.Auto,))
    along = PartitionSpec("replica")

    def of_device(x: jax.Array) -> jax.Array:
        return cpu_collectives.all_gather(x[0], "replica", axis=2)[None]

    step = jax.shard_map(of_device, mesh=mesh, in_specs=along, out_specs=along, check_vma=False)
    with operations_for("cpu", {}):
        assert jax.jit(step)(empty).shape == (COUNT, 8, 0, COUNT * 12)
