"""Devices of a strategy."""

from __future__ import annotations

from typing import Any

import jax

import graphdist as gd
from tests.errors.refusal import Refused


def device_name_malformed(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["cpu0", "cpu1"])


def device_not_there(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["cpu:7", "cpu:8", "CPU:11", "gpu:15"])
    gd.MirroredStrategy(["cpu:6", "cpu:7"])


def device_not_there_for_one_device_strategy(refused: Refused) -> None:
    with refused(ValueError):
        gd.OneDeviceStrategy("cpu:8")


def device_of_absent_platform(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["tpu:0", "tpu:1"])


def device_given_twice(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["cpu:0", "cpu:1", "cpu:0"])


def devices_as_string(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy("cpu:0")


def devices_of_wrong_type(refused: Refused) -> None:
    devices: Any = [0, 1]
    with refused(ValueError):
        gd.MirroredStrategy(devices)


def devices_as_number(refused: Refused) -> None:
    devices: Any = 2
    with refused(ValueError):
        gd.MirroredStrategy(devices)


def logical_devices_too_late(refused: Refused) -> None:
    count = jax.local_device_count()
    with refused(ValueError):
        gd.config.set_logical_cpu_devices(count + 1)
    gd.config.set_logical_cpu_devices(count)


def logical_devices_none(refused: Refused) -> None:
    with refused(ValueError):
        gd.config.set_logical_cpu_devices(0)


def steps_in_flight_none(refused: Refused) -> None:
    with refused(ValueError):
        gd.config.set_max_steps_in_flight("cpu", 0)


def devices_in_one_string(refused: Refused) -> None:
    devices: Any = "cpu:0, cpu:1"
    with refused(ValueError):
        gd.MirroredStrategy(devices)


def devices_in_one_name(refused: Refused) -> None:
    with refused(ValueError):
        gd.MirroredStrategy(["cpu:0,cpu:1"])
