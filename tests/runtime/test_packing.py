"""How much goes into one packed collective: `bytes_per_pack`, per strategy and per call."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

import graphdist as gd

VALUES = 8
SIZE = 64  # floats each


def packs(strategy: gd.Strategy, options: Any) -> list[int]:
    """Return the bytes of each collective of a function that reduces values."""

    @gd.function
    def step(x: Any) -> Any:
        context_options = options

        def replica_fn(x: Any) -> Any:
            values = [x + i for i in range(VALUES)]
            return gd.get_replica_context().all_reduce("SUM", values, options=context_options)

        return strategy.run(replica_fn, args=(x,))

    spec = gd.PerReplicaSpec((SIZE,), jnp.float32, strategy=strategy)
    return [one.bytes for one in step.trace(spec).lower().collectives]


@pytest.mark.parametrize(
    ("bytes_per_pack", "expected"),
    [(0, [2048]), (1024, [1024] * 2), (256, [256] * 8), (100, [256] * 8), (600, [512] * 4)],
)
def test_packs_are_of_so_many_bytes(bytes_per_pack: int, expected: list[int]) -> None:
    devices = ["cpu:0", "cpu:1"]
    options = gd.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    assert packs(gd.MirroredStrategy(devices), options) == expected
    workers = gd.MultiWorkerMirroredStrategy(communication_options=options, devices=devices)
    assert packs(workers, None) == expected


def test_accelerators_get_it_as_an_option_of_their_compiler() -> None:
    from graphdist.passes import Target
    from graphdist.runtime.compilation import combining_options

    assert combining_options(Target("tpu", bytes_per_pack=2**20)) == {
        "xla_jf_crs_combiner_threshold_in_bytes": 2**20
    }
    names = list(combining_options(Target("gpu", bytes_per_pack=5)))
    assert len(names) == 3
    assert all(name.startswith("xla_gpu_") for name in names)
    assert combining_options(Target("gpu")) == {}
    assert combining_options(Target("cpu", bytes_per_pack=5)) == {}
