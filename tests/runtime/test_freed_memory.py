"""The memory that a step frees stays in the process, unless the environment has other settings."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the C library of Linux"
)

STEPS = """
import resource
import jax, jax.numpy as jnp
import graphdist as gd
from graphdist.runtime.freed_memory import MOST_BYTES_KEPT

def step(x):
    parts = [jax.lax.optimization_barrier(jnp.sin(x + i)) for i in range(20)]
    return sum(jax.lax.optimization_barrier(tuple(parts))).sum()

x = jnp.ones(2**20)
function = gd.function(step)
assert function.trace(x).lower().compile().memory.temp_bytes > MOST_BYTES_KEPT
for _ in range(5):
    float(function(x))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    float(function(x))
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""
SETTINGS = "from graphdist import config\nprint(sorted(config.freed_memory.given))"


def output(program: str, **settings: str) -> str:
    environment = {**os.environ, **settings}
    run = [sys.executable, "-c", program]
    return subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout


def test_a_step_gets_the_pages_of_the_step_before() -> None:
    pages = 20 * 2**22 // os.sysconf("SC_PAGE_SIZE")
    assert int(output(STEPS)) < pages // 10


@pytest.mark.parametrize(
    ("name", "value", "given"),
    [
        ("MALLOC_TOP_PAD_", "0", ["top_pad"]),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1000000", ["mmap_threshold"]),
        ("GLIBC_TUNABLES", "glibc.malloc.check=0", []),
    ],
)
def test_settings_of_the_environment_stay(name: str, value: str, given: list[str]) -> None:
    assert output(SETTINGS, **{name: value}).strip() == str(given)
