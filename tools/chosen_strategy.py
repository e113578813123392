"""The strategy that a command line chooses for the step of a program, by `--strategy`.

The strategy is made after the program is loaded, since a program may set the number of CPU devices.
For `--strategy NAME:N`, there are N devices before the program is loaded. A program that asks for
fewer devices gets N devices. A program that asks for more devices gets as many as it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax

from graphdist.config import set_logical_cpu_devices
from graphdist.errors import ArgumentError, DeviceError
from graphdist.quoted import did_you_mean
from graphdist.strategies.base import CommonStrategy
from graphdist.strategies.central_storage import CentralStorageStrategy
from graphdist.strategies.current import default_strategy
from graphdist.strategies.mirrored import MirroredStrategy
from graphdist.strategies.one_device import OneDeviceStrategy

_REPLICA_COUNT = re.compile("|[1-9][0-9]{0,3}")


@dataclass(frozen=True)
class ChosenStrategy:
    """A function that makes a strategy, and the option that chose the function; "" by default."""

    option: str
    make: Callable[[], CommonStrategy]
    cpu_devices: int = 1


DEFAULT = ChosenStrategy("", default_strategy)
_MAKERS: dict[str, Callable[[list[str] | None], CommonStrategy]] = {
    "default": lambda devices: default_strategy(),
    "one_device": lambda devices: OneDeviceStrategy(devices[0] if devices else None),
    "mirrored": MirroredStrategy,
    "central_storage": CentralStorageStrategy,
}


def strategy_named(text: str | None) -> ChosenStrategy:
    """Return the strategy that the text `NAME`, or `NAME:N` for N replicas, chooses.

    None chooses the default strategy. Raises `ArgumentError` for other texts.
    """
    if text is None:
        return DEFAULT
    name, _, replicas = text.partition(":")
    if name not in _MAKERS or not _REPLICA_COUNT.fullmatch(replicas):
        near = "" if name in _MAKERS else did_you_mean(name, _MAKERS)
        names = f"NAME is one of {', '.join(_MAKERS)}; write for instance mirrored:8"
        hint = f"{near} {names}".strip()
        raise ArgumentError(f"--strategy {text!r} is not NAME or NAME:N, for N replicas", hint=hint)
    option = f"--strategy {text}"
    if not replicas:
        return ChosenStrategy(option, partial(_MAKERS[name], None))
    count = int(replicas)
    return ChosenStrategy(option, lambda: _MAKERS[name](_devices(option, count)), count)


def _devices(option: str, count: int) -> list[str]:
    """Return accelerators of this machine if there are enough, otherwise logical CPU devices."""
    try:
        set_logical_cpu_devices(count)  # the program may have set another count
    except DeviceError as error:
        there = jax.local_device_count("cpu")
        if there < count:
            raise ArgumentError(
                f"{option} takes {count} devices, and there are {there}: JAX was started with them",
                hint="let the program set their count with gd.config.set_logical_cpu_devices",
            ) from error
    platform = jax.default_backend() if jax.local_device_count() >= count else "cpu"
    return [f"{platform}:{index}" for index in range(count)]
