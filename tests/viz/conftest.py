"""The graphs of these tests name files that are not there."""

from __future__ import annotations

import linecache

import pytest


@pytest.fixture(autouse=True)
def _no_file_of_another_test() -> None:
    """Forget the lines of files that other tests of this process had in their folders."""
    linecache.clearcache()
