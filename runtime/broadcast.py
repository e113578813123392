"""Broadcasts worker 0's values to all workers.

Before a broadcast the workers exchange checksums, and shapes and dtypes, which must agree. A worker
whose value differs logs this once per line of the user's program. A difference is no error, since
initial values without a seed differ. A small value is sent with that exchange. A large value goes
through the devices, as the sum of worker 0's bits and the other workers' zeros, in parts padded to
a few sizes, so that few programs are compiled.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from functools import cache, lru_cache, partial
from typing import Any  # Any: arrays of any dtype, compiled functions
from zlib import crc32

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.devices import Devices
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.supervised_steps import WorkerStep

SENT_WITH_EXCHANGE = 1 << 16  # bytes
LARGEST_PART = 1 << 24  # in words of 4 bytes
WORKER = "worker"
_log = logging.getLogger("graphdist")


def from_first_worker(
    value: np.ndarray[Any, Any], devices: Devices, what: str, at: Source = UNKNOWN
) -> np.ndarray[Any, Any]:
    """Return worker 0's copy of an array that every worker has.

    Raises `WorkerError` when the workers' arrays differ in shape or dtype.
    """
    workers = devices.workers
    assert workers is not None
    bits = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    described: dict[str, Any] = {
        "shape": list(value.shape),
        "dtype": value.dtype.name,
        "crc32": crc32(bits.data),
    }
    is_small = bits.nbytes <= SENT_WITH_EXCHANGE
    sends = is_small and workers.index == 0
    mine = {**described, "bits": b64encode(bits.tobytes()).decode()} if sends else described
    of_all = workers.exchange(f"value {workers.ordinal('value')}", mine, what, at)
    texts = [f"{each['dtype']}{each['shape']}" for each in of_all]
    for worker, text in enumerate(texts):
        if text != texts[0]:
            raise WorkerError(
                f"{what} is {texts[0]} on {workers.name(0)} and {text} on {workers.name(worker)}",
                source=at,
                hint="all workers make the same variables, in the same order",
            )
    if described["crc32"] != of_all[0]["crc32"]:
        _warn_of_difference(f"{what} at {at}", workers.name(0))
    if is_small:
        received = np.frombuffer(b64decode(of_all[0]["bits"]), np.uint8)
    else:
        received = _through_devices(bits, devices)
    return received.copy().view(value.dtype).reshape(value.shape)


@lru_cache(maxsize=256)
def _warn_of_difference(what: str, first: str) -> None:
    _log.warning("%s differs from that of %s, which all workers have now", what, first)


def _through_devices(bits: np.ndarray[Any, Any], devices: Devices) -> np.ndarray[Any, Any]:
    words = np.zeros(-(-bits.nbytes // 4), np.uint32)
    words.view(np.uint8)[: bits.nbytes] = bits
    parts = []
    for start in range(0, len(words), LARGEST_PART):
        part = words[start : start + LARGEST_PART]
        size = 1 << (len(part) - 1).bit_length()
        step, sharding = _sum_of_words(devices, size)
        padded = np.zeros(size, np.uint32)
        if devices.workers is not None and devices.workers.index == 0:
            padded[: len(part)] = part
        rows = jax.make_array_from_process_local_data(sharding, padded[None])
        (total,) = step(rows)
        parts.append(np.asarray(total)[: len(part)])
    return np.concatenate(parts).view(np.uint8)[: bits.nbytes]


@cache
def _sum_of_words(devices: Devices, size: int) -> tuple[WorkerStep, NamedSharding]:
    """Return a step that sums one row of words per worker, and the sharding of the rows."""
    assert devices.workers is not None
    count = len(devices.devices) // len(devices.workers)
    firsts = np.array(devices.devices[::count])
    mesh = Mesh(firsts, (WORKER,), axis_types=(AxisType.Auto,))
    by_worker = PartitionSpec(WORKER)

    def summed(rows: jax.Array) -> list[jax.Array]:
        return [jax.lax.psum(rows[0], WORKER)]

    mapped: Any = partial(jax.shard_map, mesh=mesh, check_vma=False)
    function: Any = jax.jit(mapped(summed, in_specs=by_worker, out_specs=[PartitionSpec()]))
    step = WorkerStep(function, "broadcast", devices, lambda: ("", UNKNOWN))
    return step, NamedSharding(mesh, by_worker)
