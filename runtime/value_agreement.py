"""Checks that mirrored arguments and variables are equal on all workers, and inputs on some.

A mirrored argument, a Python scalar or a variable is one value of the program, of which each
process has a copy. A process with another learning rate would train another model, and no
collective would fail. So before the first call of a program, and again at intervals, each worker
computes a checksum of each mirrored input, and all workers exchange the checksums: a few bytes per
input, not sent through the devices.

If checksums differ, the workers compare the blocks of the first input that differs, and after that
the elements of the first block that differs. The error names the argument or variable, the element,
and the values. All workers receive the same messages, and raise the same error before the step
runs.

Workers that have devices of the same replica have the same values for it. Of these they exchange
the checksums whenever they exchange shapes, since each makes or reads the values itself.

On CPUs a checksum is the CRC-32 of the memory. Elsewhere the device computes the sum of all 32-bit
words, each times an odd weight that depends on its index, modulo 2**32. So a change of one word
always changes the checksum, and any other change does with a probability of 1 - 2**-32.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn  # Any: arrays of any dtype, JSON
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.ir.graph import Graph
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED
from graphdist.runtime.devices import Devices
from graphdist.runtime.invalid_numbers import Named, piece_with
from graphdist.runtime.processes.addresses import WorkerError

BLOCK = 4096
"""The number of elements in a block."""


class ValueAgreement:
    """Checks the mirrored inputs of one program; `inputs` describes each input for errors."""

    def __init__(
        self, graph: Graph, devices: Devices, inputs: Sequence[Named], every: int | None
    ) -> None:
        """Check before the first call, and then every `every` steps."""
        assert devices.workers is not None
        self._name, self._devices, self._workers = graph.name, devices, devices.workers
        self._number = self._workers.ordinal("compared program")
        layouts, count = graph.input_layouts, len(graph.variables)
        # Arguments first: a variable may differ because an argument does.
        indices = [*range(count, len(layouts)), *range(count)]
        self._mirrored = [index for index in indices if layouts[index] is MIRRORED]
        self._inputs, self._every = inputs, every
        self._is_new = True

    def watched(self, function: Callable[..., list[jax.Array]]) -> Callable[..., list[jax.Array]]:
        """Return a function that runs a step. If a check is due, it first checks the inputs."""

        def run(*arrays: jax.Array) -> list[jax.Array]:
            if self._workers.is_check_due(self._every) or self._is_new:
                self._check(arrays)
                self._is_new = False
            return function(*arrays)

        return run

    def _check(self, arrays: Sequence[jax.Array]) -> None:
        """Raise `WorkerError` if an input differs between workers."""
        # A mirrored input is an array of JAX, of which this worker has copies, or of NumPy.
        given = (arrays[index] for index in self._mirrored)
        own = [each.addressable_data(0) if isinstance(each, jax.Array) else each for each in given]
        rows = self._exchanged([self._number, self._name, self._every, *map(self._checksum, own)])
        if len({number for number, *_ in rows}) > 1:
            self._raise_other_programs([(number, name) for number, name, *_ in rows])
        _, _, every, *checksums = zip(*rows, strict=True)
        if len({*every}) > 1:
            self._raise_different("the number of steps between two checks of values", list(every))
        for array, index, of_all in zip(own, self._mirrored, checksums, strict=True):
            if len({*of_all}) > 1:
                self._raise_different_input(array, self._inputs[index])

    def _checksum(self, array: Any) -> int:
        if self._devices.platform == "cpu" or not isinstance(array, jax.Array):
            return checksum_of_memory(array)
        with jax.enable_x64(True):
            return int(weighted_sum(array))

    def _raise_different_input(self, array: Any, named: Named) -> NoReturn:
        """Find the first element of an input that differs between workers, and raise the error."""
        values = _numbers(array).reshape(-1)
        blocks = [values[start : start + BLOCK] for start in range(0, values.size, BLOCK)]
        of_blocks = self._exchanged([checksum_of_memory(block) for block in blocks])
        block = _first_difference(of_blocks)
        sent = self._exchanged(b64encode(_bytes(blocks[block])).decode())
        of_all = [np.frombuffer(b64decode(text), values.dtype) for text in sent]
        in_block = _first_difference([part.view(f"V{values.itemsize}").tolist() for part in of_all])
        element = block * BLOCK + in_block
        what, size, in_piece = piece_with(element, named)
        if len(named) > 1:
            what += f", element [{in_piece}]," if size > 1 else ""
        elif values.size > 1:
            index = [int(i) for i in np.unravel_index(element, _numbers(array).shape)]
            what += f", element {index},"
        self._raise_different(what, [part[in_block] for part in of_all])

    def _raise_other_programs(self, called: list[tuple[int, str]]) -> NoReturn:
        other = next(i for i, program in enumerate(called) if program != called[0])
        first, second = (
            f"{self._workers.name(i)} calls {called[i][1]!r}, its program {called[i][0]}"
            for i in (0, other)
        )
        hint = "all workers call the same functions in the same order"
        raise WorkerError(f"{first}, and {second}", hint=hint)

    def _raise_different(self, what: str, values: list[Any]) -> NoReturn:
        """Raise the error for a value that differs between workers."""
        texts = [str(value) for value in values]
        if len({*texts}) == 1:  # 0.0 and -0.0, or two different nans
            texts = [np.asarray(value).tobytes().hex() for value in values]
        usual = Counter(texts).most_common(1)[0][0]
        odd = next(text for text in texts if text != usual)

        def workers_with(text: str) -> str:
            return self._workers.names([i for i, other in enumerate(texts) if other == text])

        raise WorkerError(
            f"{what} is {usual} on {workers_with(usual)}, but {odd} on {workers_with(odd)}, where "
            f"{self._name!r} is called",
            hint="it is one value for all workers: compute the same value on all of them, or give "
            "each replica its own by strategy.experimental_distribute_values_from_function",
        )

    def _exchanged(self, value: Any) -> list[Any]:
        key = f"values {self._workers.ordinal('values')}"
        what = f"the comparison of the values that {self._name!r} is called with"
        limit = self._devices.timeout_seconds
        seconds = float("inf") if limit is None else limit
        return self._workers.exchange(key, value, what, seconds=seconds)


def checksums_of_input(arrays: Iterable[Any], devices: Devices) -> list[int]:
    """Return a checksum of each array that other workers give their replica, too.

    It is empty where no replica has devices of several workers.
    """
    if devices.workers_per_replica == 1:
        return []
    return list(map(checksum_of_memory, arrays))


def checksum_of_memory(array: Any) -> int:
    """Return the CRC-32 of an array's bytes, which the host reads."""
    return crc32(_bytes(array))


