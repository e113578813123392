"""How much memory of a host a load takes: a shard at a time, whatever the files have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.processes import ROOT

# Eight layers of 2 GiB in a sparse file; a worker's part of them, 1/64, has 256 MiB.
PROGRAM = """
import resource, sys
import jax, jax.numpy as jnp, numpy as np
import graphdist as gd
from graphdist.runtime.files.foreign_folders import FolderOnDisk
from graphdist.runtime.files.safetensors_export import SafetensorsExport
from graphdist.runtime.spans import Span
from graphdist.train.loading import ShardsOf
from graphdist.train.name_maps import view_of
from pathlib import Path

names = [gd.train.Transposed(f"layers.{i}.weight") for i in range(8)]
dtype, shape = np.dtype("float32"), (2**15, 2**14)
arrays = {each.source: (dtype, shape) for each in names}
path = Path(sys.argv[1])
export = SafetensorsExport(FolderOnDisk(path.parent), path.name, arrays, None)
export.begin()
export.finish()
export.close()
view = view_of(names, gd.train.load(sys.argv[1]))
jax.block_until_ready(jnp.zeros(3))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
span = Span(2, 2**9, 2**10)  # a worker's part of the outputs: 1/64
for _ in range(4):
    shard = ShardsOf(view, span, dtype)[:, :, :]
    assert shard.shape == (8, 2**14, 2**9)
    del shard
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10)
"""


@pytest.mark.long
def test_a_host_holds_one_shard(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert path.stat().st_size > 2**34
    assert float(done.stdout) < 256 * 1.3, "MiB: a shard, and the blocks that it is read in"
