"""The memory that a step frees stays in the process, unless the environment has other settings."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from graphdist.runtime import freed_memory
from graphdist.runtime.freed_memory import keep_freed_memory

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the C library of Linux"
)

STEPS = """
import os, resource
import jax, jax.numpy as jnp
import graphdist as gd
from graphdist.runtime.freed_memory import MOST_BYTES_KEPT

def loss(weight, x):
    for _ in range(12):
        x = jnp.tanh(x @ weight)
    return x.sum()

x, weight = jnp.ones((4096, 256)), jnp.ones((256, 256))
function = gd.function(jax.value_and_grad(loss))
assert function.trace(weight, x).lower().compile().memory.temp_bytes > MOST_BYTES_KEPT
fewest = None
for _ in range(os.cpu_count() + 4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    float(function(weight, x)[0])
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    fewest = faults if fewest is None else min(fewest, faults)
print(fewest)
"""
SETTINGS = "from graphdist import config\nprint(sorted(config.freed_memory.given))"


def output(program: str, **settings: str) -> str:
    environment = {**os.environ, **settings}
    run = [sys.executable, "-c", program]
    return subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout


def test_a_step_gets_the_pages_of_a_step_before() -> None:
    """Of more steps than the process has threads, one is on a thread that has run one before."""
    pages = 12 * 2**22 // os.sysconf("SC_PAGE_SIZE")
    assert int(output(STEPS)) < pages // 4


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


@pytest.mark.parametrize(
    ("temporaries", "memory", "keeps"),
    [(2**25, 2**34, True), (2**23, 2**34, False), (2**25, 2**30, False), (2**30, 2**36, False)],
)
def test_memory_is_kept_if_all_processors_have_room_for_it(
    temporaries: int, memory: int, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(freed_memory, "_bytes_of_memory", lambda: memory)
    monkeypatch.setattr(freed_memory, "_keep_freed_memory", lambda: True)
    assert keep_freed_memory(temporaries) == keeps
