"""Programs that are kept: the next start compiles none, and has the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # Any: JSON, and settings of JAX

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.runtime.compilation import has_cache

PROGRAM = str(Path(__file__).with_name("cached_programs.py"))
SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


def run_twice(folder: Path, *command: str) -> list[str]:
    """Return what two starts of a program print that keep their programs in a folder."""
    environment = {**os.environ, "GRAPHDIST_COMPILATION_CACHE": str(folder)}
    return [
        subprocess.run(
            [sys.executable, *command],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for _ in range(2)
    ]


@pytest.mark.long
def test_a_restart_compiles_nothing(tmp_path: Path) -> None:
    parts = ("mirrored", "one device", "sharded on one", "looped", "eager")
    first, second = map(json.loads, run_twice(tmp_path, PROGRAM, *parts))
    for part in parts:
        (programs, _, number), (again, compiled, same) = first[part], second[part]
        assert (again, same) == (programs, number), part
        assert compiled == 0, part
    assert sum(compiled for _, compiled, _ in first.values()) > len(parts)


@pytest.mark.long
def test_worker_0_compiles_nothing_when_it_restarts(tmp_path: Path) -> None:
    launched = ("-m", "graphdist.tools.run", "-n", "2", PROGRAM, "workers")
    first, second = (
        {line[:10]: json.loads(line[11:])["workers"] for line in out.splitlines() if "{" in line}
        for out in run_twice(tmp_path, *launched)
    )
    assert first["[worker 0]"][1] > 0
    assert second["[worker 0]"][1] == 0
    assert len({number for _, _, number in [*first.values(), *second.values()]}) == 1


@pytest.mark.long
def test_collectives_on_cpus_keep_their_order(tmp_path: Path) -> None:
    # JAX loses it where it reads such a program: the step is compiled again, what is beside it not.
    first, second = map(json.loads, run_twice(tmp_path, PROGRAM, "sharded"))
    assert first["sharded"][1] > 1
    assert second["sharded"][1] == 1
    assert first["sharded"][2] == second["sharded"][2]


@pytest.fixture
def kept() -> Iterator[None]:
    """Put JAX's settings back."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    yield
    gd.config.set_compilation_cache(None)
    for name, value in before.items():
        jax.config.update(name, value)


def test_one_setting_keeps_all_programs(
    tmp_path: Path, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jnp.ones(17).block_until_ready()  # JAX has compiled, and found no folder
    gd.config.set_compilation_cache("compiled")
    assert has_cache()
    monkeypatch.chdir("/")
    gd.function(lambda x: x * 17)(1.0)
    assert list((tmp_path / "compiled").glob("jit_*"))
    gd.config.set_compilation_cache(None)
    assert not has_cache()


def test_a_store_of_a_cloud_stays_as_it_is(kept: None) -> None:
    gd.config.set_compilation_cache("gs://bucket/compiled")
    settings: Any = jax.config
    assert settings.jax_compilation_cache_dir == "gs://bucket/compiled"


@pytest.mark.parametrize("folder", [3, True, ["a"], b"a"])
def test_what_is_no_folder(folder: Any) -> None:
    with pytest.raises(gd.ArgumentError, match=r"the folder is .*, which is no path"):
        gd.config.set_compilation_cache(folder)


def test_a_name_of_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "compiled"
    file.write_text("")
    for folder in ("", file, str(file)):
        with pytest.raises(gd.ArgumentError, match="which is no name of a folder"):
            gd.config.set_compilation_cache(folder)
