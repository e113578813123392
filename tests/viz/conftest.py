"""The graphs of these tests name files that are not there, and commands ask for few devices."""

from __future__ import annotations

import linecache

import jax
import pytest


@pytest.fixture(autouse=True)
def _no_file_of_another_test() -> None:
    """Forget the lines of files that other tests of this process had in their folders."""
    linecache.clearcache()


@pytest.fixture(autouse=True, scope="session")
def _devices_of_all_tests() -> None:
    """Start the devices of all tests: a command that came first would start as many as it needs."""
    jax.devices("cpu")
