"""The graphs of these tests name files that are not there, and commands ask for few devices."""

from __future__ import annotations

import linecache
import sys

import jax
import pytest


@pytest.fixture(autouse=True)
def _no_file_of_another_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Forget the files that other tests of this process had in their folders."""
    tests = str(tmp_path_factory.getbasetemp())
    folders = [folder for folder in sys.path if not folder.startswith(tests)]
    monkeypatch.setattr(sys, "path", folders)  # of programs that commands loaded
    linecache.clearcache()


@pytest.fixture(autouse=True, scope="session")
def _devices_of_all_tests() -> None:
    """Start the devices of all tests: a command that came first would start as many as it needs."""
    jax.devices("cpu")