def require_equal_input(
    checksums: Sequence[list[int] | None], devices: Devices, at: Source = UNKNOWN
) -> None:
    """Raise `WorkerError` unless the workers of each replica have the same values for it.

    `checksums` are those of all workers, None of a worker without values; `at` is the user's line.
    """
    workers, count = devices.workers, devices.workers_per_replica
    for worker, of_worker in enumerate(checksums):
        first = worker // count * count
        if workers is not None and of_worker != checksums[first]:
            raise WorkerError(
                f"{workers.name(first)} and {workers.name(worker)} have devices of the same "
                f"replica, and give it different values",
                source=at,
                hint="let them make the same values: the same rows in the same order, and the "
                "same seeds",
            )


@jax.jit
def weighted_sum(array: jax.Array) -> jax.Array:
    """Return the checksum of an array, computed on the array's device."""
    bits = _as_numbers(array)
    if jnp.issubdtype(bits.dtype, jnp.complexfloating):
        bits = jnp.stack([bits.real, bits.imag])
    if bits.dtype == jnp.bool_ or bits.dtype.name in ("int2", "uint2", "int4", "uint4"):
        bits = bits.astype(jnp.uint8)
    size = min(bits.dtype.itemsize, 4)
    words = jax.lax.bitcast_convert_type(bits, np.dtype(f"u{size}")).reshape(-1)
    weights = 2 * jax.lax.iota(jnp.uint32, words.size) + 1
    return jnp.sum(words.astype(jnp.uint32) * weights, dtype=jnp.uint32)


def _as_numbers(array: Any) -> Any:
    """Return random keys as integers, and other arrays unchanged."""
    if not isinstance(array, jax.Array):
        return array
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(array) if is_key else array


def _numbers(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(_as_numbers(array))


def _bytes(array: Any) -> memoryview:
    """Return the memory of an array as bytes."""
    return np.ascontiguousarray(_numbers(array)).reshape(-1).view(np.uint8).data


def _first_difference(of_workers: Sequence[Sequence[Any]]) -> int:
    """Return the first index at which the workers' sequences differ."""
    return next(i for i, of_all in enumerate(zip(*of_workers, strict=True)) if len({*of_all}) > 1)
