"""Each operation of JAX gives on the platform what it gives on CPUs: the interpreter's result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from graphdist.ir.graph import Graph
from graphdist.runtime.devices import Devices
from graphdist.runtime.emit import emit
from tests.ir.operation_examples import EXAMPLES
from tests.passes.execution import Trial, wide

UNLIKE = {
    # Signs and the order of what they return are the library's choice.
    "jax.eig", "jax.eigh", "jax.hessenberg", "jax.householder_product", "jax.lu", "jax.geqrf",
    "jax.qr", "jax.schur", "jax.svd", "jax.tridiagonal", "jax.approx_top_k",
    # The bits are the platform's own.
    "jax.rng_bit_generator", "jax.rng_uniform",
    # Of two rows that are written to one place, either may stay.
    "jax.scatter",
}  # fmt: skip
NAMES = sorted(name for name in EXAMPLES if name.startswith("jax.") and name not in UNLIKE)

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def in_full_precision() -> Iterator[None]:
    """Let products of float32 be float32, which GPUs and TPUs compute in fewer bits if let."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize("name", NAMES)
def test_an_operation(name: str, devices: Devices) -> None:
    for number, example in enumerate(EXAMPLES[name]):
        graph = example()
        trial = Trial.at_random(graph, np.random.default_rng(number))
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            expected = trial.outcome(graph).outputs
        for found, wanted in zip(on_device(graph, trial, devices), expected, strict=True):
            array: Any = wanted[0]
            assert (found.shape, found.dtype) == (array.shape, array.dtype)
            one: Any = wide(found)
            other: Any = wide(array)
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def on_device(graph: Graph, trial: Trial, devices: Devices) -> list[Any]:
    arrays = [jax.device_put(held[0], devices.devices[0]) for held in trial.arguments]
    return [np.asarray(output) for output in jax.jit(lambda *xs: emit(graph, xs))(*arrays)]
