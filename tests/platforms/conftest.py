"""The devices that the tests of this folder run on: those of `--platform`, CPU devices if none."""

from __future__ import annotations

import jax
import pytest

from graphdist.runtime.devices import Devices, find_devices


@pytest.fixture(scope="session")
def devices(pytestconfig: pytest.Config) -> Devices:
    """Return all devices of the platform that this process has; of CPUs the first one."""
    platform = pytestconfig.getoption("--platform")
    found = jax.local_devices(backend=platform)
    return find_devices(found[:1] if platform == "cpu" else found)


@pytest.fixture
def names(devices: Devices) -> list[str]:
    """Return the names of the devices, as strategies take them."""
    return list(devices.names)
